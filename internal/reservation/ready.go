package reservation

import (
	"fmt"

	"github.com/google/btree"

	"github.com/pd-tools/pd-tools/wire"
)

// readyIfWhole: "The last batch is allocated and every chunk that came is
// committed; after an early last batch that is fewer than declared, and the
// event says both numbers. A sender that never attached cannot commit: its
// request is ready when its last batch is allocated; its chunks count as
// written then and are never shared."
func (m *Machine) readyIfWhole(r *request) {
	if r.ready || !r.lastDone || len(r.waiting) > 0 {
		return
	}
	if r.legacy {
		for _, c := range r.chunks {
			m.writeSlot(r, c.slot)
		}
	}
	if r.written < len(r.chunks) {
		return
	}
	r.ready = true
	r.readyAt, r.wholeAt = m.now, m.now
	r.sender.ready++
	for _, c := range r.chunks {
		m.ledger.markReady(c.slot, 1)
	}
	if m.owner == r {
		m.owner = nil
	}
	m.readied.add(r)
	m.rearm(r)
	m.record(r, Record{Kind: Ready})
}

// readied has the ready requests in the order in which they became so.
type readied struct {
	bySeq *btree.BTreeG[*request]
	last  uint64 // number given
}

func newReadied() readied {
	return readied{bySeq: btree.NewG(32, func(a, b *request) bool { return a.readySeq < b.readySeq })}
}

// add numbers a request. One of a sender that never attached gets no number: it
// counts as ready before its bytes are there, and only its sender knows when.
func (l *readied) add(r *request) {
	if r.legacy {
		return
	}
	l.last++
	r.readySeq = l.last
	l.bySeq.ReplaceOrInsert(r)
}

func (l *readied) remove(r *request) {
	if r.readySeq != 0 {
		l.bySeq.Delete(r)
	}
}

// listReady tells a page of what is ready. What a decoder is taking is there,
// too: the take may be given back, and nobody would ask for that number again.
func (m *Machine) listReady(ev ListReady) {
	m.heard(ev.Conn)
	resp := &wire.ReadyResponse{Epoch: m.cfg.Epoch}
	after := ev.Req.After
	if ev.Req.Epoch != m.cfg.Epoch {
		after = 0
	}
	if after < m.readied.last {
		m.readied.bySeq.AscendGreaterOrEqual(&request{readySeq: after + 1}, func(r *request) bool {
			if resp.More = len(resp.Entries) == wire.MaxReadyList; !resp.More {
				resp.Entries = append(resp.Entries, wire.ReadyEntry{Seq: r.readySeq, ReqID: r.id})
			}
			return !resp.More
		})
	}
	m.answer(ev.Tag, resp)
}

// commit notes that slots are written. It changes all that it names or nothing.
func (m *Machine) commit(ev Commit) {
	m.heard(ev.Sender)
	resp := &wire.CommitResponse{}
	r, no := m.checkCommit(ev)
	if no != nil {
		resp.Error, resp.Code = no.reason, no.code
	} else {
		m.write(r, ev.Req)
		m.readyIfWhole(r)
		resp.Ready = r.ready
	}
	m.answer(ev.Tag, resp)
}

func (m *Machine) write(r *request, req *wire.CommitRequest) {
	r.named = m.now
	for i, n := range req.Slots {
		s := &m.ledger.slots[n]
		if s.written {
			continue
		}
		s.crc, s.committed = req.CRCs[i], true
		m.shutSlot(int32(n))
		m.writeSlot(r, int32(n))
		m.ledger.offer(int32(n))
	}
}

// writeSlot notes that a chunk of r's is whole, if it was not.
func (m *Machine) writeSlot(r *request, i int32) {
	s := &m.ledger.slots[i]
	if s.written {
		return
	}
	m.ledger.write(i)
	r.written++
	r.wrote(m.now)
	r.sender.bytes += s.length
	m.counters.WrittenChunks++
	m.counters.WrittenBytes += s.length
}

// wrote notes when a chunk of r's was written.
func (r *request) wrote(now Time) {
	if r.firstWrite == never {
		r.firstWrite = now
	}
	r.lastWrite = now
}

func (m *Machine) checkCommit(ev Commit) (*request, *refusal) {
	req := ev.Req
	s := m.senders[ev.Sender]
	if s == nil || !s.attached {
		return nil, refusef(wire.CodeStaleEpoch, "a sender that is not attached cannot commit: attach first")
	}
	if no := m.checkEpoch(ev.Sender, req.Epoch); no != nil {
		return nil, no
	}
	r := m.live[req.ReqID]
	if r == nil || r.sender != s {
		m.counters.StaleWrites++
		if m.ended.has(ev.Sender, req.ReqID) {
			return nil, m.hasEnded(ev.Sender, req.ReqID)
		}
		return nil, refusef(wire.CodeUnknownRequest, "this sender has no request %q", req.ReqID)
	}
	return r, m.checkSlots(r, req)
}

func (m *Machine) checkSlots(r *request, req *wire.CommitRequest) *refusal {
	if len(req.Lengths) != len(req.Slots) || len(req.CRCs) != len(req.Slots) {
		return refusef(wire.CodeBadRequest, "%d slots, %d lengths, %d crcs: must be as many", len(req.Slots), len(req.Lengths), len(req.CRCs))
	}
	seen := make(map[int64]struct{}, len(req.Slots))
	for i, n := range req.Slots {
		if _, again := seen[n]; again {
			return refusef(wire.CodeBadRequest, "slot %d stands twice in one commit", n)
		}
		seen[n] = struct{}{}
		if no := m.checkSlot(r, n, req.Lengths[i], req.CRCs[i]); no != nil {
			return no
		}
	}
	return nil
}

func (m *Machine) checkSlot(r *request, n, length int64, crc uint32) *refusal {
	if n < 0 || n >= int64(len(m.ledger.slots)) {
		return refusef(wire.CodeBadRequest, "slot %d, the buffer has %d", n, len(m.ledger.slots))
	}
	s := &m.ledger.slots[n]
	if at := r.find(s.key); s.holders == 0 || at < 0 || int64(r.chunks[at].slot) != n {
		return refusef(wire.CodeProtocolViolation, "slot %d is not of request %q", n, r.id)
	}
	if length != s.length {
		return refusef(wire.CodeProtocolViolation, "slot %d was asked for with %d bytes, committed with %d", n, s.length, length)
	}
	// "A second commit with another length or CRC is refused."
	if s.committed && crc != s.crc {
		return refusef(wire.CodeProtocolViolation, "slot %d is committed with CRC %s, now with %s", n, hexCRC(s.crc), hexCRC(crc))
	}
	return nil
}

func hexCRC(crc uint32) string { return fmt.Sprintf("%08x", crc) }
