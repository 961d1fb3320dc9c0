package sender

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// fakeReceiver is a ROUTER whose every answer the test decides. Its memory is a
// fakeRemote.
type fakeReceiver struct {
	t        *testing.T
	endpoint string
	remote   *fakeRemote
	poller   *sock.Poller
	ended    chan struct{}

	mu     sync.Mutex
	news   *sync.Cond
	closed bool
	got    []fakeMessage
	to     []fakeMessage // to be sent
	// answer is asked for the answer to a message; nil is none for now. It is
	// called with mu locked.
	answer func(m fakeMessage) wire.Message
}

type fakeMessage struct {
	from string // identity
	id   string // correlation, or the mark of one that came in one frame
	msg  wire.Message
}

const fakeSlots, fakeSlot, fakeEpoch = 10, 4096, 7

func startFake(t *testing.T) *fakeReceiver {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket, endpoint, err := ctx.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", sock.Options{Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeReceiver{t: t, endpoint: endpoint, remote: newFakeRemote(), poller: testkit.Poller(t, socket, zmq4.POLLIN), ended: make(chan struct{})}
	f.news = sync.NewCond(&f.mu)
	f.answer = f.usual
	go f.run(socket)
	t.Cleanup(func() {
		f.mu.Lock()
		f.closed = true
		f.mu.Unlock()
		f.poller.Wake()
		<-f.ended
		ctx.Close()
	})
	return f
}

func (f *fakeReceiver) run(socket *zmq4.Socket) {
	defer close(f.ended)
	defer socket.Close()
	for {
		f.poller.Wait(-1)
		f.mu.Lock()
		for {
			frames, err := sock.Recv(socket, 8)
			if err != nil {
				break
			}
			f.receive(frames)
		}
		to := f.to
		f.to = nil
		closed := f.closed
		f.news.Broadcast()
		f.mu.Unlock()
		for _, m := range to {
			if m.id == "" || len(m.id) == wire.MarkLen {
				sock.Send(socket, []byte(m.from), wire.Append([]byte(m.id), m.msg))
			} else {
				sock.Send(socket, []byte(m.from), []byte(m.id), nil, wire.Append(nil, m.msg))
			}
		}
		if closed {
			return
		}
	}
}

func (f *fakeReceiver) receive(frames [][]byte) {
	mark, payload := wire.CutMark(frames[len(frames)-1])
	if mark != nil {
		frames = [][]byte{frames[0], mark, nil, payload}
	}
	msg, err := wire.Decode(payload)
	if err != nil || len(frames) != 4 {
		f.t.Errorf("pd-send sent %q: %v", frames, err)
		return
	}
	m := fakeMessage{string(frames[0]), string(frames[1]), msg}
	f.got = append(f.got, m)
	if answer := f.answer(m); answer != nil {
		f.to = append(f.to, fakeMessage{m.from, m.id, answer})
	}
}

// usual answers as a receiver does that has room for everything.
func (f *fakeReceiver) usual(m fakeMessage) wire.Message {
	switch msg := m.msg.(type) {
	case *wire.AttachRequest:
		return f.welcome()
	case *wire.AllocRequest:
		resp := &wire.AllocResponse{Epoch: fakeEpoch}
		for i := range msg.Keys {
			resp.RemoteIndexes = append(resp.RemoteIndexes, int64(i))
		}
		return resp
	case *wire.CommitRequest:
		return &wire.CommitResponse{}
	default:
		return &wire.AllocResponse{Epoch: fakeEpoch}
	}
}

func (f *fakeReceiver) welcome() *wire.AttachResponse {
	return &wire.AttachResponse{
		Version: wire.ProtocolVersion, Engine: "shm", SlotSize: fakeSlot, SlotCount: fakeSlots,
		LeaseMS: 60_000, ReceiverID: f.endpoint, Epoch: fakeEpoch, MaxMessage: wire.MaxMessage, MaxKeys: wire.MaxKeys,
		Regions: []wire.Region{{ID: 0}},
	}
}

// instead changes how messages are answered: change returns the answer and
// whether it has one; else the usual one goes out.
func (f *fakeReceiver) instead(change func(m fakeMessage) (wire.Message, bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = func(m fakeMessage) wire.Message {
		if answer, ok := change(m); ok {
			return answer
		}
		return f.usual(m)
	}
}

// reply sends an answer that was held back.
func (f *fakeReceiver) reply(m fakeMessage, msg wire.Message) {
	f.mu.Lock()
	f.to = append(f.to, fakeMessage{m.from, m.id, msg})
	f.mu.Unlock()
	f.poller.Wake()
}

// wait waits for the n-th message, from 1, for which ok is true.
func (f *fakeReceiver) wait(what string, n int, ok func(msg wire.Message) bool) fakeMessage {
	f.t.Helper()
	var found fakeMessage
	came := testkit.Until(f.news, patience, func() bool {
		seen := 0
		for _, m := range f.got {
			if ok(m.msg) {
				if seen++; seen == n {
					found = m
					return true
				}
			}
		}
		return false
	})
	if !came {
		f.t.Fatalf("no %s came; there came %s", what, f.names())
	}
	return found
}

func (f *fakeReceiver) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, m := range f.got {
		names = append(names, fmt.Sprintf("%T", m.msg))
	}
	return names
}

// count is how many messages came for which ok is true.
func (f *fakeReceiver) count(ok func(msg wire.Message) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.got {
		if ok(m.msg) {
			n++
		}
	}
	return n
}

func is[T wire.Message](msg wire.Message) bool {
	_, ok := msg.(T)
	return ok
}

// config is a Run's configuration for this receiver.
func (f *fakeReceiver) config() Config {
	return Config{
		Receivers: []string{f.endpoint},
		attach:    func(context.Context, string, rdma.Attachment) (rdma.Remote, error) { return f.remote, nil },
	}
}

// fakeRemote is memory that remembers what was written to it.
type fakeRemote struct {
	done chan struct{}

	mu      sync.Mutex
	news    *sync.Cond
	writes  []rdma.Op
	regions []int
	hold    bool  // writes wait, until their context or the remote ends
	free    int   // of writes to come that do not
	fail    error // of every write
	cause   error // once done is closed
	closed  bool
}

func newFakeRemote() *fakeRemote {
	r := &fakeRemote{done: make(chan struct{})}
	r.news = sync.NewCond(&r.mu)
	return r
}

func (r *fakeRemote) Write(ctx context.Context, ops []rdma.Op) error {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.news.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range ops {
		op.Local = slices.Clone(op.Local)
		r.writes = append(r.writes, op)
	}
	r.news.Broadcast()
	held := r.free == 0
	r.free = max(0, r.free-1)
	for held && r.hold && ctx.Err() == nil && r.cause == nil {
		r.news.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case r.cause != nil:
		return fmt.Errorf("write to slot %d: %w", ops[0].Slot, r.cause)
	}
	return r.fail
}

// failWrites makes every write end with err.
func (r *fakeRemote) failWrites(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// end ends the data connection.
func (r *fakeRemote) end(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cause = cause
	close(r.done)
	r.news.Broadcast()
}

func (r *fakeRemote) Update(regions []rdma.Region) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, region := range regions {
		r.regions = append(r.regions, region.ID)
	}
	return nil
}

func (r *fakeRemote) Done() <-chan struct{} { return r.done }

func (r *fakeRemote) Cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause
}

func (r *fakeRemote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *fakeRemote) setHold(hold bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = hold
	r.news.Broadcast()
}

// holdAfter has all writes wait but the next n.
func (r *fakeRemote) holdAfter(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold, r.free = true, n
}

// begun is how many writes have begun.
func (r *fakeRemote) begun() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.writes)
}

// waitWrites waits until n writes have begun.
func (r *fakeRemote) waitWrites(t *testing.T, n int) {
	t.Helper()
	if !testkit.Until(r.news, patience, func() bool { return len(r.writes) >= n }) {
		t.Fatalf("%d of %d writes began", r.begun(), n)
	}
}
