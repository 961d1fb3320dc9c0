// Package window keeps how long something took, of late and over all.
package window

import (
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
// and all of the time. One goroutine owns it.
type Window struct {
	ring [buckets]struct {
		epoch int64 // which ten seconds since the start
		hist  *hdrhistogram.Histogram
	}
	all *hdrhistogram.Histogram
}

// New makes an empty Window.
func New() *Window {
	w := &Window{all: newHistogram()}
	for i := range w.ring {
		w.ring[i].hist = newHistogram()
		w.ring[i].epoch = -1
	}
	return w
}

// newHistogram counts microseconds, to two digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), 2)
}

// Add notes that something took so long. Now is the time since some start, the
// same for all calls.
func (w *Window) Add(now, took time.Duration) {
	epoch := int64(now / (length / buckets))
	b := &w.ring[epoch%buckets]
	if b.epoch != epoch {
		b.epoch = epoch
		b.hist.Reset()
	}
	us := min(max(took, 0), longest).Microseconds()
	_ = b.hist.RecordValue(us) // the only error is a value out of range
	_ = w.all.RecordValue(us)
}

// Last is the minute up to now.
func (w *Window) Last(now time.Duration) wire.SnapshotWait {
	oldest := int64(now/(length/buckets)) - buckets + 1
	sum := newHistogram()
	for _, b := range w.ring {
		if b.epoch >= max(oldest, 0) {
			sum.Merge(b.hist)
		}
	}
	return wait(sum)
}

// All is everything since the start.
func (w *Window) All() wire.SnapshotWait { return wait(w.all) }

func wait(h *hdrhistogram.Histogram) wire.SnapshotWait {
	return wire.SnapshotWait{
		P50: millis(h.ValueAtQuantile(50)),
		P99: millis(h.ValueAtQuantile(99)),
		Max: millis(h.Max()),
	}
}

func millis(us int64) float64 { return float64(us) / 1000 }
