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

// Window keeps the last minute, to ten seconds, and all of the time. To ask is
// as cheap as to add, so that a busy loop can do both: each histogram counts
// from its ten seconds on, and none is ever summed up. An empty Window is small.
// One goroutine owns it.
type Window struct {
	epoch int64                            // which ten seconds since the start; those before are begun
	since [buckets]*hdrhistogram.Histogram // at epoch%buckets: all from that epoch on; nil: nothing came yet
	all   *hdrhistogram.Histogram          // the same
}

// New makes an empty Window.
func New() *Window { return &Window{} }

// newHistogram counts microseconds, to two digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), 2)
}

// epochOf begins high enough that none before it is negative.
func epochOf(now time.Duration) int64 { return int64(now/(length/buckets)) + buckets }

// Add notes that something took so long. Now is the time since some start, the
// same for all calls.
func (w *Window) Add(now, took time.Duration) {
	w.begin(epochOf(now))
	us := min(max(took, 0), longest).Microseconds()
	_ = w.all.RecordValue(us) // the only error is a value out of range
	for _, h := range w.since {
		_ = h.RecordValue(us)
	}
}

// begin makes the histograms begin anew that begin with an epoch up to this one.
func (w *Window) begin(epoch int64) {
	if w.all == nil {
		w.all = newHistogram()
		for i := range w.since {
			w.since[i] = newHistogram()
		}
		w.epoch = epoch
	}
	for e := max(w.epoch+1, epoch-buckets+1); e <= epoch; e++ {
		w.since[e%buckets].Reset()
	}
	w.epoch = max(w.epoch, epoch)
}

// Last is the minute up to now.
func (w *Window) Last(now time.Duration) wire.SnapshotWait {
	oldest := epochOf(now) - buckets + 1
	if oldest > w.epoch {
		return wire.SnapshotWait{}
	}
	return wait(w.since[oldest%buckets])
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
		Max: millis(h.ValueAtQuantile(100)), // as Max, but does not walk
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
