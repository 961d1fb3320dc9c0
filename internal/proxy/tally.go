package proxy

import (
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// Both memories of a Tally hold at most this many requests: 65,536 req_ids of
// 512 bytes are 32 MiB.
const (
	maxPending = 65_536
	maxEnded   = 65_536
)

// Status is how a request ended.
type Status string

const (
	Ready  Status = "ready"
	Failed Status = "failed"
)

// Outcome is what is told of a request, once.
type Outcome struct {
	ReqID  string    `json:"req_id"`
	Status Status    `json:"status"`
	Time   time.Time `json:"time"`
	Notifs int       `json:"notifs"` // of this request until it ended, the last included
	Reason string    `json:"reason"`

	Took time.Duration `json:"-"` // since the first of them
}

// Counters count requests, but for Duplicates and LateFailures, which count
// notifications, and BadFrames and Refused, which a Tally never sees.
type Counters = wire.ProxyCounters

// Effect is what one notification did.
type Effect int

const (
	Counted     Effect = iota // the request waits for more notifications
	Forgetful                 // as Counted, and the oldest pending request had to go
	Ended                     // there is an outcome to tell
	Duplicate                 // the request had ended
	LateFailure               // the request had been told as ready
	Known                     // the request had ended, and nobody claims otherwise
)

// Tally counts each request's notifications, and the receivers that say that it
// is ready there, and decides when it has ended: ready when either are the
// expected number, failed at the first failure. A request that
// ended stays so, whatever comes, as long as it is remembered; when 65,536
// others have ended since, a notification of it counts as a new request's.
type Tally struct {
	expect  int
	pending *recent[partial]
	ended   *recent[Status] // how
	Counters
}

// partial is a request that waits for more notifications.
type partial struct {
	notifs  int   // so far
	readyAt []int // receivers that say that it is ready there
	since   time.Time
}

// known is how many ranks of the request are known to be ready. A notification
// and a receiver that says the same may be about one of them.
func (p *partial) known() int { return max(p.notifs, len(p.readyAt)) }

// NewTally waits for expect notifications of each request.
func NewTally(expect int) *Tally {
	return &Tally{expect: expect, pending: newRecent[partial](maxPending), ended: newRecent[Status](maxEnded)}
}

// Pending is how many requests wait for more notifications.
func (t *Tally) Pending() int { return t.pending.len() }

// Ready books a ProxyNotif. The outcome means something with Ended only.
func (t *Tally) Ready(now time.Time, reqID string) (Outcome, Effect) {
	if _, ok := t.ended.get(reqID); ok {
		t.Duplicates++
		return Outcome{}, Duplicate
	}
	p := t.partial(now, reqID)
	p.notifs++
	return t.count(now, reqID, p)
}

// Found books that a receiver says that a request is ready there. It need not
// say so of one that has ended: that is no notification too many.
func (t *Tally) Found(now time.Time, reqID string, receiver int) (Outcome, Effect) {
	if _, ok := t.ended.get(reqID); ok {
		return Outcome{}, Known
	}
	p := t.partial(now, reqID)
	if !slices.Contains(p.readyAt, receiver) {
		p.readyAt = append(p.readyAt, receiver)
	}
	o, effect := t.count(now, reqID, p)
	if effect == Ended {
		t.Recovered++
	}
	return o, effect
}

// Lost books that a receiver was started anew: nothing of what it said is ready
// there any more.
func (t *Tally) Lost(receiver int) {
	var empty []string
	for reqID, p := range t.pending.all() {
		if i := slices.Index(p.readyAt, receiver); i >= 0 {
			p.readyAt = slices.Delete(p.readyAt, i, i+1)
			if t.pending.put(reqID, p); p.known() == 0 {
				empty = append(empty, reqID)
			}
		}
	}
	for _, reqID := range empty {
		t.pending.remove(reqID)
	}
}

// count decides whether what is known of a request is enough.
func (t *Tally) count(now time.Time, reqID string, p partial) (Outcome, Effect) {
	if p.known() < t.expect {
		if t.pending.put(reqID, p) {
			t.Forgotten++
			return Outcome{}, Forgetful
		}
		return Outcome{}, Counted
	}
	t.Counters.Ready++
	return t.end(Outcome{ReqID: reqID, Status: Ready, Time: now, Notifs: p.notifs, Took: now.Sub(p.since)})
}

// partial is what there is of a request, which may be nothing.
func (t *Tally) partial(now time.Time, reqID string) partial {
	p, ok := t.pending.get(reqID)
	if !ok {
		p.since = now
	}
	return p
}

// Failed books a FailNotif. The outcome is what is, or would have been, told.
func (t *Tally) Failed(now time.Time, reqID, reason string) (Outcome, Effect) {
	p := t.partial(now, reqID)
	p.notifs++
	o := Outcome{ReqID: reqID, Status: Failed, Time: now, Notifs: p.notifs, Reason: reason, Took: now.Sub(p.since)}
	switch status, _ := t.ended.get(reqID); status {
	case Ready:
		t.LateFailures++
		return o, LateFailure
	case Failed:
		t.Duplicates++
		return o, Duplicate
	}
	t.Counters.Failed++
	return t.end(o)
}

func (t *Tally) end(o Outcome) (Outcome, Effect) {
	t.pending.remove(o.ReqID)
	t.ended.put(o.ReqID, o.Status)
	return o, Ended
}
