package proxy

import (
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
// notifications, and BadFrames, which a Tally never sees.
type Counters = wire.ProxyCounters

// Effect is what one notification did.
type Effect int

const (
	Counted     Effect = iota // the request waits for more notifications
	Forgetful                 // as Counted, and the oldest pending request had to go
	Ended                     // there is an outcome to tell
	Duplicate                 // the request had ended
	LateFailure               // the request had been told as ready
)

// Tally counts each request's notifications and decides when it has ended:
// ready at the expected number, failed at the first failure. A request that
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
	notifs int // so far
	since  time.Time
}

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
	if p.notifs < t.expect {
		if t.pending.put(reqID, p) {
			t.Forgotten++
			return Outcome{}, Forgetful
		}
		return Outcome{}, Counted
	}
	t.Counters.Ready++
	return t.end(Outcome{ReqID: reqID, Status: Ready, Time: now, Notifs: p.notifs, Took: now.Sub(p.since)})
}

// partial is what there is of a request with one more notification.
func (t *Tally) partial(now time.Time, reqID string) partial {
	p, ok := t.pending.get(reqID)
	if !ok {
		p.since = now
	}
	p.notifs++
	return p
}

// Failed books a FailNotif. The outcome is what is, or would have been, told.
func (t *Tally) Failed(now time.Time, reqID, reason string) (Outcome, Effect) {
	p := t.partial(now, reqID)
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
