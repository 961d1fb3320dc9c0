package reservation

// fences keeps the slots that a writer may still write to: "After expiry,
// rollback or time-out, slots that an attached sender may still be writing are
// revoked before anyone gets them". They stay in quarantine until the engine
// has given them new memory; "where revoking is not possible, slots are
// quarantined until the writer is known to be gone".
type fences struct {
	next     uint64
	byID     map[uint64]*fence
	byWriter map[uint64][]*fence
}

type fence struct {
	id      uint64
	writer  uint64
	slots   []int
	pending bool // the engine has not answered
	gone    bool // the writer is known to be gone
}

func newFences() fences {
	return fences{byID: make(map[uint64]*fence), byWriter: make(map[uint64][]*fence)}
}

// quarantine takes slots that nobody holds and asks for new memory for them.
func (m *Machine) quarantine(writer uint64, slots []int) {
	f := &m.fences
	f.next++
	one := &fence{id: f.next, writer: writer, slots: slots, pending: true}
	f.byID[one.id] = one
	f.byWriter[writer] = append(f.byWriter[writer], one)
	m.ledger.quarantined += len(slots)
	m.fx.Revocations = append(m.fx.Revocations, Revocation{ID: one.id, Writer: writer, Slots: slots})
}

// lift gives the slots of a fence back.
func (m *Machine) lift(one *fence) {
	for _, i := range one.slots {
		m.ledger.vacate(int32(i))
	}
	m.ledger.quarantined -= len(one.slots)
	delete(m.fences.byID, one.id)
	left := m.fences.byWriter[one.writer]
	for i, other := range left {
		if other == one {
			left[i] = left[len(left)-1]
			left = left[:len(left)-1]
			break
		}
	}
	if len(left) == 0 {
		delete(m.fences.byWriter, one.writer)
	} else {
		m.fences.byWriter[one.writer] = left
	}
}

// revoked: the slots have new memory, told to later writers by their region.
func (m *Machine) revoked(ev Revoked) {
	one := m.fences.byID[ev.ID]
	if one == nil || !one.pending {
		return
	}
	for _, i := range one.slots {
		m.ledger.slots[i].region = int32(ev.Region)
	}
	m.lift(one)
}

func (m *Machine) revokeFailed(ev RevokeFailed) {
	one := m.fences.byID[ev.ID]
	if one == nil {
		return
	}
	one.pending = false
	if one.gone {
		m.lift(one)
	}
}

// gone: a writer can write no more. Its sender ends with it. What the engine is
// still giving new memory stays in quarantine until it has.
func (m *Machine) gone(ev Gone) {
	for _, one := range append([]*fence(nil), m.fences.byWriter[ev.Writer]...) {
		one.gone = true
		if !one.pending {
			m.lift(one)
		}
	}
	if s := m.writers[ev.Writer]; s != nil {
		m.endSender(s, "its sender is gone: connection closed", false)
	}
}
