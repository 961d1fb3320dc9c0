package sender

import "time"

// staging hands out the slots of the staging buffer; it counts them and knows
// who waits, but no memory. Contract §6: a slot is claimed for a chunk whose remote slot
// is allocated; while none is free the claim waits, and is served in order of
// its receiver. Where there are several receivers, one has at most all slots
// but one (but at least one), so that a slow one never starves another.
// One goroutine owns it.
type staging struct {
	total int
	used  int
	lanes []lane
	turn  int // the lane that is looked at first
}

// lane is one receiver's share.
type lane struct {
	used  int
	limit int
	wait  []*claim
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
	s := &staging{total: total, lanes: make([]lane, receivers)}
	limit := total
	if receivers > 1 {
		limit = max(1, total-1)
	}
	for i := range s.lanes {
		s.lanes[i].limit = limit
	}
	return s
}

// add puts c behind what its receiver already waits for.
func (s *staging) add(receiver int, c *claim) {
	s.lanes[receiver].wait = append(s.lanes[receiver].wait, c)
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
		if c == nil || l.used == l.limit {
			continue
		}
		s.turn = at + 1
		c.left--
		c.since = now
		l.used++
		s.used++
		return c.batch
	}
	return nil
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
func (s *staging) release(receiver int) {
	if s.lanes[receiver].used == 0 {
		panic("sender: a staging slot was given back twice")
	}
	s.lanes[receiver].used--
	s.used--
}

// Staging is the state of the staging buffer, as a Snapshot of kind "sender"
// shows it.
type Staging struct {
	Total   int       `json:"total"` // slots
	Used    int       `json:"used"`
	Blocked []Blocked `json:"blocked"`
}

// Blocked is a batch whose chunks wait for staging slots.
type Blocked struct {
	ReqID     string `json:"req_id"`
	Chunks    int    `json:"chunks"`     // that wait
	WaitingMS int64  `json:"waiting_ms"` // since a chunk of it was last served
}

// snapshot lists at most limit blocked batches.
func (s *staging) snapshot(now time.Duration, limit int) Staging {
	snap := Staging{Total: s.total, Used: s.used, Blocked: []Blocked{}}
	for i := range s.lanes {
		for _, c := range s.lanes[i].wait {
			if c.waits() && len(snap.Blocked) < limit {
				snap.Blocked = append(snap.Blocked, Blocked{c.batch.req.id, c.left, (now - c.since).Milliseconds()})
			}
		}
	}
	return snap
}
