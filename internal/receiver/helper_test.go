package receiver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	testSlot   = 64 // bytes of a slot
	testEngine = "fake"

	otherEngine, brokenEngine = "other", "broken" // offered by some tests

	soon = 60 * time.Second // for what must happen and takes milliseconds
)

// fakeTarget is an engine whose every answer the test decides.
type fakeTarget struct {
	engines []string // offered

	mu        sync.Mutex
	granted   map[rdma.Writer]string              // by which engine
	doors     []string                            // what was opened and shut, in order
	open      func(w rdma.Writer, slot int) error // nil: succeeds
	access    bool                                // Open returns something
	connected map[rdma.Writer]bool
	withdrawn []rdma.Writer
	regions   []rdma.Region
	gone      chan rdma.Writer
	closed    bool
	revoke    func(slots []int) error // nil: succeeds
}

var _ rdma.Target = (*fakeTarget)(nil)

func newFakeTarget() *fakeTarget {
	return &fakeTarget{
		engines:   []string{testEngine},
		granted:   make(map[rdma.Writer]string),
		connected: make(map[rdma.Writer]bool),
		regions:   []rdma.Region{{ID: 0, Desc: []byte("region 0")}},
		gone:      make(chan rdma.Writer, 16),
	}
}

func (f *fakeTarget) Engines() []string { return f.engines }

func (f *fakeTarget) Regions(engine string) []rdma.Region {
	f.mu.Lock()
	defer f.mu.Unlock()
	regions := append([]rdma.Region(nil), f.regions...)
	for i := range regions {
		regions[i].Desc = fmt.Appendf(nil, "%s by %s", regions[i].Desc, engine)
	}
	return regions
}

func (f *fakeTarget) Grant(w rdma.Writer, engine string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if engine == brokenEngine {
		return nil, errors.New("it is broken")
	}
	f.granted[w] = engine
	return fmt.Appendf(nil, "writer %d", w), nil
}
func (f *fakeTarget) GrantRead() ([]byte, error) { return []byte("reader"), nil }

func (f *fakeTarget) Withdraw(w rdma.Writer) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withdrawn = append(f.withdrawn, w)
	return f.connected[w]
}

func (f *fakeTarget) connect(w rdma.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connected[w] = true
}

func (f *fakeTarget) disconnect(w rdma.Writer) {
	f.mu.Lock()
	f.connected[w] = false
	f.mu.Unlock()
	f.gone <- w
}

func (f *fakeTarget) Gone() <-chan rdma.Writer { return f.gone }

func (f *fakeTarget) Open(w rdma.Writer, slot int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != nil {
		if err := f.open(w, slot); err != nil {
			f.doors = append(f.doors, fmt.Sprintf("%d not to %d", slot, w))
			return nil, err
		}
	}
	f.doors = append(f.doors, fmt.Sprintf("%d to %d", slot, w))
	if !f.access {
		return nil, nil
	}
	return fmt.Appendf(nil, "%d for %d", slot, w), nil
}

func (f *fakeTarget) Shut(slot int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doors = append(f.doors, fmt.Sprintf("%d shut", slot))
}

// setOpen decides what becomes of the slots opened from now on.
func (f *fakeTarget) setOpen(open func(w rdma.Writer, slot int) error) {
	f.set(func(f *fakeTarget) { f.open = open })
}

// set changes or looks at it while nobody else does.
func (f *fakeTarget) set(do func(*fakeTarget)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f)
}

// saw takes out what was opened and shut since it was asked last.
func (f *fakeTarget) saw() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	doors := strings.Join(f.doors, ", ")
	f.doors = nil
	return doors
}

func (f *fakeTarget) Revoke(slots []int) (int, error) {
	if f.revoke != nil {
		if err := f.revoke(slots); err != nil {
			return 0, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := len(f.regions)
	f.regions = append(f.regions, rdma.Region{ID: id, Desc: fmt.Appendf(nil, "region %d", id)})
	return id, nil
}

func (f *fakeTarget) Slot(int) []byte { return nil }

func (f *fakeTarget) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.gone)
	}
	return nil
}

// running is a receiver under test.
type running struct {
	*Receiver
	t      *testing.T
	target *fakeTarget
	stop   context.CancelFunc
	ended  chan error

	mu     sync.Mutex
	lines  []string
	warned []string
	news   chan struct{} // has an element when lines or warned grew
}

// start runs a receiver with ten slots and no time-outs; change may alter that.
func start(t *testing.T, change func(*Config)) *running {
	t.Helper()
	r := &running{t: t, target: newFakeTarget(), ended: make(chan error, 1), news: make(chan struct{}, 1)}
	cfg := Config{
		Listen: "tcp://127.0.0.1:*",
		ID:     "test",
		Reservation: reservation.Config{
			Slots: 10, SlotBytes: testSlot, Epoch: 77, MaxGap: MaxGap, Lease: time.Hour,
		},
		OpenTarget:      func() (rdma.Target, error) { return r.target, nil },
		ShutdownTimeout: time.Second,
		Events: func(lines []byte, n int) {
			if got := bytes.Count(lines, []byte("\n")); got != n {
				t.Errorf("%d lines said to be %d", got, n)
			}
			r.add(&r.lines, bytes.SplitAfter(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n"))...)
		},
		Warn: func(kind, text string) { r.add(&r.warned, []byte(kind+": "+text)) },
	}
	if change != nil {
		change(&cfg)
	}
	receiver, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Receiver = receiver
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.ended <- receiver.Run(ctx) }()
	t.Cleanup(func() { r.end() })
	return r
}

// end stops the receiver and waits until it has ended.
func (r *running) end() {
	r.stop()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
		r.ended <- nil
	case <-time.After(2 * soon):
		r.t.Fatal("receiver does not end")
	}
}

// said is how many warnings begin with a text.
func (r *running) said(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.warned {
		if strings.HasPrefix(w, text) {
			n++
		}
	}
	return n
}

func (r *running) add(to *[]string, lines ...[]byte) {
	r.mu.Lock()
	for _, l := range lines {
		*to = append(*to, string(l))
	}
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

type event struct {
	Event       string  `json:"event"`
	Time        string  `json:"time"`
	ReqID       string  `json:"req_id"`
	Sender      string  `json:"sender"`
	Chunks      int     `json:"chunks"`
	TotalChunks uint64  `json:"total_chunks"`
	Bytes       int64   `json:"bytes"`
	WaitedMS    float64 `json:"waited_ms"`
	Code        string  `json:"code"`
	Reason      string  `json:"reason"`
	Free        int     `json:"free"`
}

// event waits for one event of a request.
func (r *running) event(kind, reqID string) event {
	r.t.Helper()
	deadline := time.After(soon)
	for seen := 0; ; {
		r.mu.Lock()
		lines := r.lines[seen:]
		seen += len(lines)
		r.mu.Unlock()
		for _, l := range lines {
			var e event
			if err := json.Unmarshal([]byte(l), &e); err != nil {
				r.t.Fatalf("event line %q: %v", l, err)
			}
			if e.Event == kind && e.ReqID == reqID {
				return e
			}
		}
		select {
		case <-r.news:
		case <-deadline:
			r.t.Fatalf("no %s of %s; its events: %q", kind, reqID, r.events(reqID))
		}
	}
}

// events are the kinds of a request's events so far.
func (r *running) events(reqID string) (kinds []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		var e event
		if json.Unmarshal([]byte(l), &e) == nil && e.ReqID == reqID {
			kinds = append(kinds, e.Event)
		}
	}
	return kinds
}

func (r *running) dial(o peertest.Options) *peer {
	r.t.Helper()
	p, err := peertest.Dial(r.Endpoint(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	one := &peer{Peer: p, t: r.t}
	r.t.Cleanup(one.kill)
	return one
}

// stat asks for Snapshots until one is as it should be.
func (r *running) stat(what string, want func(s *wire.Snapshot) bool) *wire.Snapshot {
	r.t.Helper()
	p := r.dial(peertest.Options{})
	defer p.kill()
	for deadline := time.Now().Add(soon); ; {
		s := call[*wire.Snapshot](p, &wire.StatRequest{})
		if want(s) {
			return s
		}
		if time.Now().After(deadline) {
			b, _ := json.Marshal(s)
			r.t.Fatalf("no snapshot with %s; the last: %s", what, b)
		}
	}
}

func (r *running) free(n int) *wire.Snapshot {
	r.t.Helper()
	return r.stat(fmt.Sprintf("%d free", n), func(s *wire.Snapshot) bool { return s.Slots.Free == n })
}

// peer is a Peer whose errors end the test.
type peer struct {
	*peertest.Peer
	t    *testing.T
	gone bool
}

func (p *peer) kill() {
	if !p.gone {
		p.gone = true
		p.Kill()
	}
}

func call[T wire.Message](p *peer, m wire.Message) T {
	p.t.Helper()
	answer, err := p.Call(m)
	return as[T](p, answer, err)
}

func as[T wire.Message](p *peer, answer wire.Message, err error) T {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	got, ok := answer.(T)
	if !ok {
		p.t.Fatalf("answer is %T %+v, want %T", answer, answer, got)
	}
	return got
}

func (p *peer) attach(name string) *wire.AttachResponse {
	p.t.Helper()
	return p.attachBy(name, testEngine)
}

func (p *peer) attachBy(name string, engines ...string) *wire.AttachResponse {
	p.t.Helper()
	resp, err := p.Attach(name, engines...)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp
}

// alloc asks and waits for the answer.
func (p *peer) alloc(reqID string, total int64, last bool, keys ...string) *wire.AllocResponse {
	p.t.Helper()
	return call[*wire.AllocResponse](p, peertest.Alloc(reqID, total, last, testSlot, keys...))
}

// ask asks and does not wait; wait does.
func (p *peer) ask(m wire.Message) uint64 {
	p.t.Helper()
	corr, err := p.Send(m)
	if err != nil {
		p.t.Fatal(err)
	}
	return corr
}

func (p *peer) wait(corr uint64) *wire.AllocResponse {
	p.t.Helper()
	m, err := p.Wait(corr, soon)
	return as[*wire.AllocResponse](p, m, err)
}

// commit says that slots are written and fails the test when that is refused.
func (p *peer) commit(reqID string, slots ...int64) *wire.CommitResponse {
	p.t.Helper()
	req := &wire.CommitRequest{ReqID: reqID, Slots: slots, Epoch: 77}
	for range slots {
		req.Lengths = append(req.Lengths, testSlot)
		req.CRCs = append(req.CRCs, 0)
	}
	resp := call[*wire.CommitResponse](p, req)
	if resp.Code != "" {
		p.t.Fatalf("commit refused: %s: %s", resp.Code, resp.Error)
	}
	return resp
}

// silent reports whether nothing comes for a moment in which the receiver
// answers somebody else.
func (p *peer) nothing(r *running) {
	p.t.Helper()
	r.stat("anything", func(*wire.Snapshot) bool { return true })
	if _, _, err := p.Recv(20 * time.Millisecond); !errors.Is(err, peertest.ErrTimeout) {
		p.t.Fatalf("an answer came, or an error: %v", err)
	}
}

func keys(prefix string, from, n int) (ks []string) {
	for i := range n {
		ks = append(ks, fmt.Sprintf("%s-%d", prefix, from+i))
	}
	return ks
}

func wantCode(t *testing.T, resp *wire.AllocResponse, code wire.Code, keys int) {
	t.Helper()
	ok := resp.Code == code && resp.Error != "" && len(resp.RemoteIndexes) == keys
	for _, i := range resp.RemoteIndexes {
		ok = ok && i == -1
	}
	if !ok {
		t.Fatalf("answer %+v, want %d times -1 and code %s with a reason", resp, keys, code)
	}
}

func wantSlots(t *testing.T, resp *wire.AllocResponse, n int) []int64 {
	t.Helper()
	if resp.Code != "" || len(resp.RemoteIndexes) != n {
		t.Fatalf("answer %+v, want %d slots", resp, n)
	}
	return resp.RemoteIndexes
}
