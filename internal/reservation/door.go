package reservation

import (
	"slices"

	"github.com/pd-tools/pd-tools/wire"
)

// door is to whom a slot is open. Open is what is held, not written, and of a
// sender that is attached: such a slot has one holder.
type door struct {
	writer uint64   // the grant; 0: the slot is shut
	of     *request // its holder
	again  bool     // it was open under an earlier grant too
}

// openSlot lets r's sender write a slot of r's, under its current grant. One
// that never attached has no access of ours.
func (m *Machine) openSlot(i int32, r *request) {
	grants := r.sender.grants
	if len(grants) == 0 {
		return
	}
	d := &m.ledger.slots[i].door
	*d = door{writer: grants[len(grants)-1], of: r, again: d.writer != 0}
	m.fx.Doors = append(m.fx.Doors, Door{Slot: int(i), Writer: d.writer})
}

// shutSlot takes that back: the chunk is written, or nobody holds the slot any
// more.
func (m *Machine) shutSlot(i int32) {
	if d := &m.ledger.slots[i].door; d.writer != 0 {
		*d = door{}
		m.fx.Doors = append(m.fx.Doors, Door{Slot: int(i)})
	}
}

// reopen opens what a sender may write to its new grant.
func (m *Machine) reopen(s *sender) {
	for _, r := range s.inOrder() {
		for _, c := range r.chunks {
			if c.slot != noSlot && !m.ledger.slots[c.slot].written {
				m.openSlot(c.slot, r)
			}
		}
	}
}

// accessFailed ends the requests whose slots the engine could not open:
// internal: "the engine failed". A slot that was never open needs no fence; of
// the request's others an earlier answer may have told, and they do.
func (m *Machine) accessFailed(ev AccessFailed) {
	var of []*request
	for _, i := range ev.Slots {
		d := &m.ledger.slots[i].door
		if d.writer == 0 {
			continue
		}
		of = append(of, d.of)
		if !d.again {
			*d = door{}
		}
	}
	no := refusef(wire.CodeInternal, "the engine failed: %s", ev.Reason)
	slices.SortFunc(of, byArrival)
	for _, r := range slices.Compact(of) { // not twice for two slots
		m.end(r, ending{kind: RolledBack, no: no, fence: true})
	}
}
