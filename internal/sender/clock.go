package sender

import (
	"sync"
	"time"
)

const (
	// tickEvery is how often the clock is read while nothing happens.
	tickEvery = 250 * time.Millisecond

	// maxGap is the longest time between two readings that counts: a process that
	// was stopped for longer was not there to hear its receivers.
	maxGap = time.Second
)

// clock is monotonic, from its making, and stands still while the process is
// stopped. It is for any goroutine; somebody has to read it every tickEvery.
type clock struct {
	start time.Time

	mu   sync.Mutex
	last time.Duration // since start
	lost time.Duration // that does not count
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Since(c.start)
	if gap := t - c.last; gap > maxGap {
		c.lost += gap - maxGap
	}
	c.last = t
	return t - c.lost
}
