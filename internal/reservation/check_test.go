package reservation

import (
	"fmt"
	"maps"
)

// check recomputes from scratch everything that must always hold and reports
// the first thing that does not. Tests call it after every event.
func (m *Machine) check() error {
	for _, part := range []func() error{m.checkLedger, m.checkHolders, m.checkReadied, m.checkDoors, m.checkCopies, m.checkRequests, m.checkQueue, m.checkQuotas, m.checkTimers} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// checkLedger: promised + held + quarantined + free = total, none negative.
func (m *Machine) checkLedger() error {
	l := &m.ledger
	promised, held, written, ready := 0, 0, 0, 0
	for _, r := range m.live {
		promised += r.promised
	}
	for i := range l.slots {
		s := &l.slots[i]
		if s.holders > 0 {
			held++
			if s.written {
				written++
			}
		} else if s.written || s.shared || s.ready != 0 {
			return fmt.Errorf("slot %d is held by nobody and still marked: %+v", i, *s)
		}
		if s.ready > 0 {
			ready++
		}
		if s.ready > s.holders || s.ready < 0 || s.ready > 0 && !s.written {
			return fmt.Errorf("slot %d: %d ready of %d holders, written %v", i, s.ready, s.holders, s.written)
		}
	}
	quarantined := 0
	for _, f := range m.fences.byID {
		quarantined += len(f.slots)
	}
	if got, want := [5]int{l.promised, l.held, l.written, l.ready, l.quarantined}, [5]int{promised, held, written, ready, quarantined}; got != want {
		return fmt.Errorf("promised, held, written, ready, quarantined are counted as %v, are %v", got, want)
	}
	if l.free() < 0 || promised < 0 {
		return fmt.Errorf("free %d, promised %d", l.free(), promised)
	}
	if sum := promised + held + quarantined + l.free(); sum != len(l.slots) {
		return fmt.Errorf("promised %d + held %d + quarantined %d + free %d = %d, total is %d", promised, held, quarantined, l.free(), sum, len(l.slots))
	}
	return nil
}

// checkHolders: no slot belongs to two chunks at once, nor to nobody and not
// free.
func (m *Machine) checkHolders() error {
	holders := make([]int32, len(m.ledger.slots))
	for _, r := range m.live {
		for _, c := range r.chunks {
			if c.slot == noSlot {
				continue
			}
			holders[c.slot]++
			if s := &m.ledger.slots[c.slot]; s.key != c.key || s.length != c.length {
				return fmt.Errorf("slot %d holds %q (%d bytes), request %q thinks %q (%d bytes)", c.slot, s.key, s.length, r.id, c.key, c.length)
			}
		}
	}
	idle := make([]int, len(m.ledger.slots))
	for _, i := range m.ledger.empty {
		idle[i]++
	}
	for _, f := range m.fences.byID {
		for _, i := range f.slots {
			idle[i]++
		}
	}
	for i, s := range m.ledger.slots {
		if s.holders != holders[i] {
			return fmt.Errorf("slot %d counts %d holders, has %d", i, s.holders, holders[i])
		}
		if used := holders[i] > 0; used && idle[i] != 0 || !used && idle[i] != 1 {
			return fmt.Errorf("slot %d has %d holders and is %d times empty or in quarantine", i, holders[i], idle[i])
		}
		if holders[i] > 1 && !s.written {
			return fmt.Errorf("slot %d is shared by %d and not written", i, holders[i])
		}
	}
	return nil
}

// checkReadied: just the ready requests with a number are listed under it.
func (m *Machine) checkReadied() error {
	numbered := 0
	for id, r := range m.live {
		if r.readySeq == 0 {
			continue
		}
		numbered++
		if listed, ok := m.readied.bySeq.Get(r); !ok || listed != r || !r.ready || r.readySeq > m.readied.last {
			return fmt.Errorf("request %q: number %d of %d, ready %v, listed %v", id, r.readySeq, m.readied.last, r.ready, ok)
		}
	}
	if n := m.readied.bySeq.Len(); n != numbered {
		return fmt.Errorf("%d are listed as ready, %d have a number", n, numbered)
	}
	return nil
}

// checkDoors: a slot is open iff it is held, not written, and its holder's
// sender attached: to the current grant of that one.
func (m *Machine) checkDoors() error {
	want := make([]door, len(m.ledger.slots))
	for _, r := range m.live {
		for _, c := range r.chunks {
			if c.slot != noSlot && !m.ledger.slots[c.slot].written && r.sender.attached {
				want[c.slot] = door{writer: r.sender.grants[len(r.sender.grants)-1], of: r, again: m.ledger.slots[c.slot].door.again}
			}
		}
	}
	for i, s := range m.ledger.slots {
		if s.door != want[i] {
			return fmt.Errorf("slot %d is open to %+v, should be to %+v", i, s.door, want[i])
		}
	}
	return nil
}

// checkCopies: just the committed slots can be found by their content.
func (m *Machine) checkCopies() error {
	found := make(map[int32]bool)
	for c, first := range m.ledger.copies {
		before := int32(noSlot)
		for i := first; i != noSlot; i = m.ledger.slots[i].nextCopy {
			s := &m.ledger.slots[i]
			if !s.shared || s.key != c.key || s.length != c.length || s.prevCopy != before || found[i] {
				return fmt.Errorf("slot %d is listed under %+v and is %+v", i, c, *s)
			}
			found[i] = true
			before = i
		}
	}
	for i, s := range m.ledger.slots {
		if s.shared != found[int32(i)] || s.shared && !s.written {
			return fmt.Errorf("slot %d: shared %v, listed %v, written %v", i, s.shared, found[int32(i)], s.written)
		}
	}
	return nil
}

func (m *Machine) checkRequests() error {
	requests, queued := 0, 0
	for identity, s := range m.senders {
		requests += len(s.requests)
		queued += s.queued
		if s.identity != identity || !s.attached && len(s.requests) == 0 {
			return fmt.Errorf("sender %q is kept for nothing", identity)
		}
		if s.attached != (len(s.grants) > 0) {
			return fmt.Errorf("sender %q: attached %v, grants %v", identity, s.attached, s.grants)
		}
		for _, w := range s.grants {
			if m.writers[w] != s {
				return fmt.Errorf("sender %q: grant %d is not known as its own", identity, w)
			}
		}
	}
	if requests != len(m.live) || queued != m.queue.size {
		return fmt.Errorf("senders have %d requests, %d queued; there are %d and %d", requests, queued, len(m.live), m.queue.size)
	}
	for id, r := range m.live {
		if err := m.checkRequest(r); err != nil {
			return fmt.Errorf("request %q: %w", id, err)
		}
	}
	return nil
}

func (m *Machine) checkRequest(r *request) error {
	placed, written, bytes := 0, 0, int64(0)
	for _, c := range r.chunks {
		if c.slot != noSlot {
			placed++
			bytes += c.length
			if m.ledger.slots[c.slot].written {
				written++
			}
		}
	}
	reserving := r.admitted && !r.lastDone && m.cfg.Mode != None
	switch {
	case placed != r.placed || written != r.written || bytes != r.bytes:
		return fmt.Errorf("placed %d, written %d, bytes %d; are %d, %d, %d", r.placed, r.written, r.bytes, placed, written, bytes)
	case len(r.chunks) > r.total:
		return fmt.Errorf("%d chunks of %d declared", len(r.chunks), r.total)
	case reserving && r.promised+r.placed != r.total, !reserving && r.promised != 0:
		return fmt.Errorf("promised %d, placed %d of %d, admitted %v, last done %v", r.promised, r.placed, r.total, r.admitted, r.lastDone)
	case r.place.waits != (len(r.waiting) > 0):
		return fmt.Errorf("in the queue %v with %d batches waiting", r.place.waits, len(r.waiting))
	case m.cfg.Mode != None && r.admitted && r.place.waits:
		return fmt.Errorf("waits within its reservation")
	case r.ready && (!r.lastDone || placed != len(r.chunks) || written != len(r.chunks)):
		return fmt.Errorf("ready with %d of %d chunks written", written, len(r.chunks))
	case r.taker != "" && !r.ready:
		return fmt.Errorf("taken and not ready")
	case m.ended.has(r.sender.identity, r.id):
		return fmt.Errorf("live and remembered as ended")
	case !r.sender.attached && !r.legacy && !r.ready:
		return fmt.Errorf("outlives its sender and is not ready")
	case r.legacy && r.sender.attached:
		return fmt.Errorf("counts as of a sender that never attached, and it has")
	case m.cfg.Mode == Serial && r.admitted && !r.ready && m.owner != r:
		return fmt.Errorf("admitted beside the owner of the buffer")
	}
	return nil
}

func (m *Machine) checkQueue() error {
	q := &m.queue
	size, marks, bytes := 0, 0, int64(0)
	at := -1
	var ahead *request // in line
	for r := range q.all() {
		size++
		if q.position(r) != size || r.place.at <= at || q.who[r.place.at] != r {
			return fmt.Errorf("%q is number %d in the queue, counted as %d", r.id, size, q.position(r))
		}
		at = r.place.at
		if r.place.need != m.need(r) || m.live[r.id] != r || !r.place.waits {
			return fmt.Errorf("%q waits for %d slots, needs %d", r.id, r.place.need, m.need(r))
		}
		if r.place.held {
			continue
		}
		marks += r.place.mark
		if r.place.prev != ahead || ahead == nil && q.line.first != r || ahead != nil && ahead.place.next != r {
			return fmt.Errorf("%q is in line and not behind who is next ahead", r.id)
		}
		ahead = r
	}
	if q.line.last != ahead || ahead != nil && ahead.place.next != nil || ahead == nil && q.line.first != nil {
		return fmt.Errorf("the line does not end with the last in the queue")
	}
	for _, r := range m.live {
		for _, b := range r.waiting {
			bytes += int64(b.size)
		}
	}
	switch {
	case size != q.size || marks != q.passed || bytes != q.bytes:
		return fmt.Errorf("queue counts %d waiting, %d passes, %d bytes; are %d, %d, %d", q.size, q.passed, q.bytes, size, marks, bytes)
	case q.passed > m.cfg.Overtake:
		return fmt.Errorf("the head was passed %d times, --overtake is %d", q.passed, m.cfg.Overtake)
	case m.next() != nil:
		return fmt.Errorf("%q waits and could go", m.next().id)
	}
	return nil
}

// checkQuotas: a tenant has no more than it may, and its share holds back just
// those that must be.
func (m *Machine) checkQuotas() error {
	if len(m.loose) > 0 {
		return fmt.Errorf("%d tenants may be let in after the end of a Step", len(m.loose))
	}
	has, slots, wanted, claimed := map[*tenant]int{}, map[*tenant]int{}, map[*tenant]int{}, map[*tenant]int{}
	for _, r := range m.live {
		if r.tenant != &r.sender.own && m.tenants[r.tenant.name] != r.tenant {
			return fmt.Errorf("%q is of a tenant that is not known", r.id)
		}
		has[r.tenant]++
		slots[r.tenant] += r.promised + r.placed
	}
	last := map[*tenant]*request{} // held back
	for r := range m.queue.all() {
		t := r.tenant
		wanted[t] += r.place.need
		if !r.place.held {
			if last[t] != nil {
				return fmt.Errorf("%q is in line behind %q of the same tenant, which is held back", r.id, last[t].id)
			}
			claimed[t] += r.place.need
			continue
		}
		if r.place.prev != last[t] || last[t] == nil && t.held.first != r || last[t] != nil && last[t].place.next != r {
			return fmt.Errorf("%q is held back and not behind %v", r.id, last[t])
		}
		last[t] = r
	}
	cfg := &m.cfg
	all := maps.Clone(m.tenants)
	for identity, s := range m.senders {
		all["sender "+identity] = &s.own
	}
	for name, t := range all {
		first := t.held.first
		switch {
		case t.requests != has[t] || t.slots != slots[t]:
			return fmt.Errorf("tenant %q: counts %d requests, %d slots; has %d and %d", name, t.requests, t.slots, has[t], slots[t])
		case t.requests == 0 && t.name != "":
			return fmt.Errorf("tenant %q is kept for nothing", name)
		case t.wanted != wanted[t] || t.claimed != claimed[t] || t.loose:
			return fmt.Errorf("tenant %q: wants %d slots, %d in line; are %d and %d", name, t.wanted, t.claimed, wanted[t], claimed[t])
		case t.held.last != last[t] || last[t] == nil && first != nil || last[t] != nil && last[t].place.next != nil:
			return fmt.Errorf("tenant %q: who is held back does not end with the last that is", name)
		case first != nil && t.slots+t.claimed+first.place.need <= cfg.SenderShare:
			return fmt.Errorf("tenant %q: %q is held back, %d + %d of %d slots", name, first.id, t.slots, t.claimed, cfg.SenderShare)
		case cfg.SenderShare > 0 && t.slots+t.claimed > cfg.SenderShare:
			return fmt.Errorf("tenant %q has %d slots and wants %d, its share is %d", name, t.slots, t.claimed, cfg.SenderShare)
		case cfg.SenderRequests > 0 && t.requests > cfg.SenderRequests:
			return fmt.Errorf("tenant %q has %d requests of %d", name, t.requests, cfg.SenderRequests)
		case cfg.SenderQueue > 0 && cfg.Mode != None && t.wanted > cfg.SenderQueue:
			return fmt.Errorf("tenant %q wants %d slots of %d", name, t.wanted, cfg.SenderQueue)
		}
	}
	return nil
}

func (m *Machine) checkTimers() error {
	for i, t := range m.timers {
		if t.index != i+1 {
			return fmt.Errorf("timer %d thinks it is %d", i, t.index-1)
		}
	}
	for id, r := range m.live {
		at, ok := m.deadline(r)
		if ok != (r.timer.index != 0) || ok && r.timer.at > at {
			return fmt.Errorf("request %q is due %v at %v, timer at %v", id, ok, at, r.timer.at)
		}
	}
	for identity, s := range m.senders {
		if leased := s.attached && m.cfg.Lease > 0; leased != (s.timer.index != 0) {
			return fmt.Errorf("sender %q: lease runs %v, timer %v", identity, leased, s.timer.index != 0)
		}
	}
	return nil
}
