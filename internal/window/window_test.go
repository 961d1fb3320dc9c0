package window

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pd-tools/pd-tools/wire"
)

func near(got, want float64) bool { return got > want*0.98 && got < want*1.02 }

func TestWindowKeepsTheLastMinute(t *testing.T) {
	w := New()
	for range 99 {
		w.Add(time.Second, 10*time.Millisecond)
	}
	w.Add(time.Second, 3*time.Second)
	if s := w.Last(2 * time.Second); !near(s.P50, 10) || !near(s.P99, 10) || !near(s.Max, 3000) {
		t.Errorf("in the first minute: %+v", s)
	}
	w.Add(55*time.Second, 40*time.Millisecond)
	if s := w.Last(62 * time.Second); !near(s.P50, 40) || !near(s.Max, 40) {
		t.Errorf("a minute later: %+v", s)
	}
	if s := w.All(); !near(s.P50, 10) || !near(s.Max, 3000) {
		t.Errorf("over all: %+v", s)
	}
	w.Add(10*time.Minute, 2*longest)
	if s := w.Last(10 * time.Minute); !near(s.P50, float64(longest.Milliseconds())) {
		t.Errorf("after a pause, one out of range: %+v", s)
	}
	if s := w.Last(time.Hour); s.P50 != 0 || s.Max != 0 {
		t.Errorf("nothing in the last minute: %+v", s)
	}
}

func TestWindowWithNothingInIt(t *testing.T) {
	w := New()
	if last, all := w.Last(0), w.All(); last.Max != 0 || all.P99 != 0 {
		t.Errorf("last minute %+v, over all %+v", last, all)
	}
	w.Add(0, -time.Second) // a clock that went back
	if s := w.All(); s.Max != 0 {
		t.Errorf("less than nothing: %+v", s)
	}
}

func TestWords(t *testing.T) {
	got := Words(wire.SnapshotWait{P50: 0.0314, P99: 212.5, Max: 61934})
	if want := "p50 31.4µs p99 213ms max 1m1.9s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Words(wire.SnapshotWait{}); got != "p50 0s p99 0s max 0s" {
		t.Errorf("of nothing: %q", got)
	}
}

// What it says of the last minute is what a list of all times says.
func TestWindowAgreesWithAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type timed struct{ at, took time.Duration }
		var list []timed
		w, now := New(), time.Duration(0)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 25_000).Draw(t, "ms later")) * time.Millisecond
			if rapid.Bool().Draw(t, "add") {
				took := time.Duration(rapid.IntRange(0, 5_000_000).Draw(t, "took us")) * time.Microsecond
				w.Add(now, took)
				list = append(list, timed{now, took})
			}
			var of []time.Duration
			for _, x := range list {
				if x.at >= now.Truncate(10*time.Second)-50*time.Second {
					of = append(of, x.took)
				}
			}
			slices.Sort(of)
			got := w.Last(now)
			if len(of) == 0 {
				if got != (wire.SnapshotWait{}) {
					t.Fatalf("of nothing: %+v", got)
				}
				continue
			}
			half, most := of[(len(of)-1)/2], of[len(of)-1]
			if len(of)%2 == 0 && near(got.P50, of[len(of)/2].Seconds()*1000+0.001) {
				half = of[len(of)/2] // which of both is in the middle is not said
			}
			if !about(got.P50, half) || !about(got.Max, most) {
				t.Fatalf("at %v of %v: %+v", now, of, got)
			}
		}
	})
}

// about is near, to the microsecond.
func about(got float64, want time.Duration) bool {
	ms := want.Seconds() * 1000
	return got > ms*0.98-0.002 && got < ms*1.02+0.002
}
