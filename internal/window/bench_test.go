package window

import (
	"testing"
	"time"
)

// full is a Window with a minute of times of all sizes in it.
func full() *Window {
	w := New()
	for i := range 60_000 {
		w.Add(time.Duration(i)*time.Millisecond, time.Duration(i*i)*time.Microsecond)
	}
	return w
}

func BenchmarkLast(b *testing.B) {
	w := full()
	now := 60 * time.Second
	for b.Loop() {
		w.Last(now)
	}
}

// BenchmarkLastAsTimeGoesOn asks four times a second.
func BenchmarkLastAsTimeGoesOn(b *testing.B) {
	w := full()
	now := 60 * time.Second
	for b.Loop() {
		now += 250 * time.Millisecond
		w.Add(now, 3*time.Millisecond)
		w.Last(now)
	}
}

func BenchmarkAdd(b *testing.B) {
	w := full()
	now := 60 * time.Second
	for b.Loop() {
		now += time.Microsecond
		w.Add(now, 3*time.Millisecond)
	}
}
