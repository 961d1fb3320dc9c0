package reservation

import "slices"

// fences keeps the slots that a writer may still write to: "After expiry,
// rollback or time-out, slots that an attached sender may still be writing are
// revoked before anyone gets them". They stay in quarantine until the engine
// has given them new memory; "where revoking is not possible, slots are
// quarantined until the writer is known to be gone".
type fences struct {
	next    uint64
	byID    map[uint64]*fence
	byGrant map[uint64][]*fence
}

type fence struct {
	id      uint64
	grants  []uint64 // under which its slots may still be written
	slots   []int
	pending bool // the engine has not answered
}

func newFences() fences {
	return fences{byID: make(map[uint64]*fence), byGrant: make(map[uint64][]*fence)}
}

// quarantine takes slots that nobody holds and asks for new memory for them.
func (m *Machine) quarantine(grants []uint64, slots []int) {
	f := &m.fences
	f.next++
	one := &fence{id: f.next, grants: slices.Clone(grants), slots: slots, pending: true}
	f.byID[one.id] = one
	for _, w := range grants {
		f.byGrant[w] = append(f.byGrant[w], one)
	}
	m.ledger.quarantined += len(slots)
	m.fx.Revocations = append(m.fx.Revocations, Revocation{ID: one.id, Writer: grants[len(grants)-1], Slots: slots})
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
	if one := m.fences.byID[ev.ID]; one != nil {
		one.pending = false
		m.liftIfSafe(one)
	}
}

// gone: nobody writes under a grant any more. Its sender ends with it if it was
// the current one. What the engine is still giving new memory stays in
// quarantine until it has: it may change under nobody.
func (m *Machine) gone(ev Gone) {
	for _, one := range m.fences.byGrant[ev.Writer] {
		one.grants = without(one.grants, ev.Writer)
		m.liftIfSafe(one)
	}
	delete(m.fences.byGrant, ev.Writer)

	s := m.writers[ev.Writer]
	if s == nil {
		return
	}
	current := s.grants[len(s.grants)-1] == ev.Writer
	s.grants = without(s.grants, ev.Writer)
	delete(m.writers, ev.Writer)
	if current {
		m.fx.Ended = append(m.fx.Ended, ev.Writer)
		m.endSender(s, "its sender is gone: connection closed", len(s.grants) > 0)
	}
}

func (m *Machine) liftIfSafe(one *fence) {
	if !one.pending && len(one.grants) == 0 {
		m.lift(one)
	}
}

// lift gives the slots of a fence back.
func (m *Machine) lift(one *fence) {
	for _, i := range one.slots {
		m.ledger.vacate(int32(i))
	}
	m.ledger.quarantined -= len(one.slots)
	delete(m.fences.byID, one.id)
	for _, w := range one.grants {
		if left := without(m.fences.byGrant[w], one); len(left) > 0 {
			m.fences.byGrant[w] = left
		} else {
			delete(m.fences.byGrant, w)
		}
	}
}

// without is a list less one of its elements.
func without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(y T) bool { return y == x })
}
