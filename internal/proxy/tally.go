package proxy

import "time"

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
}

// Counters count requests, but for Duplicates and LateFailures, which count
// notifications.
type Counters struct {
	Ready        uint64
	Failed       uint64
	Duplicates   uint64 // of a request that had ended; they change nothing
	LateFailures uint64 // of a request that was ready already
	Forgotten    uint64 // pending ones, dropped to make room
}

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
	pending *recent[int]    // notifications so far
	ended   *recent[Status] // how
	Counters
}

// NewTally waits for expect notifications of each request.
func NewTally(expect int) *Tally {
	return &Tally{expect: expect, pending: newRecent[int](maxPending), ended: newRecent[Status](maxEnded)}
}

// Pending is how many requests wait for more notifications.
func (t *Tally) Pending() int { return t.pending.len() }

// Ready books a ProxyNotif. The outcome means something with Ended only.
func (t *Tally) Ready(now time.Time, reqID string) (Outcome, Effect) {
	if _, ok := t.ended.get(reqID); ok {
		t.Duplicates++
		return Outcome{}, Duplicate
	}
	seen, _ := t.pending.get(reqID)
	if seen++; seen < t.expect {
		if t.pending.put(reqID, seen) {
			t.Forgotten++
			return Outcome{}, Forgetful
		}
		return Outcome{}, Counted
	}
	t.Counters.Ready++
	return t.end(Outcome{ReqID: reqID, Status: Ready, Time: now, Notifs: seen})
}

// Failed books a FailNotif. The outcome is what is, or would have been, told.
func (t *Tally) Failed(now time.Time, reqID, reason string) (Outcome, Effect) {
	seen, _ := t.pending.get(reqID)
	o := Outcome{ReqID: reqID, Status: Failed, Time: now, Notifs: seen + 1, Reason: reason}
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
