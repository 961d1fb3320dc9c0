package wire

import (
	"bytes"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// snapshotFrame is a Snapshot as it lies on the wire: its own Time stands
// before the embedded one and hides it.
type snapshotFrame struct {
	Type     string `json:"type"`
	Time     string `json:"time"` // RFC 3339, UTC
	Snapshot `msgpack:",inline"`
}

func (e *encoder) snapshot(s *Snapshot) {
	f := snapshotFrame{NameSnapshot, s.Time.UTC().Format(time.RFC3339Nano), *s}
	if err := e.Encode(&f); err != nil {
		panic("wire: encode a Snapshot: " + err.Error()) // neither the types nor the sink can fail
	}
}

// snapshot reads the Snapshot of n pairs. Unknown fields are ignored. The
// library trusts counts, so the whole frame is walked first.
func (d *decoder) snapshot(s *Snapshot, n int) *DecodeError {
	if err := d.boundLists(n); err != nil {
		return err
	}
	dec := msgpack.NewDecoder(bytes.NewReader(d.frame))
	dec.SetCustomStructTag("json")
	var f snapshotFrame
	if err := dec.Decode(&f); err != nil {
		return fault("snapshot: %v", err)
	}
	at, err := time.Parse(time.RFC3339Nano, f.Time)
	if err != nil {
		return fault("%.64q is no RFC 3339 time", f.Time).in("time")
	}
	*s = f.Snapshot
	s.Time = at
	s.fillLists()
	return nil
}

// boundLists checks that n pairs are all there and that no list among them is
// longer than a Snapshot's may be.
func (d *decoder) boundLists(n int) *DecodeError {
	for ; n > 0; n-- {
		key, err := d.key()
		if err != nil {
			return err
		}
		if k, _, _ := d.peek(); k == kindArray {
			value := d.off()
			_, err = d.array(MaxSnapshotList, "entries")
			d.seek(value)
		}
		if err == nil {
			err = d.skip(1)
		}
		if err != nil {
			return err.in(fieldName(key))
		}
	}
	return d.end()
}

// fillLists makes absent lists empty ones, so that JSON has [] for them.
func (s *Snapshot) fillLists() {
	if s.Requests == nil {
		s.Requests = []SnapshotRequest{}
	}
	if s.Queue == nil {
		s.Queue = []SnapshotWaiter{}
	}
	if s.Senders == nil {
		s.Senders = []SnapshotSender{}
	}
}
