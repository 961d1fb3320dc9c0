package metrics

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is one whose loop is a function: it answers each question at once,
// while it turns.
type program struct {
	mu      sync.Mutex
	stopped bool
	message wire.Message
	asked   int
	waiting []func(wire.Message)
}

func (p *program) ask(f func(wire.Message)) {
	p.mu.Lock()
	p.asked++
	p.waiting = append(p.waiting, f)
	p.mu.Unlock()
	p.turn()
}

func (p *program) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	for _, f := range p.waiting {
		f(p.message)
	}
	p.waiting = nil
}

func (p *program) set(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	p.turn()
}

func serve(t *testing.T, name string, p *program, times *Times) *Server {
	t.Helper()
	s, err := Listen(Config{Addr: "127.0.0.1:0", Program: name, Version: "v1", Ask: p.ask, Times: times})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	return testkit.Get(t, "http://"+s.Addr()+path)
}

func scrape(t *testing.T, s *Server) map[string]*dto.MetricFamily {
	t.Helper()
	code, body := get(t, s, "/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// fill gives each number below v another value, from n on, lists one entry and
// texts a word.
func fill(v reflect.Value, n *int64) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		*n++
		v.SetInt(*n)
	case reflect.String:
		v.SetString("text")
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Type != reflect.TypeFor[wire.Stamp]() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	}
}

func filled[S any]() *S {
	s, n := new(S), int64(100)
	fill(reflect.ValueOf(s).Elem(), &n)
	return s
}

// programs are the three, their Snapshots full of numbers that differ.
func programs() map[string]wire.Message {
	r := filled[wire.Snapshot]()
	r.Refusals = map[string]int64{"queue_full": 7, "expired": 8}
	return map[string]wire.Message{"pd-recv": r, "pd-send": filled[wire.SenderSnapshot](), "pd-proxy": filled[wire.ProxySnapshot]()}
}

// served is what the three programs serve, by name.
func served(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	all := map[string]*dto.MetricFamily{}
	for name, message := range programs() {
		var times *Times
		if name != "pd-proxy" {
			times = NewTimes(name, "batch")
			times.Admitted(time.Millisecond)
			times.Ready(time.Millisecond, time.Millisecond)
		}
		s := serve(t, name, &program{message: message}, times)
		maps.Copy(all, scrape(t, s))
	}
	return all
}

func TestLint(t *testing.T) {
	families := served(t)
	problems, err := promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for name := range families {
		if !strings.HasPrefix(name, "pd_") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s has no prefix of ours", name)
		}
	}
}

// Every counter of a Snapshot is served, as a counter.
func TestEveryCounterIsServed(t *testing.T) {
	messages := programs()
	for name, counters := range map[string]any{
		"pd-recv":  messages["pd-recv"].(*wire.Snapshot).Counters,
		"pd-send":  messages["pd-send"].(*wire.SenderSnapshot).Counters,
		"pd-proxy": messages["pd-proxy"].(*wire.ProxySnapshot).Counters,
	} {
		values := map[float64]bool{}
		for _, f := range scrape(t, serve(t, name, &program{message: messages[name]}, nil)) {
			if f.GetType() == dto.MetricType_COUNTER {
				values[f.Metric[0].Counter.GetValue()] = true
			}
		}
		c := reflect.ValueOf(counters)
		for i := range c.NumField() {
			if !values[float64(c.Field(i).Int())] {
				t.Errorf("%s serves no %s", name, c.Type().Field(i).Name)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	receiver := &program{message: &wire.Snapshot{
		Slots:  wire.SnapshotSlots{Total: 100, Promised: 10, Held: 50, Written: 30, Ready: 12, Quarantined: 3, Free: 37, Bytes: 4096, Peak: 90},
		Queue:  []wire.SnapshotWaiter{{Pos: 1, Need: 9, Lacks: 2, WaitedMS: 1500, AtShare: true}, {Pos: 2, Need: 40, Lacks: 3, WaitedMS: 1400}, {Pos: 3, Need: 1, Lacks: 4, WaitedMS: 900}},
		Totals: wire.SnapshotTotals{Requests: 9, Queue: 3, Senders: 4},
		Requests: []wire.SnapshotRequest{
			{State: "admitted", TotalChunks: 4, Written: 3, IdleMS: 2000}, {State: "allocated", TotalChunks: 4, Written: 3, IdleMS: 1999},
			{State: "allocated", TotalChunks: 4, Written: 4, IdleMS: 9000}, {State: "queued", TotalChunks: 4, IdleMS: 9000}, {State: "ready", TotalChunks: 4, Written: 4, IdleMS: 9000},
		},
		Counters: wire.Counters{Admitted: 5}, Refusals: map[string]int64{"queue_full": 6},
	}}
	sender := &program{message: &wire.SenderSnapshot{
		Staging: wire.Staging{Total: 8, Used: 7, Blocked: []wire.Blocked{{WaitingMS: 10}, {WaitingMS: 2500}}},
		Totals:  wire.SenderTotals{Blocked: 2},
		Receivers: []wire.SenderLink{
			{Endpoint: "tcp://a:1", State: "attached", HeardMS: 40, Bytes: 1}, {Endpoint: "tcp://a:1", State: "connecting", HeardMS: -1, Bytes: 2}, {Endpoint: "ipc:///\xff\n\""},
		},
	}}
	proxy := &program{message: &wire.ProxySnapshot{Pending: 2, Waiting: []wire.ProxyRequest{{AgeMS: 700}, {AgeMS: 5}}}}
	want := map[string]float64{
		`pd_recv_slots{state="free"}`: 37, `pd_recv_slots{state="promised"}`: 10, `pd_recv_slots{state="allocated"}`: 20,
		`pd_recv_slots{state="written"}`: 18, `pd_recv_slots{state="ready"}`: 12, `pd_recv_slots{state="quarantined"}`: 3,
		`pd_recv_queue_requests{}`: 3, `pd_recv_queue_oldest_wait_seconds{}`: 1.5, `pd_recv_queue_first_need_slots{}`: 40, `pd_recv_queue_first_lacks_slots{}`: 3,
		`pd_recv_stalled_requests{}`: 1, `pd_recv_requests_admitted_total{}`: 5,
		`pd_recv_batches_refused_total{code="queue_full"}`: 6, `pd_recv_batches_refused_total{code="internal"}`: 0,
		`pd_send_staging_blocked_batches{}`: 2, `pd_send_staging_blocked_seconds{}`: 2.5,
		`pd_send_receiver_attached{endpoint="tcp://a:1",receiver="0"}`: 1, `pd_send_receiver_attached{endpoint="tcp://a:1",receiver="1"}`: 0,
		`pd_send_receiver_silence_seconds{endpoint="tcp://a:1",receiver="0"}`: .04, `pd_send_receiver_silence_seconds{endpoint="tcp://a:1",receiver="1"}`: -1,
		"pd_send_receiver_sent_bytes_total{endpoint=\"ipc:///\ufffd\n\"\",receiver=\"2\"}": 0,
		`pd_proxy_pending_requests{}`: 2, `pd_proxy_pending_oldest_seconds{}`: .7,
	}
	got := map[string]float64{}
	for name, p := range map[string]*program{"pd-recv": receiver, "pd-send": sender, "pd-proxy": proxy} {
		maps.Copy(got, flat(scrape(t, serve(t, name, p, nil))))
	}
	sum := 0.
	for name, value := range got {
		if strings.HasPrefix(name, "pd_recv_slots{") {
			sum += value
		}
	}
	if sum != 100 {
		t.Errorf("the slots of all states are %v, want 100", sum)
	}
	for name, value := range want {
		if have, ok := got[name]; !ok || have != value {
			t.Errorf("%s is %v (served: %v), want %v", name, have, ok, value)
		}
	}
}

// flat are the gauges and counters, by name and labels.
func flat(families map[string]*dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf(`%s="%s"`, l.GetName(), l.GetValue()))
			}
			slices.Sort(labels)
			out[name+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestTimes(t *testing.T) {
	times := NewTimes("pd-recv", "batch")
	s := serve(t, "pd-recv", &program{message: &wire.Snapshot{}}, times)
	var wait, write, ready float64
	var before map[string]*dto.MetricFamily
	for round := range 3 {
		for i := range 100 {
			d := time.Duration(i*i*i) * time.Millisecond // to 970 s, past the last bucket
			times.Admitted(d)
			times.Ready(2*d, 3*d)
			wait += d.Seconds()
			write += 2 * d.Seconds()
			ready += 3 * d.Seconds()
		}
		now := scrape(t, s)
		for name, sum := range map[string]float64{"admission_wait_seconds": wait, "write_seconds": write, "ready_seconds": ready} {
			h := now["pd_recv_"+name].Metric[0].Histogram
			if math.Abs(h.GetSampleSum()-sum) > 1e-6*sum || h.GetSampleCount() != uint64(100*(round+1)) {
				t.Errorf("%s has %d of sum %v, want %d of %v", name, h.GetSampleCount(), h.GetSampleSum(), 100*(round+1), sum)
			}
			var last uint64
			for i, b := range h.Bucket {
				if b.GetCumulativeCount() < last {
					t.Errorf("%s: bucket %v has fewer than the one before", name, b.GetUpperBound())
				}
				if last = b.GetCumulativeCount(); before != nil && last < before["pd_recv_"+name].Metric[0].Histogram.Bucket[i].GetCumulativeCount() {
					t.Errorf("%s: bucket %v has fewer than before", name, b.GetUpperBound())
				}
			}
			if top := h.Bucket[len(h.Bucket)-1]; last != h.GetSampleCount() || !math.IsInf(top.GetUpperBound(), 1) {
				t.Errorf("%s: the last bucket has %d of %d, up to %v", name, last, h.GetSampleCount(), top.GetUpperBound())
			}
		}
		before = now
	}
}

func TestHealthOfALoopThatStops(t *testing.T) {
	p := &program{message: &wire.ProxySnapshot{}}
	s := serve(t, "pd-proxy", p, nil)
	s.loop.patience = 50 * time.Millisecond
	if code, body := get(t, s, "/healthz"); code != 200 || body != "ok\n" {
		t.Fatalf("%d %s", code, body)
	}
	p.set(func() { p.stopped, p.asked = true, 0 })
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			path := []string{"/healthz", "/metrics"}[i%2]
			if code, body := get(t, s, path); code != 503 || !strings.HasPrefix(body, "the control loop has not answered for 0.") {
				t.Errorf("%s of a stopped loop: %d %s", path, code, body)
			}
		})
	}
	wg.Wait()
	if p.asked != 1 {
		t.Errorf("a stopped loop was asked %d times, want once", p.asked)
	}
	p.set(func() { p.stopped = false })
	if code, body := get(t, s, "/healthz"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := get(t, s, "/metrics"); code != 200 {
		t.Errorf("%d", code)
	}
}

// A receiver that is told to stop is well, and load balancers leave it alone.
func TestHealthWhileDraining(t *testing.T) {
	p := &program{message: &wire.Snapshot{}}
	s := serve(t, "pd-recv", p, nil)
	for _, draining := range []bool{false, true} {
		p.set(func() { p.message = &wire.Snapshot{Draining: draining} })
		wantCode, wantBody, gauge := 200, "ok\n", 0.0
		if draining {
			wantCode, wantBody, gauge = 503, "draining\n", 1
		}
		if code, body := get(t, s, "/healthz"); code != wantCode || body != wantBody {
			t.Errorf("draining is %v: %d %s", draining, code, body)
		}
		if got := flat(scrape(t, s))["pd_recv_draining{}"]; got != gauge {
			t.Errorf("draining is %v: the metric is %v", draining, got)
		}
	}
}

func TestCloseDoesNotWaitForTheLoop(t *testing.T) {
	p := &program{stopped: true}
	s := serve(t, "pd-proxy", p, nil)
	s.loop.patience = time.Minute
	answered := make(chan int, 1)
	go func() {
		code, _ := get(t, s, "/metrics")
		answered <- code
	}()
	for asked := 0; asked == 0; {
		p.set(func() { asked = p.asked })
	}
	s.Close()
	if code := <-answered; code != 503 {
		t.Errorf("what was under way is answered %d", code)
	}
}

func TestWhatIsNotServed(t *testing.T) {
	s := serve(t, "pd-proxy", &program{message: &wire.ProxySnapshot{}}, nil)
	for _, tc := range []struct {
		method, path, header string
		code                 int
	}{
		{"GET", "/metrics", "", 200}, {"HEAD", "/metrics", "", 200}, {"HEAD", "/healthz", "", 200},
		{"POST", "/metrics", "", 405}, {"DELETE", "/healthz", "", 405}, {"GET", "/", "", 404}, {"GET", "/debug/pprof/", "", 404},
		{"GET", "/metrics", strings.Repeat("x", 64<<10), 431},
	} {
		r, err := http.NewRequest(tc.method, "http://"+s.Addr()+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.header != "" {
			r.Header.Set("X", tc.header)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != tc.code {
			t.Errorf("%s %s: %d, want %d", tc.method, tc.path, answer.StatusCode, tc.code)
		}
		if !answer.Close {
			t.Errorf("%s %s: the connection is kept", tc.method, tc.path)
		}
	}
}

// Peers that connect and say nothing, or little, keep nobody waiting until they
// are thrown out.
func TestHalfOpenPeersDelayNobody(t *testing.T) {
	p := &program{message: &wire.ProxySnapshot{}}
	s, err := Listen(Config{Addr: "127.0.0.1:0", Program: "pd-proxy", Ask: p.ask, headerTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for i := range 3 * maxConns {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nX: ") // it may be closed
		}
		if i%maxConns == 0 {
			if code, body := get(t, s, "/healthz"); code != 200 {
				t.Errorf("beside %d: %d %s", i, code, body)
			}
		}
	}
	if code, body := get(t, s, "/metrics"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
}

// Who asked and waits for the answer is not thrown out for those who say nothing.
func TestWhoAskedIsKept(t *testing.T) {
	p := &program{stopped: true, message: &wire.ProxySnapshot{}}
	s := serve(t, "pd-proxy", p, nil)
	s.loop.patience = time.Minute
	answered := make(chan int, 1)
	go func() {
		code, _ := get(t, s, "/healthz")
		answered <- code
	}()
	for asked := 0; asked == 0; {
		p.set(func() { asked = p.asked })
	}
	for range 3 * maxConns {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	p.set(func() { p.stopped = false })
	if code := <-answered; code != 200 {
		t.Errorf("%d", code)
	}
}

// Peers that connect and say little hold few connections, and not for long.
func TestSlowPeers(t *testing.T) {
	s := serve(t, "pd-proxy", &program{message: &wire.ProxySnapshot{}}, nil)
	var slow []net.Conn
	for range 2 * maxConns {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nX: "); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	if files, err := os.ReadDir("/proc/self/fd"); err != nil || len(files) > len(slow)+maxConns+40 {
		t.Errorf("%d files are open (%v)", len(files), err)
	}
	// Each of them drips on: a byte must not buy more time.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(headerTime / 10)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				for _, c := range slow {
					_, _ = io.WriteString(c, "x") // most are closed
				}
			}
		}
	})
	if code, _ := get(t, s, "/healthz"); code != 200 {
		t.Errorf("%d", code)
	}
	close(stop)
	wg.Wait()
	for _, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := bufio.NewReader(c).ReadString(0); err != io.EOF && !strings.Contains(fmt.Sprint(err), syscall.ECONNRESET.Error()) {
			t.Fatalf("a slow peer's connection ends by %v", err)
		}
	}
}
