package sender

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// attached takes a new session: what was held for it is asked now.
func (c *core) attached(now time.Duration, ev attached) {
	c.now = now
	r := c.receivers[ev.session.receiver]
	r.session, r.asking, r.refused = ev.session, false, false
	if c.staging == nil {
		c.staging = newStaging(ev.slots, len(c.receivers))
	}
	c.pump(r)
}

// refused fails every request that waits for a session that there will not be.
func (c *core) refused(now time.Duration, ev refused) {
	c.now = now
	r := c.receivers[ev.receiver]
	r.asking, r.refused = false, true
	if ev.heard {
		r.heard = now
	}
	for f := r.head(firstBatch); f != nil; f = r.head(firstBatch) {
		c.stop(f.req, verdict{status: Failed, code: ev.code, reason: ev.err.Error()})
	}
}

// lost takes the end of a session: everything asked in it fails, except what
// was ready at a receiver that still lives.
func (c *core) lost(now time.Duration, ev lost) {
	c.now = now
	s := ev.session
	if s.over {
		return
	}
	s.over = true
	r := c.receivers[s.receiver]
	r.heard = s.lastHeard()
	c.owed -= r.reset(now)
	for _, req := range c.live() {
		if req.session == s && !(ev.alive && req.stage == notifying) {
			c.stop(req, verdict{status: Failed, code: ev.code, reason: ev.err.Error()})
		}
	}
	c.retire(s)
	c.pump(r)
}

// leaving takes word that a session is about to be lost: what is
// not begun yet waits for the next one, and does not fail with this one.
func (c *core) leaving(now time.Duration, ev leaving) {
	c.now = now
	if r := c.receivers[ev.session.receiver]; r.session == ev.session {
		r.leaving = true
	}
}

// retire gives up the memory of a session that is over once no job uses it.
func (c *core) retire(s *session) {
	if s.over && s.jobs == 0 {
		c.do.finish(s)
	}
}

// enqueue has a message sent as soon as few enough of its kind are out.
func (c *core) enqueue(k kind, req *request, b *batch) {
	c.ids++
	f := &flight{id: c.ids, kind: k, req: req, batch: b, since: c.now}
	if k == firstBatch {
		req.first = f
	}
	req.receiver.enqueue(f)
}

// pump sends what may be sent.
func (c *core) pump(r *receiver) {
	if r.session == nil {
		if !r.asking && r.head(firstBatch) != nil {
			r.asking = true
			c.do.attach(r.index)
		}
		return
	}
	for k := range kinds {
		if k == firstBatch && r.leaving {
			continue
		}
		for r.out[k] < maxOut[k] {
			f := r.head(k)
			if f == nil {
				break
			}
			c.send(r, f)
		}
	}
}

func (c *core) send(r *receiver, f *flight) {
	s := r.session
	if f.batch != nil && f.kind != commit {
		if long := f.batch.longest(); long != nil && long.Length > s.slotSize {
			c.stop(f.req, verdict{
				status: Failed,
				code:   wire.CodeBadRequest,
				reason: fmt.Sprintf("chunk %q has %d bytes, a slot of %s holds %d: raise its --chunk-size or send smaller chunks",
					long.Key, long.Length, r.endpoint, s.slotSize),
			})
			return
		}
	}
	if f.kind == firstBatch {
		f.req.session, f.req.stage = s, asked
	}
	r.launch(f, c.now)
	c.do.send(s, f.id, f.message(s))
}

// answered takes a receiver's answer.
func (c *core) answered(now time.Duration, ev answered) {
	c.now = now
	r := c.receivers[ev.session.receiver]
	f := r.flights[ev.id]
	if f == nil || ev.session != r.session {
		return
	}
	r.land(f)
	commitResp, isCommit := ev.msg.(*wire.CommitResponse)
	allocResp, isAlloc := ev.msg.(*wire.AllocResponse)
	switch {
	case isCommit && f.kind == commit:
		c.committed(f, commitResp)
	case isAlloc && f.kind == cancel:
		c.owed--
	case isAlloc && f.kind != commit:
		c.allocated(f, allocResp)
	default:
		c.abandon(r, wire.CodeInternal, fmt.Errorf("%s answered another question than was asked, with a %T", r.endpoint, ev.msg))
	}
	c.pump(r)
}

// abandon ends a session that is no good any more.
func (c *core) abandon(r *receiver, code wire.Code, err error) {
	s := r.session
	c.do.abandon(s)
	c.lost(c.now, lost{session: s, code: code, err: err})
}

// allocated takes the answer to a batch.
func (c *core) allocated(f *flight, resp *wire.AllocResponse) {
	req := f.req
	switch {
	case req.stage == ended:
		return
	case resp.Code != "" || resp.Error != "":
		c.stop(req, verdict{status: Failed, code: resp.Code, reason: req.receiver.words(resp.Code, resp.Error), there: true})
		return
	}
	if f.kind == firstBatch {
		c.admit(req)
	}
	shared := req.shared
	err := f.batch.place(resp, req.session)
	c.counters.SharedChunks += req.shared - shared
	if err != nil {
		c.stop(req, verdict{status: Failed, code: wire.CodeInternal, reason: fmt.Sprintf("%s: %v", req.receiver.endpoint, err)})
		return
	}
	if f.kind == nextBatch {
		c.nextAnswered(req)
	}
	if b := f.batch; b.left > 0 {
		b.claim.since = c.now
		c.staging.add(c.now, req.receiver.index, &b.claim)
		c.serve()
		return
	}
	c.batchDone(f.batch)
}

// admit sends the batches that waited for their request's admission.
func (c *core) admit(req *request) {
	c.settleAdmission(req)
	req.stage = admitted
	req.admittedAt = c.now
	c.admitWait.Add(c.now, c.now-req.started)
	if !req.lastRead {
		c.hungry++
	}
	for _, b := range req.unasked {
		c.askNext(b)
	}
	req.unasked = nil
}

// place notes where the receiver wants b's chunks, after checking that the
// answer makes sense.
func (b *batch) place(resp *wire.AllocResponse, s *session) error {
	there := make([]bool, len(b.chunks))
	for _, i := range resp.AlreadySentIndexes {
		if i < 0 || i >= int64(len(there)) || there[i] {
			return fmt.Errorf("answer names chunk %d of %d as already sent", i, len(there))
		}
		there[i] = true
		b.req.shared++
	}
	if n := len(b.chunks) - len(resp.AlreadySentIndexes); len(resp.RemoteIndexes) != n {
		return fmt.Errorf("answer has %d slots for %d chunks", len(resp.RemoteIndexes), n)
	}
	if n := len(resp.Regions); n != 0 && n != len(resp.RemoteIndexes) {
		return fmt.Errorf("answer has %d regions for %d slots", n, len(resp.RemoteIndexes))
	}
	if n := len(resp.Access); n != 0 && n != len(resp.RemoteIndexes) {
		return fmt.Errorf("answer has %d accesses for %d slots", n, len(resp.RemoteIndexes))
	}
	b.to = make([]destination, 0, len(resp.RemoteIndexes))
	for i := range b.chunks {
		if there[i] {
			continue
		}
		d := destination{chunk: i, slot: resp.RemoteIndexes[len(b.to)]}
		if d.slot < 0 || d.slot >= s.slots {
			return fmt.Errorf("answer names slot %d of %d", d.slot, s.slots)
		}
		if len(resp.Regions) > 0 {
			d.region = resp.Regions[len(b.to)]
		}
		if len(resp.Access) > 0 {
			d.access = resp.Access[len(b.to)]
		}
		b.to = append(b.to, d)
	}
	b.left = len(b.to)
	b.crcs = make([]uint32, len(b.to))
	b.claim = claim{batch: b, left: b.left}
	return nil
}

// serve gives free staging slots to the chunks whose turn it is.
func (c *core) serve() {
	for b := c.staging.next(c.now); b != nil; b = c.staging.next(c.now) {
		d := &b.to[b.next]
		j := &job{
			session: b.req.session,
			batch:   b,
			chunk:   &b.chunks[d.chunk],
			index:   b.next,
			region:  int(d.region),
			remote:  int(d.slot),
			access:  d.access,
		}
		b.next++
		b.req.addJob(j)
		j.session.jobs++
		c.do.write(j)
	}
}

// worked takes a job back.
func (c *core) worked(now time.Duration, j *job) {
	c.now = now
	req := j.batch.req
	req.removeJob(j)
	j.session.jobs--
	c.retire(j.session)
	c.staging.release(now, req.receiver.index)
	switch {
	case req.stage == ended:
		c.unfence(req, j)
	case j.gone():
		c.do.gone(j.session, j.err) // the request ends with its session, which says why
	case j.err != nil:
		c.stop(req, verdict{status: Failed, code: j.code(), reason: j.err.Error()})
	default:
		c.written(j)
	}
	c.serve()
}

// unfence notes that a write of an ended request is over.
func (c *core) unfence(req *request, j *job) {
	if j.recalled() {
		return
	}
	req.fence--
	if req.fence == 0 && req.owes {
		c.cancelThere(req)
	}
}

// written notes that a chunk is written and flushed; the last one has its batch
// committed.
func (c *core) written(j *job) {
	b := j.batch
	b.crcs[j.index] = j.crc
	b.left--
	if b.left == 0 {
		c.enqueue(commit, b.req, b)
		c.pump(b.req.receiver)
	}
}

// committed takes the answer to a commit.
func (c *core) committed(f *flight, resp *wire.CommitResponse) {
	switch req := f.req; {
	case req.stage == ended:
	case resp.Code != "" || resp.Error != "":
		c.stop(req, verdict{status: Failed, code: resp.Code, reason: req.receiver.words(resp.Code, resp.Error)})
	default:
		c.wrote(f.batch)
		c.batchDone(f.batch)
	}
}

// wrote counts the chunks of b that were written and are committed.
func (c *core) wrote(b *batch) {
	chunks, bytes := int64(len(b.to)), int64(0)
	for _, d := range b.to {
		bytes += b.chunks[d.chunk].Length
	}
	b.req.sent += chunks
	b.req.bytes += bytes
	b.req.receiver.bytes += bytes
	c.counters.SentChunks += chunks
	c.counters.SentBytes += bytes
}

// batchDone notes that all chunks of b are at the receiver and count there. The
// request is complete when this was the last of its batches, in whatever order
// they came to it.
func (c *core) batchDone(b *batch) {
	req := b.req
	req.open--
	req.cost -= b.cost
	c.pending -= b.cost
	b.chunks, b.to, b.crcs = nil, nil, nil
	if req.open == 0 && req.lastRead {
		c.complete(req)
	}
}

// expire gives up what has waited too long for a receiver.
func (c *core) expire(now time.Duration) {
	c.now = now
	for _, r := range c.receivers {
		for f := c.overdue(r); f != nil; f = c.overdue(r) {
			c.giveUp(r, f)
		}
	}
}

// overdue is a flight of r that has waited for --timeout, nil when none has:
// for an answer, or for a session.
func (c *core) overdue(r *receiver) *flight {
	f := r.waiting()
	if f == nil || c.cfg.timeout == 0 || f.since+c.cfg.timeout > c.now {
		return nil
	}
	return f
}

// waiting is the flight of r that is overdue next.
func (r *receiver) waiting() *flight {
	if r.session == nil {
		return r.head(firstBatch)
	}
	return r.oldest()
}

// longSilence is how long a receiver that lives may take to answer a heartbeat,
// of which several come in half a --timeout.
const longSilence = 2 * time.Second

// giveUp acts on an overdue flight. A receiver that was heard meanwhile may
// leave a batch waiting, and that is the batch's own misfortune, unless it has
// been silent since; silence, or no answer to what is answered at once, is the
// receiver's end for us.
func (c *core) giveUp(r *receiver, f *flight) {
	s := r.session
	switch {
	case s == nil:
		c.stop(f.req, verdict{status: Failed, code: codeUnreachable, reason: fmt.Sprintf(
			"no answer from %s within %v: is pd-recv running there?", r.endpoint, c.cfg.timeout)})
	case s.lastHeard() <= f.since || f.kind == cancel || f.kind == commit:
		c.abandon(r, codeUnreachable, fmt.Errorf(
			"%s has not answered for %v: it is stopped or unreachable", r.endpoint, c.cfg.timeout))
	case f.req.stage == ended:
		r.land(f)
	case c.now-s.lastHeard() > max(c.cfg.timeout/2, longSilence):
		r.land(f)
		c.stop(f.req, verdict{status: Failed, code: codeUnreachable, reason: fmt.Sprintf(
			"%s did not grant slots within %v, and has not answered for %v: it is stopped or unreachable",
			r.endpoint, c.cfg.timeout, (c.now - s.lastHeard()).Round(100*time.Millisecond))})
	default:
		r.land(f)
		c.stop(f.req, verdict{status: Failed, code: codeTimeout, reason: fmt.Sprintf(
			"%s did not grant slots for %d chunks of %d within %v: raise --timeout or --buffer-size there",
			r.endpoint, len(f.batch.chunks), f.req.total, c.cfg.timeout)})
	}
}

// nextDue is when expire has something to do next; ok is false when nothing
// waits.
func (c *core) nextDue() (due time.Duration, ok bool) {
	if c.cfg.timeout == 0 {
		return 0, false
	}
	for _, r := range c.receivers {
		if f := r.waiting(); f != nil && (!ok || f.since+c.cfg.timeout < due) {
			due, ok = f.since+c.cfg.timeout, true
		}
	}
	return due, ok
}
