package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// Result is what a run showed. Every request is one of Ready, TimedOut,
// TooLarge, Refused, Lost and Stuck.
type Result struct {
	Policy Policy
	Slots  int
	Bytes  int64 // of the buffer

	Requests int
	Ready    int // and consumed
	TimedOut int
	TooLarge int // for the buffer
	Refused  int // for another reason
	Lost     int // with their sender, as the World wants it
	Stuck    int // never admitted, nor timed out as no time-out is set

	Wait    Spread // for admission; those that timed out count with the time they waited
	Large   Spread // the same, of the largest tenth of requests
	ToReady Spread // from when its sender has it until it is ready

	Utilisation float64       // slots held by chunks, on average
	Promised    float64       // slots reserved and not yet held, on average
	Peak        int           // slots that were promised or held at most
	Span        time.Duration // from the first request until the last is consumed
	Goodput     float64       // bytes consumed a second
	Rate        float64       // requests consumed a second

	Deadlocks int       // how often all that had slots waited for more
	Deadlock  *Deadlock // the first time
}

// Deadlock is a moment at which only time-outs can free a slot.
type Deadlock struct {
	At      time.Duration
	Partial int // requests that hold some of their slots and wait for more
	Held    int // slots that they hold
	Free    int
	Waiting int    // requests that wait, those included
	First   string // one of Partial
	Has     int    // its chunks that have slots
	Needs   int    // its chunks
}

func (d *Deadlock) String() string {
	return fmt.Sprintf("at %v: %d requests hold %d slots and wait for more; free: %d; %q has %d of its %d; waiting: %d",
		d.At.Round(time.Millisecond), d.Partial, d.Held, d.Free, d.First, d.Has, d.Needs, d.Waiting)
}

// Spread is how some times are spread.
type Spread struct{ P50, P90, P99, Max time.Duration }

// spread sorts times.
func spread(times []time.Duration) Spread {
	slices.Sort(times)
	return Spread{quantile(times, 50), quantile(times, 90), quantile(times, 99), quantile(times, 100)}
}

// quantile is the smallest of sorted times that at least so many percent are
// not above.
func quantile(times []time.Duration, percent int) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[(len(times)*percent+99)/100-1]
}

// tally adds up what happens.
type tally struct {
	seq       int
	large     int // chunks from which a request is of the largest tenth
	wait      []time.Duration
	largeWait []time.Duration
	toReady   []time.Duration

	consumed                    int
	bytes                       int64
	timedOut, tooLarge, refused int
	lost                        int
	why                         string // the first refusal

	started       bool
	from, to      time.Duration // first request, last consumed
	last          time.Duration // of the use below
	promised      int
	held          int
	promisedTime  float64 // slots times nanoseconds
	heldTime      float64
	peak          int
	deadlocks     int
	firstDeadlock *Deadlock
}

func (t *tally) init(l *Load) {
	totals := make([]int, len(l.requests))
	for i, q := range l.requests {
		totals[i] = q.total
	}
	slices.Sort(totals)
	t.large = totals[len(totals)-(len(totals)+9)/10]
	t.wait = make([]time.Duration, 0, len(totals))
	t.toReady = make([]time.Duration, 0, len(totals))
}

func (t *tally) began(now time.Duration) {
	if !t.started {
		t.started, t.from, t.last = true, now, now
	}
}

func (t *tally) waited(st *state, d time.Duration) {
	t.wait = append(t.wait, d)
	if st.total >= t.large {
		t.largeWait = append(t.largeWait, d)
	}
}

func (t *tally) ready(d time.Duration) { t.toReady = append(t.toReady, d) }

func (t *tally) released(now time.Duration, bytes int64) {
	t.consumed++
	t.bytes += bytes
	t.to = now
}

func (t *tally) refuse(code wire.Code, reason string) {
	t.refused++
	if t.why == "" {
		t.why = fmt.Sprintf("%s: %s", code, reason)
	}
}

// use notes how many slots are in use from now on.
func (t *tally) use(now time.Duration, promised, held int) {
	d := float64(now - t.last)
	t.promisedTime += d * float64(t.promised)
	t.heldTime += d * float64(t.held)
	t.last, t.promised, t.held = now, promised, held
	t.peak = max(t.peak, promised+held)
}

func (t *tally) deadlock(s *sim) {
	t.deadlocks++
	if t.firstDeadlock != nil {
		return
	}
	d := &Deadlock{At: s.now, Waiting: s.blocked}
	_, d.Held, _, d.Free = s.machine.Usage()
	for i := range s.states {
		st := &s.states[i]
		if !st.isBlocked || st.answered == 0 {
			continue
		}
		d.Partial++
		if d.First == "" {
			d.First, d.Needs = st.id, st.total
			for _, b := range st.batches[:st.answered] {
				d.Has += len(b.Keys)
			}
		}
	}
	t.firstDeadlock = d
}

func (s *sim) result(p Policy) Result {
	t := &s.tally
	r := Result{
		Policy: p, Slots: s.slots, Bytes: int64(s.slots) * s.load.ChunkBytes, Requests: len(s.states),
		Ready: t.consumed, TimedOut: t.timedOut, TooLarge: t.tooLarge, Refused: t.refused, Lost: t.lost,
		Wait: spread(t.wait), Large: spread(t.largeWait), ToReady: spread(t.toReady),
		Span: t.to - t.from, Peak: t.peak, Deadlocks: t.deadlocks, Deadlock: t.firstDeadlock,
	}
	r.Stuck = r.Requests - r.Ready - r.TimedOut - r.TooLarge - r.Refused - r.Lost
	if used := float64(t.last-t.from) * float64(s.slots); used > 0 {
		r.Utilisation, r.Promised = t.heldTime/used, t.promisedTime/used
	}
	if seconds := r.Span.Seconds(); seconds > 0 {
		r.Goodput, r.Rate = float64(t.bytes)/seconds, float64(t.consumed)/seconds
	}
	return r
}

// Meets reports whether every request whose sender lived was served and 99 of
// 100 waited no longer than target.
func (r *Result) Meets(target time.Duration) bool {
	return r.Ready+r.Lost == r.Requests && r.Wait.P99 <= target
}

// Smallest looks for the smallest buffer that meets a target: one slot less
// does not. Ok is false if even limit slots do not.
func Smallest(l *Load, w World, p Policy, target time.Duration, limit int) (best Result, ok bool) {
	low := l.Largest // one slot less is too small for some request
	high := low
	for best = Run(l, w, p, high); !best.Meets(target); best = Run(l, w, p, high) {
		if high >= limit {
			return best, false
		}
		low, high = high+1, min(2*high, limit)
	}
	for low < high {
		mid := low + (high-low)/2
		if r := Run(l, w, p, mid); r.Meets(target) {
			best, high = r, mid
		} else {
			low = mid + 1
		}
	}
	return best, true
}

// sortBy sorts stably.
func sortBy[T any, K cmp.Ordered](list []T, key func(T) K) {
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}

// Sizes are buffer sizes worth a look, in slots: they double, from half the
// largest request on, until a run with them makes nobody wait, at most n of
// them.
func Sizes(l *Load, w World, p Policy, n int) []int {
	var sizes []int
	for slots := max(1, l.Largest/2); len(sizes) < n && slots <= maxTotal; slots *= 2 {
		sizes = append(sizes, slots)
		if r := Run(l, w, p, slots); r.Meets(0) && r.Wait.Max == 0 {
			break
		}
	}
	return sizes
}
