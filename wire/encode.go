package wire

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Append writes m behind dst and returns the longer slice. It does not look
// at limits.
func Append(dst []byte, m Message) []byte {
	if s, ok := m.(*Snapshot); ok {
		return appendSnapshot(dst, s)
	}
	e := encoders.Get().(*encoder)
	fs := m.(layout).fields(e.outer[:0])
	dst = e.pairs(dst, m.name(), fs)
	clear(fs) // the room outlives the message
	encoders.Put(e)
	return dst
}

type encoder struct{ room }

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// pairs writes a map of fields; with a name it is a message's.
func (e *encoder) pairs(dst []byte, name string, fs []field) []byte {
	n := 0
	for i := range fs {
		if !fs[i].leftOut() {
			n++
		}
	}
	if name != "" {
		dst = appendHead(dst, kindMap, n+1)
		dst = appendStr(dst, "type")
		dst = appendStr(dst, name)
	} else {
		dst = appendHead(dst, kindMap, n)
	}
	for i := range fs {
		if !fs[i].leftOut() {
			dst = appendStr(dst, fs[i].name)
			dst = e.value(dst, &fs[i])
		}
	}
	return dst
}

func (f *field) leftOut() bool { return f.rule == omitEmpty && isEmpty(f.to) }

func isEmpty(v any) bool {
	switch v := v.(type) {
	case *string:
		return *v == ""
	case *Code:
		return *v == ""
	case *uint64:
		return *v == 0
	case *regionList:
		for _, region := range *v {
			if region != 0 {
				return false
			}
		}
		return true
	}
	panic(fmt.Sprintf("wire: no rule says when %T is empty", v))
}

func (e *encoder) value(dst []byte, f *field) []byte {
	switch v := f.to.(type) {
	case *string:
		return appendStr(dst, *v)
	case *Code:
		return appendStr(dst, string(*v))
	case *bool:
		return appendBool(dst, *v)
	case *Int:
		return appendInt(dst, *v)
	case *int64:
		return appendInt(dst, I(*v))
	case *uint64:
		return appendInt(dst, U(*v))
	case *uint32:
		return appendInt(dst, U(uint64(*v)))
	case *[]byte:
		return append(appendHead(dst, kindBin, len(*v)), *v...)
	case *keyList:
		return appendList(dst, *v, appendStr)
	case *nameList:
		return appendList(dst, *v, appendStr)
	case *[]Int:
		return appendList(dst, *v, appendInt)
	case *[]int64:
		return appendInt64s(dst, *v)
	case *regionList:
		return appendInt64s(dst, *v)
	case *[]uint32:
		return appendList(dst, *v, func(dst []byte, n uint32) []byte { return appendInt(dst, U(uint64(n))) })
	case *[]Region:
		return appendList(dst, *v, func(dst []byte, r Region) []byte { return e.inside(dst, &r) })
	case *[]TakenChunk:
		return appendList(dst, *v, func(dst []byte, c TakenChunk) []byte { return e.inside(dst, &c) })
	}
	panic(fmt.Sprintf("wire: field %s has type %T", f.name, f.to))
}

// inside writes a struct within a message.
func (e *encoder) inside(dst []byte, v layout) []byte {
	fs := v.fields(e.inner[:0])
	dst = e.pairs(dst, "", fs)
	clear(fs)
	return dst
}

func appendList[T any](dst []byte, vs []T, write func([]byte, T) []byte) []byte {
	dst = appendHead(dst, kindArray, len(vs))
	for _, v := range vs {
		dst = write(dst, v)
	}
	return dst
}

func appendInt64s(dst []byte, vs []int64) []byte {
	return appendList(dst, vs, func(dst []byte, n int64) []byte { return appendInt(dst, I(n)) })
}

func appendStr(dst []byte, s string) []byte {
	return append(appendHead(dst, kindStr, len(s)), s...)
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 0xc3)
	}
	return append(dst, 0xc2)
}

// appendInt writes n in its shortest form: one that is not negative as an
// unsigned integer.
func appendInt(dst []byte, n Int) []byte {
	if !n.negative {
		return appendUint(dst, n.bits)
	}
	switch v := int64(n.bits); {
	case v >= -1<<5:
		return append(dst, byte(v))
	case v >= -1<<7:
		return append(dst, 0xd0, byte(v))
	case v >= -1<<15:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(v))
	case v >= -1<<31:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 0xd3), n.bits)
	}
}

func appendUint(dst []byte, n uint64) []byte {
	switch {
	case n < 1<<7:
		return append(dst, byte(n))
	case n < 1<<8:
		return append(dst, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 0xcf), n)
	}
}

// shortest has, for each kind with a length, the byte that carries lengths
// under short itself, then those that announce 1, 2 and 4 bytes of length; 0
// where there is none.
var shortest = [...]struct {
	short          int
	c0, c1, c2, c4 byte
}{
	kindStr:   {32, 0xa0, 0xd9, 0xda, 0xdb},
	kindBin:   {0, 0, 0xc4, 0xc5, 0xc6},
	kindArray: {16, 0x90, 0, 0xdc, 0xdd},
	kindMap:   {16, 0x80, 0, 0xde, 0xdf},
}

// appendHead writes the head of a str, bin, array or map of n bytes, elements
// or pairs.
func appendHead(dst []byte, k kind, n int) []byte {
	s := &shortest[k]
	switch {
	case n < s.short:
		return append(dst, s.c0|byte(n))
	case n < 1<<8 && s.c1 != 0:
		return append(dst, s.c1, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, s.c2), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(dst, s.c4), uint32(n))
	}
}
