package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent lets the heap, which is small beside the buffer, grow to a few
	// times its live size: collecting it less often is worth 5% of the messages.
	gcPercent = 400
	// leastPercent is for a heap that is large: collecting it costs the more.
	leastPercent = 50
	// maxGarbage is what peers can have pd-recv keep uncollected on top of what
	// is alive, bytes, unless leastPercent of that is more.
	maxGarbage = 10 << 20
)

// boundGarbage has the heap collected so often that maxGarbage holds, from now on.
func boundGarbage() {
	debug.SetGCPercent(gcPercent)
	afterEachGC(&cycle{percent: gcPercent})
}

// cycle is garbage itself: its finalizer runs once a collection. It is large
// enough for memory of its own: what is smaller lies together with others, and is
// garbage only when they all are.
type cycle struct {
	percent int
	_       [2]uint64
}

func afterEachGC(c *cycle) {
	runtime.SetFinalizer(c, func(c *cycle) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if p := percentFor(live[0].Value.Uint64()); p != c.percent {
			debug.SetGCPercent(p)
			c.percent = p
		}
		afterEachGC(c)
	})
}

// percentFor is in steps of 10, so that it seldom changes: to set it stops the
// world for a moment.
func percentFor(live uint64) int {
	p := maxGarbage * 100 / max(live, 1)
	return int(min(max(p-p%10, leastPercent), gcPercent))
}
