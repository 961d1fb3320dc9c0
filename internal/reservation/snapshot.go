package reservation

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pd-tools/pd-tools/wire"
)

// Snapshot is the state at a time of the caller's clock: the ledger, the
// lists, and the counters that are decided here. The caller fills in the rest.
func (m *Machine) Snapshot(now Time) wire.Snapshot {
	m.advance(now)
	l := &m.ledger
	return wire.Snapshot{
		Kind: wire.KindReceiver, Epoch: m.cfg.Epoch, Admission: m.cfg.Mode.String(),
		Slots: wire.SnapshotSlots{
			Total: len(l.slots), Promised: l.promised, Held: l.held, Written: l.written, Ready: l.ready,
			Quarantined: l.quarantined, Free: l.free(), Peak: l.peak, Bytes: m.cfg.SlotBytes,
		},
		Requests: m.snapshotRequests(),
		Queue:    m.snapshotQueue(),
		Senders:  m.snapshotSenders(),
		Totals:   wire.SnapshotTotals{Requests: len(m.live), Queue: m.queue.size, Senders: len(m.senders)},
		Counters: m.counters,
		Limits: wire.SnapshotLimits{
			AdmitTimeoutMS: m.cfg.AdmitTimeout.Milliseconds(), LeaseMS: m.cfg.Lease.Milliseconds(),
			LegacyLeaseMS: m.cfg.LegacyLease.Milliseconds(), ReadyTTLMS: m.cfg.ReadyTTL.Milliseconds(),
			Overtake: m.cfg.Overtake, QueueLimit: m.cfg.QueueLimit, QueueBytes: m.cfg.QueueBytes,
			SenderRequests: m.cfg.SenderRequests, SenderQueue: m.cfg.SenderQueue, SenderShare: m.cfg.SenderShare,
		},
		Refusals: m.snapshotRefusals(),
		Draining: m.stopping,
	}
}

// Usage is how many slots are promised, held, in quarantine and free: what a
// Snapshot says of them, at no cost.
func (m *Machine) Usage() (promised, held, quarantined, free int) {
	l := &m.ledger
	return l.promised, l.held, l.quarantined, l.free()
}

// Live is how many requests there are that have not ended.
func (m *Machine) Live() int { return len(m.live) }

func (m *Machine) snapshotRefusals() map[string]int64 {
	refused := make(map[string]int64, len(m.refused))
	for code, n := range m.refused {
		refused[string(code)] = n
	}
	return refused
}

func (m *Machine) snapshotRequests() []wire.SnapshotRequest {
	list := make([]wire.SnapshotRequest, 0, min(len(m.live), wire.MaxSnapshotList))
	for _, r := range slices.SortedFunc(maps.Values(m.live), byArrival) {
		if len(list) == wire.MaxSnapshotList {
			break
		}
		list = append(list, wire.SnapshotRequest{
			ReqID: r.id, Sender: r.sender.display(), State: r.state(), TotalChunks: r.total,
			Allocated: r.placed, Written: r.written, Shared: r.shared, Bytes: r.bytes,
			AgeMS: (m.now - r.born).Milliseconds(), IdleMS: (m.now - r.named).Milliseconds(),
			Taken:      r.taker != "",
			AdmittedMS: r.age(r.admittedAt), FirstWriteMS: r.age(r.firstWrite), LastWriteMS: r.age(r.lastWrite), ReadyMS: r.age(r.wholeAt),
		})
	}
	return list
}

// age is how old r was at a time, in milliseconds, -1 if that was never.
func (r *request) age(at Time) int64 {
	if at == never {
		return -1
	}
	return (at - r.born).Milliseconds()
}

// state is a live request's place in the picture of its life.
func (r *request) state() string {
	switch {
	case r.ready:
		return Ready.String()
	case r.lastDone:
		return Allocated.String()
	case r.admitted:
		return Admitted.String()
	}
	return Queued.String()
}

// snapshotQueue lists who waits. Lacks counts the slots still to be freed
// before a request is admitted, all ahead of it in line included; of one that its
// tenant's share holds back, those that this tenant has to free.
func (m *Machine) snapshotQueue() []wire.SnapshotWaiter {
	list := make([]wire.SnapshotWaiter, 0, min(m.queue.size, wire.MaxSnapshotList))
	needed := 0
	held := make(map[*tenant]int)
	for r := range m.queue.all() {
		if len(list) == wire.MaxSnapshotList {
			break
		}
		t, lacks := r.tenant, 0
		if r.place.held {
			held[t] += r.place.need
			lacks = t.slots + t.claimed + held[t] - m.cfg.SenderShare
		} else {
			needed += r.place.need
			lacks = max(0, needed-m.ledger.free())
		}
		list = append(list, wire.SnapshotWaiter{
			Pos: len(list) + 1, ReqID: r.id, Sender: r.sender.display(), Need: r.place.need,
			Lacks: lacks, WaitedMS: (m.now - r.place.since).Milliseconds(), AtShare: r.place.held,
		})
	}
	return list
}

func (m *Machine) snapshotSenders() []wire.SnapshotSender {
	list := make([]wire.SnapshotSender, 0, min(len(m.senders), wire.MaxSnapshotList))
	byName := func(a, b *sender) int {
		return cmp.Or(cmp.Compare(a.display(), b.display()), cmp.Compare(a.identity, b.identity))
	}
	for _, s := range slices.SortedFunc(maps.Values(m.senders), byName) {
		if len(list) == wire.MaxSnapshotList {
			break
		}
		one := wire.SnapshotSender{
			Sender: s.display(), Requests: len(s.requests), Queued: s.queued, Attached: s.attached, Engine: s.engine,
			Slots: s.slots(), Ready: s.ready, Bytes: s.bytes,
		}
		if s.attached && m.cfg.Lease > 0 {
			one.LeaseLeftMS = max(0, s.heard+m.cfg.Lease-m.now).Milliseconds()
		}
		list = append(list, one)
	}
	return list
}
