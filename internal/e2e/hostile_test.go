package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

// pageSlot is the slot size of tests whose peers write for themselves: there is
// nothing between two slots, bytes.
const pageSlot = 8192

// writer is a raw peer of a receiver of pageSlot that has attached and writes
// what it wants.
type writer struct {
	*peer
	remote  rdma.Remote
	staging []byte
}

func attachWriter(t *testing.T, r *receiver, name, engine string) *writer {
	t.Helper()
	p := dial(t, r)
	resp, err := p.Attach(name, engine)
	if err != nil {
		t.Fatal(err)
	}
	p.epoch = resp.Epoch
	w := &writer{peer: p, staging: make([]byte, 2*pageSlot)}
	at := rdma.Attachment{
		ReceiverID: resp.ReceiverID, Token: resp.Token, SlotSize: resp.SlotSize, Slots: int(resp.SlotCount),
		Staging: w.staging, Host: "127.0.0.1",
	}
	for _, region := range resp.Regions {
		at.Regions = append(at.Regions, rdma.Region{ID: int(region.ID), Desc: region.Desc})
	}
	if w.remote, err = engines.Attach(t.Context(), engine, at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.remote.Close() })
	return w
}

// place is one slot that a peer was given.
type place struct {
	slot   int
	region int
	access []byte
}

// asks is a batch that must be granted.
func (w *writer) asks(reqID string, total int, last bool, keys ...string) (places []place) {
	w.t.Helper()
	m := peertest.Alloc(reqID, int64(total), last, pageSlot, keys...)
	m.Epoch = w.epoch
	resp := w.call(m)
	for i, slot := range granted(w.t, resp, len(keys)) {
		p := place{slot: int(slot)}
		if resp.Regions != nil {
			p.region = int(resp.Regions[i])
		}
		if resp.Access != nil {
			p.access = resp.Access[i]
		}
		places = append(places, p)
	}
	return places
}

// puts writes a key's pattern, or fails.
func (w *writer) puts(p place, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	local := w.staging[:pageSlot]
	manifest.Pattern(local, key)
	return w.remote.Write(ctx, []rdma.Op{{Local: local, Region: p.region, Slot: p.slot, Access: p.access}})
}

// commits says that a slot has a key's pattern.
func (w *writer) commits(reqID string, p place, key string) {
	w.t.Helper()
	chunk := make([]byte, pageSlot)
	manifest.Pattern(chunk, key)
	m, err := w.Call(&wire.CommitRequest{
		ReqID: reqID, Slots: []int64{int64(p.slot)}, Lengths: []int64{pageSlot},
		CRCs: []uint32{crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli))}, Epoch: w.epoch,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if resp, ok := m.(*wire.CommitResponse); !ok || resp.Code != "" {
		w.t.Fatalf("the commit is answered %+v", m)
	}
}

// bent is an access of ofi's, 8 bytes of key and 8 of address, that leads
// elsewhere.
func (p place) bent(by int64) place {
	access := bytes.Clone(p.access)
	binary.BigEndian.PutUint64(access[8:], binary.BigEndian.Uint64(access[8:])+uint64(by))
	p.access = access
	return p
}

// prey is a receiver of pages with peers that mean well.
type prey struct {
	t        *testing.T
	r        *receiver
	first    uint64  // region's inode
	sender   *fed    // a pd-send
	neighbor *writer // has a slot open while others are attacked
	next     place
	sent     int
}

const preySlots = 12

func newPrey(t *testing.T) *prey {
	t.Helper()
	p := &prey{t: t, r: receiveChunks(t, preySlots, pageSlot, "--engine", "ofi", "--lease", "1h")}
	p.first, _ = spyOn(t, memoryFiles(p.r.program)[0], preySlots*pageSlot)
	p.sender = send(t, p.r, "--engine", "ofi")
	p.neighbor = attachWriter(t, p.r, "neighbor", "ofi")
	p.next = p.neighbor.asks("N", 2, false, "N-0")[0]
	if err := p.neighbor.puts(p.next, "N-0"); err != nil {
		t.Fatal(err)
	}
	p.sends(1)
	return p
}

// line is a manifest line of a request with all its chunks, which are patterns.
func preyLine(reqID string, n int) string {
	var chunks []string
	for _, key := range keys(reqID, 0, n) {
		chunks = append(chunks, fmt.Sprintf(`{"key":%q,"length":%d}`, key, pageSlot))
	}
	return fmt.Sprintf(`{"req_id":%q,"total_chunks":%d,"chunks":[%s],"last":true}`+"\n", reqID, n, strings.Join(chunks, ","))
}

// sends has the pd-send send another request of n chunks, which stays.
func (p *prey) sends(n int) (reqID string) {
	p.t.Helper()
	p.sent++
	reqID = fmt.Sprint("S", p.sent)
	p.sender.write(preyLine(reqID, n))
	p.sender.result(reqID, "ready")
	return reqID
}

// takes compares a request of n chunks with what was sent.
func (p *prey) takes(t *testing.T, reqID string, n int, flags ...string) {
	t.Helper()
	args := append(append([]string{"take"}, flags...), p.r.endpoint, reqID)
	if output(t, 0, "pd-recv", args...) != pattern(pageSlot, keys(reqID, 0, n)...) {
		t.Errorf("the bytes of %s are not its own", reqID)
	}
}

// memory copies all regions, but for some slots of the first.
func (p *prey) memory(t *testing.T, but ...int) map[uint64]string {
	t.Helper()
	regions := map[uint64]string{}
	for _, file := range memoryFiles(p.r.program) {
		inode, mem := spyOn(t, file, preySlots*pageSlot)
		mem = bytes.Clone(mem)
		for _, slot := range but {
			if inode == p.first && slot >= 0 {
				clear(mem[slot*pageSlot:][:pageSlot])
			}
		}
		regions[inode] = string(mem)
	}
	return regions
}

// aim is whom a bad peer's write would harm.
type aim struct {
	victim string // a ready request; "": none
	chunks int    // of it
	// A slot that is in another region now, so that nobody has what it was in the
	// first: there a write goes on. -1: none.
	old int
}

// What a peer may not write it does not write, through ofi: not a byte changes that
// is not its own, its session ends, and it is told why, and everybody else goes on.
func TestHostileWriter(t *testing.T) {
	t.Parallel()
	p := newPrey(t)
	const left = preySlots - 2 - 1 - 2 // slots, besides the neighbor's, the first request's and those of A
	none := aim{old: -1}
	for _, tt := range []struct {
		name string
		aim  func(t *testing.T, bad *writer, own place) (place, aim)
	}{
		{"behind its slot", func(_ *testing.T, _ *writer, own place) (place, aim) { return own.bent(pageSlot), none }},
		{"across its slot's end", func(_ *testing.T, _ *writer, own place) (place, aim) { return own.bent(8), none }},
		{"across its slot's beginning", func(_ *testing.T, _ *writer, own place) (place, aim) { return own.bent(-8), none }},
		{"far away", func(_ *testing.T, _ *writer, own place) (place, aim) { return own.bent(1 << 40), none }},
		{"another's slot, with its own key", func(_ *testing.T, _ *writer, own place) (place, aim) {
			return own.bent(int64(p.next.slot-own.slot) * pageSlot), none
		}},
		{"another's slot, with that one's access", func(*testing.T, *writer, place) (place, aim) { return p.next, none }},
		{"a chunk that is committed", func(t *testing.T, bad *writer, _ place) (place, aim) {
			at := bad.asks("C", 1, true, "C-0")[0]
			if err := bad.puts(at, "C-0"); err != nil {
				t.Fatal(err)
			}
			bad.commits("C", at, "C-0")
			return at, aim{"C", 1, -1}
		}},
		{"a request that is cancelled", func(_ *testing.T, bad *writer, _ place) (place, aim) {
			at := bad.asks("X", 1, true, "X-0")[0]
			bad.cancel("X")
			return at, aim{p.sends(left), left, -1}
		}},
		{"a slot that is revoked", func(t *testing.T, bad *writer, _ place) (place, aim) {
			at := bad.asks("V", 1, false, "V-0")[0]
			refused(t, bad.call(bad.request("V", 1, true, "V-1", "V-2")), wire.CodeProtocolViolation, 2)
			p.r.happens("rolled_back", "V")
			return at, aim{p.sends(left), left, at.slot}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := p.r.settles("only what stays is left", func(s snapshot) bool { return s.Slots.Free == left+2 })
			bad := attachWriter(t, p.r, "bad", "ofi")
			reqID := "A " + tt.name
			own := bad.asks(reqID, 2, false, "A-0")[0]
			at, aim := tt.aim(t, bad, own)
			memory := p.memory(t, own.slot, aim.old)

			switch err := bad.puts(at, "evil"); {
			case aim.old >= 0: // it does no harm, and an honest writer may not know yet: it goes on
				if err != nil {
					t.Errorf("the write: %v", err)
				}
				bad.remote.Close()
			case !errors.Is(err, rdma.ErrGone):
				t.Errorf("the write should end its writer: %v", err)
			}
			if l := p.r.happens("expired", reqID); !strings.Contains(l.str("reason"), "connection closed") {
				t.Errorf("its session ends: %v", l)
			}
			if now := p.memory(t, own.slot, aim.old); !maps.Equal(now, memory) {
				t.Error("bytes have changed that are not its own")
			}
			select {
			case <-bad.remote.Done():
				t.Log(bad.remote.Cause())
			case <-time.After(patience):
				t.Error("its data connection goes on")
			}
			m, err := bad.Call(&wire.Heartbeat{Epoch: bad.epoch})
			if resp, ok := m.(*wire.AllocResponse); err != nil || !ok || resp.Code != wire.CodeStaleEpoch || resp.Error == "" {
				t.Errorf("its heartbeat is answered %+v, %v", m, err)
			}
			if aim.victim != "" {
				p.takes(t, aim.victim, aim.chunks)
			}
			p.r.settles("all that it had is free", func(s snapshot) bool {
				return s.Slots == before.Slots && len(s.Senders) == len(before.Senders)
			})
			p.takes(t, p.sends(1), 1)
		})
	}
	if err := p.neighbor.puts(p.next, "N-0"); err != nil {
		t.Errorf("the neighbor's write: %v", err)
	}
	p.neighbor.commits("N", p.next, "N-0")
	rest := p.neighbor.asks("N", 2, true, "N-1")[0]
	if err := p.neighbor.puts(rest, "N-1"); err != nil {
		t.Errorf("the neighbor's write: %v", err)
	}
	p.neighbor.commits("N", rest, "N-1")
	p.takes(t, "N", 2)
	p.takes(t, "S1", 1)
	p.sender.ends(0)
	p.r.empty()
}
