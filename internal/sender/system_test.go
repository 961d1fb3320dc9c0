package sender

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/manifest"
	recv "github.com/pd-tools/pd-tools/internal/receiver"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// patience bounds every wait for something that must happen.
const patience = 20 * time.Second

var epochs atomic.Uint64

// testFabric is what ofi goes by.
var testFabric = rdma.Fabric{Provider: "tcp;ofi_rxm"}

// testReceiver is a pd-recv in this process, with the real engine.
type testReceiver struct {
	endpoint string
	target   rdma.Target
	stop     context.CancelFunc
	done     chan struct{}

	mu     sync.Mutex
	news   *sync.Cond
	events []map[string]any
}

type receiverOptions struct {
	listen  string
	engines []string // nil: shm
	slots   int
	size    int64
	mode    reservation.Mode
	admit   time.Duration
	lease   time.Duration
	sink    bool
}

func startReceiver(t *testing.T, o receiverOptions) *testReceiver {
	t.Helper()
	if o.size == 0 {
		o.size = 4096
	}
	if o.lease == 0 {
		o.lease = 15 * time.Second
	}
	if o.listen == "" {
		o.listen = "tcp://127.0.0.1:*"
	}
	if o.engines == nil {
		o.engines = []string{"shm"}
	}
	epoch := epochs.Add(1)
	id := fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(t.Name(), "/", "-"), epoch, time.Now().UnixNano())
	tr := &testReceiver{done: make(chan struct{})}
	tr.news = sync.NewCond(&tr.mu)
	r, err := recv.New(recv.Config{
		Listen: o.listen,
		ID:     id,
		OpenTarget: func() (_ rdma.Target, err error) {
			tr.target, err = engines.Open(engines.Config{
				ReceiverID: id, Slots: o.slots, SlotSize: o.size, Engines: o.engines,
				Fabric: rdma.Fabric{Provider: testFabric.Provider, Addr: "127.0.0.1"},
			})
			return tr.target, err
		},
		Reservation: reservation.Config{
			Slots: o.slots, SlotBytes: o.size, Epoch: epoch, Mode: o.mode,
			AdmitTimeout: o.admit, Lease: o.lease, MaxGap: recv.MaxGap,
		},
		Sink:            o.sink,
		ShutdownTimeout: time.Second,
		Events:          tr.collect,
		Warn:            func(string, string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.endpoint = r.Endpoint()
	ctx, cancel := context.WithCancel(context.Background())
	tr.stop = cancel
	go func() {
		defer close(tr.done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(tr.end)
	return tr
}

func (r *testReceiver) end() {
	r.stop()
	<-r.done
}

func (r *testReceiver) collect(lines []byte, _ int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(string(lines)) {
		var ev map[string]any
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			panic(err)
		}
		r.events = append(r.events, ev)
	}
	r.news.Broadcast()
}

// holds checks that a ready request's chunks have the bytes of their pattern.
func (r *testReceiver) holds(t *testing.T, reqID string, chunks int) {
	t.Helper()
	c, err := client.Dial(r.endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	taken, err := c.Take(t.Context(), reqID)
	if err != nil || len(taken.Chunks) != chunks {
		t.Fatalf("take of %s: %v, %+v", reqID, err, taken)
	}
	for _, ch := range taken.Chunks {
		want := make([]byte, ch.Length)
		manifest.Pattern(want, ch.Key)
		if !bytes.Equal(r.target.Slot(int(ch.Slot))[:ch.Length], want) {
			t.Errorf("chunk %s is not what was sent", ch.Key)
		}
	}
	if err := c.Release(t.Context(), reqID); err != nil {
		t.Error(err)
	}
}

// event waits for an event of a request.
func (r *testReceiver) event(t *testing.T, kind, reqID string) map[string]any {
	t.Helper()
	var found map[string]any
	came := testkit.Until(r.news, patience, func() bool {
		for _, ev := range r.events {
			if ev["event"] == kind && ev["req_id"] == reqID {
				found = ev
				return true
			}
		}
		return false
	})
	if !came {
		t.Fatalf("no event %s of %s", kind, reqID)
	}
	return found
}

// sending is a Run under way.
type sending struct {
	t       *testing.T
	stop    context.CancelCauseFunc
	done    chan struct{}
	summary Summary

	mu      sync.Mutex
	news    *sync.Cond
	results map[string]*Result
	notes   []string
	engines []string // notes of that kind
}

// send starts a Run; what cfg leaves out gets a default.
func send(t *testing.T, cfg Config) *sending {
	t.Helper()
	s := &sending{t: t, done: make(chan struct{}), results: make(map[string]*Result)}
	s.news = sync.NewCond(&s.mu)
	if cfg.Files == nil {
		cfg.Files = []string{Stdin}
	}
	if cfg.Engines == nil {
		cfg.Engines = engines.Names()
	}
	if cfg.Fabric == (rdma.Fabric{}) {
		cfg.Fabric = testFabric
	}
	if cfg.Batch == 0 {
		cfg.Batch = 8
	}
	if cfg.Staging == 0 {
		cfg.Staging = 1 << 20
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
	cfg.ShutdownTimeout = 5 * time.Second
	cfg.Result = func(r *Result) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.results[r.ReqID] != nil {
			t.Errorf("request %s ended twice", r.ReqID)
		}
		s.results[r.ReqID] = r
		s.news.Broadcast()
	}
	cfg.Note = func(kind Kind, text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if kind == OfEngine {
			s.engines = append(s.engines, text)
			return
		}
		s.notes = append(s.notes, text)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.stop = cancel
	go func() {
		defer close(s.done)
		var err error
		if s.summary, err = Run(ctx, cfg); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel(context.Canceled)
		<-s.done
	})
	return s
}

// result waits for the end of a request.
func (s *sending) result(reqID string) *Result {
	s.t.Helper()
	var found *Result
	ended := testkit.Until(s.news, patience, func() bool {
		found = s.results[reqID]
		return found != nil
	})
	if !ended {
		s.t.Fatalf("request %s has not ended", reqID)
	}
	return found
}

// wait waits for the end of the run.
func (s *sending) wait() Summary {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatal("the run has not ended")
	}
	return s.summary
}

// manifestLine is a line of a manifest: chunks first to last of total.
func manifestLine(id string, total, first, last int, length int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"req_id":%q,"total_chunks":%d,"chunks":[`, id, total)
	for i := first; i <= last; i++ {
		if i > first {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"key":"%s-%d","length":%d}`, id, i, length)
	}
	fmt.Fprintf(&b, `],"last":%v}`+"\n", last == total-1)
	return b.String()
}

func TestTwoInterleavedRequestsBothReady(t *testing.T) {
	r := startReceiver(t, receiverOptions{slots: 10, sink: true})
	text := manifestLine("A", 8, 0, 3, 4096) + manifestLine("B", 8, 0, 3, 4096) +
		manifestLine("A", 8, 4, 7, 4096) + manifestLine("B", 8, 4, 7, 100)
	s := send(t, Config{Receivers: []string{r.endpoint}, Stdin: strings.NewReader(text)})
	sum := s.wait()
	if sum.Ready != 2 || sum.SentChunks != 16 || sum.SentBytes != 12*4096+4*100 || !sum.Clean() {
		t.Fatalf("%+v, notes %q", sum, s.notes)
	}
}

// pipe is a manifest that is written as the test goes on.
type pipe struct {
	t *testing.T
	r *io.PipeReader
	w *io.PipeWriter
}

func newPipe(t *testing.T) *pipe {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return &pipe{t, r, w}
}

func (p *pipe) write(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.w, text); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pipe) close() { p.w.Close() }
