package receiver

import (
	"testing"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

// F1: two requests of 8 in 10 slots: one is admitted, the other holds nothing
// while it waits, and both finish.
func TestTwoThatDoNotFit(t *testing.T) {
	r := start(t, nil)
	s1, s2 := r.dial(peertest.Options{}), r.dial(peertest.Options{})
	s1.attach("one")
	s2.attach("two")
	a := wantSlots(t, s1.alloc("A", 8, false, keys("A", 0, 4)...), 4)
	b := s2.ask(peertest.Alloc("B", 8, false, testSlot, keys("B", 0, 4)...))
	if e := r.event("queued", "B"); e.Sender != "two" || e.TotalChunks != 8 || e.Free != 2 {
		t.Errorf("queued: %+v", e)
	}
	s := r.free(2)
	if s.Slots.Held != 4 || s.Slots.Promised != 4 || len(s.Queue) != 1 || s.Queue[0].Lacks != 6 {
		t.Errorf("snapshot %+v %+v", s.Slots, s.Queue)
	}
	a = append(a, wantSlots(t, s1.alloc("A", 8, true, keys("A", 4, 4)...), 4)...)
	if !s1.commit("A", a...).Ready {
		t.Error("A is not ready though all is committed")
	}
	s2.nothing(r)
	if resp := call[*wire.ReleaseResponse](s1, &wire.ReleaseRequest{ReqID: "A"}); resp.Code != "" {
		t.Fatal(resp.Error)
	}
	slots := wantSlots(t, s2.wait(b), 4)
	if e := r.event("admitted", "B"); e.WaitedMS <= 0 {
		t.Errorf("admitted: %+v", e)
	}
	slots = append(slots, wantSlots(t, s2.alloc("B", 8, true, keys("B", 4, 4)...), 4)...)
	s2.commit("B", slots...)
	if e := r.event("ready", "B"); e.Chunks != 8 || e.Bytes != 8*testSlot {
		t.Errorf("ready: %+v", e)
	}
}
