package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// memory is the buffer: the slots side by side in one piece of address space
// and, behind it, the regions. A region is a sealed memory file of the same
// length, in which each slot has its place at the same offset. A slot lives in
// one region at a time; the address space shows it there, and its places in the
// other regions are holes that take no memory.
//
// To revoke a slot is to let it live in another region: a mapping in another
// process cannot be taken away, but nobody looks at the old place any more. A
// place is used again only when every writer that could know of it has ended.
// So there are as many regions as the most often revoked slot has places that
// are not yet safe, mostly one or two, and none is closed before the buffer.
//
// memory knows nothing of sockets. Writers are to it a number that grows with
// each of them, the tick.
type memory struct {
	layout
	base []byte // all slots, at the same address for life

	now atomic.Pointer[placement]

	moving sync.Mutex       // held while slots move, which takes milliseconds; guards what follows and changes of now
	stale  map[place]uint64 // where slots lived before, and the last tick whose writer may still write there
	closed bool
}

// placement says where the slots live. It is never changed, only replaced.
type placement struct {
	fds   []int   // of the regions, by number
	where []int32 // region of each slot
}

// place is the memory of a slot in a region.
type place struct {
	region int32
	slot   int
}

var errClosed = errors.New("the buffer is closed")

func newMemory(l layout) (*memory, error) {
	if free, ok := available(); ok && l.length() > free {
		return nil, fmt.Errorf("buffer of %d slots of %s needs %s of memory, the system has %s left: take fewer or smaller slots",
			l.slots, humanize.IBytes(uint64(l.stride)), humanize.IBytes(uint64(l.length())), humanize.IBytes(uint64(free)))
	}
	fd, err := memfd(l.length())
	if err != nil {
		return nil, err
	}
	base, err := unix.Mmap(fd, 0, int(l.length()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("map a buffer of %d bytes: %w", l.length(), err)
	}
	m := &memory{layout: l, base: base, stale: make(map[place]uint64)}
	m.now.Store(&placement{[]int{fd}, make([]int32, l.slots)})
	if err := prefaultWide(base); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// revoke lets the slots live in another region, in zeroed memory, and gives
// their old memory back. Writers up to tick may still write to the old places.
func (m *memory) revoke(slots []int, tick uint64) (region int, err error) {
	slots = slices.Sorted(slices.Values(slots))
	if err := m.checkSet(slots); err != nil {
		return 0, err
	}
	m.moving.Lock()
	defer m.moving.Unlock()
	if m.closed {
		return 0, errClosed
	}
	old := m.now.Load()
	if region, err = m.choose(old, slots); err != nil {
		return 0, err
	}
	next := old.moved(slots, region)
	if n := next.pieces(); n > maxPieces {
		return 0, fmt.Errorf("the slots would lie in %d pieces, at most %d are possible: fewer slots lie in fewer", n, maxPieces)
	}
	if region == len(old.fds) {
		fd, err := memfd(m.length())
		if err != nil {
			return 0, err
		}
		next.fds = append(slices.Clip(old.fds), fd)
	}
	if err := m.fill(next, slots); err != nil {
		err = errors.Join(err, m.show(old, slots))
		if region == len(old.fds) {
			unix.Close(next.fds[region])
		}
		return 0, err
	}
	m.now.Store(next)
	for _, s := range slots {
		m.stale[place{old.where[s], s}] = tick
	}
	_ = m.punch(old, slots) // if it fails the memory goes when they settle
	return region, nil
}

func (m *memory) checkSet(sorted []int) error {
	if len(sorted) == 0 {
		return errors.New("no slots to revoke")
	}
	for i, s := range sorted {
		if err := m.check(s); err != nil {
			return err
		}
		if i > 0 && s == sorted[i-1] {
			return fmt.Errorf("slot %d is to be revoked twice at once", s)
		}
	}
	return nil
}

// choose returns the first region in which the places of all the slots are
// safe, or the number of the next region to open. The caller holds moving.
func (m *memory) choose(p *placement, slots []int) (int, error) {
	for r := range p.fds {
		taken := func(s int) bool {
			_, stale := m.stale[place{int32(r), s}]
			return stale || p.where[s] == int32(r)
		}
		if !slices.ContainsFunc(slots, taken) {
			return r, nil
		}
	}
	n := len(p.fds)
	if n >= maxRegions || int64(n) >= maxSpan/m.length() {
		return 0, fmt.Errorf("%d regions of %s are open and no more are possible: they can be used again when the writers that know them have ended",
			n, humanize.IBytes(uint64(m.length())))
	}
	return n, nil
}

// fill gives the slots zeroed and prefaulted memory where p has them.
func (m *memory) fill(p *placement, slots []int) error {
	if err := m.punch(p, slots); err != nil {
		return err
	}
	if err := m.show(p, slots); err != nil {
		return err
	}
	return p.runs(slots, func(_ int32, s span) error {
		return prefault(m.cut(m.base, s))
	})
}

// show maps the slots where p has them.
func (m *memory) show(p *placement, slots []int) error {
	return p.runs(slots, func(region int32, s span) error {
		return mapOver(m.cut(m.base, s), p.fds[region], int64(s.first)*m.stride)
	})
}

// punch gives the memory of the slots back where p has them.
func (m *memory) punch(p *placement, slots []int) error {
	return p.runs(slots, func(region int32, s span) error {
		return punch(p.fds[region], int64(s.first)*m.stride, int64(s.n)*m.stride)
	})
}

// settle makes the old places safe that no writer from the tick oldest on can
// know of, and gives back what late writers left there.
func (m *memory) settle(oldest uint64) error {
	m.moving.Lock()
	defer m.moving.Unlock()
	if m.closed {
		return nil
	}
	var errs []error
	for pl, tick := range m.stale {
		if tick >= oldest {
			continue
		}
		if err := punch(m.now.Load().fds[pl.region], int64(pl.slot)*m.stride, m.stride); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(m.stale, pl)
	}
	return errors.Join(errs...)
}

func (m *memory) close() error {
	m.moving.Lock()
	defer m.moving.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	err := os.NewSyscallError("munmap", unix.Munmap(m.base))
	for _, fd := range m.now.Load().fds {
		unix.Close(fd)
	}
	return err
}

// moved returns p with the slots in region.
func (p *placement) moved(slots []int, region int) *placement {
	q := &placement{p.fds, slices.Clone(p.where)}
	for _, s := range slots {
		q.where[s] = int32(region)
	}
	return q
}

// pieces is how many mappings it takes to show all slots.
func (p *placement) pieces() int {
	n := 1
	for i := 1; i < len(p.where); i++ {
		if p.where[i] != p.where[i-1] {
			n++
		}
	}
	return n
}

// living returns the runs of slots that live in region.
func (p *placement) living(region int32) []span {
	var spans []span
	for i, r := range p.where {
		switch {
		case r != region:
		case i > 0 && p.where[i-1] == region:
			spans[len(spans)-1].n++
		default:
			spans = append(spans, span{i, 1})
		}
	}
	return spans
}

// runs calls f for each run of neighbours among the slots, which are sorted,
// that live in the same region; the first error ends it.
func (p *placement) runs(slots []int, f func(region int32, s span) error) error {
	for len(slots) > 0 {
		region, s := p.where[slots[0]], span{slots[0], 1}
		for s.n < len(slots) && slots[s.n] == s.first+s.n && p.where[s.first+s.n] == region {
			s.n++
		}
		if err := f(region, s); err != nil {
			return err
		}
		slots = slots[s.n:]
	}
	return nil
}
