package e2e

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// One sender with hundreds of requests, and nobody who takes any: with a share it
// has its half of the buffer and a small sender's request is ready at once; the
// same without a share fills the buffer, and the small one waits behind all.
func TestGreedySender(t *testing.T) {
	t.Parallel()
	const hundreds = 300
	for _, c := range []struct {
		name  string
		flags []string
		holds int // requests of the greedy one
		small string
	}{
		{"share", []string{"--sender-share", "50%"}, 2, "ready"},
		{"off", nil, 4, "queued"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := receive(t, 16, append([]string{"--admit-timeout", "inf"}, c.flags...)...)
			greedy, small := send(t, r), send(t, r)
			for i := range hundreds {
				id := "G" + strconv.Itoa(i)
				greedy.write(batch(id, 4, 0, 4))
			}
			waiting := hundreds - c.holds
			s := r.settles("all but a few wait", func(s snapshot) bool { return len(s.Queue) == waiting && s.Slots.Ready == 4*c.holds })
			for _, q := range s.Queue {
				if q.AtShare != (c.flags != nil) {
					t.Fatalf("who waits is %+v", q)
				}
			}
			small.write(batch("S", 8, 0, 8))
			r.happens(c.small, "S")
			if s := r.stat(); len(s.Queue) < waiting || s.Counters["released"] > 0 {
				t.Errorf("%d wait, %d released: somebody gave way", len(s.Queue), s.Counters["released"])
			}
			for _, p := range []*fed{greedy, small} {
				p.kill(syscall.SIGTERM)
				p.exits()
			}
			for _, l := range r.lines("event", "ready") {
				r.drop(l.str("req_id"))
			}
			r.empty()
		})
	}
}

// While decoders consume, the greedy one's requests all go on, too, and none of
// the small one's waits for any of them.
func TestGreedySenderGoesOn(t *testing.T) {
	t.Parallel()
	const hundreds, few = 300, 20
	r := receive(t, 16, "--sender-share", "8", "--sink")
	greedy, small := send(t, r), send(t, r, "--name", "small")
	for i := range hundreds {
		greedy.write(batch("G"+strconv.Itoa(i), 8, 0, 8))
	}
	r.event("event", "queued")
	for i := range few {
		id := "S" + strconv.Itoa(i)
		small.write(batch(id, 4, 0, 4))
		small.result(id, "ready")
		r.happens("released", id) // or its next two would wait for its own share
	}
	if waited := r.lines("event", "queued", "sender", "small"); len(waited) > 0 {
		t.Errorf("the small one waited: %v", waited)
	}
	for i := range hundreds {
		greedy.result("G"+strconv.Itoa(i), "ready")
	}
	greedy.ends(0)
	small.ends(0)
	r.empty()
}

// What one sender may not have is refused at once, says why and how to change it.
func TestSenderLimits(t *testing.T) {
	t.Parallel()
	r := receive(t, 8, "--sender-requests", "3", "--sender-queue", "4", "--sender-share", "6")
	s := send(t, r)
	refused := func(id string, chunks int, code, text string) {
		t.Helper()
		s.write(batch(id, chunks, 0, chunks))
		if l := s.result(id, "failed"); l.str("code") != code || !strings.Contains(l.str("error"), text) {
			t.Errorf("%s ends as %v, want %s with %q", id, l, code, text)
		}
	}
	refused("A", 7, "too_large", "needs 7 chunks, one sender may have 6 of the buffer's 8: raise --sender-share")
	s.write(batch("B", 6, 0, 6))
	s.result("B", "ready")
	s.write(batch("C", 3, 0, 3))
	r.happens("queued", "C")
	refused("D", 2, "queue_full", "need 5 slots, --sender-queue is 4")
	s.write(batch("E", 1, 0, 1))
	r.happens("queued", "E")
	refused("F", 1, "queue_full", "has 3 live requests, --sender-requests is 3")
	r.drop("B")
	s.result("C", "ready")
	s.result("E", "ready")
	r.drop("C")
	r.drop("E")
	s.ends(1)
	r.empty()
}

// With keys it is the key that quotas are of: who connects again has no more.
func TestQuotasOfAKey(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "tenant", "other")
	k.allows("recv", k.pub("tenant"), k.pub("other"))
	k.allows("tenant", k.pub("recv"))
	k.allows("other", k.pub("recv"))
	r := receive(t, 8, append(k.flags("recv"), "--sender-requests", "3", "--sender-share", "4")...)
	first, second, other := send(t, r, k.flags("tenant")...), send(t, r, k.flags("tenant")...), send(t, r, k.flags("other")...)
	first.write(batch("A", 3, 0, 3))
	first.result("A", "ready")
	second.write(batch("B", 2, 0, 2))
	if l := r.happens("queued", "B"); !strings.Contains(l.str("reason"), "its sender is at its share: it, with all that have its key, has 3 of 4 slots") {
		t.Errorf("B waits as %v", l)
	}
	other.write(batch("C", 4, 0, 4))
	other.result("C", "ready")
	second.write(batch("D", 1, 0, 1))
	r.happens("queued", "D")
	first.write(batch("E", 1, 0, 1))
	if l := first.result("E", "failed"); l.str("code") != "queue_full" || !strings.Contains(l.str("error"), "this sender, with all that have its key, has 3 live requests, --sender-requests is 3") {
		t.Errorf("E ends as %v", l)
	}
	// Another key is let in meanwhile, which has every peer asked for its key anew.
	k.allows("recv", k.pub("recv"), k.pub("tenant"), k.pub("other"))
	r.says("3 peers may connect")
	output(t, 0, "pd-recv", append(append([]string{"drop"}, k.flags("other")...), r.endpoint, "A")...)
	second.result("B", "ready")
	second.result("D", "ready")
	first.write(batch("F", 2, 0, 2))
	r.happens("queued", "F")
	for _, id := range []string{"B", "C"} {
		output(t, 0, "pd-recv", append(append([]string{"drop"}, k.flags("other")...), r.endpoint, id)...)
	}
	first.result("F", "ready")
	first.ends(1)
	second.ends(0)
	other.ends(0)
}
