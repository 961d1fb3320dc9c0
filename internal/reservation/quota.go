package reservation

import (
	"fmt"

	"github.com/pd-tools/pd-tools/wire"
)

// Quotas: what one tenant may have, so that it cannot starve the others: whoever
// has a name for what it is, such as a key, with all its senders, else each sender
// for itself. A request over a limit of its tenant's is refused, with one exception:
// one that would take its tenant over its share of the buffer waits, held back,
// until the tenant has freed enough. Meanwhile it stands in nobody's way: the line
// goes on without it, and whoever goes ahead of it has not overtaken it. Of one
// tenant none that is held back is passed by another of its own, so that small ones
// cannot keep a large one out.
//
// A tenant's share is what its requests have, promised and held (a chunk counts
// for each request that has it), and what those of it in line need. So one in
// line is held back no more, and each is let in once.

// tenant is whom quotas are for.
type tenant struct {
	name     string // empty: a sender's own
	requests int    // live
	wanted   int    // slots that those that wait need
	claimed  int    // of those slots, wanted by requests in line
	held     line   // of those that wait, held back by the share
	loose    bool   // in Machine.loose
	slots    int    // promised to them and held by them, shared ones included
}

// tenantOf is whose quotas a batch is on, nil for a new one's; r is its request
// if that is live.
func (m *Machine) tenantOf(ev Alloc, r *request) *tenant {
	if r != nil {
		return r.tenant
	}
	if ev.Tenant != "" {
		return m.tenants[ev.Tenant]
	}
	if s := m.senders[ev.Sender]; s != nil {
		return &s.own
	}
	return nil
}

// openTenant is whose quotas a new request of s is on.
func (m *Machine) openTenant(name string, s *sender) *tenant {
	t := &s.own
	if name != "" {
		if t = m.tenants[name]; t == nil {
			t = &tenant{name: name}
			m.tenants[name] = t
		}
	}
	t.requests++
	return t
}

// leaveTenant takes note that a request of t has ended.
func (m *Machine) leaveTenant(t *tenant) {
	if t.requests--; t.requests == 0 && t.name != "" {
		delete(m.tenants, t.name)
	}
}

// withinShare reports whether a tenant (nil: a new one) may have so many slots
// more.
func (m *Machine) withinShare(t *tenant, need int) bool {
	switch {
	case m.cfg.SenderShare == 0 || need == 0:
		return true
	case t == nil:
		return need <= m.cfg.SenderShare
	}
	return t.held.first == nil && m.shareHas(t, need)
}

func (m *Machine) shareHas(t *tenant, need int) bool {
	return t.slots+t.claimed+need <= m.cfg.SenderShare
}

// yield takes slots from a tenant.
func (m *Machine) yield(t *tenant, slots int) {
	t.slots -= slots
	m.loosen(t)
}

// loosen notes that what a share holds back of a tenant may now go on.
func (m *Machine) loosen(t *tenant) {
	if t.held.first != nil && !t.loose {
		t.loose = true
		m.loose = append(m.loose, t)
	}
}

// letIn puts into the line what a share held back and now need not.
func (m *Machine) letIn() {
	for _, t := range m.loose {
		t.loose = false
		for r := t.held.first; r != nil && m.shareHas(t, r.place.need); r = t.held.first {
			m.queue.letIn(r)
			t.claimed += r.place.need
		}
	}
	clear(m.loose)
	m.loose = m.loose[:0]
}

// checkTenant: queue_full: "the sender at its own limits". The need of one that
// need not wait does not matter.
func (m *Machine) checkTenant(t *tenant, r *request, need int, waits bool) *refusal {
	if t == nil {
		t = &tenant{}
	}
	if lim := m.cfg.SenderRequests; lim > 0 && r == nil && t.requests >= lim {
		return refusef(wire.CodeQueueFull, "this sender%s has %s, --sender-requests is %d: let some end first", t.others(), plural(t.requests, "live request"), lim)
	}
	if lim := m.cfg.SenderQueue; lim > 0 && waits && (r == nil || !r.place.waits) && t.wanted+need > lim {
		return refusef(wire.CodeQueueFull, "busy: this sender's requests that wait%s would need %s, --sender-queue is %d: try again later", t.others(), plural(t.wanted+need, "slot"), lim)
	}
	return nil
}

// others says that it is not about one sender alone.
func (t *tenant) others() string {
	if t.name == "" {
		return ""
	}
	return ", with all that have its key,"
}

// heldBack says why r is not in line, if it is not.
func (m *Machine) heldBack(r *request) string {
	if !r.place.held {
		return ""
	}
	t := r.tenant
	return fmt.Sprintf("its sender is at its share: it%s has %d of %s, and %d wanted by its requests in line",
		t.others(), t.slots, plural(m.cfg.SenderShare, "slot"), t.claimed)
}
