package reservation

import (
	"fmt"

	"github.com/pd-tools/pd-tools/wire"
)

// refusal says why a batch is refused.
type refusal struct {
	code     wire.Code
	reason   string
	declared uint64 // total_chunks of the batch, for the record
}

func refusef(code wire.Code, format string, args ...any) *refusal {
	return &refusal{code: code, reason: fmt.Sprintf(format, args...)}
}

// proposal is a batch as checked: what would change if it is taken.
type proposal struct {
	total      int   // declared; 0 on a later batch that declares none
	full, last int64 // bytes of a full chunk and of the last key's
	fresh      int   // keys the request does not have
}

// length is the bytes of the i-th of n keys.
func (p *proposal) length(i, n int) int64 {
	if i == n-1 {
		return p.last
	}
	return p.full
}

// alloc takes a batch or refuses it. "A message is checked whole, in the order
// of this table, before anything changes."
func (m *Machine) alloc(ev Alloc) {
	m.heard(ev.Sender)
	r := m.live[ev.Req.ReqID]
	if r != nil && r.sender.identity != ev.Sender {
		r = nil // another's: duplicate_request, unless something worse is wrong
	}
	p, no := m.checkBatch(ev, r)
	if no != nil {
		no.declared, _ = ev.Req.TotalChunks.Uint64()
		m.refuse(ev.Sender, ev.Req.ReqID, len(ev.Req.Keys), r, ev.Tag, no)
		return
	}
	b := batch{
		keys: ev.Req.Keys, last: ev.Req.IsLastBatch, fresh: p.fresh,
		size: ev.Size, came: m.now, tag: ev.Tag,
	}
	waits := m.mustWait(m.tenantOf(ev, r), r, &p)
	first := r == nil
	if first {
		r = m.open(ev, p.total)
	}
	r.named = m.now
	r.lastAsked = r.lastAsked || b.last
	for i, key := range b.keys {
		if r.find(key) < 0 {
			r.addChunk(key, p.length(i, len(b.keys)))
		}
	}
	m.wait(r, b)
	switch {
	case !waits:
		if (!r.admitted || m.cfg.Mode == None) && m.need(r) > 0 {
			m.queue.passedBy()
		}
		m.admit(r, m.now)
	case !r.place.waits:
		m.enqueue(r)
		if first {
			m.record(r, Record{Kind: Queued, Reason: m.heldBack(r)})
		}
	}
}

// mustWait reports whether a batch of t (nil: a new tenant) cannot be answered
// now. "A batch within its reservation is answered without waiting."
func (m *Machine) mustWait(t *tenant, r *request, p *proposal) bool {
	switch {
	case r != nil && r.place.waits:
		return true
	case m.cfg.Mode == None:
		return p.fresh > 0 && !m.admissible(t, p.fresh)
	case r == nil:
		return !m.admissible(t, p.total)
	}
	return false
}

// open starts a request.
func (m *Machine) open(ev Alloc, total int) *request {
	s, id := m.senderOf(ev.Sender), ev.Req.ReqID
	m.opened++
	r := &request{
		id: id, seq: m.opened, sender: s, tenant: m.openTenant(ev.Tenant, s), legacy: !s.attached, total: total, born: m.now, named: m.now,
		admittedAt: never, firstWrite: never, lastWrite: never, wholeAt: never,
	}
	r.timer.fire = r
	s.requests[r] = struct{}{}
	m.live[id] = r
	return r
}

// checkBatch goes through the table of errors in its order. r is the live request
// of this sender that the batch names, or nil.
func (m *Machine) checkBatch(ev Alloc, r *request) (p proposal, no *refusal) {
	req := ev.Req
	remembered := m.ended.has(ev.Sender, req.ReqID)
	if p, no = m.checkForm(req, r, r == nil && !remembered); no != nil {
		return p, no
	}
	if no = m.checkEpoch(ev.Sender, req.Epoch); no != nil {
		return p, no
	}
	// "The req_id is live and belongs to another sender; the first is undisturbed."
	if r == nil && m.live[req.ReqID] != nil {
		return p, refusef(wire.CodeDuplicateRequest, "request %q is live and belongs to another sender", req.ReqID)
	}
	// "Can never be admitted; refused at once, never queued."
	total, ok := req.TotalChunks.Int64()
	if !ok || total > int64(m.cfg.Slots) {
		return p, refusef(wire.CodeTooLarge, "needs %s chunks, buffer holds %d: raise --buffer-size", req.TotalChunks, m.cfg.Slots)
	}
	if share := m.cfg.SenderShare; share > 0 && total > int64(share) {
		return p, refusef(wire.CodeTooLarge, "needs %d chunks, one sender may have %d of the buffer's %d: raise --sender-share", total, share, m.cfg.Slots)
	}
	p.total = int(total)
	if r == nil && remembered {
		return p, m.hasEnded(ev.Sender, req.ReqID)
	}
	if r == nil && total == 0 {
		return p, refusef(wire.CodeNoTotal, "first batch of %q without total_chunks: legacy senders are not supported", req.ReqID)
	}
	if no = checkTotal(req, r, &p); no != nil {
		return p, no
	}
	return p, m.checkRoom(ev, r, &p)
}

// hasEnded: rolled_back: "a batch of a request of this sender that ended a short
// while ago, in whatever way".
func (m *Machine) hasEnded(identity, id string) *refusal {
	what := "give a new try a new req_id"
	if m.closed {
		what = "the receiver has stopped"
	}
	return refusef(wire.CodeRolledBack, "it has ended before (%s): %s", m.ended.how(identity, id), what)
}

// checkForm: bad_request: "no req_id, unknown fmt or dtype, negative number, a
// key twice in one batch, a chunk larger than a slot, over a limit, no keys in
// a first batch that is also the last". What is undecodable is malformed's.
func (m *Machine) checkForm(req *wire.AllocRequest, r *request, first bool) (p proposal, no *refusal) {
	if no := checkID(req.ReqID); no != nil {
		return p, no
	}
	if len(req.Keys) > wire.MaxKeys {
		return p, refusef(wire.CodeBadRequest, "%d keys in a batch, at most %d: send smaller batches", len(req.Keys), wire.MaxKeys)
	}
	if req.TotalChunks.Sign() < 0 {
		return p, refusef(wire.CodeBadRequest, "total_chunks is %s, must not be negative", req.TotalChunks)
	}
	var err error
	if p.full, p.last, err = wire.ChunkBytes(req); err != nil {
		return p, refusef(wire.CodeBadRequest, "%v", err)
	}
	if n := len(req.Keys); n > 0 && p.length(0, n) > m.cfg.SlotBytes { // the last is no longer than the first
		return p, refusef(wire.CodeBadRequest, "chunk of %d bytes, a slot holds %d: send smaller chunks or raise --chunk-size", p.length(0, n), m.cfg.SlotBytes)
	}
	if first && len(req.Keys) == 0 && req.IsLastBatch {
		return p, refusef(wire.CodeBadRequest, "first batch of %q is also the last and has no keys: nothing to send", req.ReqID)
	}
	return p, checkKeys(req.Keys, r, &p)
}

func checkID(id string) *refusal {
	switch {
	case id == "":
		return refusef(wire.CodeBadRequest, "no req_id")
	case len(id) > wire.MaxReqID:
		return refusef(wire.CodeBadRequest, "req_id of %d bytes, at most %d", len(id), wire.MaxReqID)
	}
	return nil
}

// checkKeys counts the keys that r does not have yet.
func checkKeys(keys []string, r *request, p *proposal) *refusal {
	var seen map[string]struct{}
	if len(keys) > fewChunks {
		seen = make(map[string]struct{}, len(keys))
	}
	for i, key := range keys {
		if len(key) > wire.MaxKey {
			return refusef(wire.CodeBadRequest, "key %d has %d bytes, at most %d", i, len(key), wire.MaxKey)
		}
		if twice(keys[:i], key, seen) {
			return refusef(wire.CodeBadRequest, "key %q stands twice in one batch", key)
		}
		at := -1
		if r != nil {
			at = r.find(key)
		}
		if at < 0 {
			p.fresh++
		} else if had, now := r.chunks[at].length, p.length(i, len(keys)); had != now {
			return refusef(wire.CodeBadRequest, "key %q was asked for with %d bytes, now with %d", key, had, now)
		}
	}
	return nil
}

// twice reports whether key is among those before it: by a scan where there
// are few, else (seen not nil) by a set that it adds to.
func twice(before []string, key string, seen map[string]struct{}) bool {
	if seen != nil {
		_, ok := seen[key]
		seen[key] = struct{}{}
		return ok
	}
	for _, k := range before {
		if k == key {
			return true
		}
	}
	return false
}

// checkEpoch: stale_epoch: "an epoch that is not this receiver's, or any epoch
// from an identity that is not attached".
func (m *Machine) checkEpoch(identity string, epoch uint64) *refusal {
	if epoch == 0 {
		return nil
	}
	if s := m.senders[identity]; s == nil || !s.attached {
		return refusef(wire.CodeStaleEpoch, "epoch %d from a sender that is not attached: attach anew", epoch)
	}
	if epoch != m.cfg.Epoch {
		return refusef(wire.CodeStaleEpoch, "epoch %d, this receiver's is %d: attach anew", epoch, m.cfg.Epoch)
	}
	return nil
}

// checkTotal: protocol_violation: "cumulative chunks > declared total, another
// total declared, new keys after the last batch". Chunks that wait count, and
// the last batch counts from when it came.
func checkTotal(req *wire.AllocRequest, r *request, p *proposal) *refusal {
	declared, had := p.total, 0
	if r != nil {
		declared, had = r.total, len(r.chunks)
		if p.total != 0 && p.total != r.total {
			return refusef(wire.CodeProtocolViolation, "request %q declared %d chunks, now %d", req.ReqID, r.total, p.total)
		}
		if r.lastAsked && p.fresh > 0 {
			return refusef(wire.CodeProtocolViolation, "%s of %q after its last batch", plural(p.fresh, "new key"), req.ReqID)
		}
	}
	if had+p.fresh > declared {
		return refusef(wire.CodeProtocolViolation, "request %q declared %d chunks and now has %d", req.ReqID, declared, had+p.fresh)
	}
	return nil
}

// checkRoom: queue_full: "the queue is at --queue-limit or --queue-bytes, or the
// sender at its own limits"; shutting_down: "the receiver is stopping".
func (m *Machine) checkRoom(ev Alloc, r *request, p *proposal) *refusal {
	t := m.tenantOf(ev, r)
	waits, need := m.mustWait(t, r, p), p.total
	if m.cfg.Mode == None {
		need = p.fresh
	}
	if no := m.checkTenant(t, r, need, waits); no != nil {
		return no
	}
	if waits {
		if lim := m.cfg.QueueLimit; lim > 0 && m.queue.size >= lim && (r == nil || !r.place.waits) {
			return refusef(wire.CodeQueueFull, "busy: %d requests wait, --queue-limit is %d: try again later", m.queue.size, lim)
		}
		if lim := m.cfg.QueueBytes; lim > 0 && m.queue.bytes+int64(ev.Size) > lim {
			return refusef(wire.CodeQueueFull, "busy: %d bytes of batches wait, --queue-bytes is %d: try again later", m.queue.bytes, lim)
		}
	}
	if m.stopping && (r == nil || waits) {
		return refusef(wire.CodeShuttingDown, "the receiver is stopping")
	}
	return nil
}

// refuse answers a batch with an error. "A refusal of its own sender's batch
// ends a live request (full rollback, a ready one included), unless a decoder
// is taking it; a refused first batch is remembered like any ended request."
func (m *Machine) refuse(identity, id string, keys int, r *request, tag Tag, no *refusal) {
	resp := &wire.AllocResponse{
		RemoteIndexes: failedIndexes(keys), AlreadySentIndexes: []int64{},
		Error: no.reason, Code: no.code,
	}
	if s := m.senders[identity]; s != nil && s.attached {
		resp.Epoch = m.cfg.Epoch
	}
	m.refused[no.code]++
	m.answer(tag, resp)
	switch {
	case r != nil && r.taker == "":
		m.end(r, ending{kind: RolledBack, no: no, fence: true})
	case r == nil && checkID(id) == nil && !m.ended.has(identity, id):
		m.reject(identity, id, no)
	}
}

func (m *Machine) reject(identity, id string, no *refusal) {
	m.ended.add(identity, id, Rejected, m.now)
	name := displayIdentity(identity)
	if s := m.senders[identity]; s != nil {
		name = s.display()
	}
	m.emit(Record{Kind: Rejected, ReqID: id, Sender: name, TotalChunks: no.declared, Code: no.code, Reason: no.reason})
}

// malformed refuses a message that could not be decoded.
func (m *Machine) malformed(ev Malformed) {
	m.heard(ev.Sender)
	r := m.live[ev.ReqID]
	if r != nil && r.sender.identity != ev.Sender {
		r = nil
	}
	m.refuse(ev.Sender, ev.ReqID, ev.Keys, r, ev.Tag, &refusal{code: wire.CodeBadRequest, reason: ev.Reason})
}

// failedIndexes is how an error answers a batch: -1 for each key, at least one.
func failedIndexes(keys int) []int64 {
	indexes := make([]int64, max(keys, 1))
	for i := range indexes {
		indexes[i] = -1
	}
	return indexes
}
