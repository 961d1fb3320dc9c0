package receiver

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	waitWindow  = time.Minute
	waitBuckets = 6
	waitMax     = 24 * time.Hour // longer waits count as this long
)

// waits keeps how long requests waited for admission in the last minute, as a
// ring of histograms of ten seconds each.
type waits struct {
	ring [waitBuckets]struct {
		epoch int64 // which ten seconds since the start
		hist  *hdrhistogram.Histogram
	}
}

func newWaits() *waits {
	w := &waits{}
	for i := range w.ring {
		w.ring[i].hist = newHistogram()
		w.ring[i].epoch = -1
	}
	return w
}

// newHistogram counts microseconds, to two digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, waitMax.Microseconds(), 2)
}

func (w *waits) add(now, waited time.Duration) {
	epoch := int64(now / (waitWindow / waitBuckets))
	b := &w.ring[epoch%waitBuckets]
	if b.epoch != epoch {
		b.epoch = epoch
		b.hist.Reset()
	}
	// The only error is a value out of range, and it is clamped.
	_ = b.hist.RecordValue(min(waited, waitMax).Microseconds())
}

// last is the minute up to now.
func (w *waits) last(now time.Duration) wire.SnapshotWait {
	oldest := int64(now/(waitWindow/waitBuckets)) - waitBuckets + 1
	sum := newHistogram()
	for _, b := range w.ring {
		if b.epoch >= max(oldest, 0) {
			sum.Merge(b.hist)
		}
	}
	return wire.SnapshotWait{
		P50: millis(sum.ValueAtQuantile(50)),
		P99: millis(sum.ValueAtQuantile(99)),
		Max: millis(sum.Max()),
	}
}

func millis(us int64) float64 { return float64(us) / 1000 }
