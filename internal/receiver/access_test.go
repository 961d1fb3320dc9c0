package receiver

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// offering gives a receiver a target with these engines, best first.
func offering(engines ...string) func(*Config) {
	return func(c *Config) {
		open := c.OpenTarget
		c.OpenTarget = func() (rdma.Target, error) {
			target, err := open()
			target.(*fakeTarget).engines = engines
			return target, err
		}
	}
}

func wantDoors(t *testing.T, r *running, want string) {
	t.Helper()
	if got := r.target.saw(); got != want {
		t.Errorf("the engine was told %q, want %q", got, want)
	}
}

func wantAccess(t *testing.T, resp *wire.AllocResponse, want ...string) {
	t.Helper()
	var got []string
	for _, b := range resp.Access {
		got = append(got, string(b))
	}
	if resp.Code != "" || !slices.Equal(got, want) {
		t.Errorf("answer %+v with access %q, want %q", resp, got, want)
	}
}

// A slot is open from its answer to its commit, and the answer has what its
// sender needs for it.
func TestAccess(t *testing.T) {
	r := start(t, nil)
	r.target.set(func(f *fakeTarget) { f.access = true })
	p := r.dial(peertest.Options{})
	p.attach("sender")
	wantAccess(t, p.alloc("A", 4, false, "a0", "a1"), "0 for 1", "1 for 1")
	wantDoors(t, r, "0 to 1, 1 to 1")
	p.commit("A", 0)
	wantDoors(t, r, "0 shut")
	resp := p.alloc("A", 4, true, "a0", "a1", "a2") // the first is there already
	wantAccess(t, resp, "1 for 1", "2 for 1")
	if !slices.Equal(resp.AlreadySentIndexes, []int64{0}) || !slices.Equal(resp.RemoteIndexes, []int64{1, 2}) {
		t.Errorf("answer %+v", resp)
	}
	wantDoors(t, r, "2 to 1")
	call[*wire.AllocResponse](p, &wire.CancelNotif{ReqID: "A"})
	wantDoors(t, r, "1 shut, 2 shut")
	r.free(10)
	r.end()
	if n := len(r.access.open); n > 0 {
		t.Errorf("access to %d slots is kept", n)
	}
}

// Nobody else is told, and nobody at all where the engine needs nothing.
func TestAccessIsTheSendersOwn(t *testing.T) {
	r := start(t, nil)
	p, legacy := r.dial(peertest.Options{}), r.dial(peertest.Options{Legacy: true})
	p.attach("sender")
	wantAccess(t, p.alloc("A", 1, false, "a0"))
	r.target.set(func(f *fakeTarget) { f.access = true })
	wantAccess(t, legacy.alloc("B", 2, false, "b0", "b1"))
	wantDoors(t, r, "0 to 1")
}

// A batch whose slots the engine cannot open is refused, its request ends, and
// what an earlier answer told of is fenced.
func TestAccessFails(t *testing.T) {
	r := start(t, nil)
	r.target.set(func(f *fakeTarget) { f.access = true })
	p, next := r.dial(peertest.Options{}), r.dial(peertest.Options{})
	p.attach("sender")
	next.attach("next")
	r.target.connect(1)
	wantSlots(t, p.alloc("A", 10, false, keys("a", 0, 3)...), 3)
	b := next.ask(peertest.Alloc("B", 8, true, testSlot, keys("b", 0, 8)...))
	r.event("queued", "B")
	r.target.saw()
	r.target.setOpen(func(w rdma.Writer, slot int) error {
		if w == 1 && slot != 3 {
			return errors.New("no locked memory is left")
		}
		return nil
	})
	resp := p.alloc("A", 10, false, keys("a", 2, 4)...) // one of them a retry
	wantCode(t, resp, wire.CodeInternal, 4)
	if !strings.Contains(resp.Error, "the engine failed: no locked memory is left") || resp.Access != nil || resp.Epoch != 77 {
		t.Errorf("answer %+v", resp)
	}
	wantSlots(t, next.wait(b), 8)
	// The slots that are fenced are not shut: new memory does that.
	if got, want := r.target.saw(), "3 to 1, 4 not to 1, 5 not to 1, "; !strings.HasPrefix(got, want) || strings.Contains(got, "shut") {
		t.Errorf("the engine was told %q, want %q first and nothing shut", got, want)
	}
	r.stat("the batch that was refused", func(s *wire.Snapshot) bool { return s.Refusals["internal"] == 1 })
	if e := r.event("rolled_back", "A"); e.Code != "internal" || !strings.Contains(e.Reason, "no locked memory is left") {
		t.Errorf("rolled_back: %+v", e)
	}
}

// It fails for everybody who waits, one after the other.
func TestAccessFailsForAll(t *testing.T) {
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	p.attach("sender")
	wantSlots(t, p.alloc("holder", 10, false, "k"), 1)
	const n = 100
	var corrs []uint64
	for _, id := range keys("W", 0, n) {
		corrs = append(corrs, p.ask(peertest.Alloc(id, 10, false, testSlot, keys(id, 0, 10)...)))
	}
	r.event("queued", keys("W", n-1, 1)[0])
	r.target.setOpen(func(rdma.Writer, int) error { return errors.New("no") })
	call[*wire.AllocResponse](p, &wire.CancelNotif{ReqID: "holder"})
	for _, corr := range corrs {
		wantCode(t, p.wait(corr), wire.CodeInternal, 10)
	}
	r.free(10)
}

// That a sender is gone is no failure of the engine: its end is on the way.
func TestAccessOfOneThatIsGone(t *testing.T) {
	r := start(t, nil)
	r.target.setOpen(func(rdma.Writer, int) error { return rdma.ErrGone })
	p := r.dial(peertest.Options{})
	p.attach("sender")
	wantAccess(t, p.alloc("A", 2, false, "a0"))
	r.target.disconnect(1)
	r.event("expired", "A")
	r.free(10)
}

// The engine is the receiver's best of those that the sender names; asked again
// the sender keeps it while it names it.
func TestAttachEngines(t *testing.T) {
	r := start(t, offering(testEngine, otherEngine, brokenEngine))
	for _, tc := range []struct {
		names  []string
		engine string
	}{
		{[]string{testEngine}, testEngine},
		{[]string{otherEngine, testEngine}, testEngine},
		{[]string{"ucx", otherEngine}, otherEngine},
	} {
		p := r.dial(peertest.Options{})
		first := p.attachBy("sender", tc.names...)
		if first.Engine != tc.engine || len(first.Regions) != 1 || string(first.Regions[0].Desc) != "region 0 by "+tc.engine {
			t.Errorf("%q: attached %+v, want %s", tc.names, first, tc.engine)
		}
		again := p.attachBy("sender", testEngine, otherEngine)
		if again.Engine != tc.engine || string(again.Token) != string(first.Token) {
			t.Errorf("%q: attached again %+v, want %s", tc.names, again, tc.engine)
		}
	}
	p := r.dial(peertest.Options{})
	p.attachBy("sender", testEngine)
	resp := call[*wire.AttachResponse](p, &wire.AttachRequest{Version: 1, Engines: []string{brokenEngine}})
	if resp.Code != wire.CodeInternal || resp.Error != "no access by broken: it is broken" {
		t.Errorf("answer %+v", resp)
	}
	if resp := p.attachBy("sender", testEngine); string(resp.Token) != "writer 4" {
		t.Errorf("its grant is %q, want the one it had", resp.Token)
	}
	s := r.stat("four senders", func(s *wire.Snapshot) bool { return len(s.Senders) == 4 })
	if s.Engine != "fake,other,broken" || s.Senders[0].Engine == "" {
		t.Errorf("engines: %q, %+v", s.Engine, s.Senders)
	}
}

// A sender that does not name its engine any more gets access by another; what
// it may write it may write under that one from now on, and when it fails what
// it could write by either is fenced.
func TestAttachByAnotherEngine(t *testing.T) {
	r := start(t, offering(testEngine, otherEngine))
	let := make(chan struct{})
	r.target.revoke = func([]int) error { <-let; return nil }
	p := r.dial(peertest.Options{})
	p.attachBy("sender", testEngine, otherEngine)
	r.target.connect(1)
	wantSlots(t, p.alloc("A", 4, false, "a0", "a1"), 2)
	p.commit("A", 0)
	r.target.set(func(f *fakeTarget) { f.access = true })
	if resp := p.attachBy("sender", otherEngine); resp.Engine != otherEngine || string(resp.Token) != "writer 2" {
		t.Errorf("attached again %+v", resp)
	}
	r.target.connect(2)
	wantDoors(t, r, "0 to 1, 1 to 1, 0 shut, 1 to 2")
	r.target.set(func(f *fakeTarget) {
		if !slices.Equal(f.withdrawn, []rdma.Writer{1}) {
			t.Errorf("withdrawn: %v", f.withdrawn)
		}
	})
	wantAccess(t, p.alloc("A", 4, false, "a1", "a2"), "1 for 2", "2 for 2")
	r.target.disconnect(1) // the old one, and nothing ends with it
	r.stat("what there was", func(s *wire.Snapshot) bool {
		return s.Slots.Held == 3 && len(s.Senders) == 1 && s.Senders[0].Attached && s.Senders[0].Engine == otherEngine
	})
	wantCode(t, p.alloc("A", 4, false, keys("too many", 0, 4)...), wire.CodeProtocolViolation, 4)
	r.stat("2 in quarantine", func(s *wire.Snapshot) bool { return s.Slots.Quarantined == 2 })
	close(let)
	r.free(10)
	r.target.disconnect(2)
	r.stat("nobody", func(s *wire.Snapshot) bool { return len(s.Senders) == 0 })
}

// How many senders there can be counts those whose connection outlives their
// grant.
func TestMostWriters(t *testing.T) {
	w := newWriters(newFakeTarget())
	target := w.target.(*fakeTarget)
	for i := range maxWriters {
		if _, err := w.grant(keys("s", i, 1)[0], []string{testEngine}); err != nil {
			t.Fatal(err)
		}
	}
	target.connect(1)
	if connected := w.withdraw(1); !connected {
		t.Fatal("not connected")
	}
	if _, err := w.grant("another", []string{testEngine}); err == nil || !strings.Contains(err.Error(), "4096 senders") {
		t.Errorf("error %v", err)
	}
	w.gone.put(1)
	if left := w.left(); !slices.Equal(left, []rdma.Writer{1}) {
		t.Errorf("left: %v", left)
	}
	if _, err := w.grant("another", []string{testEngine}); err != nil {
		t.Errorf("error %v", err)
	}
}
