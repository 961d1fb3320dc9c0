// Package buffer keeps the memory of a receiver's slots, gives a slot new memory
// when a writer has to be kept away from it, and uses the old again when that is
// safe. It knows nothing of engines, sockets or the wire. Start reading at
// Buffer; layout.go says how slots lie in a region, sys.go asks the system.
package buffer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// Buffer is the slots and, behind them, the regions. A region is a sealed memory
// file as long as all slots together, in which each slot has its place at the
// same offset, and is mapped whole from when it is made until Close. A slot
// lives in one region at a time; its places in the others are holes that take no
// memory.
//
// To revoke a slot is to let it live in another region: nobody who has mapped
// the old place, or is writing there through a network, can be stopped at once,
// but nobody looks there any more. A place is used again only when every writer
// that could know of it has ended. So there are as many regions as the most
// often revoked slot has places that are not yet safe, mostly one or two, and
// none goes before the buffer.
//
// Writers are to it a number that grows with each of them, the tick.
type Buffer struct {
	layout Layout
	now    atomic.Pointer[placement]

	moving sync.Mutex       // held while slots move, which takes milliseconds; guards what follows and changes of now
	stale  map[place]uint64 // where slots lived before, and the last tick whose writer may still write there
	closed bool
}

// placement says where the slots live. It is never changed, only replaced.
type placement struct {
	regions []region // by number
	where   []int32  // region of each slot
}

// region is memory for every slot.
type region struct {
	fd   int
	view []byte // all of it
}

// place is the memory of a slot in a region.
type place struct {
	region int32
	slot   int
}

var errClosed = errors.New("the buffer is closed")

// New makes a buffer of slots of slotSize bytes, each of which takes whole
// pages, and prefaults it: a gigabyte takes a second or more.
func New(slots int, slotSize int64) (*Buffer, error) {
	l, err := NewLayout(slots, slotSize)
	if err != nil {
		return nil, err
	}
	if free, ok := available(); ok && l.Length() > free {
		return nil, fmt.Errorf("buffer of %d slots of %s needs %s of memory, the system has %s left: take fewer or smaller slots",
			l.Slots, humanize.IBytes(uint64(l.Stride)), humanize.IBytes(uint64(l.Length())), humanize.IBytes(uint64(free)))
	}
	first, err := newRegion(l.Length())
	if err != nil {
		return nil, err
	}
	// Best effort, where the system allows it: what is written and read from end
	// to end is worth large pages. Regions for revoked slots have few pages.
	_ = unix.Madvise(first.view, unix.MADV_HUGEPAGE)
	if err := prefaultWide(first.view); err != nil {
		return nil, errors.Join(err, first.close())
	}
	b := &Buffer{layout: l, stale: make(map[place]uint64)}
	b.now.Store(&placement{[]region{first}, make([]int32, l.Slots)})
	return b, nil
}

// Slots is how many slots there are. They are numbered from 0.
func (b *Buffer) Slots() int { return b.layout.Slots }

// SlotSize is the bytes of a slot.
func (b *Buffer) SlotSize() int64 { return b.layout.SlotSize }

// Slot is the memory of a slot where it lives now, good until Close.
func (b *Buffer) Slot(slot int) []byte {
	_, mem := b.Where(slot)
	return mem
}

// Where is the region in which a slot lives now, and its memory there. The
// memory is good until Close, but the slot's only until it is revoked.
func (b *Buffer) Where(slot int) (region int, mem []byte) {
	p := b.now.Load()
	r := p.where[slot]
	return int(r), b.layout.Cut(p.regions[r].view, slot)
}

// Regions is how many regions there are. They are numbered from 0.
func (b *Buffer) Regions() int { return len(b.now.Load().regions) }

// FD is the descriptor of a region's memory file, open until Close.
func (b *Buffer) FD(region int) int { return b.now.Load().regions[region].fd }

// Living returns the runs of slots that live in a region now.
func (b *Buffer) Living(region int) []Span {
	where := b.now.Load().where
	var spans []Span
	for i, r := range where {
		switch {
		case r != int32(region):
		case i > 0 && where[i-1] == r:
			spans[len(spans)-1].N++
		default:
			spans = append(spans, Span{i, 1})
		}
	}
	return spans
}

// Revoke lets the slots live in another region, in zeroed and prefaulted memory,
// and gives their old memory back. Writers up to tick may still write to the old
// places. It takes a few milliseconds a MiB; nobody may use the slots meanwhile.
// On error nothing has changed.
func (b *Buffer) Revoke(slots []int, tick uint64) (int, error) {
	slots = slices.Sorted(slices.Values(slots))
	if err := b.checkSet(slots); err != nil {
		return 0, err
	}
	b.moving.Lock()
	defer b.moving.Unlock()
	if b.closed {
		return 0, errClosed
	}
	old := b.now.Load()
	to, err := b.choose(old, slots)
	if err != nil {
		return 0, err
	}
	next := old.moved(slots, to)
	if to == len(old.regions) {
		r, err := newRegion(b.layout.Length())
		if err != nil {
			return 0, err
		}
		next.regions = append(slices.Clip(old.regions), r)
	}
	if err := b.fill(next, slots); err != nil {
		if to == len(old.regions) {
			err = errors.Join(err, next.regions[to].close())
		}
		return 0, err
	}
	b.now.Store(next)
	for _, s := range slots {
		b.stale[place{old.where[s], s}] = tick
	}
	_ = b.punch(old, slots) // if it fails the memory goes when they settle
	return to, nil
}

func (b *Buffer) checkSet(sorted []int) error {
	if len(sorted) == 0 {
		return errors.New("no slots to revoke")
	}
	for i, s := range sorted {
		if err := b.layout.Check(s); err != nil {
			return err
		}
		if i > 0 && s == sorted[i-1] {
			return fmt.Errorf("slot %d is to be revoked twice at once", s)
		}
	}
	return nil
}

// choose returns the first region in which the places of all the slots are
// safe, or the number of the next region to make. The caller holds moving.
func (b *Buffer) choose(p *placement, slots []int) (int, error) {
	for r := range p.regions {
		taken := func(s int) bool {
			_, stale := b.stale[place{int32(r), s}]
			return stale || p.where[s] == int32(r)
		}
		if !slices.ContainsFunc(slots, taken) {
			return r, nil
		}
	}
	n := len(p.regions)
	if n >= MaxRegions || int64(n) >= maxSpan/b.layout.Length() {
		return 0, fmt.Errorf("%d regions of %s are open and no more are possible: they can be used again when the writers that know them have ended",
			n, humanize.IBytes(uint64(b.layout.Length())))
	}
	return n, nil
}

// fill gives the slots zeroed and prefaulted memory where p has them. On error
// that memory is given back.
func (b *Buffer) fill(p *placement, slots []int) error {
	if err := b.punch(p, slots); err != nil {
		return err
	}
	err := p.runs(slots, func(r region, s Span) error { return Prefault(b.layout.Pages(r.view, s)) })
	if err != nil {
		_ = b.punch(p, slots)
	}
	return err
}

// punch gives the memory of the slots back where p has them.
func (b *Buffer) punch(p *placement, slots []int) error {
	return p.runs(slots, func(r region, s Span) error {
		return punch(r.fd, int64(s.First)*b.layout.Stride, int64(s.N)*b.layout.Stride)
	})
}

// Settle makes the old places safe that no writer from the tick oldest on can
// know of, and gives back what late writers left there. What cannot be given
// back now is tried again by the next Settle.
func (b *Buffer) Settle(oldest uint64) {
	b.moving.Lock()
	defer b.moving.Unlock()
	if b.closed {
		return
	}
	regions := b.now.Load().regions
	maps.DeleteFunc(b.stale, func(pl place, tick uint64) bool {
		return tick < oldest && punch(regions[pl.region].fd, int64(pl.slot)*b.layout.Stride, b.layout.Stride) == nil
	})
}

// Close gives all memory back. Nobody may use any of it after.
func (b *Buffer) Close() error {
	b.moving.Lock()
	defer b.moving.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	var errs []error
	for _, r := range b.now.Load().regions {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

// newRegion makes a region of length bytes, all of it a hole.
func newRegion(length int64) (region, error) {
	fd, err := memfd(length)
	if err != nil {
		return region{}, err
	}
	view, err := unix.Mmap(fd, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return region{}, fmt.Errorf("map a region of %d bytes: %w", length, err)
	}
	return region{fd, view}, nil
}

func (r region) close() error {
	err := os.NewSyscallError("munmap", unix.Munmap(r.view))
	unix.Close(r.fd)
	return err
}

// moved returns p with the slots in region.
func (p *placement) moved(slots []int, region int) *placement {
	q := &placement{p.regions, slices.Clone(p.where)}
	for _, s := range slots {
		q.where[s] = int32(region)
	}
	return q
}

// runs calls f for each run of neighbours among the slots, which are sorted,
// that live in the same region; the first error ends it.
func (p *placement) runs(slots []int, f func(r region, s Span) error) error {
	for len(slots) > 0 {
		r, s := p.where[slots[0]], Span{slots[0], 1}
		for s.N < len(slots) && slots[s.N] == s.First+s.N && p.where[s.First+s.N] == r {
			s.N++
		}
		if err := f(p.regions[r], s); err != nil {
			return err
		}
		slots = slots[s.N:]
	}
	return nil
}
