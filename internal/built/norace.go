//go:build !race

package built

// Race is whether the race detector is on.
const Race = false
