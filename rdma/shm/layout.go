package shm

import (
	"fmt"
	"math"
	"os"
)

// Limits of a buffer.
const (
	maxSlots   = 1 << 24                 // slots
	maxSpan    = min(1<<46, math.MaxInt) // bytes of address space, that of all regions together
	maxRegions = 1024                    // regions; each costs a descriptor here and a mapping at each writer
	maxPieces  = 30_000                  // mappings that show the slots; Linux allows a process 65,530
)

// span is n slots side by side.
type span struct{ first, n int }

// layout says how slots lie in a region: side by side, each at a multiple of
// the stride, so that it can be mapped by itself.
type layout struct {
	slots  int
	size   int64 // bytes of a slot
	stride int64 // size in whole pages
}

func newLayout(slots int, size int64) (layout, error) {
	page := int64(os.Getpagesize())
	switch {
	case slots < 1 || slots > maxSlots:
		return layout{}, fmt.Errorf("buffer of %d slots: take 1 to %d", slots, maxSlots)
	case size < 1 || size > maxSpan-page:
		return layout{}, fmt.Errorf("slots of %d bytes: take 1 to %d", size, maxSpan-page)
	}
	stride := (size + page - 1) / page * page
	if stride > maxSpan/int64(slots) {
		return layout{}, fmt.Errorf("buffer of %d slots of %d bytes: take at most %d bytes together", slots, size, int64(maxSpan))
	}
	return layout{slots, size, stride}, nil
}

// length is the bytes of all slots, which is the length of a region.
func (l layout) length() int64 { return int64(l.slots) * l.stride }

// slot cuts a slot out of a whole region.
func (l layout) slot(region []byte, i int) []byte {
	return l.cut(region, span{i, 1})[:l.size:l.size]
}

// cut cuts a run of slots, in whole pages, out of a whole region.
func (l layout) cut(region []byte, s span) []byte {
	return region[int64(s.first)*l.stride:][:int64(s.n)*l.stride]
}

// check says what is wrong with the number of a slot.
func (l layout) check(slot int) error {
	if slot < 0 || slot >= l.slots {
		return fmt.Errorf("slot %d of a buffer of %d slots, numbered from 0", slot, l.slots)
	}
	return nil
}
