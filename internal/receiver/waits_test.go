package receiver

import (
	"testing"
	"time"
)

func TestWaitsKeepTheLastMinute(t *testing.T) {
	w := newWaits()
	for range 99 {
		w.add(time.Second, 10*time.Millisecond)
	}
	w.add(time.Second, 3*time.Second)
	near := func(got, want float64) bool { return got > want*0.98 && got < want*1.02 }
	if s := w.last(2 * time.Second); !near(s.P50, 10) || !near(s.P99, 10) || !near(s.Max, 3000) {
		t.Errorf("in the first minute: %+v", s)
	}
	w.add(55*time.Second, 40*time.Millisecond)
	if s := w.last(62 * time.Second); !near(s.P50, 40) || !near(s.Max, 40) {
		t.Errorf("a minute later: %+v", s)
	}
	w.add(10*time.Minute, 2*waitMax)
	if s := w.last(10 * time.Minute); !near(s.P50, float64(waitMax.Milliseconds())) {
		t.Errorf("after a pause, a wait out of range: %+v", s)
	}
	if s := w.last(time.Hour); s.P50 != 0 || s.Max != 0 {
		t.Errorf("nothing in the last minute: %+v", s)
	}
}
