package wire

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// DecodeError says why bytes are no message.
type DecodeError struct {
	Field  string // where, such as "keys[3]"; empty when it is the message as a whole
	Reason string

	// What could still be read of a refused AllocRequest, zero otherwise.
	ReqID string // its req_id, unless that is at fault itself
	Keys  int    // how many keys it has; may be over MaxKeys, never over the message's bytes
}

func (e *DecodeError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

func fault(format string, args ...any) *DecodeError {
	return &DecodeError{Reason: fmt.Sprintf(format, args...)}
}

// in is e, found inside the field or element called name.
func (e *DecodeError) in(name string) *DecodeError {
	switch {
	case e.Field == "":
	case e.Field[0] == '[':
		name += e.Field
	default:
		name += "." + e.Field
	}
	return &DecodeError{Field: name, Reason: e.Reason}
}

func (e *DecodeError) at(i int) *DecodeError { return e.in(fmt.Sprintf("[%d]", i)) }

// Decode reads the one message that b is and returns a pointer to it. Nothing
// in it refers to b. An error is a *DecodeError.
func Decode(b []byte) (Message, error) {
	if len(b) > MaxResponse {
		return nil, fault("message has %d bytes, the limit is %d", len(b), MaxResponse)
	}
	d := decoders.Get().(*decoder)
	d.reset(b)
	m, err := d.message()
	d.reset(nil)
	decoders.Put(d)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// NameOf is the name of the message that b seems to be, without a look at the
// rest of it.
func NameOf(b []byte) (string, error) {
	d := decoders.Get().(*decoder)
	d.reset(b)
	name, err := d.name()
	d.reset(nil)
	decoders.Put(d)
	if err != nil {
		return "", err
	}
	return name, nil
}

func (d *decoder) name() (string, *DecodeError) {
	n, err := d.head(kindMap)
	if err != nil {
		return "", err
	}
	tag, err := d.tag(n)
	return string(tag), err
}

func (d *decoder) message() (Message, *DecodeError) {
	n, err := d.head(kindMap)
	if err != nil {
		return nil, err
	}
	first := d.off()
	tag, err := d.tag(n)
	if err != nil {
		return nil, err
	}
	d.seek(first)
	var m Message
	switch string(tag) {
	case NameSnapshot:
		m, err = d.newSnapshot(n)
	case NameEvent:
		m = new(Event)
	default:
		m = newMessage(tag)
	}
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fault("unknown message %.64q", tag).in("type")
	}
	if limit := maxBytes(m); len(d.frame) > limit {
		return nil, fault("%s has %d bytes, the limit is %d", tag, len(d.frame), limit)
	}
	d.seek(first)
	if r, ok := m.(report); ok {
		return m, d.report(r, n)
	}
	fs := m.(layout).fields(d.outer[:0])
	err = d.pairs(fs, n, tag)
	clear(fs) // the room outlives the message
	if err == nil {
		err = d.end()
	}
	if err == nil {
		err = check(m)
	}
	if _, ok := m.(*AllocRequest); ok && err != nil {
		d.seek(first)
		return nil, d.salvage(err, n)
	}
	return m, err
}

// end refuses bytes behind the message.
func (d *decoder) end() *DecodeError {
	if n := d.in.Len(); n > 0 {
		return fault("%d bytes behind the message", n)
	}
	return nil
}

// tag finds the message's name among n pairs; it need not be the first.
func (d *decoder) tag(n int) ([]byte, *DecodeError) {
	for ; n > 0; n-- {
		key, err := d.key()
		if err != nil {
			return nil, err
		}
		if string(key) == "type" {
			return d.tagValue()
		}
		if err := d.skip(1); err != nil {
			return nil, err.in(fieldName(key))
		}
	}
	return nil, &DecodeError{Field: "type", Reason: "missing"}
}

func (d *decoder) tagValue() ([]byte, *DecodeError) {
	n, err := d.head(kindStr)
	if err != nil {
		return nil, err.in("type")
	}
	return d.bytes(n), nil
}

// key reads the name of a field. It may be any bytes; only what is known is
// compared with it.
func (d *decoder) key() ([]byte, *DecodeError) {
	n, err := d.head(kindStr)
	if err != nil {
		return nil, fault("name of a field: %s", err.Reason)
	}
	return d.bytes(n), nil
}

// fieldName is a peer's name of a field, fit for an error text.
func fieldName(key []byte) string {
	const most = 64
	return fmt.Sprintf("%q", key[:min(len(key), most)])
}

// pairs reads n pairs into the fields fs. Of a field that comes twice the
// last one counts. A message's map has its name in it too, as often as it
// likes but always the same; tag is empty in other maps.
func (d *decoder) pairs(fs []field, n int, tag []byte) *DecodeError {
	var seen uint32
	expected := 0 // most often the fields come in order
	for ; n > 0; n-- {
		key, err := d.key()
		if err != nil {
			return err
		}
		i := find(fs, expected, key)
		switch {
		case i >= 0:
			if err := d.value(&fs[i]); err != nil {
				return err.in(fs[i].name)
			}
			seen |= 1 << i
			expected = i + 1
		case len(tag) > 0 && string(key) == "type":
			again, err := d.tagValue()
			if err != nil {
				return err
			}
			if string(again) != string(tag) {
				return fault("%s, then %.64q", tag, again).in("type")
			}
		default:
			if err := d.skip(1); err != nil {
				return err.in(fieldName(key))
			}
		}
	}
	for i := range fs {
		if fs[i].rule == required && seen&(1<<i) == 0 {
			return &DecodeError{Field: fs[i].name, Reason: "missing"}
		}
	}
	return nil
}

// find is the place of the field called key, -1 when there is none.
func find(fs []field, expected int, key []byte) int {
	if expected < len(fs) && fs[expected].name == string(key) {
		return expected
	}
	for i := range fs {
		if fs[i].name == string(key) {
			return i
		}
	}
	return -1
}

// value reads a value into the field.
func (d *decoder) value(f *field) (err *DecodeError) {
	switch to := f.to.(type) {
	case *string:
		*to, err = d.str(f.max)
	case *Code:
		var s string
		s, err = d.str(f.max)
		*to = Code(s)
	case *bool:
		*to, err = d.bool()
	case *Int:
		*to, err = d.int()
	case *int64:
		*to, err = d.int64()
	case *uint64:
		*to, err = d.uint64()
	case *uint32:
		*to, err = d.uint32()
	case *[]byte:
		*to, err = d.bin()
	case *keyList:
		*to, err = d.strs(f.max, "keys", MaxKey)
	case *nameList:
		*to, err = d.strs(f.max, "names", MaxName)
	case *[]Int:
		*to, err = list(d, f.max, (*decoder).int)
	case *[]int64:
		*to, err = list(d, f.max, (*decoder).int64)
	case *regionList:
		*to, err = list(d, f.max, (*decoder).int64)
		if isEmpty(to) {
			*to = nil
		}
	case *accessList:
		*to, err = list(d, f.max, (*decoder).access)
		if isEmpty(to) {
			*to = nil
		}
	case *[]uint32:
		*to, err = list(d, f.max, (*decoder).uint32)
	case *[]Region:
		*to, err = list(d, f.max, (*decoder).region)
	case *[]TakenChunk:
		*to, err = list(d, f.max, (*decoder).takenChunk)
	case *[]ReadyEntry:
		*to, err = list(d, f.max, (*decoder).readyEntry)
	default:
		panic(fmt.Sprintf("wire: field %s has type %T", f.name, to))
	}
	return err
}

// utf8Bytes reads a str of at most most bytes (0: any number); the bytes are
// the frame's own.
func (d *decoder) utf8Bytes(most int) ([]byte, *DecodeError) {
	n, err := d.head(kindStr)
	if err != nil {
		return nil, err
	}
	if most > 0 && n > most {
		return nil, fault("%d bytes, the limit is %d", n, most)
	}
	b := d.bytes(n)
	if !utf8.Valid(b) {
		return nil, fault("not valid UTF-8")
	}
	return b, nil
}

func (d *decoder) str(most int) (string, *DecodeError) {
	b, err := d.utf8Bytes(most)
	return string(b), err
}

func (d *decoder) bin() ([]byte, *DecodeError) {
	n, err := d.head(kindBin)
	if err != nil || n == 0 {
		return nil, err
	}
	return slices.Clone(d.bytes(n)), nil
}

func (d *decoder) access() ([]byte, *DecodeError) {
	b, err := d.bin()
	if len(b) > MaxAccess {
		return nil, fault("%d bytes, the limit is %d", len(b), MaxAccess)
	}
	return b, err
}

func (d *decoder) int64() (int64, *DecodeError) {
	n, err := d.int()
	if err != nil {
		return 0, err
	}
	v, ok := n.Int64()
	if !ok {
		return 0, fault("%v is over 2^63-1", n)
	}
	return v, nil
}

func (d *decoder) uint64() (uint64, *DecodeError) {
	n, err := d.int()
	if err != nil {
		return 0, err
	}
	v, ok := n.Uint64()
	if !ok {
		return 0, fault("%v is negative", n)
	}
	return v, nil
}

func (d *decoder) uint32() (uint32, *DecodeError) {
	v, err := d.uint64()
	if err == nil && v > math.MaxUint32 {
		err = fault("%d is over 2^32-1", v)
	}
	return uint32(v), err
}

func (d *decoder) region() (v Region, err *DecodeError) {
	return v, d.inside(&v)
}

func (d *decoder) takenChunk() (v TakenChunk, err *DecodeError) {
	return v, d.inside(&v)
}

func (d *decoder) readyEntry() (v ReadyEntry, err *DecodeError) {
	return v, d.inside(&v)
}

// inside reads a struct within a message.
func (d *decoder) inside(v layout) *DecodeError {
	n, err := d.head(kindMap)
	if err != nil {
		return err
	}
	fs := v.fields(d.inner[:0])
	err = d.pairs(fs, n, nil)
	clear(fs)
	return err
}

// array reads the head of an array of at most most elements (0: any number).
func (d *decoder) array(most int, what string) (int, *DecodeError) {
	n, err := d.head(kindArray)
	if err == nil && most > 0 && n > most {
		err = fault("%d %s, the limit is %d", n, what, most)
	}
	return n, err
}

// list reads an array, its elements by read. An empty one is nil.
func list[T any](d *decoder, most int, read func(*decoder) (T, *DecodeError)) ([]T, *DecodeError) {
	n, err := d.array(most, "elements")
	if err != nil || n == 0 {
		return nil, err
	}
	const credit = 1024 // elements that get memory before they are read
	vs := make([]T, 0, min(n, credit))
	for i := range n {
		v, err := read(d)
		if err != nil {
			return nil, err.at(i)
		}
		vs = append(vs, v)
	}
	return vs, nil
}

// strs reads an array of str, each of at most mostBytes. When what is left of
// the frame is no longer than one key may be, they share one piece of memory:
// who keeps a single one of them keeps no more than the longest key takes.
func (d *decoder) strs(most int, what string, mostBytes int) ([]string, *DecodeError) {
	n, err := d.array(most, what)
	if err != nil || n == 0 {
		return nil, err
	}
	shared, start := "", d.off()
	if n > 1 && d.in.Len() <= MaxKey {
		shared = string(d.frame[start:])
	}
	ss := make([]string, n)
	for i := range ss {
		b, err := d.utf8Bytes(mostBytes)
		if err != nil {
			return nil, err.at(i)
		}
		if shared != "" {
			end := d.off() - start
			ss[i] = shared[end-len(b) : end]
		} else {
			ss[i] = string(b)
		}
	}
	return ss, nil
}

// check refuses lists that run in parallel and are not of one length.
func check(m Message) *DecodeError {
	c, ok := m.(*CommitRequest)
	if !ok {
		return nil
	}
	if n := len(c.Lengths); n != len(c.Slots) {
		return fault("%d elements for %d slots", n, len(c.Slots)).in("lengths")
	}
	if n := len(c.CRCs); n != len(c.Slots) {
		return fault("%d elements for %d slots", n, len(c.Slots)).in("crcs")
	}
	return nil
}

// salvage fills in what can be read of the AllocRequest of n pairs that was
// refused with err.
func (d *decoder) salvage(err *DecodeError, n int) *DecodeError {
	found := *err // err may be shared
	for ; n > 0; n-- {
		key, err := d.key()
		if err != nil {
			break
		}
		value := d.off()
		if d.skip(1) != nil {
			break
		}
		end := d.off()
		d.seek(value)
		switch string(key) {
		case "req_id":
			found.ReqID, _ = d.str(MaxReqID)
		case "keys":
			found.Keys, _ = d.head(kindArray)
		}
		d.seek(end)
	}
	return &found
}
