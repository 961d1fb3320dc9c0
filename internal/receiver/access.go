package receiver

import (
	"errors"
	"fmt"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// access has the engines open and shut slots as the core says, and keeps what
// senders need to write those that are open, where their engine needs anything.
type access struct {
	target rdma.Target
	open   map[int]opened // by slot
}

type opened struct {
	writer rdma.Writer
	bytes  []byte
}

func newAccess(target rdma.Target) *access {
	return &access{target: target, open: make(map[int]opened)}
}

// follow does what doors say, in order; revoked slots are about to get new
// memory. Failed is what could not be opened and why, nil when all could.
func (a *access) follow(doors []reservation.Door, revoked []reservation.Revocation) (failed map[reservation.Door]error) {
	var moving map[int]bool // most often there is none
	for _, r := range revoked {
		if moving == nil {
			moving = make(map[int]bool)
		}
		for _, slot := range r.Slots {
			moving[slot] = true
		}
	}
	for _, d := range doors {
		delete(a.open, d.Slot)
		if d.Writer == 0 && moving[d.Slot] {
			continue // with new memory it is shut, without harm to who still writes to the old
		}
		if d.Writer == 0 {
			a.target.Shut(d.Slot)
			continue
		}
		bytes, err := a.target.Open(rdma.Writer(d.Writer), d.Slot)
		switch {
		case errors.Is(err, rdma.ErrGone): // its end comes on Gone and ends all of its sender's
		case err != nil && failed == nil:
			failed = map[reservation.Door]error{d: err}
		case err != nil:
			failed[d] = err
		case len(bytes) > 0:
			a.open[d.Slot] = opened{rdma.Writer(d.Writer), bytes}
		}
	}
	return failed
}

// accessFailed is what the core must hear of the doors that failed: of those
// that it did not shut again itself.
func accessFailed(doors []reservation.Door, failed map[reservation.Door]error) reservation.Event {
	last := make(map[int]reservation.Door)
	for _, d := range doors {
		last[d.Slot] = d
	}
	var ev reservation.AccessFailed
	for _, d := range doors {
		if err := failed[d]; err != nil && last[d.Slot] == d {
			ev.Slots = append(ev.Slots, d.Slot)
			ev.Reason = err.Error()
		}
	}
	return ev
}

// give puts into an answer to the writer what it needs for its slots. Where one
// of them could not be opened the answer says that instead, and give false.
func (a *access) give(w rdma.Writer, m *wire.AllocResponse, failed map[reservation.Door]error) bool {
	for i, slot := range m.RemoteIndexes {
		if err := failed[reservation.Door{Slot: int(slot), Writer: uint64(w)}]; err != nil {
			refuse(m, err)
			return false
		}
		if o, ok := a.open[int(slot)]; ok && o.writer == w {
			if m.Access == nil {
				m.Access = make([][]byte, len(m.RemoteIndexes))
			}
			m.Access[i] = o.bytes
		}
	}
	return true
}

// refuse turns an answer into one that gives nothing.
func refuse(m *wire.AllocResponse, err error) {
	keys := len(m.RemoteIndexes) + len(m.AlreadySentIndexes)
	*m = wire.AllocResponse{
		RemoteIndexes: make([]int64, keys), AlreadySentIndexes: []int64{}, Code: wire.CodeInternal, Epoch: m.Epoch,
		Error: fmt.Sprintf("the engine failed: %v: give a new try a new req_id, or write by another engine", err),
	}
	for i := range m.RemoteIndexes {
		m.RemoteIndexes[i] = -1
	}
}
