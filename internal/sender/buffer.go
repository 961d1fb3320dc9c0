package sender

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// buffer is the memory of the staging buffer. The first receiver that is
// attached decides how large its slots are. How many are in use the core
// counts: there is always one for a job. Which one it is does not matter to
// anybody, so the one given back last is taken: it is still in the cache.
type buffer struct {
	bytes int64 // --staging-size

	mu   sync.Mutex
	mem  []byte
	size int64 // bytes of a slot
	free []int // a stack
}

// slotSize is the size of a slot in bytes, 0 as long as any will do.
func (b *buffer) slotSize() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size
}

// cut makes slots of size bytes. Asked again it only checks the size.
func (b *buffer) cut(size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case size <= 0:
		return fmt.Errorf("its slots are %d bytes", size)
	case b.size == size:
		return nil
	case b.size != 0:
		return fmt.Errorf("its slots are %d bytes, the staging buffer's %d: give all receivers one --chunk-size", size, b.size)
	case size > b.bytes:
		return fmt.Errorf("a chunk of %d bytes does not fit the staging buffer of %d: raise --staging-size", size, b.bytes)
	}
	slots := b.bytes / size
	mem, err := unix.Mmap(-1, 0, int(slots*size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("cannot get %d bytes for the staging buffer: %w: lower --staging-size", slots*size, err)
	}
	// Best effort: large pages make copies faster, and a first touch in the middle
	// of a transfer costs several times the copy.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	b.mem, b.size = mem, size
	for i := int(slots) - 1; i >= 0; i-- {
		b.free = append(b.free, i)
	}
	return nil
}

// whole is all slots, once they are cut.
func (b *buffer) whole() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mem
}

// slots is how many slots there are.
func (b *buffer) slots() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(int64(len(b.mem)) / b.size)
}

// take takes a slot that nobody uses.
func (b *buffer) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.free) - 1
	i := b.free[last]
	b.free = b.free[:last]
	return i
}

// give gives a slot back.
func (b *buffer) give(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = append(b.free, i)
}

// slot is the memory of one slot.
func (b *buffer) slot(i int) []byte {
	from := int64(i) * b.size
	return b.mem[from : from+b.size : from+b.size]
}

// close gives the memory back; nobody may use it any more.
func (b *buffer) close() error {
	if b.mem == nil {
		return nil
	}
	return unix.Munmap(b.mem)
}
