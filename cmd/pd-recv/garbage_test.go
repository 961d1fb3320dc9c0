package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 2 << 20: 400, 4 << 20: 250, 10 << 20: 100, 13 << 20: 70, 16 << 20: 60, 40 << 20: 50, 1 << 30: 50} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes: %d%%, want %d%%", live, got, want)
		}
	}
}

var (
	live, garbage []byte
	small         []*byte
)

// Large messages make no more garbage than is allowed, however much is alive, and
// however small.
func TestGarbageIsBounded(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	live = make([]byte, 24<<20)
	defer func() { live, garbage, small = nil, nil, nil }()
	for i := range 200 {
		if small = append(small, new(byte)); i == 100 {
			boundGarbage()
		}
	}
	limit := uint64(len(live)) + 4*maxGarbage                            // unbounded it is five times what is alive
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
