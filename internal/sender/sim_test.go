package sender

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// The simulator drives the core against real admission machines: every message,
// answer, write, notice and loss happens at a random moment, and what must
// always hold is checked as it happens.

const simSlot = 100 // bytes of a slot

var simSeed = flag.Int64("sim.seed", -1, "simulate this seed only, and print what happens when it fails")

type sim struct {
	t         *testing.T
	seed      uint64
	rnd       *rand.Rand
	now       time.Duration
	core      *core
	slots     int // of staging
	receivers []*simReceiver
	script    []manifest.Line
	closed    bool
	jobs      []*job          // handed out
	begun     map[*job]bool   // whose write is under way
	notices   []string        // ProxyNotifs under way
	withdrawn map[string]bool // of those
	results   map[string]*Result
	notified  map[string]bool // delivered
	failures  map[string]int  // FailNotifs
	cancelled map[string]bool // a cancel line was handled before its end
	trace     []string
	checks    int
}

type simReceiver struct {
	index   int
	machine *reservation.Machine
	epoch   uint64
	slots   int
	writer  uint64
	asking  bool
	session *session
	broken  bool // the session's data connection; that it is lost comes soon
	sender  string
	to      []simMessage // to the receiver
	from    []simMessage // to the sender
	granted map[int]string
	ready   []string // to be released
	chunks  map[string]int
}

type simMessage struct {
	id  uint64
	msg any
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)),
		begun: map[*job]bool{}, withdrawn: map[string]bool{},
		results: map[string]*Result{}, notified: map[string]bool{}, failures: map[string]int{}, cancelled: map[string]bool{},
	}
	cfg := coreConfig{timeout: time.Duration(1+s.rnd.IntN(10)) * time.Second, batch: 1 + s.rnd.IntN(4), pending: 1 << 30, proxy: s.rnd.IntN(4) > 0}
	if s.rnd.IntN(3) == 0 {
		cfg.pending = int64(1500 + s.rnd.IntN(6000))
	}
	cfg.tellFail = cfg.proxy
	for i := range 1 + s.rnd.IntN(3) {
		cfg.receivers = append(cfg.receivers, fmt.Sprintf("r%d", i))
		r := &simReceiver{index: i, slots: 4 + s.rnd.IntN(12)}
		s.receivers = append(s.receivers, r)
		s.restart(r)
	}
	s.slots = 1 + s.rnd.IntN(5)
	s.core = newCore(cfg, s)
	s.plan()
	return s
}

func (s *sim) restart(r *simReceiver) {
	r.epoch++
	r.machine = reservation.New(reservation.Config{
		Slots: r.slots, SlotBytes: simSlot, Epoch: r.epoch, Mode: reservation.Mode(s.rnd.IntN(3)), AdmitTimeout: 5 * time.Second,
	})
	r.ready, r.to, r.from, r.chunks = nil, nil, nil, map[string]int{}
}

// plan makes the manifest: interleaved requests, some of them faulty.
func (s *sim) plan() {
	type intent struct {
		id          string
		total, sent int
		quit        bool
	}
	var live []*intent
	for made := 0; made < 12 || len(live) > 0; {
		if made < 12 && (len(live) == 0 || s.rnd.IntN(3) == 0) {
			live = append(live, &intent{id: fmt.Sprintf("q%d", made), total: s.rnd.IntN(9), quit: s.rnd.IntN(15) == 0})
			made++
			continue
		}
		i := s.rnd.IntN(len(live))
		p := live[i]
		if s.rnd.IntN(25) == 0 {
			s.script = append(s.script, manifest.Line{File: "m", No: len(s.script) + 1, Cancel: p.id})
		}
		b := &manifest.Batch{ReqID: p.id, Total: int64(p.total), To: manifest.AnyReceiver}
		for n := s.rnd.IntN(5); n > 0 && p.sent < p.total; n-- {
			key := fmt.Sprintf("%s-%d", p.id, p.sent)
			if s.rnd.IntN(4) == 0 {
				key = fmt.Sprintf("common-%d", p.sent)
			}
			b.Chunks = append(b.Chunks, manifest.Chunk{Key: key, Length: int64(simSlot - s.rnd.IntN(2)*10)})
			p.sent++
		}
		if p.sent == p.total {
			b.Last = len(b.Chunks) > 0 || p.total == 0 || s.rnd.IntN(2) == 0
		}
		if len(b.Chunks) == 0 && !b.Last && p.sent > 0 {
			continue
		}
		s.script = append(s.script, manifest.Line{File: "m", No: len(s.script) + 1, Batch: b})
		if b.Last || p.quit {
			live = append(live[:i], live[i+1:]...)
		}
	}
}

func (s *sim) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\n%s\nreplay: go test ./internal/sender -run Simulated -sim.seed %d",
		fmt.Sprintf(format, args...), strings.Join(s.trace, "\n"), s.seed)
}

func (s *sim) log(format string, args ...any) {
	if *simSeed < 0 {
		return
	}
	s.trace = append(s.trace, fmt.Sprintf("%v ", s.now)+fmt.Sprintf(format, args...))
}

// The core's effects.

func (s *sim) attach(i int) {
	s.log("attach %d", i)
	r := s.receivers[i]
	if r.asking || r.session != nil && !r.session.over {
		s.fatalf("receiver %d is asked to attach twice", i)
	}
	r.asking = true
}

func (s *sim) send(se *session, id uint64, msg wire.Message) {
	r := s.receivers[se.receiver]
	s.log("send %d #%d %T %+v", r.index, id, msg, msg)
	if r.session != se {
		return // lost, and the core does not know yet
	}
	if c, ok := msg.(*wire.CancelNotif); ok {
		for j := range s.begun {
			if j.batch.req.id == c.ReqID {
				s.fatalf("cancel of %s while a write of it is under way", c.ReqID)
			}
		}
	}
	r.to = append(r.to, simMessage{id, msg})
}

func (s *sim) abandon(se *session) {
	s.log("abandon %d", se.receiver)
	s.endSession(s.receivers[se.receiver])
}

func (s *sim) gone(se *session, err error) {
	s.log("gone %d: %v", se.receiver, err)
	if r := s.receivers[se.receiver]; r.session == se && !r.broken {
		s.fatalf("receiver %d is said to be gone", r.index)
	}
}

func (s *sim) write(j *job) {
	s.log("write %s-%d", j.batch.req.id, j.index)
	r := s.receivers[j.session.receiver]
	if r.session == j.session && r.granted[j.remote] != j.batch.req.id {
		s.fatalf("%s writes to slot %d, which was given to %q", j.batch.req.id, j.remote, r.granted[j.remote])
	}
	if s.jobs = append(s.jobs, j); len(s.jobs) > s.slots {
		s.fatalf("%d jobs in %d staging slots", len(s.jobs), s.slots)
	}
	limit := s.slots
	if len(s.receivers) > 1 {
		limit = max(1, limit-1)
	}
	if used := s.core.staging.lanes[r.index].used; used > limit {
		s.fatalf("receiver %d has %d of %d staging slots", r.index, used, s.slots)
	}
}

func (s *sim) finish(se *session) {
	for _, j := range s.jobs {
		if j.session == se {
			s.fatalf("memory given up while a job uses it")
		}
	}
}

func (s *sim) notify(id string) {
	s.log("notify %s", id)
	req := s.core.reqs[id]
	if s.results[id] != nil || req.sent+req.shared != req.total {
		s.fatalf("ProxyNotif for %s: %d sent, %d shared of %d, result %+v", id, req.sent, req.shared, req.total, s.results[id])
	}
	s.notices = append(s.notices, id)
}

func (s *sim) withdraw(id string) {
	s.log("withdraw %s", id)
	s.withdrawn[id] = true
}

func (s *sim) fail(id, reason string) {
	s.log("fail %s: %s", id, reason)
	s.failures[id]++
	if s.notified[id] || s.failures[id] > 1 {
		s.fatalf("FailNotif for %s, which ended before", id)
	}
}

func (s *sim) end(r *Result) {
	s.log("end %+v", *r)
	if s.results[r.ReqID] != nil {
		s.fatalf("%s ended twice", r.ReqID)
	}
	if s.cancelled[r.ReqID] && r.Status == Ready && !s.notified[r.ReqID] {
		s.fatalf("%s was cancelled and is ready", r.ReqID)
	}
	if r.Status == Ready && r.Sent+r.Shared != r.Chunks {
		s.fatalf("%+v is short", *r)
	}
	s.results[r.ReqID] = r
}

func (s *sim) note(text string) { s.log("note %s", text) }

// What happens by itself.

func (s *sim) step(r *simReceiver, ev reservation.Event) {
	todo := []reservation.Event{ev}
	for len(todo) > 0 {
		fx := r.machine.Step(s.now, todo[0])
		todo = todo[1:]
		for _, a := range fx.Answers {
			if id, ok := a.Tag.(uint64); ok && r.session != nil {
				r.from = append(r.from, simMessage{id, a.Msg})
			}
		}
		for _, rec := range fx.Records {
			s.log("receiver %d: %v %s %s %s", r.index, rec.Kind, rec.ReqID, rec.Code, rec.Reason)
			if rec.Kind == reservation.Ready {
				r.ready = append(r.ready, rec.ReqID)
				r.chunks[rec.ReqID] = rec.Chunks
			}
		}
		for _, v := range fx.Revocations {
			todo = append(todo, reservation.Revoked{ID: v.ID, Region: 1})
		}
		for _, w := range fx.Ended {
			todo = append(todo, reservation.Gone{Writer: w})
		}
	}
}

// endSession ends the receiver's session at its side.
func (s *sim) endSession(r *simReceiver) {
	r.session, r.to, r.from, r.broken = nil, nil, nil, false
	s.step(r, reservation.Gone{Writer: r.writer})
}

func (s *sim) open(r *simReceiver) {
	r.asking = false
	if s.rnd.IntN(20) == 0 {
		s.log("refused %d", r.index)
		s.core.refused(s.now, refused{receiver: r.index, err: errors.New("refused"), code: wire.CodeBadRequest})
		return
	}
	r.writer++
	r.sender = fmt.Sprintf("s%d", r.writer)
	r.granted = map[int]string{}
	r.session = &session{receiver: r.index, epoch: r.epoch, slots: int64(r.slots), slotSize: simSlot}
	r.session.heard.Store(int64(s.now))
	s.step(r, reservation.Attach{Sender: r.sender, Writer: r.writer})
	s.log("attached %d", r.index)
	s.core.attached(s.now, attached{session: r.session, slots: s.slots})
}

func (s *sim) hear(r *simReceiver) {
	m := r.to[0]
	r.to = r.to[1:]
	switch msg := m.msg.(type) {
	case *wire.AllocRequest:
		s.step(r, reservation.Alloc{Sender: r.sender, Req: msg, Tag: m.id})
	case *wire.CommitRequest:
		s.step(r, reservation.Commit{Sender: r.sender, Req: msg, Tag: m.id})
	case *wire.CancelNotif:
		s.step(r, reservation.Cancel{Sender: r.sender, ReqID: msg.ReqID, Tag: m.id})
	}
}

func (s *sim) answer(r *simReceiver) {
	m := r.from[0]
	r.from = r.from[1:]
	r.session.heard.Store(int64(s.now))
	if resp, ok := m.msg.(*wire.AllocResponse); ok && resp.Code == "" {
		if f := s.core.receivers[r.index].flights[m.id]; f != nil {
			for _, slot := range resp.RemoteIndexes {
				r.granted[int(slot)] = f.req.id
			}
		}
	}
	s.log("answer %d #%d %+v", r.index, m.id, m.msg)
	s.core.answered(s.now, answered{r.session, m.id, m.msg.(wire.Message)})
}

// toil moves a job on by one step, as a worker would.
func (s *sim) toil() {
	i := s.rnd.IntN(len(s.jobs))
	j := s.jobs[i]
	switch {
	case s.begun[j]:
		delete(s.begun, j)
		r := s.receivers[j.session.receiver]
		broken := r.session == j.session && r.broken
		switch {
		case broken || s.rnd.IntN(200) == 0:
			j.err = &writeError{rdma.ErrGone}
			r.broken = r.session == j.session
		case s.rnd.IntN(60) == 0:
			j.err = &writeError{errors.New("write failed")}
		}
	case s.rnd.IntN(60) == 0:
		j.err = errors.New("source failed")
	case j.state.CompareAndSwap(jobReading, jobWriting):
		s.begun[j] = true
		return
	default:
		j.err = errAborted
	}
	s.jobs = append(s.jobs[:i], s.jobs[i+1:]...)
	s.log("worked %s-%d %v", j.batch.req.id, j.index, j.err)
	s.core.worked(s.now, j)
}

func (s *sim) notice() {
	i := s.rnd.IntN(len(s.notices))
	id := s.notices[i]
	s.notices = append(s.notices[:i], s.notices[i+1:]...)
	var err error
	switch {
	case s.withdrawn[id] && s.rnd.IntN(2) == 0:
		err = errWithdrawn
	case s.rnd.IntN(15) == 0:
		err = errors.New("no proxy")
	default:
		s.notified[id] = true
	}
	s.log("noticed %s %v", id, err)
	s.core.noticed(s.now, noticed{id, err})
}

func (s *sim) lose(r *simReceiver) {
	se := r.session
	alive := s.rnd.IntN(2) == 0
	if s.rnd.IntN(2) == 0 {
		s.log("leaving %d", r.index)
		s.core.leaving(s.now, leaving{se})
		s.read()
	}
	s.endSession(r)
	if !alive {
		s.restart(r)
	}
	s.log("lost %d", r.index)
	s.core.lost(s.now, lost{session: se, err: errors.New("lost"), code: codeUnreachable, alive: alive})
}

func (s *sim) read() {
	if !s.core.wantsLine() {
		return
	}
	if len(s.script) == 0 {
		if !s.closed {
			s.closed = true
			s.core.closeInput(s.now)
		}
		return
	}
	l := s.script[0]
	s.script = s.script[1:]
	s.log("line %+v %+v", l, l.Batch)
	if l.Batch == nil && s.core.reqs[l.Cancel] != nil {
		s.cancelled[l.Cancel] = true
	}
	s.core.line(s.now, l)
}

// turn does one thing at random.
func (s *sim) turn() {
	r := s.receivers[s.rnd.IntN(len(s.receivers))]
	s.now += time.Duration(s.rnd.IntN(1000)) * time.Microsecond
	switch s.rnd.IntN(9) {
	case 0:
		s.read()
	case 1:
		if r.asking {
			s.open(r)
		}
	case 2:
		if len(r.to) > 0 {
			s.hear(r)
		}
	case 3:
		if len(r.from) > 0 {
			s.answer(r)
		}
	case 4, 5:
		if len(s.jobs) > 0 {
			s.toil()
		}
	case 6:
		if len(s.notices) > 0 {
			s.notice()
		}
	case 7:
		s.release(r)
		s.step(r, reservation.Tick{})
	case 8:
		s.seldom(r)
	}
	s.check()
}

func (s *sim) release(r *simReceiver) {
	if len(r.ready) > 0 {
		s.step(r, reservation.Release{Conn: "sink", ReqID: r.ready[0]})
		r.ready = r.ready[1:]
	}
}

func (s *sim) seldom(r *simReceiver) {
	if r.broken && s.rnd.IntN(5) == 0 {
		s.lose(r)
	}
	switch s.rnd.IntN(60) {
	case 0:
		if r.session != nil {
			s.lose(r)
		}
	case 1:
		s.now += time.Duration(s.rnd.IntN(4)) * time.Second
	case 2:
		if r.session != nil && s.rnd.IntN(4) == 0 {
			s.core.interrupt(s.now, "interrupted")
			s.closed = true
		}
	}
	if r.session != nil && s.rnd.IntN(5) > 0 {
		r.session.heard.Store(int64(s.now)) // a heartbeat was answered
	}
	s.core.expire(s.now)
}

func (s *sim) check() {
	if s.checks++; s.checks%16 == 0 {
		s.checkSnapshot(s.core.snapshot(s.now))
	}
	if err := s.core.check(); err != nil {
		s.fatalf("%v", err)
	}
}

// check says what does not add up.
func (c *core) check() error {
	var pending int64
	hungry, young := 0, 0
	for _, req := range c.reqs {
		pending += req.cost
		if req.stage == admitted && !req.lastRead {
			hungry++
		}
		if req.young != nil {
			young++
		}
	}
	if pending != c.pending || hungry != c.hungry || young != c.young.Len() || c.owed < 0 {
		return fmt.Errorf("books do not add up: pending %d %d, hungry %d %d, young %d %d, owed %d",
			pending, c.pending, hungry, c.hungry, young, c.young.Len(), c.owed)
	}
	for _, r := range c.receivers {
		var out [kinds]int
		for _, f := range r.flights {
			out[f.kind]++
		}
		for e := r.queue[firstBatch].Front(); e != nil; e = e.Next() {
			if f := e.Value.(*flight); !f.wanted() {
				return fmt.Errorf("%s has ended and still waits to be sent", f.req.id)
			}
		}
		if out != r.out || r.order.Len() != len(r.flights) {
			return fmt.Errorf("flights do not add up: %v %v", out, r.out)
		}
	}
	return nil
}

// checkSnapshot says whether a snapshot agrees with itself.
func (s *sim) checkSnapshot(snap *wire.SenderSnapshot) {
	requests, used, blocked := 0, 0, 0
	for _, r := range snap.Receivers {
		requests += r.Requests
		used += r.Staging
		blocked += r.Blocked
	}
	ended := snap.Counters.Ready + snap.Counters.Failed + snap.Counters.Cancelled
	if requests != len(s.core.reqs) || requests != len(snap.Requests) || requests != snap.Totals.Requests ||
		used != snap.Staging.Used || blocked != len(snap.Staging.Blocked) || ended != int64(len(s.results)) {
		s.fatalf("a snapshot that does not add up, %d have ended: %s", len(s.results), asJSON(snap))
	}
}

func (s *sim) run() {
	for range 200_000 {
		if s.core.done() {
			s.settle()
			return
		}
		s.turn()
	}
	s.fatalf("does not end: %d live, %d owed", len(s.core.reqs), s.core.owed)
}

func (s *sim) settle() {
	for len(s.jobs) > 0 { // of requests that a lost session ended
		s.toil()
	}
	c := s.core
	if c.pending != 0 || c.hungry != 0 || c.young.Len() != 0 {
		s.fatalf("left: pending %d, hungry %d, young %d", c.pending, c.hungry, c.young.Len())
	}
	if c.staging != nil && c.staging.used != 0 {
		s.fatalf("%d of %d staging slots are in use", c.staging.used, c.staging.total)
	}
	s.checkSnapshot(c.snapshot(s.now))
	var sum wire.SenderCounters
	for id, r := range s.results {
		sum.SentChunks += r.Sent
		sum.SharedChunks += r.Shared
		sum.SentBytes += r.Bytes
		if c.cfg.proxy && (r.Status == Ready) != s.notified[id] {
			s.fatalf("%s is %s, notified %v", id, r.Status, s.notified[id])
		}
		if r.Status != Ready && c.cfg.tellFail && s.failures[id] == 0 && r.Code != codeNotify && r.Code != wire.CodeDuplicateRequest {
			s.fatalf("%s is %s and the proxy is not told", id, r.Status)
		}
	}
	if n := c.counters; n.SentChunks != sum.SentChunks || n.SharedChunks != sum.SharedChunks || n.SentBytes != sum.SentBytes {
		s.fatalf("counted %+v, the results have %+v", n, sum)
	}
	for _, r := range s.receivers {
		for len(r.ready) > 0 {
			s.release(r)
		}
		snap := r.machine.Snapshot(s.now)
		if snap.Slots.Free != snap.Slots.Total || len(snap.Requests) > 0 {
			s.fatalf("receiver %d is left with %+v %+v", r.index, snap.Slots, snap.Requests)
		}
	}
}

func TestCoreSimulated(t *testing.T) {
	if *simSeed >= 0 {
		newSim(t, uint64(*simSeed)).run()
		return
	}
	statuses := map[Status]int{}
	codes := map[wire.Code]int{}
	for seed := range uint64(800) {
		s := newSim(t, seed)
		s.run()
		for _, r := range s.results {
			statuses[r.Status]++
			codes[r.Code]++
		}
	}
	for _, want := range []Status{Ready, Failed, Cancelled} {
		if statuses[want] == 0 {
			t.Errorf("nothing ended %s: %v", want, statuses)
		}
	}
	for _, want := range []wire.Code{codeSource, codeNoRoom, codeUnfinished, codeTimeout, codeUnreachable, codeNotify, wire.CodeTooLarge, wire.CodeAdmissionTimeout} {
		if codes[want] == 0 {
			t.Errorf("nothing failed with %s: %v", want, codes)
		}
	}
}
