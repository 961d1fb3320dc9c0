package reservation

import (
	"fmt"

	"github.com/pd-tools/pd-tools/wire"
)

// Quotas: what one sender may have, so that it cannot starve the others. A
// request over a limit of its sender's is refused, with one exception: one that
// would take its sender over its share of the buffer waits, held back, until the
// sender has freed enough. Meanwhile it stands in nobody's way: the line goes on
// without it, and whoever goes ahead of it has not overtaken it. Of one sender
// none that is held back is passed by another of its own, so that small ones
// cannot keep a large one out.
//
// A sender's share is what its requests have, promised and held (a chunk counts
// for each request that has it), and what those of it in line need. So one in
// line is held back no more, and each is let in once.

// withinShare reports whether a sender (nil: a new one) may have so many slots
// more.
func (m *Machine) withinShare(s *sender, need int) bool {
	switch {
	case m.cfg.SenderShare == 0 || need == 0:
		return true
	case s == nil:
		return need <= m.cfg.SenderShare
	}
	return s.held.first == nil && m.shareHas(s, need)
}

func (m *Machine) shareHas(s *sender, need int) bool {
	return s.slots+s.claimed+need <= m.cfg.SenderShare
}

// yield takes slots from a sender.
func (m *Machine) yield(s *sender, slots int) {
	s.slots -= slots
	m.loosen(s)
}

// loosen notes that what a share holds back of a sender may now go on.
func (m *Machine) loosen(s *sender) {
	if s.held.first != nil && !s.loose {
		s.loose = true
		m.loose = append(m.loose, s)
	}
}

// letIn puts into the line what a share held back and now need not.
func (m *Machine) letIn() {
	for _, s := range m.loose {
		s.loose = false
		for r := s.held.first; r != nil && m.shareHas(s, r.place.need); r = s.held.first {
			m.queue.letIn(r)
			s.claimed += r.place.need
		}
	}
	clear(m.loose)
	m.loose = m.loose[:0]
}

// checkSender: queue_full: "the sender at its own limits". The need of one that
// need not wait does not matter.
func (m *Machine) checkSender(s *sender, r *request, need int, waits bool) *refusal {
	if s == nil {
		s = &sender{}
	}
	if lim := m.cfg.SenderRequests; lim > 0 && r == nil && len(s.requests) >= lim {
		return refusef(wire.CodeQueueFull, "this sender has %s, --sender-requests is %d: let some end first", plural(len(s.requests), "live request"), lim)
	}
	if lim := m.cfg.SenderQueue; lim > 0 && waits && (r == nil || !r.place.waits) && s.wanted+need > lim {
		return refusef(wire.CodeQueueFull, "busy: this sender's requests that wait would need %s, --sender-queue is %d: try again later", plural(s.wanted+need, "slot"), lim)
	}
	return nil
}

// heldBack says why r is not in line, if it is not.
func (m *Machine) heldBack(r *request) string {
	if !r.place.held {
		return ""
	}
	s := r.sender
	return fmt.Sprintf("its sender is at its share: it has %d of %s, and %d wanted by its requests in line",
		s.slots, plural(m.cfg.SenderShare, "slot"), s.claimed)
}
