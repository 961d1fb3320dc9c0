package receiver

import (
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

func TestSinkQueue(t *testing.T) {
	const delay = time.Second
	start := time.Unix(1000, 0)
	s := sink{on: true, delay: delay}
	at := func(d time.Duration) []*sinkEntry { return s.due(start.Add(d)) }
	want := func(when time.Duration, ids ...string) (due []*sinkEntry) {
		t.Helper()
		if len(ids) > 0 {
			if early := at(when - 1); len(early) > 0 {
				t.Errorf("%v before %v", early[0], when)
			}
			if wait := s.wait(start.Add(when-5), time.Hour); wait != 5 {
				t.Errorf("waits %v", wait)
			}
		}
		due = at(when)
		for i, e := range due {
			if i >= len(ids) || e.reqID != ids[i] {
				t.Errorf("%q at %v", e.reqID, when)
			}
		}
		if len(due) != len(ids) {
			t.Errorf("%d at %v, want %q", len(due), when, ids)
		}
		return due
	}
	s.add("A", start)
	s.add("B", start)
	s.add("C", start.Add(delay/2))
	due := want(delay, "A", "B")
	s.taken(due[1], start.Add(delay))
	s.add("C", start.Add(delay)) // another request of that name
	want(delay * 3 / 2)          // the first C ended before it was due
	due = want(2*delay, "B", "C")
	s.taken(due[0], start.Add(2*delay))
	s.add("B", start.Add(2*delay)) // the taken one has ended, and so has another since
	s.taken(due[0], start.Add(2*delay))
	want(3*delay, "B")
	if len(s.queue) > 0 || len(s.newest) > 0 {
		t.Errorf("%d and %d are left", len(s.queue), len(s.newest))
	}
	// Without a delay what is taken is not asked for all the time.
	s.delay = 0
	s.add("A", start)
	s.taken(s.due(start)[0], start)
	if wait := s.wait(start, time.Hour); wait != sinkAgain {
		t.Errorf("tries again after %v", wait)
	}
}

// What a decoder has taken when the sink comes for it, and gives back, the sink
// releases then.
func TestSinkComesBack(t *testing.T) {
	t.Parallel()
	const delay = 50 * time.Millisecond
	r := start(t, func(c *Config) { c.Sink, c.SinkDelay = true, delay })
	for {
		p := r.dial(peertest.Options{})
		wantSlots(t, p.alloc("A", 10, true, keys("k", 0, 10)...), 10)
		if call[*wire.TakeResponse](p, &wire.TakeRequest{ReqID: "A"}).Code != "" {
			continue // the sink was first: once more
		}
		<-time.After(3 * delay)
		if resp := call[*wire.ReleaseResponse](p, &wire.ReleaseRequest{ReqID: "A", Keep: true}); resp.Code != "" {
			t.Fatalf("%+v", resp)
		}
		r.free(10)
		return
	}
}
