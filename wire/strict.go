package wire

import (
	"bytes"
	"io"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// decoder is the library's Decoder over a frame. The library takes nil for
// anything, bin for str and a count at its word, so the methods of this file,
// which alone use it, look at what comes before they let it read. Text and
// bytes they take from the frame itself: the library's copy of them would
// stay with the pool.
type decoder struct {
	lib   *msgpack.Decoder // reads from in
	in    bytes.Reader     // over frame
	frame []byte
	room
}

var decoders = sync.Pool{New: func() any {
	d := new(decoder)
	d.lib = msgpack.NewDecoder(&d.in)
	return d
}}

func (d *decoder) reset(frame []byte) {
	d.frame = frame
	d.in.Reset(frame)
}

// kind is what a msgpack value is, whatever form it is written in.
type kind string

const (
	kindNil   kind = "nil"
	kindBool  kind = "bool"
	kindInt   kind = "int"
	kindFloat kind = "float"
	kindStr   kind = "str"
	kindBin   kind = "bin"
	kindExt   kind = "ext"
	kindArray kind = "array"
	kindMap   kind = "map"
)

// kindOf is the kind of the value that begins with code, empty for 0xc1,
// which begins none.
func kindOf(code byte) kind {
	switch {
	case msgpcode.IsFixedNum(code), code >= msgpcode.Uint8 && code <= msgpcode.Int64:
		return kindInt
	case msgpcode.IsString(code):
		return kindStr
	case msgpcode.IsFixedArray(code), code == msgpcode.Array16, code == msgpcode.Array32:
		return kindArray
	case msgpcode.IsFixedMap(code), code == msgpcode.Map16, code == msgpcode.Map32:
		return kindMap
	case msgpcode.IsBin(code):
		return kindBin
	case msgpcode.IsExt(code):
		return kindExt
	case code == msgpcode.False, code == msgpcode.True:
		return kindBool
	case code == msgpcode.Float, code == msgpcode.Double:
		return kindFloat
	case code == msgpcode.Nil:
		return kindNil
	}
	return ""
}

// kinds is kindOf as a table, which takes a tenth off the time of Decode.
var kinds = func() (ks [256]kind) {
	for code := range ks {
		ks[code] = kindOf(byte(code))
	}
	return ks
}()

var errTruncated = &DecodeError{Reason: "message is truncated"}

// truncated is what a read of the library failed with: of a value whose kind
// is known it fails only where the frame ends.
func truncated(err error) *DecodeError {
	if err != nil {
		return errTruncated
	}
	return nil
}

// off is how much of the frame is read.
func (d *decoder) off() int { return len(d.frame) - d.in.Len() }

// seek goes on reading at off.
func (d *decoder) seek(off int) { d.in.Seek(int64(off), io.SeekStart) }

// peek is what comes next, and its first byte.
func (d *decoder) peek() (kind, byte, *DecodeError) {
	code, err := d.lib.PeekCode()
	if err != nil {
		return "", 0, errTruncated
	}
	k := kinds[code]
	if k == "" {
		return "", 0, fault("byte 0x%x is no msgpack", code)
	}
	return k, code, nil
}

// expect refuses what is not of kind want. It reads nothing.
func (d *decoder) expect(want kind) (code byte, err *DecodeError) {
	k, code, err := d.peek()
	if err == nil && k != want {
		err = fault("expected %s, got %s", want, k)
	}
	return code, err
}

// head reads the head of a str, bin, ext, array or map: how many bytes,
// elements or pairs follow. What the rest of the frame cannot hold is refused.
func (d *decoder) head(want kind) (n int, bad *DecodeError) {
	if _, bad = d.expect(want); bad != nil {
		return 0, bad
	}
	var err error
	least := 1 // bytes that each of n takes
	switch want {
	case kindArray:
		n, err = d.lib.DecodeArrayLen()
	case kindMap:
		n, err = d.lib.DecodeMapLen()
		least = 2
	case kindExt:
		_, n, err = d.lib.DecodeExtHeader()
	default:
		n, err = d.lib.DecodeBytesLen()
	}
	if err != nil || uint(n) > uint(d.in.Len()/least) {
		return 0, errTruncated
	}
	return n, nil
}

// bytes reads n bytes that head found to be there. They are the frame's own.
func (d *decoder) bytes(n int) []byte {
	off := d.off()
	d.seek(off + n)
	return d.frame[off : off+n]
}

func (d *decoder) bool() (bool, *DecodeError) {
	if _, err := d.expect(kindBool); err != nil {
		return false, err
	}
	v, err := d.lib.DecodeBool()
	return v, truncated(err)
}

func (d *decoder) int() (Int, *DecodeError) {
	code, bad := d.expect(kindInt)
	if bad != nil {
		return Int{}, bad
	}
	if code == msgpcode.Uint64 {
		v, err := d.lib.DecodeUint64()
		return U(v), truncated(err)
	}
	v, err := d.lib.DecodeInt64()
	return I(v), truncated(err)
}

// skip passes over a value that lies depth deep.
func (d *decoder) skip(depth int) *DecodeError {
	if depth > maxDepth {
		return fault("arrays and maps lie more than %d deep", maxDepth)
	}
	k, _, err := d.peek()
	if err != nil {
		return err
	}
	switch k {
	case kindNil, kindBool, kindInt, kindFloat:
		return truncated(d.lib.Skip())
	}
	n, err := d.head(k)
	if err != nil {
		return err
	}
	switch k {
	case kindStr, kindBin, kindExt:
		d.bytes(n)
		return nil
	case kindMap:
		n *= 2
	}
	for range n {
		if err := d.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}
