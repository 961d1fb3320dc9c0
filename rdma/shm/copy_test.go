package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
)

// streamCopy must do what copy does, whatever the lengths and alignments, and
// touch nothing beside.
func FuzzStreamCopy(f *testing.F) {
	for _, n := range []uint{0, 1, 15, 16 << 10, 16<<10 - 1, 16<<10 + 1, 64 << 10, 100_003, 1 << 20} {
		f.Add(n, uint8(0), uint8(0), uint64(n))
		f.Add(n, uint8(16), uint8(3), uint64(n))
		f.Add(n, uint8(7), uint8(9), uint64(n))
	}
	const margin = 256
	f.Fuzz(func(t *testing.T, n uint, dstAt, srcAt uint8, seed uint64) {
		n %= 1<<20 + 1
		src := make([]byte, margin+n)
		dst := make([]byte, 2*margin+n)
		fill(src, seed)
		fill(dst, seed+1)
		want := bytes.Clone(dst)
		from := src[srcAt:][:n]
		copy(want[dstAt:], from)
		streamCopy(dst[dstAt:][:n], from)
		if !bytes.Equal(dst, want) {
			t.Fatalf("%d bytes from offset %d to %d differ from what copy does", n, srcAt, dstAt)
		}
	})
}

// A fault on either side of a copy is an error, in plain copies and streamed
// ones, and the process goes on.
func TestStoreFault(t *testing.T) {
	const size = 256 << 10
	none := testkit.Must[[]byte](t)(unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON))
	defer unix.Munmap(none)
	some := testkit.Must[[]byte](t)(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))
	defer unix.Munmap(some)
	for _, n := range []int{1, 1000, size} {
		testkit.WantError(t, store(none[:n], some[:n]), "memory fault at 0x")
		testkit.WantError(t, store(some[:n], none[:n]), "memory fault at 0x")
	}
	if err := store(some, make([]byte, size)); err != nil {
		t.Error(err)
	}
}

// fill writes bytes that depend on the seed, with a prime period so that no two
// pages are alike.
func fill(b []byte, seed uint64) {
	const period = 65_521
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(b[:min(len(b), period)])
	for n := period; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}
