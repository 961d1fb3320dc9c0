package receiver

import "time"

// sinkConn is the connection under which the sink releases. No peer's identity
// is empty.
const sinkConn = ""

// sink plays the decoder: what is ready is released after a delay, the same for
// all, so that they come due in order.
type sink struct {
	on    bool
	delay time.Duration
	queue []sinkEntry
}

type sinkEntry struct {
	at    time.Time
	reqID string
}

func (s *sink) add(reqID string, now time.Time) {
	if s.on {
		s.queue = append(s.queue, sinkEntry{at: now.Add(s.delay), reqID: reqID})
	}
}

// due takes out the requests whose delay has passed.
func (s *sink) due(now time.Time) (ids []string) {
	n := 0
	for n < len(s.queue) && !s.queue[n].at.After(now) {
		ids = append(ids, s.queue[n].reqID)
		n++
	}
	s.queue = s.queue[n:]
	return ids
}

// wait shortens an idle time to the moment when the next one comes due.
func (s *sink) wait(now time.Time, idle time.Duration) time.Duration {
	if len(s.queue) == 0 {
		return idle
	}
	return min(idle, max(s.queue[0].at.Sub(now), 0))
}
