package buffer

import (
	"fmt"
	"math"
	"os"
)

// Limits of a buffer.
const (
	MaxRegions = 1024                    // each costs a descriptor here and a mapping at each writer
	maxSlots   = 1 << 24                 // slots
	maxSpan    = min(1<<46, math.MaxInt) // bytes of address space, that of all regions together
)

// Span is N slots side by side, the first being First.
type Span struct{ First, N int }

// Layout says how slots lie in a region: side by side, each at a multiple of
// the stride, so that each has pages of its own.
type Layout struct {
	Slots    int
	SlotSize int64 // bytes
	Stride   int64 // SlotSize in whole pages
}

// NewLayout checks the sizes of a buffer.
func NewLayout(slots int, slotSize int64) (Layout, error) {
	page := int64(os.Getpagesize())
	switch {
	case slots < 1 || slots > maxSlots:
		return Layout{}, fmt.Errorf("buffer of %d slots: take 1 to %d", slots, maxSlots)
	case slotSize < 1 || slotSize > maxSpan-page:
		return Layout{}, fmt.Errorf("slots of %d bytes: take 1 to %d", slotSize, maxSpan-page)
	}
	stride := (slotSize + page - 1) / page * page
	if stride > maxSpan/int64(slots) {
		return Layout{}, fmt.Errorf("buffer of %d slots of %d bytes: take at most %d bytes together", slots, slotSize, int64(maxSpan))
	}
	return Layout{slots, slotSize, stride}, nil
}

// Length is the bytes of all slots, which is the length of a region.
func (l Layout) Length() int64 { return int64(l.Slots) * l.Stride }

// Cut cuts a slot out of a whole region.
func (l Layout) Cut(region []byte, slot int) []byte {
	return region[int64(slot)*l.Stride:][:l.SlotSize:l.SlotSize]
}

// Pages cuts a run of slots, in whole pages, out of a whole region.
func (l Layout) Pages(region []byte, s Span) []byte {
	return region[int64(s.First)*l.Stride:][:int64(s.N)*l.Stride]
}

// Check says what is wrong with the number of a slot.
func (l Layout) Check(slot int) error {
	if slot < 0 || slot >= l.Slots {
		return fmt.Errorf("slot %d of a buffer of %d slots, numbered from 0", slot, l.Slots)
	}
	return nil
}
