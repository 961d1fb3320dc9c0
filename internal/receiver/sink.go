package receiver

import (
	"cmp"
	"slices"
	"time"
)

// sinkConn is the connection under which the sink releases. No peer's identity
// is empty.
const sinkConn = ""

// sinkAgain is how long after it found a request taken the sink tries again, at
// least.
const sinkAgain = 100 * time.Millisecond

// sink plays the decoder: what is ready is released after a delay, unless
// another decoder has taken it; then as long after it was found taken, in case
// that it is given back.
type sink struct {
	on     bool
	delay  time.Duration
	queue  []*sinkEntry          // by when they come due
	newest map[string]*sinkEntry // of each name that is in the queue: another request may have had it before
}

// sinkEntry is the Tag of its release.
type sinkEntry struct {
	at    time.Time
	reqID string
}

// add takes note that a request has become ready.
func (s *sink) add(reqID string, now time.Time) {
	if s.on {
		s.put(&sinkEntry{at: now.Add(s.delay), reqID: reqID})
	}
}

// taken takes note that somebody else has what came due.
func (s *sink) taken(e *sinkEntry, now time.Time) {
	if s.newest[e.reqID] == nil {
		s.put(&sinkEntry{at: now.Add(max(s.delay, sinkAgain)), reqID: e.reqID})
	}
}

func (s *sink) put(e *sinkEntry) {
	if s.newest == nil {
		s.newest = make(map[string]*sinkEntry)
	}
	i, _ := slices.BinarySearchFunc(s.queue, e.at, func(q *sinkEntry, at time.Time) int {
		return cmp.Or(q.at.Compare(at), -1) // behind those of the same time
	})
	s.queue = slices.Insert(s.queue, i, e)
	s.newest[e.reqID] = e
}

// due takes out the requests whose delay has passed.
func (s *sink) due(now time.Time) (due []*sinkEntry) {
	n := 0
	for ; n < len(s.queue) && !s.queue[n].at.After(now); n++ {
		if e := s.queue[n]; s.newest[e.reqID] == e {
			delete(s.newest, e.reqID)
			due = append(due, e)
		}
	}
	s.queue = s.queue[n:]
	return due
}

// wait shortens an idle time to the moment when the next one comes due.
func (s *sink) wait(now time.Time, idle time.Duration) time.Duration {
	if len(s.queue) == 0 {
		return idle
	}
	return min(idle, max(s.queue[0].at.Sub(now), 0))
}
