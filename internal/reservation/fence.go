package reservation

import (
	"maps"
	"slices"
)

// fences keeps the slots that a writer may still write to: "After expiry,
// rollback or time-out, slots that an attached sender may still be writing are
// revoked before anyone gets them". They stay in quarantine until the engine
// has given them new memory; "where revoking is not possible, or too many
// regions are open, slots are quarantined until the writer is known to be gone".
type fences struct {
	next    uint64
	byID    map[uint64]*fence
	byGrant map[uint64]map[uint64]*fence // by id
}

type fence struct {
	id      uint64
	grants  []uint64 // under which its slots may still be written
	slots   []int
	pending bool // the engine has not answered
}

func newFences() fences {
	return fences{byID: make(map[uint64]*fence), byGrant: make(map[uint64]map[uint64]*fence)}
}

// quarantine takes slots that nobody holds and asks for new memory for them:
// once in a Step for a sender that ends with many requests, as each time costs
// the engine a region.
func (m *Machine) quarantine(grants []uint64, slots []int) {
	f := &m.fences
	m.ledger.quarantined += len(slots)
	writer := grants[len(grants)-1]
	if n := len(m.fx.Revocations); n > 0 && m.fx.Revocations[n-1].Writer == writer {
		last := &m.fx.Revocations[n-1]
		last.Slots = append(last.Slots, slots...)
		f.byID[last.ID].slots = last.Slots
		return
	}
	f.next++
	one := &fence{id: f.next, grants: slices.Clone(grants), slots: slots, pending: true}
	f.byID[one.id] = one
	for _, w := range grants {
		if f.byGrant[w] == nil {
			f.byGrant[w] = make(map[uint64]*fence)
		}
		f.byGrant[w][one.id] = one
	}
	m.fx.Revocations = append(m.fx.Revocations, Revocation{ID: one.id, Writer: writer, Slots: slots})
}

// revoked: "the slot gets new memory and a new key, told to later writers by
// regions".
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
	fences := m.fences.byGrant[ev.Writer]
	for _, id := range slices.Sorted(maps.Keys(fences)) {
		one := fences[id]
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
		delete(m.fences.byGrant[w], one.id)
		if len(m.fences.byGrant[w]) == 0 {
			delete(m.fences.byGrant, w)
		}
	}
}

// without is a list less one of its elements.
func without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(y T) bool { return y == x })
}
