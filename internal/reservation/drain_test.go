package reservation

import (
	"fmt"
	"maps"
	"slices"
)

// drain: everybody does their part. Senders send what they declared and commit
// it, decoders consume, the engine revokes, those whose slots cannot be revoked
// hang up. Time is needed only in mode none, whose deadlock only a time-out
// ends. Afterwards nothing is left.
func (w *world) drain() error {
	for round := 0; len(w.md.live) > 0; round++ {
		before := w.tags
		if err := w.drainRound(); err != nil {
			return err
		}
		if w.tags != before || len(w.md.live) == 0 {
			if round > 100 {
				return fmt.Errorf("drain: no end to it\n%s", w.state())
			}
			continue
		}
		if hung, err := w.hangUp(); hung || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if w.cfg.Mode != None {
			return fmt.Errorf("drain: stuck\n%s", w.state())
		}
		if err := w.run(op{verb: "advance", who: w.cfg.AdmitTimeout.String()}); err != nil {
			return err
		}
	}
	return w.drained()
}

// drainRound lets everybody do what they can do now.
func (w *world) drainRound() error {
	for len(w.pending) > 0 {
		if err := w.run(op{verb: "revoked"}); err != nil {
			return err
		}
	}
	for _, r := range slices.Clone(w.md.live) {
		for _, o := range w.part(r) {
			if err := w.run(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// part is what is to be done for a request.
func (w *world) part(r *mReq) []op {
	switch {
	case !slices.Contains(w.md.live, r) || len(r.waiting) > 0:
		return nil
	case !r.lastDone:
		o := op{verb: "alloc", who: r.sender, req: r.id, opts: []string{"last"}}
		for i := len(r.chunks); i < r.total; i++ {
			o.keys = append(o.keys, fmt.Sprintf("fill-%s-%d", r.id, i))
		}
		return []op{o}
	case !r.ready:
		return []op{{verb: "commit", who: r.sender, req: r.id}}
	case r.taker != "":
		return []op{{verb: "release", who: r.taker, req: r.id}}
	}
	return []op{{verb: "take", who: "drain", req: r.id}, {verb: "release", who: "drain", req: r.id}}
}

// hangUp lets the writers go whose slots could not be revoked.
func (w *world) hangUp() (done bool, err error) {
	for _, f := range slices.Clone(w.md.fenced) {
		for _, writer := range slices.Clone(f.writers) {
			done = true
			if err := w.run(op{verb: "gone", opts: []string{fmt.Sprintf("writer=%d", writer)}}); err != nil {
				return true, err
			}
		}
	}
	return done, nil
}

// drained: when all have ended, free = total, and nothing is left of anybody.
func (w *world) drained() error {
	for _, writer := range slices.Sorted(maps.Keys(w.grants)) {
		if err := w.run(op{verb: "gone", opts: []string{fmt.Sprintf("writer=%d", writer)}}); err != nil {
			return err
		}
	}
	for len(w.pending) > 0 {
		if err := w.run(op{verb: "revoked"}); err != nil {
			return err
		}
	}
	s := w.snap
	if s.Slots.Free != s.Slots.Total || len(s.Queue) > 0 || len(s.Requests) > 0 || len(s.Senders) > 0 {
		return fmt.Errorf("drained, and left are %+v", s)
	}
	if n := w.watch.unanswered(); n > 0 {
		return fmt.Errorf("%d messages were never answered", n)
	}
	if slices.ContainsFunc(w.m.queue.who, func(r *request) bool { return r != nil }) {
		return fmt.Errorf("drained, and the queue still knows somebody")
	}
	if n := len(w.m.timers) + len(w.m.ledger.copies) + len(w.m.fences.byID) + len(w.m.fences.byGrant) + len(w.m.writers); n > 0 {
		return fmt.Errorf("drained, and the machine keeps %d things", n)
	}
	return nil
}
