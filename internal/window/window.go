// Package window keeps how long something took, of late and over all.
package window

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	length  = time.Minute
	buckets = 6
	longest = 24 * time.Hour // what took longer counts as this long
)

// Window keeps the last minute, as a ring of histograms of ten seconds each,
// and all of the time. An empty one is small. One goroutine owns it.
type Window struct {
	ring [buckets]struct {
		epoch int64                   // which ten seconds since the start
		hist  *hdrhistogram.Histogram // nil: nothing came yet
	}
	all *hdrhistogram.Histogram // the same
}

// New makes an empty Window.
func New() *Window { return &Window{} }

// newHistogram counts microseconds, to two digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), 2)
}

// Add notes that something took so long. Now is the time since some start, the
// same for all calls.
func (w *Window) Add(now, took time.Duration) {
	epoch := int64(now / (length / buckets))
	b := &w.ring[epoch%buckets]
	switch {
	case b.hist == nil:
		b.epoch, b.hist = epoch, newHistogram()
	case b.epoch != epoch:
		b.epoch = epoch
		b.hist.Reset()
	}
	if w.all == nil {
		w.all = newHistogram()
	}
	us := min(max(took, 0), longest).Microseconds()
	_ = b.hist.RecordValue(us) // the only error is a value out of range
	_ = w.all.RecordValue(us)
}

// Last is the minute up to now.
func (w *Window) Last(now time.Duration) wire.SnapshotWait {
	oldest := int64(now/(length/buckets)) - buckets + 1
	var sum *hdrhistogram.Histogram
	for _, b := range w.ring {
		if b.hist == nil || b.epoch < oldest {
			continue
		}
		if sum == nil {
			sum = newHistogram()
		}
		sum.Merge(b.hist)
	}
	return wait(sum)
}

// All is everything since the start.
func (w *Window) All() wire.SnapshotWait { return wait(w.all) }

func wait(h *hdrhistogram.Histogram) wire.SnapshotWait {
	if h == nil {
		return wire.SnapshotWait{}
	}
	return wire.SnapshotWait{
		P50: millis(h.ValueAtQuantile(50)),
		P99: millis(h.ValueAtQuantile(99)),
		Max: millis(h.Max()),
	}
}

// Words is w for people: "p50 3.1ms p99 212ms max 1.93s".
func Words(w wire.SnapshotWait) string {
	return fmt.Sprintf("p50 %v p99 %v max %v", duration(w.P50), duration(w.P99), duration(w.Max))
}

// duration is ms milliseconds, to three digits.
func duration(ms float64) time.Duration {
	d := time.Duration(ms * float64(time.Millisecond))
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

func millis(us int64) float64 { return float64(us) / 1000 }
