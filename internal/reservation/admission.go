package reservation

import "github.com/pd-tools/pd-tools/wire"

// batch is one AllocRequest, checked, that waits or is being answered.
type batch struct {
	keys  []string
	last  bool
	fresh int // keys its request did not have before
	size  int // bytes of the message
	came  Time
	tag   Tag
}

// fits reports whether a request that needs so many slots can be admitted now
// if it is the next in line. In mode serial "one request at a time owns the
// buffer until it is ready or has ended".
func (m *Machine) fits(need int) bool {
	return m.owner == nil && need <= m.ledger.free()
}

// mayPass reports whether somebody behind the head may overtake: "at most
// --overtake N requests may pass a waiting one; 0 is strict order".
func (m *Machine) mayPass() bool {
	return m.queue.passed < m.cfg.Overtake
}

// admissible reports whether one of this tenant (nil: a new one) that comes now
// need not wait. Whoever is in line already could not go, or it would be gone.
func (m *Machine) admissible(t *tenant, need int) bool {
	return m.withinShare(t, need) && m.fits(need) && (m.queue.line.first == nil || m.mayPass())
}

// admitWaiting admits whoever waits and can go: in arrival order, bounded
// overtaking aside.
func (m *Machine) admitWaiting() {
	m.letIn()
	for r := m.next(); r != nil; r = m.next() {
		m.queue.overtaken(r)
		since := r.place.since
		m.leaveQueue(r)
		m.admit(r, since)
		m.letIn()
	}
}

func (m *Machine) next() *request {
	head := m.queue.line.first
	switch {
	case head == nil:
		return nil
	case m.fits(head.place.need):
		return head
	case m.owner == nil && m.mayPass():
		return m.queue.firstWithin(m.ledger.free())
	}
	return nil
}

// need is how many slots must be free before r goes on: "total_chunks whatever
// may turn out shared; a shared key counts toward the total". In mode none it
// is what its first waiting batch asks for.
func (m *Machine) need(r *request) int {
	if m.cfg.Mode == None {
		return r.waiting[0].fresh
	}
	return r.total
}

// enqueue makes r wait. In reserve and serial it waits once, with all its
// batches; in none each of its batches waits in turn.
func (m *Machine) enqueue(r *request) {
	t, need := r.tenant, m.need(r)
	held := !m.withinShare(t, need)
	m.queue.push(r, need, r.waiting[0].came, held)
	r.sender.queued++
	t.wanted += need
	if !held {
		t.claimed += need
	}
	m.rearm(r)
}

func (m *Machine) leaveQueue(r *request) {
	t, need, held := r.tenant, r.place.need, r.place.held
	m.queue.remove(r)
	r.sender.queued--
	t.wanted -= need
	if !held {
		t.claimed -= need
	}
	m.loosen(t)
}

// wait adds a batch to those of r that wait. "Batches of a request that still
// waits, wait with it: one reservation, one place in the queue."
func (m *Machine) wait(r *request, b batch) {
	r.waiting = append(r.waiting, b)
	m.queue.bytes += int64(b.size)
}

// unwait takes the first waiting batch off.
func (m *Machine) unwait(r *request) batch {
	b := r.waiting[0]
	r.waiting[0] = batch{}
	r.waiting = r.waiting[1:]
	m.queue.bytes -= int64(b.size)
	return b
}

// admit reserves r's slots and allocates what waits of it. "The first batch of
// a request reserves total_chunks or waits in the queue; later batches draw
// from the reservation and are answered at once. An AllocRequest with no keys
// and total_chunks > 0 reserves and allocates nothing."
func (m *Machine) admit(r *request, since Time) {
	if !r.admitted {
		r.admitted = true
		r.admittedAt = m.now
		if m.cfg.Mode != None {
			r.promised = r.total
			r.tenant.slots += r.total
			m.ledger.promised += r.total
		}
		if m.cfg.Mode == Serial {
			m.owner = r
		}
		m.record(r, Record{Kind: Admitted, Waited: m.now - since})
	}
	for goes := true; len(r.waiting) > 0; goes = false {
		// In mode none each batch is admitted by itself, and here only the first is.
		if fresh := r.waiting[0].fresh; m.cfg.Mode == None && !goes && (fresh > m.ledger.free() || !m.withinShare(r.tenant, fresh)) {
			m.enqueue(r)
			return
		}
		m.allocate(r, m.unwait(r))
	}
	m.rearm(r)
}

// allocate gives every key of a batch its slot and answers. It cannot fail:
// the slots are promised.
func (m *Machine) allocate(r *request, b batch) {
	// JSON and msgpack tell an empty list from none.
	resp := &wire.AllocResponse{RemoteIndexes: make([]int64, 0, len(b.keys)), AlreadySentIndexes: []int64{}}
	for i, key := range b.keys {
		c := &r.chunks[r.find(key)]
		if c.slot == noSlot {
			m.placeChunk(r, c)
		}
		// "A key that its request already has (a retry) is answered with its
		// slot and not counted again; if committed, it is already sent."
		if m.ledger.slots[c.slot].committed {
			resp.AlreadySentIndexes = append(resp.AlreadySentIndexes, int64(i))
		} else {
			resp.RemoteIndexes = append(resp.RemoteIndexes, int64(c.slot))
		}
	}
	r.named = m.now
	if r.sender.attached {
		resp.Epoch = m.cfg.Epoch
		resp.Regions = m.regions(resp.RemoteIndexes)
	}
	m.answer(b.tag, resp)
	if b.last && !r.lastDone {
		m.endReservation(r)
	}
	m.readyIfWhole(r)
}

func (m *Machine) placeChunk(r *request, c *chunk) {
	slot, shared := m.ledger.share(c.key, c.length)
	if shared {
		r.shared++
		r.written++
		r.wrote(m.now)
		m.counters.SharedChunks++
	} else {
		slot = m.ledger.occupy(c.key, c.length)
		m.openSlot(slot, r)
	}
	c.slot = slot
	r.placed++
	r.bytes += c.length
	if m.cfg.Mode != None {
		// For a shared chunk the promised slot is free again.
		r.promised--
		m.ledger.promised--
	} else {
		r.tenant.slots++
	}
}

// endReservation: "When the batch with is_last_batch has been allocated the
// reservation ends: slots promised and never used are free at once; chunks stay
// in their slots until released."
func (m *Machine) endReservation(r *request) {
	r.lastDone = true
	m.unpromise(r)
	m.record(r, Record{Kind: Allocated})
}

func (m *Machine) unpromise(r *request) {
	m.ledger.promised -= r.promised
	m.yield(r.tenant, r.promised)
	r.promised = 0
}

// regions names the region of each slot, or nothing when all are region 0.
func (m *Machine) regions(slots []int64) []int64 {
	var regions []int64
	for i, s := range slots {
		if region := m.ledger.slots[s].region; region != 0 {
			if regions == nil {
				regions = make([]int64, len(slots))
			}
			regions[i] = int64(region)
		}
	}
	return regions
}
