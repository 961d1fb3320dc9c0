package crc32c

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// The vectors of RFC 3720, B.4, and the check value of the CRC catalogue.
func TestVectors(t *testing.T) {
	rising, falling, ones := make([]byte, 32), make([]byte, 32), make([]byte, 32)
	for i := range 32 {
		rising[i], falling[i], ones[i] = byte(i), byte(31-i), 0xff
	}
	for want, p := range map[uint32][]byte{
		0:          nil,
		0x8a9136aa: make([]byte, 32),
		0x62a8ab43: ones,
		0x46dd794e: rising,
		0x113fdb5c: falling,
		0xe3069283: []byte("123456789"),
	} {
		if sum := Update(0, p); sum != want {
			t.Errorf("%x sums to %08x, not to %08x", p, sum, want)
		}
	}
}

// Of any length, at any place and in any parts it is what Go's own is.
func TestLikeGo(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]byte, 300<<10)
	for i := range all {
		all[i] = byte(r.Uint32())
	}
	for n := range 2000 {
		from := r.IntN(128)
		size := n
		if n >= 1500 {
			size = r.IntN(len(all) - from)
		}
		p := all[from : from+size]
		cut := r.IntN(size + 1)
		want := crc32.Checksum(p, table)
		if sum := Update(Update(0, p[:cut]), p[cut:]); sum != want {
			t.Fatalf("%d bytes from %d, cut at %d: %08x, not %08x", size, from, cut, sum, want)
		}
	}
}
