package sender

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// fakeProxy is a PULL that remembers what it was told.
type fakeProxy struct {
	t        *testing.T
	endpoint string
	mu       sync.Mutex
	news     *sync.Cond
	got      []string // "ready A", "failed B: why"
}

func startProxy(t *testing.T) *fakeProxy {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket, endpoint, err := ctx.Listen(zmq4.PULL, "tcp://127.0.0.1:*", sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	poller := testkit.Poller(t, socket, zmq4.POLLIN)
	p := &fakeProxy{t: t, endpoint: endpoint}
	p.news = sync.NewCond(&p.mu)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer socket.Close()
		for {
			poller.Wait(-1)
			p.read(socket)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		poller.Wake()
		<-done
		ctx.Close()
	})
	return p
}

func (p *fakeProxy) read(socket *zmq4.Socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.news.Broadcast()
	for {
		frames, err := sock.Recv(socket, 4)
		if err != nil {
			return
		}
		msg, err := wire.Decode(frames[0])
		switch msg := msg.(type) {
		case *wire.ProxyNotif:
			p.got = append(p.got, "ready "+msg.ReqID)
		case *wire.FailNotif:
			p.got = append(p.got, "failed "+msg.ReqID+": "+msg.Reason)
		default:
			p.t.Errorf("proxy got %v, %v", frames, err)
		}
	}
}

// wait waits for a notice that begins so.
func (p *fakeProxy) wait(prefix string) {
	p.t.Helper()
	told := func() bool {
		return slices.ContainsFunc(p.got, func(s string) bool { return strings.HasPrefix(s, prefix) })
	}
	if !testkit.Until(p.news, patience, told) {
		p.t.Fatalf("proxy was not told %q but %q", prefix, p.notices())
	}
}

func (p *fakeProxy) notices() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func cancelLine(id string) string { return fmt.Sprintf(`{"cancel":%q}`, id) + "\n" }

// Contract §6: ProxyNotif goes out only when all chunks are written and
// committed and the last batch is done, whatever the order.
func TestProxyIsToldOnceAllIsCommitted(t *testing.T) {
	f, p := startFake(t), startProxy(t)
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		c, ok := m.msg.(*wire.CommitRequest)
		return nil, ok && c.ReqID == "A"
	})
	cfg := f.config()
	cfg.Proxy = p.endpoint
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	in.write(manifestLine("A", 2, 0, 0, 100))
	first := f.wait("commit", 1, is[*wire.CommitRequest])
	in.write(manifestLine("A", 2, 1, 1, 100))
	last := f.wait("second commit", 2, is[*wire.CommitRequest])
	f.reply(last, &wire.CommitResponse{})
	in.write(manifestLine("B", 1, 0, 0, 100))
	p.wait("ready B")
	if got := p.notices(); len(got) != 1 {
		t.Fatalf("A's first batch is not committed, and the proxy was told %q", got)
	}
	f.reply(first, &wire.CommitResponse{Ready: true})
	wantResult(t, s.result("A"), Ready, "")
	in.close()
	s.wait()
	p.wait("ready A")
	if got := p.notices(); !slices.Equal(got, []string{"ready B", "ready A"}) {
		t.Errorf("proxy was told %q", got)
	}
}

// lmcache_peer.md, rows 5 and 13; F6: what is cancelled or failed stays so, and
// the proxy hears of it at once.
func TestCancelInEveryState(t *testing.T) {
	alloc := func(m wire.Message) bool { return is[*wire.AllocRequest](m) }
	for _, tt := range []struct {
		name string
		hold func(wire.Message) bool // is not answered
		at   func(wire.Message) bool // when this came, it is cancelled
		told bool                    // the receiver is
	}{
		{name: "not attached", hold: func(wire.Message) bool { return true }, at: is[*wire.AttachRequest]},
		{name: "waiting for admission", hold: alloc, at: alloc, told: true},
		{name: "waiting for lines", at: is[*wire.CommitRequest], told: true},
		{name: "commit under way", hold: is[*wire.CommitRequest], at: is[*wire.CommitRequest], told: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, p := startFake(t), startProxy(t)
			f.instead(func(m fakeMessage) (wire.Message, bool) { return nil, tt.hold != nil && tt.hold(m.msg) })
			cfg := f.config()
			cfg.Proxy = p.endpoint
			in := newPipe(t)
			cfg.Stdin = in.r
			s := send(t, cfg)
			in.write(manifestLine("A", 3, 0, 1, 100))
			held := f.wait("message", 1, tt.at)
			in.write(cancelLine("A") + manifestLine("A", 3, 2, 2, 100) + cancelLine("A"))
			wantResult(t, s.result("A"), Cancelled, "")
			p.wait("failed A: cancelled")
			if tt.told {
				f.wait("CancelNotif", 1, is[*wire.CancelNotif])
			}
			f.reply(held, f.usual(held)) // too late
			in.write(manifestLine("A", 3, 0, 2, 100))
			in.close()
			if sum := s.wait(); sum.Cancelled != 1 || !sum.Clean() {
				t.Errorf("%+v", sum)
			}
			if got := p.notices(); len(got) != 1 {
				t.Errorf("proxy was told %q", got)
			}
			if len(s.notes) > 0 {
				t.Errorf("people are told %q", s.notes)
			}
			if n := f.count(is[*wire.CancelNotif]); n > 1 || n == 1 != tt.told {
				t.Errorf("the receiver got %d cancels", n)
			}
		})
	}
}

func TestCancelWhileTheProxyIsAbsent(t *testing.T) {
	f := startFake(t)
	cfg := f.config()
	cfg.Proxy = "tcp://127.0.0.1:9"
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	in.write(manifestLine("A", 1, 0, 0, 100))
	f.wait("commit", 1, is[*wire.CommitRequest])
	in.write(manifestLine("B", 2, 0, 0, 100)) // behind A's answer
	f.wait("second commit", 2, is[*wire.CommitRequest])
	in.write(cancelLine("A"))
	wantResult(t, s.result("A"), Cancelled, "")
	f.wait("CancelNotif", 1, is[*wire.CancelNotif])
	s.stop(errors.New("enough"))
	wantResult(t, s.result("B"), Cancelled, "", "enough")
	s.wait()
}

// Contract §6: a notification that cannot be delivered fails its request and
// cancels it.
func TestProxyThatIsAbsentFailsTheRequest(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 4})
	s := send(t, Config{Receivers: []string{r.endpoint}, Proxy: "tcp://127.0.0.1:9", Timeout: short, Stdin: oneRequest()})
	wantResult(t, s.result("A"), Failed, codeNotify, "tcp://127.0.0.1:9", short.String())
	r.event(t, "cancelled", "A")
	if sum := s.wait(); sum.Failed != 1 || sum.Undelivered != 1 {
		t.Errorf("%+v", sum)
	}
}

func TestNotifyReadyNeverSendsFailNotif(t *testing.T) {
	f, p := startFake(t), startProxy(t)
	cfg := f.config()
	cfg.Proxy, cfg.OnlyReady = p.endpoint, true
	cfg.Stdin = strings.NewReader(manifestLine("A", 2, 0, 0, 100) + cancelLine("A") + manifestLine("B", 1, 0, 0, 100))
	s := send(t, cfg)
	wantResult(t, s.result("A"), Cancelled, "")
	s.wait()
	p.wait("ready B")
	if got := p.notices(); !slices.Equal(got, []string{"ready B"}) {
		t.Errorf("proxy was told %q", got)
	}
}

// The proxy knows nothing but req_ids: a FailNotif would fail the other
// sender's request.
func TestProxyIsNotToldOfADuplicate(t *testing.T) {
	r, p := startReceiver(t, receiverOptions{slots: 4}), startProxy(t)
	in := newPipe(t)
	first := send(t, Config{Receivers: []string{r.endpoint}, Proxy: p.endpoint, Stdin: in.r})
	in.write(manifestLine("A", 2, 0, 0, 100))
	r.event(t, "admitted", "A")
	second := send(t, Config{Receivers: []string{r.endpoint}, Proxy: p.endpoint, Stdin: oneRequest()})
	wantResult(t, second.result("A"), Failed, wire.CodeDuplicateRequest)
	second.wait()
	in.write(manifestLine("A", 2, 1, 1, 100))
	wantResult(t, first.result("A"), Ready, "")
	in.close()
	first.wait()
	p.wait("ready A")
	if got := p.notices(); !slices.Equal(got, []string{"ready A"}) {
		t.Errorf("proxy was told %q", got)
	}
}

func TestRequestWithoutChunks(t *testing.T) {
	p := startProxy(t)
	s := send(t, Config{
		Receivers: []string{"tcp://127.0.0.1:9"}, Proxy: p.endpoint,
		Stdin: strings.NewReader(`{"req_id":"Z","total_chunks":0,"chunks":[],"last":true}`),
	})
	wantResult(t, s.result("Z"), Ready, "")
	p.wait("ready Z")
	s.wait()
}

// Contract §6: a bad line fails its request, and the rest goes on.
func TestFaultsOfTheInput(t *testing.T) {
	dir := t.TempDir()
	shortFile := filepath.Join(dir, "short.bin")
	if err := os.WriteFile(shortFile, make([]byte, 50), 0o600); err != nil {
		t.Fatal(err)
	}
	chunk := func(more string) string {
		return fmt.Sprintf(`{"req_id":"A","total_chunks":1,"chunks":[{"key":"k",%s}],"last":true}`, more)
	}
	for _, tt := range []struct {
		name, text string
		code       wire.Code
		words      []string
	}{
		{"line with an unknown field", `{"req_id":"A","total_chunks":1,"chunk":[]}`, codeManifest, []string{"stdin:1", "chunk"}},
		{"no total", `{"req_id":"A","chunks":[]}`, codeManifest, []string{"stdin:1", "total_chunks"}},
		{"last too early", manifestLine("A", 3, 0, 0, 100) + `{"req_id":"A","total_chunks":3,"chunks":[],"last":true}`, codeManifest, []string{"stdin:2", "1 of 3"}},
		{"more chunks than declared", manifestLine("A", 2, 0, 0, 100) + manifestLine("A", 2, 0, 1, 100), codeManifest, []string{"stdin:2"}},
		{"another total", manifestLine("A", 2, 0, 0, 100) + manifestLine("A", 3, 1, 1, 100), codeManifest, []string{"stdin:2", "3", "2"}},
		{"receiver that there is not", `{"req_id":"A","total_chunks":1,"chunks":[],"to":1}`, codeManifest, []string{"stdin:1", "to is 1"}},
		{"file that is too short", chunk(fmt.Sprintf(`"file":%q,"offset":10,"length":100`, shortFile)), codeSource, []string{"short.bin", "50", "100", "10"}},
		{"file that is not there", chunk(`"file":"nowhere.bin","offset":0,"length":100`), codeSource, []string{"nowhere.bin"}},
		{"chunk larger than a slot", chunk(`"length":5000`), wire.CodeBadRequest, []string{"5000", "4096"}},
		{"request larger than the buffer", manifestLine("A", 11, 0, 10, 100), wire.CodeTooLarge, []string{"11", "10"}},
		{"input that ends early", manifestLine("A", 2, 0, 0, 100), codeUnfinished, []string{"input ended"}},
		{"line that ends early", manifestLine("A", 2, 0, 0, 100) + manifestLine("A", 2, 1, 1, 100)[:50], codeManifest, []string{"stdin:2", "middle of a record"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, p := startReceiver(t, receiverOptions{slots: 10, sink: true}), startProxy(t)
			text := manifestLine("B", 2, 0, 1, 100)
			if strings.HasPrefix(tt.words[0], "stdin:") {
				text = "" // B would move the line numbers
			}
			s := send(t, Config{Receivers: []string{r.endpoint}, Proxy: p.endpoint, Stdin: strings.NewReader(text + tt.text + "\n\n# comment\n" + manifestLine("C", 2, 0, 1, 100))})
			wantResult(t, s.result("A"), Failed, tt.code, tt.words...)
			wantResult(t, s.result("C"), Ready, "")
			p.wait("failed A: ")
			if sum := s.wait(); sum.Failed != 1 || sum.Faults != 0 {
				t.Errorf("%+v", sum)
			}
			if len(s.notes) == 0 || !strings.Contains(s.notes[0], tt.words[0]) {
				t.Errorf("people are told %q", s.notes)
			}
		})
	}
}

func TestFaultsThatNameNoRequest(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 4, sink: true})
	text := "what?\n" + manifestLine("A", 1, 0, 0, 100) + "[]\n" + cancelLine("nobody")
	s := send(t, Config{Receivers: []string{r.endpoint}, Stdin: strings.NewReader(text)})
	wantResult(t, s.result("A"), Ready, "")
	if sum := s.wait(); sum.Faults != 2 || sum.Clean() {
		t.Errorf("%+v", sum)
	}
	if len(s.notes) != 3 {
		t.Errorf("people are told %q", s.notes)
	}
}

func TestFilesOfWhichOneIsMissing(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 4, sink: true})
	dir := t.TempDir()
	for _, id := range []string{"A", "B"} {
		if err := os.WriteFile(filepath.Join(dir, id), []byte(manifestLine(id, 1, 0, 0, 100)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := send(t, Config{Receivers: []string{r.endpoint}, Files: []string{filepath.Join(dir, "A"), filepath.Join(dir, "none"), filepath.Join(dir, "B")}})
	wantResult(t, s.result("A"), Ready, "")
	wantResult(t, s.result("B"), Ready, "")
	if sum := s.wait(); sum.Faults != 1 {
		t.Errorf("%+v, %q", sum, s.notes)
	}
}

func TestSharedChunksAreNotSentAgain(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 8})
	line := func(id, key string) string {
		return fmt.Sprintf(`{"req_id":%q,"total_chunks":2,"chunks":[{"key":"common","length":100},{"key":%q,"length":100}],"last":true}`, id, key) + "\n"
	}
	in := newPipe(t)
	s := send(t, Config{Receivers: []string{r.endpoint}, Stdin: in.r})
	in.write(line("A", "a"))
	wantResult(t, s.result("A"), Ready, "")
	in.write(line("B", "b") + line("C", "common2"))
	for _, id := range []string{"B", "C"} {
		if res := s.result(id); res.Status != Ready || res.Sent != 1 || res.Shared != 1 || res.Bytes != 100 {
			t.Errorf("%+v", *res)
		}
	}
	in.write(`{"req_id":"D","total_chunks":2,"chunks":[{"key":"common","length":100},{"key":"a","length":100}],"last":true}` + "\n")
	if res := s.result("D"); res.Status != Ready || res.Sent != 0 || res.Shared != 2 {
		t.Errorf("nothing is left to send: %+v", *res)
	}
	in.close()
	s.wait()
}

// A batch needs not all its staging at once.
func TestBatchLargerThanStaging(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 64, sink: true})
	s := send(t, Config{Receivers: []string{r.endpoint}, Staging: 2 * 4096, Batch: 64, Stdin: strings.NewReader(manifestLine("A", 64, 0, 63, 4096))})
	if res := s.result("A"); res.Status != Ready || res.Sent != 64 {
		t.Errorf("%+v", *res)
	}
	s.wait()
}

// Contract §5.6, lmcache_peer.md row 3: who waits for a full receiver holds no
// staging.
func TestStagingOnlyForWhatIsAllocated(t *testing.T) {
	full, idle := startReceiver(t, receiverOptions{slots: 2}), startReceiver(t, receiverOptions{slots: 2, sink: true})
	in := newPipe(t)
	s := send(t, Config{Receivers: []string{full.endpoint, idle.endpoint}, Staging: 2 * 4096, Stdin: in.r})
	to := func(line string, i int) string {
		return strings.Replace(line, "}\n", fmt.Sprintf(`,"to":%d}`, i)+"\n", 1)
	}
	in.write(to(manifestLine("A", 2, 0, 1, 100), 0))
	wantResult(t, s.result("A"), Ready, "")
	in.write(to(manifestLine("B", 2, 0, 1, 100), 0))
	full.event(t, "queued", "B")
	in.write(to(manifestLine("C", 2, 0, 1, 100), 1))
	wantResult(t, s.result("C"), Ready, "")
	in.write(cancelLine("B"))
	wantResult(t, s.result("B"), Cancelled, "")
	full.event(t, "cancelled", "B")
	in.close()
	s.wait()
}

func TestPaceObeysAt(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 4, sink: true})
	text := strings.Replace(manifestLine("A", 1, 0, 0, 100), "}\n", `,"at":10}`+"\n", 1)
	start := time.Now()
	s := send(t, Config{Receivers: []string{r.endpoint}, Pace: 100, Stdin: strings.NewReader(text)})
	wantResult(t, s.result("A"), Ready, "")
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("a line due after 10 s, 100 times as fast, was sent after %v", took)
	}
	s.wait()
}

func TestRequestsGoRound(t *testing.T) {
	a, b := startReceiver(t, receiverOptions{slots: 4, sink: true}), startReceiver(t, receiverOptions{slots: 4, sink: true})
	var text strings.Builder
	for _, id := range []string{"0", "1", "2", "3"} {
		text.WriteString(manifestLine(id, 1, 0, 0, 100))
	}
	s := send(t, Config{Receivers: []string{a.endpoint, b.endpoint}, Stdin: strings.NewReader(text.String())})
	s.wait()
	a.event(t, "released", "0")
	b.event(t, "released", "1")
	a.event(t, "released", "2")
	b.event(t, "released", "3")
}
