package sender

import (
	"cmp"
	"slices"
	"time"
)

// flowing is how long ago the last write of a receiver may have ended for it to
// be given more than its share.
const flowing = 250 * time.Millisecond

// idleAfter is how long a receiver that neither has nor wants a slot keeps its
// claim to its share.
const idleAfter = time.Second

// staging hands out the slots of the staging buffer; it counts them and knows
// who waits, but no memory. Contract §6: a slot is claimed for a chunk whose remote slot
// is allocated; while none is free the claim waits, and is served in order of
// its receiver.
//
// A slot that a receiver has got cannot be taken back, and one that stalls keeps
// it for good. So each receiver has an equal share, to which the others leave it
// while it is busy. More than its share gets only a receiver whose writes come to
// an end, and only of what idle ones leave: a quarter of all slots stays free for
// whichever of these comes first. So no receiver has all slots, as the contract
// wants it, unless it is the only one or there is a single slot.
//
// One goroutine owns it.
type staging struct {
	total int
	used  int
	share int // of each receiver
	lanes []lane
	turn  int // the lane that is looked at first
}

// lane is what one receiver has and wants.
type lane struct {
	used  int
	wait  []*claim
	freed time.Duration // when a slot last came back; 0: none did
	seen  time.Duration // when it last had or wanted one; 0: never
}

// claim asks for slots for the chunks of one batch, one after another. It ends
// with its request.
type claim struct {
	batch *batch
	left  int           // chunks not yet served
	since time.Duration // when it was made, or last served
}

func (c *claim) waits() bool { return c.left > 0 && c.batch.req.stage != ended }

func newStaging(total, receivers int) *staging {
	return &staging{total: total, share: max(1, total/receivers), lanes: make([]lane, receivers)}
}

// add puts c behind what its receiver already waits for.
func (s *staging) add(now time.Duration, receiver int, c *claim) {
	l := &s.lanes[receiver]
	l.wait = append(l.wait, c)
	l.seen = now
}

// next serves one chunk of the claim whose turn it is: receivers in turn, claims
// of a receiver in order. It is nil when nobody who waits may have a slot.
func (s *staging) next(now time.Duration) *batch {
	if s.used == s.total {
		return nil
	}
	for i := range s.lanes {
		at := (s.turn + i) % len(s.lanes)
		l := &s.lanes[at]
		c := l.first()
		if c == nil || !s.allows(now, l) {
			continue
		}
		s.turn = at + 1
		c.left--
		c.since = now
		l.seen = now
		l.used++
		s.used++
		return c.batch
	}
	return nil
}

// allows says whether l may have one of the free slots.
func (s *staging) allows(now time.Duration, l *lane) bool {
	if l.used < s.share {
		return true
	}
	if l.freed == 0 || now-l.freed >= flowing {
		return false
	}
	kept, idle := 0, false
	for i := range s.lanes {
		switch other := &s.lanes[i]; {
		case other == l:
		case other.busy(now):
			kept += max(0, s.share-other.used)
		default:
			idle = true
		}
	}
	if idle {
		kept += max(1, s.total/4)
	}
	return s.total-s.used > kept
}

// busy says whether l has or wants a slot, or did a moment ago.
func (l *lane) busy(now time.Duration) bool {
	return l.used > 0 || l.first() != nil || l.seen > 0 && now-l.seen < idleAfter
}

// first is the claim that is served next, nil when none waits.
func (l *lane) first() *claim {
	for len(l.wait) > 0 {
		if c := l.wait[0]; c.waits() {
			return c
		}
		l.wait[0] = nil
		l.wait = l.wait[1:]
	}
	return nil
}

// release gives a slot of a receiver's back.
func (s *staging) release(now time.Duration, receiver int) {
	l := &s.lanes[receiver]
	if l.used == 0 {
		panic("sender: a staging slot was given back twice")
	}
	l.used--
	s.used--
	l.freed, l.seen = now, now
}

// blocked lists the batches that wait for slots, in the order in which they are
// served if their receivers may have slots: it depends on how many chunks of a
// receiver's go first.
func (s *staging) blocked() []*claim {
	type place struct {
		claim       *claim
		ahead, lane int // chunks of the lane that go first; the lane, in turn
	}
	var places []place
	for i := range s.lanes {
		ahead := 0
		for _, c := range s.lanes[(s.turn+i)%len(s.lanes)].wait {
			if c.waits() {
				places = append(places, place{c, ahead, i})
				ahead += c.left
			}
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(a.ahead-b.ahead, a.lane-b.lane) })
	list := make([]*claim, len(places))
	for i, p := range places {
		list[i] = p.claim
	}
	return list
}

// waiting is how many batches wait for slots.
func (l *lane) waiting() (n int) {
	for _, c := range l.wait {
		if c.waits() {
			n++
		}
	}
	return n
}
