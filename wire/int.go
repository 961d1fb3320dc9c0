package wire

import (
	"math"
	"strconv"
)

// Int is any integer msgpack can carry, from -2^63 to 2^64-1. The zero value
// is 0, and == compares values.
type Int struct {
	bits     uint64 // two's complement when negative
	negative bool
}

// I makes an Int of v.
func I(v int64) Int { return Int{uint64(v), v < 0} }

// U makes an Int of v.
func U(v uint64) Int { return Int{v, false} }

// Int64 is the value; ok is false, and v 0, when it is beyond an int64.
func (n Int) Int64() (v int64, ok bool) {
	if !n.negative && n.bits > math.MaxInt64 {
		return 0, false
	}
	return int64(n.bits), true
}

// Uint64 is the value; ok is false, and v 0, when it is negative.
func (n Int) Uint64() (v uint64, ok bool) {
	if n.negative {
		return 0, false
	}
	return n.bits, true
}

// Sign is -1, 0 or 1.
func (n Int) Sign() int {
	switch {
	case n.negative:
		return -1
	case n.bits == 0:
		return 0
	}
	return 1
}

// String is the value in decimal.
func (n Int) String() string {
	if n.negative {
		return strconv.FormatInt(int64(n.bits), 10)
	}
	return strconv.FormatUint(n.bits, 10)
}
