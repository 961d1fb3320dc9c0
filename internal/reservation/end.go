package reservation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// ending is how a request ends.
type ending struct {
	kind   Kind
	no     *refusal  // why, for the record; nil where the kind says it all
	answer wire.Code // of its waiting batches; empty: rolled_back
	fence  bool      // its sender may still be writing
}

// end is the one way out. "Every chunk of the request, of this batch and
// earlier ones, is removed, its tracking and reservation are gone, its waiting
// batches are answered rolled_back. No partial request is ever left in the
// buffer. What a request held is freed once, by its own end only."
func (m *Machine) end(r *request, e ending) {
	waited := time.Duration(0)
	if r.place.waits {
		waited = m.now - r.place.since
		m.leaveQueue(r)
	}
	m.answerWaiting(r, e)
	m.unpromise(r)
	if m.owner == r {
		m.owner = nil
	}
	m.giveUp(r, e.fence)
	m.readied.remove(r)

	s := r.sender
	m.disarm(&r.timer)
	delete(m.live, r.id)
	delete(s.requests, r)
	m.leaveTenant(r.tenant)
	m.ended.add(s.identity, r.id, e.kind, m.now)

	rec := Record{Kind: e.kind, Waited: waited, Unread: e.kind == Expired && r.ready}
	if e.no != nil {
		rec.Code, rec.Reason = e.no.code, e.no.reason
	}
	m.record(r, rec)
	m.forgetIdle(s)
}

// answerWaiting tells the batches that wait why they need not any more.
func (m *Machine) answerWaiting(r *request, e ending) {
	if len(r.waiting) == 0 {
		return // most often: do not make a text for nobody
	}
	code, reason := wire.CodeRolledBack, fmt.Sprintf("it has ended (%s) before this batch could go on", e.kind)
	if e.answer != "" {
		code, reason = e.answer, e.no.reason
	}
	for len(r.waiting) > 0 {
		b := m.unwait(r)
		resp := &wire.AllocResponse{
			RemoteIndexes: failedIndexes(len(b.keys)), AlreadySentIndexes: []int64{},
			Error: reason, Code: code,
		}
		if r.sender.attached {
			resp.Epoch = m.cfg.Epoch
		}
		m.refused[code]++
		m.answer(b.tag, resp)
	}
}

// giveUp drops r's hold on its slots. Of those that nobody holds any more the
// ones that its sender may still be writing, those that are open, are fenced. "A
// slot that another request also holds is not revoked while held. A sender that
// never attached has no access of ours to revoke: free at once."
func (m *Machine) giveUp(r *request, fence bool) {
	m.yield(r.tenant, r.placed)
	var doubtful []int
	for _, c := range r.chunks {
		if c.slot == noSlot {
			continue
		}
		if r.ready {
			m.ledger.markReady(c.slot, -1)
		}
		open := m.ledger.slots[c.slot].door.writer != 0
		m.shutSlot(c.slot)
		if !m.ledger.drop(c.slot) {
			continue
		}
		if fence && open {
			doubtful = append(doubtful, int(c.slot))
		} else {
			m.ledger.vacate(c.slot)
		}
	}
	if len(doubtful) > 0 {
		m.quarantine(r.sender.grants, doubtful)
	}
}

// cancel: "Only its own sender cancels a request; another's cancel is
// acknowledged and changes nothing. A queued request leaves the queue and its
// waiting batches are answered; an admitted or ready one is rolled back, unless
// a decoder is taking it; an unknown one is acknowledged and remembered, so
// that a batch of it that arrives late is refused. A CancelNotif never clears
// the memory of an ended request. The acknowledgement is an AllocResponse
// without indexes. An attached sender cancels only when none of its writes for
// that request is in flight: the slots are free at once."
func (m *Machine) cancel(ev Cancel) {
	m.heard(ev.Sender)
	resp := &wire.AllocResponse{RemoteIndexes: []int64{}, AlreadySentIndexes: []int64{}}
	if s := m.senders[ev.Sender]; s != nil && s.attached {
		resp.Epoch = m.cfg.Epoch
	}
	r := m.live[ev.ReqID]
	if no := checkID(ev.ReqID); no != nil {
		resp.Error, resp.Code = no.reason, no.code
	} else if r == nil {
		if !m.ended.has(ev.Sender, ev.ReqID) {
			m.ended.add(ev.Sender, ev.ReqID, Cancelled, m.now)
		}
	} else if r.sender.identity == ev.Sender && r.taker == "" {
		m.end(r, ending{kind: Cancelled})
	}
	m.answer(ev.Tag, resp)
}

// shutdown: "the receiver is stopping: everybody who waits is answered".
func (m *Machine) shutdown() {
	m.stopping = true
	no := &refusal{code: wire.CodeShuttingDown, reason: "the receiver is stopping"}
	for r := range m.queue.all() {
		e := ending{kind: Rejected, no: no, answer: wire.CodeShuttingDown, fence: true}
		if r.admitted {
			e.kind = RolledBack
		}
		m.end(r, e)
	}
}

// close: "when all have ended": what was neither written nor taken while the
// receiver drained ends with it. A ready request expires: whoever was told that it
// is ready has to hear that it is not any more. So does one that is being taken:
// there is nobody left to release it to.
func (m *Machine) close() {
	m.shutdown()
	m.closed = true
	for _, r := range slices.SortedFunc(maps.Values(m.live), byArrival) {
		e := ending{kind: RolledBack, fence: true}
		what := fmt.Sprintf("%d of %s written", r.written, plural(r.total, "chunk"))
		switch {
		case r.taker != "":
			e.kind, what = Expired, "it was being taken"
		case r.ready:
			e.kind, what = Expired, "nobody took it"
		}
		e.no = refusef(wire.CodeShuttingDown, "the receiver has stopped: %s", what)
		m.end(r, e)
	}
}
