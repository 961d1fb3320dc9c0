package sender

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/window"
	"github.com/pd-tools/pd-tools/wire"
)

// Codes of requests that failed here rather than at the receiver.
const (
	codeManifest    wire.Code = "bad_manifest" // a line cannot be used
	codeSource      wire.Code = "bad_source"   // a chunk's bytes cannot be had
	codeNoRoom      wire.Code = "no_room"      // --pending is full
	codeUnfinished  wire.Code = "unfinished"   // the input ended before the last line
	codeTimeout     wire.Code = "timeout"      // the receiver lives and did not admit in time
	codeUnreachable wire.Code = "unreachable"  // the receiver is silent or gone
	codeNotify      wire.Code = "not_notified" // the proxy cannot be reached
)

// coreConfig is what the core goes by.
type coreConfig struct {
	receivers []string      // endpoints
	timeout   time.Duration // bounds each wait for a receiver; 0: none
	batch     int           // chunks of an AllocRequest at most
	pending   int64         // bytes of memory for lines read and not finished
	proxy     bool          // there is one
	tellFail  bool          // it is told of failures
}

// core decides what becomes of requests. It is told events, one at a time, and
// acts through effects; it does no I/O, starts nothing and reads no clock. One
// goroutine owns it.
type core struct {
	cfg       coreConfig
	do        effects
	now       time.Duration // of the event under way
	track     manifest.Tracker
	reqs      map[string]*request // live
	gone      memory
	young     list.List // live and not admitted, oldest first
	receivers []*receiver
	turn      int      // the receiver of the next request that names none
	staging   *staging // nil until the first session says how large a slot is

	seq     uint64 // of requests
	ids     uint64 // of flights
	pending int64  // bytes of memory that live requests count for
	hungry  int    // admitted requests that need a line
	owed    int    // requests that ended and are not yet cancelled at their receiver
	closed  bool   // no more lines

	counters                   wire.SenderCounters // but for Undelivered
	admitWait, writeTime, took *window.Window
}

func newCore(cfg coreConfig, do effects) *core {
	c := &core{
		cfg: cfg, do: do, reqs: make(map[string]*request),
		admitWait: window.New(), writeTime: window.New(), took: window.New(),
	}
	for i, endpoint := range cfg.receivers {
		c.receivers = append(c.receivers, &receiver{index: i, endpoint: endpoint, flights: make(map[uint64]*flight)})
	}
	return c
}

// wantsLine says whether to read on. Contract §6: reading pauses only while
// --pending is full and no admitted request still needs a line.
func (c *core) wantsLine() bool {
	return !c.closed && (c.pending < c.cfg.pending || c.hungry > 0)
}

// done says whether nothing is left to do.
func (c *core) done() bool { return c.closed && len(c.reqs) == 0 && c.owed == 0 }

// line takes a line of the manifest.
func (c *core) line(now time.Duration, l manifest.Line) {
	c.now = now
	if l.Batch == nil {
		c.cancelLine(l)
		return
	}
	b := l.Batch
	if c.gone.has(b.ReqID) {
		return
	}
	if err := c.track.Check(l); err != nil {
		c.fault(b.ReqID, err)
		return
	}
	req := c.reqs[b.ReqID]
	if req == nil {
		req = c.newRequest(b.ReqID, b.Total)
		if err := c.choose(req, b); err != nil {
			c.fault(b.ReqID, &manifest.LineError{File: l.File, No: l.No, ReqID: b.ReqID, Err: err})
			return
		}
	}
	c.addLine(req, b)
	c.makeRoom()
}

func (c *core) cancelLine(l manifest.Line) {
	switch req := c.reqs[l.Cancel]; {
	case req != nil:
		c.stop(req, verdict{status: Cancelled, reason: "cancelled by its manifest"})
	case !c.gone.has(l.Cancel):
		c.do.note(fmt.Sprintf("%s:%d: cancel of request %q, which no line before it has", l.File, l.No, l.Cancel))
	}
}

// badLine takes a line that cannot be used; its request, if known, fails.
func (c *core) badLine(now time.Duration, err *manifest.LineError) {
	c.now = now
	if err.ReqID == "" || c.gone.has(err.ReqID) {
		c.do.note(err.Error())
		return
	}
	c.fault(err.ReqID, err)
}

// fault fails the request of a bad line, known so far or not.
func (c *core) fault(reqID string, err error) {
	req := c.reqs[reqID]
	if req == nil {
		req = c.newRequest(reqID, 0)
	}
	var bad *manifest.LineError
	if errors.As(err, &bad) {
		err = fmt.Errorf("%s:%d: %w", bad.File, bad.No, bad.Err)
	}
	c.stop(req, verdict{status: Failed, code: codeManifest, reason: err.Error()})
}

func (c *core) newRequest(id string, total int64) *request {
	c.seq++
	req := &request{id: id, seq: c.seq, total: total, started: c.now, cost: requestCost}
	c.pending += req.cost
	req.young = c.young.PushBack(req)
	c.reqs[id] = req
	return req
}

// choose picks the receiver: the one the line names, else each in turn.
func (c *core) choose(req *request, b *manifest.Batch) error {
	at := b.To
	switch {
	case at >= len(c.receivers):
		return fmt.Errorf("to is %d: there are %d receivers, the first is 0", at, len(c.receivers))
	case at == manifest.AnyReceiver:
		at = c.turn % len(c.receivers)
		if b.Total > 0 {
			c.turn++
		}
	}
	req.receiver = c.receivers[at]
	return nil
}

func (c *core) addLine(req *request, b *manifest.Batch) {
	req.lastRead = b.Last
	if b.Last && req.stage == admitted {
		c.hungry--
	}
	if req.total == 0 { // never reaches the receiver
		c.complete(req)
		return
	}
	pieces := manifest.Split(b, c.cfg.batch)
	for i := range pieces {
		c.addBatch(req, &batch{req: req, chunks: pieces[i].Chunks, last: pieces[i].Last, cost: costOf(pieces[i].Chunks)})
	}
	c.pump(req.receiver)
}

func (c *core) addBatch(req *request, b *batch) {
	first := req.open == 0 && req.stage == held
	req.open++
	req.cost += b.cost
	c.pending += b.cost
	switch {
	case first:
		c.enqueue(firstBatch, req, b)
	case req.stage == admitted:
		c.askNext(b)
	default:
		req.unasked = append(req.unasked, b)
	}
}

// askNext asks for a batch of an admitted request. The last one waits until all
// others are answered: a receiver that has it takes the request as whole, with
// fewer chunks than declared, and one of the others may be lost on its way where
// the network is cut.
func (c *core) askNext(b *batch) {
	req := b.req
	if b.last && req.asking > 0 {
		req.final = b
		return
	}
	req.asking++
	c.enqueue(nextBatch, req, b)
}

// nextAnswered notes that a batch which askNext asked for is answered.
func (c *core) nextAnswered(req *request) {
	req.asking--
	if b := req.final; b != nil && req.asking == 0 {
		req.final = nil
		c.askNext(b)
	}
}

// makeRoom is the other half of wantsLine: a line that was read although
// --pending is full costs the youngest request not yet admitted.
func (c *core) makeRoom() {
	for c.pending > c.cfg.pending && c.hungry > 0 && c.young.Len() > 0 {
		c.stop(c.young.Back().Value.(*request), verdict{
			status: Failed,
			code:   codeNoRoom,
			reason: fmt.Sprintf("not admitted, and its lines were in the way of requests that are: "+
				"lines not finished take %d bytes, --pending allows %d: raise --pending or interleave less", c.pending, c.cfg.pending),
		})
	}
}

// unfinished says whether lines are missing of what was read.
func (c *core) unfinished() bool {
	for _, req := range c.reqs {
		if !req.lastRead {
			return true
		}
	}
	return false
}

// closeInput notes that no more lines come and cancels what they leave
// unfinished.
func (c *core) closeInput(now time.Duration) {
	c.now = now
	c.closed = true
	for _, req := range c.live() {
		if !req.lastRead {
			c.stop(req, verdict{status: Failed, code: codeUnfinished, reason: "the input ended before the last line of the request"})
		}
	}
}

// interrupt takes no more lines, lets finish what is being written, and
// cancels the rest.
func (c *core) interrupt(now time.Duration, reason string) {
	c.now = now
	c.closed = true
	for _, req := range c.live() {
		if req.stage < admitted || !req.lastRead {
			c.stop(req, verdict{status: Cancelled, reason: reason})
		}
	}
}

// cancelAll cancels everything.
func (c *core) cancelAll(now time.Duration, reason string) {
	c.now = now
	c.closed = true
	for _, req := range c.live() {
		c.stop(req, verdict{status: Cancelled, reason: reason})
	}
}

// live lists the live requests, oldest first.
func (c *core) live() []*request {
	list := make([]*request, 0, len(c.reqs))
	for _, req := range c.reqs {
		list = append(list, req)
	}
	slices.SortFunc(list, func(a, b *request) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

// complete tells the proxy of a request whose chunks are all written and
// committed and whose last batch is done.
func (c *core) complete(req *request) {
	c.settleAdmission(req)
	req.writtenAt = c.now
	if req.admittedAt != 0 {
		c.writeTime.Add(c.now, c.now-req.admittedAt)
	}
	if !c.cfg.proxy {
		c.finish(req, verdict{status: Ready})
		return
	}
	req.stage = notifying
	c.do.notify(req.id)
}

// noticed takes what became of a ProxyNotif.
func (c *core) noticed(now time.Duration, ev noticed) {
	c.now = now
	req := c.reqs[ev.reqID]
	switch {
	case req == nil || req.stage != notifying:
	case ev.err == nil:
		c.finish(req, verdict{status: Ready, there: true})
	case req.verdict != nil:
		c.finish(req, *req.verdict)
	default:
		c.finish(req, verdict{status: Failed, code: codeNotify, reason: ev.err.Error(), quiet: true})
	}
}

// stop ends a request before it is ready. One whose ProxyNotif is under way
// ends when that is withdrawn, unless it is too late: then it is ready.
func (c *core) stop(req *request, v verdict) {
	if req.stage != notifying {
		c.finish(req, v)
		return
	}
	if req.verdict == nil {
		req.verdict = &v
		c.do.withdraw(req.id)
	}
}

// finish is the end of every request.
func (c *core) finish(req *request, v verdict) {
	c.settleAdmission(req)
	if req.stage == admitted && !req.lastRead {
		c.hungry--
	}
	if req.stage == held && req.first != nil {
		req.receiver.queue[firstBatch].Remove(req.first.place)
	}
	req.stage = ended
	req.unasked, req.final = nil, nil
	c.pending -= req.cost
	delete(c.reqs, req.id)
	c.track.End(req.id)
	c.gone.add(req.id)
	c.count(req, v.status)
	if v.status != Ready {
		c.undo(req, v)
	}
	c.do.end(c.result(req, v))
}

// count notes how a request ended.
func (c *core) count(req *request, how Status) {
	switch how {
	case Ready:
		c.counters.Ready++
		c.took.Add(c.now, c.now-req.started)
	case Failed:
		c.counters.Failed++
	case Cancelled:
		c.counters.Cancelled++
	}
}

// settleAdmission notes that a request no longer waits to be admitted.
func (c *core) settleAdmission(req *request) {
	if req.young != nil {
		c.young.Remove(req.young)
		req.young = nil
	}
}

// undo gives back what a request has: staging, slots at the receiver, and
// whoever waits at the proxy.
func (c *core) undo(req *request, v verdict) {
	req.recall()
	if req.session != nil && !v.there {
		req.owes = true
		c.owed++
		c.cancelThere(req)
	}
	// Of two senders with one req_id the first is undisturbed: a FailNotif would
	// fail its request, for the proxy knows nothing but the id.
	if c.cfg.tellFail && !v.quiet && v.code != wire.CodeDuplicateRequest {
		c.do.fail(req.id, v.reason)
	}
}

// cancelThere cancels an ended request at its receiver as soon as none of its
// writes is under way. A receiver that lost us has ended it.
func (c *core) cancelThere(req *request) {
	switch {
	case req.session.over:
		req.owes = false
		c.owed--
	case req.fence == 0:
		req.owes = false
		c.enqueue(cancel, req, nil)
		c.pump(req.receiver)
	}
}
