package shm

import (
	"fmt"
	"testing"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

// coldBytes is what the benchmarks walk: more than a cache holds.
const coldBytes = 512 << 20

// BenchmarkCold moves chunks from cold memory to cold memory: by copy within
// the process, which is the reference, by the streaming copy alone, and by
// writes through the engine. The bench script compares processes.
func BenchmarkCold(b *testing.B) {
	private := func(n int) []byte {
		m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { unix.Munmap(m) })
		if err := buffer.Prefault(m); err != nil {
			b.Fatal(err)
		}
		return m
	}
	src, dst := private(coldBytes), private(coldBytes)
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20} {
		target, err := openTarget(b.Name(), coldBytes/size, int64(size))
		if err != nil {
			b.Fatal(err)
		}
		at, err := target.attachment(1)
		if err != nil {
			b.Fatal(err)
		}
		r, err := Attach(b.Context(), at)
		if err != nil {
			b.Fatal(err)
		}
		op := make([]rdma.Op, 1)
		for _, way := range []struct {
			name string
			move func(slot int, from []byte)
		}{
			{"copy", func(slot int, from []byte) { copy(dst[slot*size:], from) }},
			{"stream", func(slot int, from []byte) { streamCopy(dst[slot*size:][:size], from) }},
			{"write", func(slot int, from []byte) {
				op[0] = rdma.Op{Local: from, Slot: slot}
				if err := r.Write(b.Context(), op); err != nil {
					b.Fatal(err)
				}
			}},
		} {
			b.Run(fmt.Sprintf("%s/%s", humanize.IBytes(uint64(size)), way.name), func(b *testing.B) {
				b.SetBytes(int64(size))
				slot := 0
				for b.Loop() {
					way.move(slot, src[slot*size:][:size])
					slot = (slot + 1) % (coldBytes / size)
				}
			})
		}
		if err := r.Close(); err != nil {
			b.Error(err)
		}
		if err := target.Close(); err != nil {
			b.Error(err)
		}
	}
}
