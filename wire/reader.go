package wire

import "encoding/binary"

// kind is what a msgpack value is, whatever form it is written in.
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindInt
	kindFloat
	kindStr
	kindBin
	kindExt
	kindArray
	kindMap
)

func (k kind) String() string {
	return [...]string{"nil", "bool", "int", "float", "str", "bin", "ext", "array", "map"}[k]
}

// token is the head of a value.
type token struct {
	kind kind
	// n is the value of a bool or an int, the bytes of a str, bin, ext or
	// float, the elements of an array, the pairs of a map.
	n        uint64
	negative bool // an int below 0; n is then its two's complement
}

// reader walks over a frame. What it says is there is there: a length or a
// count that the rest of the frame cannot hold is refused with its head.
type reader struct {
	b   []byte
	off int
}

var errTruncated = &DecodeError{Reason: "message is truncated"}

func (r *reader) left() int { return len(r.b) - r.off }

// next reads a head. What follows it (the bytes of a str, bin, ext or float,
// the elements of an array or map) is still to be read.
func (r *reader) next() (token, *DecodeError) {
	if r.off >= len(r.b) {
		return token{}, errTruncated
	}
	c := r.b[r.off]
	r.off++
	switch {
	case c <= 0x7f:
		return token{kind: kindInt, n: uint64(c)}, nil
	case c <= 0x8f:
		return r.sized(kindMap, uint64(c&0x0f))
	case c <= 0x9f:
		return r.sized(kindArray, uint64(c&0x0f))
	case c <= 0xbf:
		return r.sized(kindStr, uint64(c&0x1f))
	case c >= 0xe0:
		return signed(int64(int8(c))), nil
	}
	h := heads[c-0xc0]
	if h.width < 0 {
		return token{}, fault("byte 0x%x is no msgpack", c)
	}
	arg, ok := r.uint(int(h.width))
	if !ok {
		return token{}, errTruncated
	}
	switch h.kind {
	case kindInt:
		if h.signed {
			shift := 64 - 8*uint(h.width)
			return signed(int64(arg<<shift) >> shift), nil
		}
		return token{kind: kindInt, n: arg}, nil
	case kindNil, kindBool:
		return token{kind: h.kind, n: h.n}, nil
	}
	return r.sized(h.kind, arg+h.n)
}

// head says how to read what begins with a byte from 0xc0 to 0xdf.
type head struct {
	kind   kind
	width  int8   // bytes of the argument that follows; -1: no such byte
	n      uint64 // added to the argument
	signed bool   // the argument is a signed integer
}

var heads = [32]head{
	{kind: kindNil},             // c0
	{width: -1},                 // c1
	{kind: kindBool, n: 0},      // c2
	{kind: kindBool, n: 1},      // c3
	{kind: kindBin, width: 1},   // c4
	{kind: kindBin, width: 2},   // c5
	{kind: kindBin, width: 4},   // c6
	{kindExt, 1, 1, false},      // c7: one byte more, the ext's type
	{kindExt, 2, 1, false},      // c8
	{kindExt, 4, 1, false},      // c9
	{kind: kindFloat, n: 4},     // ca
	{kind: kindFloat, n: 8},     // cb
	{kind: kindInt, width: 1},   // cc
	{kind: kindInt, width: 2},   // cd
	{kind: kindInt, width: 4},   // ce
	{kind: kindInt, width: 8},   // cf
	{kindInt, 1, 0, true},       // d0
	{kindInt, 2, 0, true},       // d1
	{kindInt, 4, 0, true},       // d2
	{kindInt, 8, 0, true},       // d3
	{kind: kindExt, n: 2},       // d4
	{kind: kindExt, n: 3},       // d5
	{kind: kindExt, n: 5},       // d6
	{kind: kindExt, n: 9},       // d7
	{kind: kindExt, n: 17},      // d8
	{kind: kindStr, width: 1},   // d9
	{kind: kindStr, width: 2},   // da
	{kind: kindStr, width: 4},   // db
	{kind: kindArray, width: 2}, // dc
	{kind: kindArray, width: 4}, // dd
	{kind: kindMap, width: 2},   // de
	{kind: kindMap, width: 4},   // df
}

// sized is the head of something of n bytes, elements or pairs; each of them
// takes a byte of the frame at least, a pair two.
func (r *reader) sized(k kind, n uint64) (token, *DecodeError) {
	need := n
	if k == kindMap {
		need = 2 * n
	}
	if need > uint64(r.left()) {
		return token{}, errTruncated
	}
	return token{kind: k, n: n}, nil
}

func signed(v int64) token {
	return token{kind: kindInt, n: uint64(v), negative: v < 0}
}

// uint reads a big-endian integer of 0, 1, 2, 4 or 8 bytes.
func (r *reader) uint(width int) (v uint64, ok bool) {
	if width > r.left() {
		return 0, false
	}
	b := r.b[r.off : r.off+width]
	r.off += width
	switch width {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(binary.BigEndian.Uint16(b))
	case 4:
		v = uint64(binary.BigEndian.Uint32(b))
	case 8:
		v = binary.BigEndian.Uint64(b)
	}
	return v, true
}

// expect reads a head that must be of kind k.
func (r *reader) expect(k kind) (token, *DecodeError) {
	t, err := r.next()
	if err == nil && t.kind != k {
		err = fault("expected %v, got %v", k, t.kind)
	}
	return t, err
}

// bytes reads the n bytes behind a head. They are the frame's own.
func (r *reader) bytes(t token) []byte {
	b := r.b[r.off : r.off+int(t.n)]
	r.off += len(b)
	return b
}

// skip passes over a value that lies depth deep.
func (r *reader) skip(depth int) *DecodeError {
	if depth > maxDepth {
		return fault("arrays and maps lie more than %d deep", maxDepth)
	}
	t, err := r.next()
	if err != nil {
		return err
	}
	inside := uint64(0)
	switch t.kind {
	case kindStr, kindBin, kindExt, kindFloat:
		r.off += int(t.n)
	case kindArray:
		inside = t.n
	case kindMap:
		inside = 2 * t.n
	}
	for ; inside > 0; inside-- {
		if err := r.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}
