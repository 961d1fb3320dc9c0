package sender

import (
	"cmp"
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// Progress is how far a run is.
type Progress struct {
	wire.SenderCounters
	Elapsed    time.Duration
	Live       int           // requests begun and not ended
	Waiting    int           // of those, for admission
	OldestWait time.Duration // of these
	Staging    int           // slots
	Used       int           // of those
	Blocked    int           // batches that wait for a slot
}

func (r *run) progress() Progress {
	c, now := r.core, r.clock.now()
	p := Progress{SenderCounters: c.counters, Elapsed: now, Live: len(c.reqs), Waiting: c.young.Len()}
	if e := c.young.Front(); e != nil {
		p.OldestWait = now - e.Value.(*request).started
	}
	if s := c.staging; s != nil {
		p.Staging, p.Used = s.total, s.used
		for i := range s.lanes {
			p.Blocked += s.lanes[i].waiting()
		}
	}
	return p
}

// snapshot is the state of now, for those who asked.
func (r *run) snapshot() wire.Message {
	s := r.core.snapshot(r.clock.now())
	s.Time = wire.StampOf(time.Now())
	s.Kind = wire.KindSender
	s.ID = r.cfg.Name
	s.Epoch = r.cfg.Epoch
	s.UptimeS = time.Since(r.clock.start).Seconds()
	s.Staging.Bytes = r.memory.slotSize()
	s.Counters.Undelivered = r.undelivered()
	s.Counters.Refused = r.cfg.Keys.Refused()
	return s
}

// snapshot is what the core knows of it.
func (c *core) snapshot(now time.Duration) *wire.SenderSnapshot {
	s := &wire.SenderSnapshot{
		Staging:   wire.Staging{Blocked: []wire.Blocked{}},
		Requests:  []wire.SenderRequest{},
		Receivers: make([]wire.SenderLink, len(c.receivers)),
		Totals:    wire.SenderTotals{Requests: len(c.reqs)},
		Counters:  c.counters,
		AdmitWait: c.admitWait.Last(now),
		WriteTime: c.writeTime.Last(now),
		ReadyTime: c.took.Last(now),
	}
	for i, r := range c.receivers {
		s.Receivers[i] = r.snapshot(now)
	}
	for _, req := range c.reqs {
		s.Receivers[req.receiver.index].Requests++
	}
	for _, req := range c.oldest(wire.MaxSnapshotList) {
		s.Requests = append(s.Requests, req.snapshot(now))
	}
	if c.staging != nil {
		c.staging.snapshot(now, s)
	}
	s.Receivers = s.Receivers[:min(len(s.Receivers), wire.MaxSnapshotList)]
	return s
}

// oldest lists at most limit of the live requests, oldest first.
func (c *core) oldest(limit int) []*request {
	var list []*request
	for _, req := range c.reqs {
		if req.young == nil {
			list = append(list, req)
		}
	}
	// Those not admitted may be very many, and are in order.
	for e, n := c.young.Front(), 0; e != nil && n < limit; e, n = e.Next(), n+1 {
		list = append(list, e.Value.(*request))
	}
	slices.SortFunc(list, func(a, b *request) int { return cmp.Compare(a.seq, b.seq) })
	return list[:min(len(list), limit)]
}

func (r *request) snapshot(now time.Duration) wire.SenderRequest {
	s := wire.SenderRequest{
		ReqID:       r.id,
		Receiver:    r.receiver.index,
		State:       r.stage.String(),
		TotalChunks: r.total,
		Sent:        r.sent,
		Shared:      r.shared,
		Bytes:       r.bytes,
		AgeMS:       (now - r.started).Milliseconds(),
		AdmittedMS:  -1,
	}
	if r.admittedAt != 0 {
		s.AdmittedMS = (r.admittedAt - r.started).Milliseconds()
	}
	return s
}

// String is the state of a request that is so far, as a SenderSnapshot has it.
func (s stage) String() string {
	switch s {
	case held, asked:
		return "waiting"
	case admitted:
		return "writing"
	case notifying:
		return "notifying"
	}
	return "ended"
}

func (r *receiver) snapshot(now time.Duration) wire.SenderLink {
	s := wire.SenderLink{Endpoint: r.endpoint, State: "connecting", HeardMS: -1, Bytes: r.bytes}
	heard := r.heard
	switch {
	case r.session != nil:
		s.State, s.Engine = "attached", r.session.engine
		heard = r.session.lastHeard()
	case r.refused:
		s.State = "refused"
	}
	if heard > 0 {
		s.HeardMS = max(now-heard, 0).Milliseconds()
	}
	return s
}

func (s *staging) snapshot(now time.Duration, snap *wire.SenderSnapshot) {
	snap.Staging.Total, snap.Staging.Used = s.total, s.used
	for i := range s.lanes {
		snap.Receivers[i].Staging = s.lanes[i].used
	}
	for _, c := range s.blocked() {
		at := c.batch.req.receiver.index
		snap.Receivers[at].Blocked++
		snap.Totals.Blocked++
		if snap.Totals.Blocked <= wire.MaxSnapshotList {
			snap.Staging.Blocked = append(snap.Staging.Blocked, wire.Blocked{
				ReqID: c.batch.req.id, Receiver: at, Chunks: c.left, WaitingMS: (now - c.since).Milliseconds(),
			})
		}
	}
}
