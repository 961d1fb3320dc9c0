package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 5 << 20: 400, 10 << 20: 200, 13 << 20: 150, 20 << 20: 100, 40 << 20: 50, 1 << 30: 50} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes: %d%%, want %d%%", live, got, want)
		}
	}
}

var live, garbage []byte

// Large messages make no more garbage than is allowed, however much is alive.
func TestGarbageIsBounded(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	live = make([]byte, 24<<20)
	defer func() { live, garbage = nil, nil }()
	boundGarbage()
	limit := uint64(len(live)) + 2*maxGarbage
	for deadline := time.Now().Add(20 * time.Second); grows() > limit; { // the first collections are by the percentage before
		if time.Now().After(deadline) {
			t.Fatalf("the heap grows to more than %d bytes", limit)
		}
	}
}

// grows makes 400 MB of garbage and says how large the heap gets.
func grows() (most uint64) {
	var ms runtime.MemStats
	for range 200 {
		garbage = make([]byte, 2<<20)
		runtime.ReadMemStats(&ms)
		most = max(most, ms.HeapAlloc)
	}
	return most
}
