package manifest

import "encoding/binary"

const (
	fnvBasis uint64 = 14695981039346656037 // FNV-1a, 64 bits
	fnvPrime uint64 = 1099511628211
	// patternStep is 2^64 divided by the golden ratio: neighbouring words
	// differ in about half their bits.
	patternStep uint64 = 0x9E3779B97F4A7C15
)

// Pattern fills dst with the bytes of a chunk that has no file: little-endian
// 64-bit words, word i is FNV-1a(key) + i*patternStep from i = 1, cut to
// len(dst).
func Pattern(dst []byte, key string) {
	p := newPattern(key)
	p.next(dst)
}

// pattern is the bytes of a chunk without a file, from end to end: the word before
// those to come.
type pattern uint64

func newPattern(key string) pattern { return pattern(fnv1a(fnvBasis, key)) }

// next fills dst with the bytes to come. All but the last dst are whole words.
func (p *pattern) next(dst []byte) {
	w0 := uint64(*p)
	for len(dst) >= 32 {
		w1 := w0 + patternStep
		w2 := w1 + patternStep
		w3 := w2 + patternStep
		w0 = w3 + patternStep
		words := dst[:32:32]
		binary.LittleEndian.PutUint64(words[0:], w1)
		binary.LittleEndian.PutUint64(words[8:], w2)
		binary.LittleEndian.PutUint64(words[16:], w3)
		binary.LittleEndian.PutUint64(words[24:], w0)
		dst = dst[32:]
	}
	for len(dst) > 0 {
		w0 += patternStep
		dst = dst[copy(dst, littleEndian(w0)):]
	}
	*p = pattern(w0)
}

// Verify compares data with the pattern of key. Where they differ it returns
// the position of the first byte that does.
func Verify(key string, data []byte) (firstBad int, ok bool) {
	w := fnv1a(fnvBasis, key)
	for at := 0; at < len(data); at += 8 {
		w += patternStep
		if len(data)-at >= 8 && binary.LittleEndian.Uint64(data[at:]) == w {
			continue
		}
		for i, want := range littleEndian(w)[:min(8, len(data)-at)] {
			if data[at+i] != want {
				return at + i, false
			}
		}
	}
	return 0, true
}

func littleEndian(w uint64) []byte { return binary.LittleEndian.AppendUint64(nil, w) }

// fnv1a continues the hash h with the bytes of s.
func fnv1a(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}
