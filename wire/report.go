package wire

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// report is a message for monitors: a Snapshot of one of three kinds, or an
// Event. It has more fields than others, and nobody waits for it, so the
// library lays it out, by the names that it has in JSON.
type report interface {
	Message
	// fillLists makes absent lists empty ones, so that JSON has [] for them.
	fillLists()
}

// Stamp is a time that lies on the wire as in JSON: RFC 3339, in UTC.
type Stamp struct{ time.Time }

// StampOf is t in UTC, without what only this process knows of it.
func StampOf(t time.Time) Stamp { return Stamp{t.UTC().Round(0)} }

// EncodeMsgpack is for the library.
func (s Stamp) EncodeMsgpack(e *msgpack.Encoder) error {
	return e.EncodeString(s.UTC().Format(time.RFC3339Nano))
}

// DecodeMsgpack is for the library.
func (s *Stamp) DecodeMsgpack(d *msgpack.Decoder) error {
	text, err := d.DecodeString()
	if err != nil {
		return err
	}
	if s.Time, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return fmt.Errorf("%.64q is no RFC 3339 time", text)
	}
	s.Time = s.UTC()
	return nil
}

func (s *Snapshot) fillLists() {
	orEmpty(&s.Requests)
	orEmpty(&s.Queue)
	orEmpty(&s.Senders)
	if s.Refusals == nil {
		s.Refusals = map[string]int64{}
	}
}

func (s *SenderSnapshot) fillLists() {
	orEmpty(&s.Staging.Blocked)
	orEmpty(&s.Requests)
	orEmpty(&s.Receivers)
}

func (s *ProxySnapshot) fillLists() { orEmpty(&s.Waiting) }

func (s *Event) fillLists() { orEmpty(&s.Events) }

func orEmpty[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

// report writes r as the library does, with its name before the first field.
func (e *encoder) report(r report) {
	head := len(e.out)
	if err := e.Encode(r); err != nil {
		panic("wire: encode a " + r.name() + ": " + err.Error()) // neither the types nor the sink can fail
	}
	body := e.out[head:]
	fields, size := int(body[0]&0xf), 1
	if body[0] == msgpcode.Map16 {
		fields, size = int(body[1])<<8|int(body[2]), 3
	}
	var named sink
	to := msgpack.NewEncoder(&named)
	_ = to.EncodeMapLen(fields + 1)
	_ = to.EncodeString("type")
	_ = to.EncodeString(r.name())
	e.out = slices.Replace(e.out, head, head+size, named...)
}

// newSnapshot is the Snapshot that the kind among n pairs says.
func (d *decoder) newSnapshot(n int) (Message, *DecodeError) {
	for ; n > 0; n-- {
		key, err := d.key()
		if err != nil {
			return nil, err
		}
		if string(key) == "kind" {
			return d.snapshotOf()
		}
		if err := d.skip(1); err != nil {
			return nil, err.in(fieldName(key))
		}
	}
	return new(Snapshot), nil
}

func (d *decoder) snapshotOf() (Message, *DecodeError) {
	n, err := d.head(kindStr)
	if err != nil {
		return nil, err.in("kind")
	}
	switch string(d.bytes(n)) {
	case KindSender:
		return new(SenderSnapshot), nil
	case KindProxy:
		return new(ProxySnapshot), nil
	}
	return new(Snapshot), nil
}

// report reads the report of n pairs. Unknown fields are ignored. The library
// trusts counts, so the whole frame is walked first.
func (d *decoder) report(r report, n int) *DecodeError {
	if err := d.boundLists(n); err != nil {
		return err
	}
	dec := msgpack.NewDecoder(bytes.NewReader(d.frame))
	dec.SetCustomStructTag("json")
	if err := dec.Decode(r); err != nil {
		return fault("%s: %v", r.name(), err)
	}
	r.fillLists()
	return nil
}

// boundLists checks that n pairs are all there and that no list among them is
// longer than a report's may be.
func (d *decoder) boundLists(n int) *DecodeError {
	if err := d.boundPairs(n, "staging"); err != nil {
		return err
	}
	return d.end()
}

// boundPairs does so for the pairs of a map; within has lists of its own.
func (d *decoder) boundPairs(n int, within string) *DecodeError {
	for ; n > 0; n-- {
		key, err := d.key()
		if err != nil {
			return err
		}
		if err := d.boundValue(within != "" && string(key) == within); err != nil {
			return err.in(fieldName(key))
		}
	}
	return nil
}

func (d *decoder) boundValue(descend bool) *DecodeError {
	k, _, _ := d.peek()
	switch {
	case k == kindMap && descend:
		n, err := d.head(kindMap)
		if err != nil {
			return err
		}
		return d.boundPairs(n, "")
	case k == kindArray:
		value := d.off()
		if _, err := d.array(MaxSnapshotList, "entries"); err != nil {
			return err
		}
		d.seek(value)
	}
	return d.skip(1)
}
