package wire

import (
	"fmt"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// Append writes m behind dst and returns the longer slice. It does not look
// at limits.
func Append(dst []byte, m Message) []byte {
	e := encoders.Get().(*encoder)
	e.out = dst
	if r, ok := m.(report); ok {
		e.report(r)
	} else {
		fs := m.(layout).fields(e.outer[:0])
		e.pairs(m.name(), fs)
		clear(fs) // the room outlives the message
	}
	dst, e.out = e.out, nil
	encoders.Put(e)
	return dst
}

// encoder is the library's Encoder, writing behind out.
type encoder struct {
	*msgpack.Encoder
	out sink
	room
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.Encoder = msgpack.NewEncoder(&e.out)
	e.UseCompactInts(true)
	e.SetCustomStructTag("json") // for the reports
	return e
}}

// sink is what the library writes to. It never fails, so what the Encode
// methods return is not looked at.
type sink []byte

func (s *sink) Write(b []byte) (int, error) {
	*s = append(*s, b...)
	return len(b), nil
}

func (s *sink) WriteByte(c byte) error {
	*s = append(*s, c)
	return nil
}

// pairs writes a map of fields; with a name it is a message's.
func (e *encoder) pairs(name string, fs []field) {
	n := 0
	for i := range fs {
		if !fs[i].leftOut() {
			n++
		}
	}
	if name != "" {
		e.EncodeMapLen(n + 1)
		e.EncodeString("type")
		e.EncodeString(name)
	} else {
		e.EncodeMapLen(n)
	}
	for i := range fs {
		if !fs[i].leftOut() {
			e.EncodeString(fs[i].name)
			e.value(&fs[i])
		}
	}
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
	case *bool:
		return !*v
	case *accessList:
		for _, access := range *v {
			if len(access) > 0 {
				return false
			}
		}
		return true
	}
	panic(fmt.Sprintf("wire: no rule says when %T is empty", v))
}

func (e *encoder) value(f *field) {
	switch v := f.to.(type) {
	case *string:
		e.EncodeString(*v)
	case *Code:
		e.EncodeString(string(*v))
	case *bool:
		e.EncodeBool(*v)
	case *Int:
		e.int(*v)
	case *int64:
		e.EncodeInt(*v)
	case *uint64:
		e.EncodeUint(*v)
	case *uint32:
		e.EncodeUint(uint64(*v))
	case *[]byte:
		e.bin(*v)
	case *accessList:
		writeList(e, *v, (*encoder).bin)
	case *keyList:
		writeList(e, *v, (*encoder).EncodeString)
	case *nameList:
		writeList(e, *v, (*encoder).EncodeString)
	case *[]Int:
		writeList(e, *v, (*encoder).int)
	case *[]int64:
		writeList(e, *v, (*encoder).EncodeInt)
	case *regionList:
		writeList(e, *v, (*encoder).EncodeInt)
	case *[]uint32:
		e.EncodeArrayLen(len(*v))
		for _, n := range *v {
			e.EncodeUint(uint64(n))
		}
	case *[]Region:
		e.EncodeArrayLen(len(*v))
		for i := range *v {
			e.inside(&(*v)[i])
		}
	case *[]TakenChunk:
		e.EncodeArrayLen(len(*v))
		for i := range *v {
			e.inside(&(*v)[i])
		}
	case *[]ReadyEntry:
		e.EncodeArrayLen(len(*v))
		for i := range *v {
			e.inside(&(*v)[i])
		}
	default:
		panic(fmt.Sprintf("wire: field %s has type %T", f.name, f.to))
	}
}

// bin writes a nil one as an empty one; EncodeBytes has nil for it.
func (e *encoder) bin(b []byte) error {
	e.EncodeBytesLen(len(b))
	e.out.Write(b)
	return nil
}

func (e *encoder) int(n Int) error {
	if n.negative {
		return e.EncodeInt(int64(n.bits))
	}
	return e.EncodeUint(n.bits)
}

// inside writes a struct within a message.
func (e *encoder) inside(v layout) {
	fs := v.fields(e.inner[:0])
	e.pairs("", fs)
	clear(fs)
}

func writeList[T any](e *encoder, vs []T, write func(*encoder, T) error) {
	e.EncodeArrayLen(len(vs))
	for _, v := range vs {
		write(e, v)
	}
}
