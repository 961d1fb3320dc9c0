package reservation

import (
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// take: "A take belongs to its connection and lasts --lease, or anew when that
// connection asks again; then the request is ready again. While it lasts only
// that connection releases it and nothing else ends it."
func (m *Machine) take(ev Take) {
	m.heard(ev.Conn)
	resp := &wire.TakeResponse{ReqID: ev.ReqID}
	r, no := m.findReady(ev.Conn, ev.ReqID)
	if no != nil {
		resp.Error, resp.Code = no.reason, no.code
		m.answer(ev.Tag, resp)
		return
	}
	r.taker = ev.Conn
	r.takenAt = m.now
	r.named = m.now
	m.rearm(r)
	resp.SlotSize = m.cfg.SlotBytes
	resp.LeaseMS = m.cfg.Lease.Milliseconds()
	// "Commit stores the CRC, take checks it; a chunk that came without one (a
	// sender that never attached) is not checked."
	for _, c := range r.chunks {
		s := &m.ledger.slots[c.slot]
		resp.Chunks = append(resp.Chunks, wire.TakenChunk{
			Key: c.key, Slot: int64(c.slot), Region: int64(s.region), Length: c.length, CRC: s.crc, HasCRC: s.committed,
		})
	}
	m.answer(ev.Tag, resp)
}

// release frees a ready request's slots, or gives a take back. A request that
// nobody is taking may be released by anyone.
func (m *Machine) release(ev Release) {
	m.heard(ev.Conn)
	resp := &wire.ReleaseResponse{}
	r, no := m.findReady(ev.Conn, ev.ReqID)
	switch {
	case no != nil:
		resp.Error, resp.Code = no.reason, no.code
	case !ev.Keep:
		m.end(r, ending{kind: Released})
	case r.taker != "":
		m.untake(r)
	}
	m.answer(ev.Tag, resp)
}

// untake makes a taken request ready again, as it was when it first became so:
// what limits its wait for a decoder starts anew.
func (m *Machine) untake(r *request) {
	r.taker = ""
	r.named, r.readyAt = m.now, m.now
	m.rearm(r)
}

// findReady finds a ready request that no other connection is taking. "Codes:
// unknown_request, not_ready, taken, expired."
func (m *Machine) findReady(conn, id string) (*request, *refusal) {
	r := m.live[id]
	switch {
	case r == nil && m.ended.hasExpired(id):
		return nil, refusef(wire.CodeExpired, "request %q has expired", id)
	case r == nil:
		return nil, refusef(wire.CodeUnknownRequest, "no request %q", id)
	case !r.ready:
		return nil, refusef(wire.CodeNotReady, "request %q is not ready: %d of %d chunks written", id, r.written, r.total)
	case r.taker != "" && r.taker != conn:
		left := max(m.cfg.Lease-(m.now-r.takenAt), 0).Round(100 * time.Millisecond)
		return nil, refusef(wire.CodeTaken, "request %q is being taken by another decoder: if that is gone, it can be taken again in %v", id, left)
	}
	return r, nil
}
