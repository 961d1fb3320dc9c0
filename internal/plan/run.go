package plan

import (
	"container/heap"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/wire"
)

// Policy is how the receiver admits.
type Policy struct {
	Mode     reservation.Mode
	Overtake int
}

func (p Policy) String() string {
	if p.Overtake == 0 {
		return p.Mode.String()
	}
	return fmt.Sprintf("%s+%d", p.Mode, p.Overtake)
}

// World is what is around the buffer.
type World struct {
	Pace         float64             // speed factor of the load's times
	Senders      int                 // to which the requests are dealt in turn
	LinkRate     int64               // bytes a second that one sender writes; 0: any
	IngressRate  int64               // bytes a second that the receiver takes in; 0: any
	RoundTrip    time.Duration       // from a batch to its answer, apart from waiting
	AdmitTimeout time.Duration       // 0: none
	SenderShare  func(slots int) int // of so many, what one sender may have, 0: all; nil: all

	// The decoder keeps a ready request for Consume, ConsumeToken for each of
	// its tokens, and the time that it takes to decode its output at DecodeRate
	// tokens a second (0: at once).
	Consume      time.Duration
	ConsumeToken time.Duration
	DecodeRate   float64

	// Of every LostEvery requests (0: none) one is of a sender of its own, which
	// falls silent as soon as it has its first slots, and is given up after Lease.
	LostEvery int
	Lease     time.Duration
}

// Check says what is wrong.
func (w *World) Check(l *Load) error {
	switch {
	case !(w.Pace > 0) || math.IsInf(w.Pace, 0):
		return fmt.Errorf("pace %g: must be more than 0", w.Pace)
	case w.Senders < 1:
		return fmt.Errorf("%d senders: must be 1 or more", w.Senders)
	case w.DecodeRate > 0 && !l.Outputs:
		return fmt.Errorf("a decode rate of %g tokens/s with a manifest, which does not say how many tokens a request decodes: give a trace, or a time to consume", w.DecodeRate)
	}
	return nil
}

func (w *World) holds(q *request) time.Duration {
	d := w.Consume + time.Duration(q.tokens)*w.ConsumeToken
	if w.DecodeRate > 0 {
		d += time.Duration(float64(q.output) / w.DecodeRate * float64(time.Second))
	}
	return d
}

// Run replays a load under a policy with a buffer of so many slots.
func Run(l *Load, w World, p Policy, slots int) Result {
	s := newSim(l, w, p, slots)
	s.run()
	return s.result(p)
}

// sim is one run.
type sim struct {
	load    *Load
	world   World
	machine *reservation.Machine
	slots   int
	due     []time.Duration
	states  []state
	byID    map[string]*state
	events  events
	nextIn  int // of the load's arrivals
	now     time.Duration
	links   []time.Duration // when each sender's is free
	ingress time.Duration
	crcs    []uint32 // a commit's, which nobody checks

	running, blocked int // requests that go on by themselves, and that have a batch waiting
	stopped          bool
	tally            tally
}

// state is how far a request is.
type state struct {
	*request
	sender    string
	link      *time.Duration
	due       time.Duration
	have      int  // batches the sender has
	asked     int  // batches asked for
	answered  int  // of those, by the machine
	admitted  bool // the sender has the answer to its first batch
	waited    bool // its wait is counted
	ended     bool
	isRunning bool
	isBlocked bool
	writer    uint64 // that its sender is, where that will be lost; else 0
}

// ask is one batch on its way. It is the tag of its Alloc.
type ask struct {
	of     *state
	batch  int
	commit *wire.CommitRequest // of the chunks that are to be written; nil: none
	bytes  int64
}

type event struct {
	at   time.Duration
	seq  int // of two at one time the earlier made is first
	kind kind
	ask  *ask
	of   *state // release and lost
}

type kind uint8

const (
	answer  kind = iota // a batch's answer is at its sender
	written             // a batch is written
	release             // the decoder is done with a request
	lost                // a request's sender is given up
)

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

func newSim(l *Load, w World, p Policy, slots int) *sim {
	share := 0
	if w.SenderShare != nil {
		share = w.SenderShare(slots)
	}
	s := &sim{
		load: l, world: w, slots: slots, due: l.due(w.Pace, w.Senders),
		states: make([]state, len(l.requests)), byID: make(map[string]*state, len(l.requests)),
		links: make([]time.Duration, w.Senders),
		machine: reservation.New(reservation.Config{
			Slots: slots, SlotBytes: l.ChunkBytes, Epoch: 1, Mode: p.Mode, Overtake: p.Overtake,
			AdmitTimeout: w.AdmitTimeout, SenderShare: share,
		}),
	}
	for i, q := range l.requests {
		n := i % w.Senders
		s.states[i] = state{request: q, sender: "sender-" + strconv.Itoa(n), link: &s.links[n]}
		s.byID[q.id] = &s.states[i]
	}
	for i := w.LostEvery - 1; w.LostEvery > 0 && i < len(s.states); i += w.LostEvery {
		st := &s.states[i]
		st.sender, st.writer = "lost-"+strconv.Itoa(i), uint64(w.Senders+1+i)
	}
	for n := range w.Senders {
		name := "sender-" + strconv.Itoa(n)
		s.step(reservation.Attach{Sender: name, Name: name, Writer: uint64(n + 1)})
	}
	s.tally.init(l)
	return s
}

// run lets everything happen in order. What the machine lets go by the clock
// comes after what comes at the same time.
func (s *sim) run() {
	order := s.inOrder()
	for {
		next, kind := s.next(order)
		if in, ok := s.machine.NextDue(); ok && (kind == 0 || s.now+in < next) {
			s.now += in
			s.step(reservation.Tick{})
			s.watch()
			continue
		}
		switch kind {
		case 0:
			return
		case 'a':
			s.now = next
			s.arrive(order[s.nextIn])
			s.nextIn++
		case 'e':
			s.now = next
			s.handle(heap.Pop(&s.events).(event))
		}
		s.watch()
	}
}

// inOrder are the arrivals by time; senders read side by side.
func (s *sim) inOrder() []int {
	order := make([]int, len(s.due))
	for i := range order {
		order[i] = i
	}
	sortBy(order, func(i int) time.Duration { return s.due[i] })
	return order
}

// next is when what comes next is, and whether it is an arrival or an event.
func (s *sim) next(order []int) (at time.Duration, kind byte) {
	if len(s.events) > 0 {
		at, kind = s.events[0].at, 'e'
	}
	if s.nextIn < len(order) {
		if due := s.due[order[s.nextIn]]; kind == 0 || due < at {
			at, kind = due, 'a'
		}
	}
	return at, kind
}

// arrive gives a batch to its sender. As pd-send does, the first one is asked
// for at once, the others as soon as the first is answered.
func (s *sim) arrive(i int) {
	a := &s.load.arrivals[i]
	st := &s.states[a.of.number]
	if st.have == 0 {
		st.due = s.now
		s.tally.began(s.now)
		if st.writer != 0 {
			s.step(reservation.Attach{Sender: st.sender, Name: st.sender, Writer: st.writer})
		}
	}
	st.have++
	if st.asked == 0 || st.admitted {
		s.ask(st)
	}
}

func (s *sim) ask(st *state) {
	if st.ended {
		return
	}
	a := &ask{of: st, batch: st.asked}
	st.asked++
	s.count(st)
	s.step(reservation.Alloc{Sender: st.sender, Req: st.batches[a.batch], Tag: a})
}

func (s *sim) handle(e event) {
	switch e.kind {
	case answer:
		st := e.ask.of
		if st.writer != 0 {
			if e.ask.batch == 0 && !st.ended {
				s.later(event{at: s.now + s.world.Lease, kind: lost, of: st})
			}
			return
		}
		if e.ask.batch == 0 {
			st.admitted = true
			for st.asked < st.have && !st.ended {
				s.ask(st)
			}
		}
		if e.ask.commit != nil && !st.ended {
			s.later(event{at: s.write(st, e.ask.bytes), kind: written, ask: e.ask})
		}
	case written:
		if st := e.ask.of; !st.ended {
			s.step(reservation.Commit{Sender: st.sender, Req: e.ask.commit})
		}
	case release:
		s.step(reservation.Release{ReqID: e.of.id})
	case lost:
		s.step(reservation.Gone{Writer: e.of.writer})
	}
}

// write is when bytes have gone over the sender's link, behind what it writes
// already, and into the receiver, which senders share.
func (s *sim) write(st *state, bytes int64) time.Duration {
	start := max(s.now, *st.link)
	*st.link = start + at(bytes, s.world.LinkRate)
	if s.world.IngressRate == 0 {
		return *st.link
	}
	s.ingress = max(s.ingress, start) + at(bytes, s.world.IngressRate)
	return max(s.ingress, *st.link)
}

// at is how long bytes take at a rate.
func at(bytes, rate int64) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
}

func (s *sim) later(e event) {
	s.tally.seq++
	e.seq = s.tally.seq
	heap.Push(&s.events, e)
}

// step gives the machine an event and does what it says. The memory of a slot
// is exchanged at once.
func (s *sim) step(ev reservation.Event) {
	fx := s.machine.Step(s.now, ev)
	for _, a := range fx.Answers {
		if tag, ok := a.Tag.(*ask); ok {
			s.answered(tag, a.Msg.(*wire.AllocResponse))
		}
	}
	for i := range fx.Records {
		s.record(&fx.Records[i])
	}
	var revoked []uint64
	for _, r := range fx.Revocations {
		revoked = append(revoked, r.ID)
	}
	promised, held, quarantined, _ := s.machine.Usage()
	s.tally.use(s.now, promised, held+quarantined)
	for _, id := range revoked {
		s.step(reservation.Revoked{ID: id})
	}
}

func (s *sim) answered(a *ask, resp *wire.AllocResponse) {
	a.of.answered++
	s.count(a.of)
	if resp.Code != "" {
		return // a Record says how its request ends
	}
	if n := len(resp.RemoteIndexes); n > 0 {
		a.commit, a.bytes = s.commitOf(a, resp), 0
		for _, length := range a.commit.Lengths {
			a.bytes += length
		}
	}
	s.later(event{at: s.now + s.world.RoundTrip, kind: answer, ask: a})
}

// commitOf is the message that says a batch's chunks are written.
func (s *sim) commitOf(a *ask, resp *wire.AllocResponse) *wire.CommitRequest {
	req := a.of.batches[a.batch]
	full, last, err := wire.ChunkBytes(req)
	if err != nil {
		panic(fmt.Sprintf("plan: a batch that was answered: %v", err))
	}
	n := len(resp.RemoteIndexes)
	for len(s.crcs) < n {
		s.crcs = append(s.crcs, 0)
	}
	c := &wire.CommitRequest{ReqID: a.of.id, Slots: resp.RemoteIndexes, Lengths: make([]int64, 0, n), CRCs: s.crcs[:n]}
	sent := resp.AlreadySentIndexes
	for i := range req.Keys {
		if len(sent) > 0 && sent[0] == int64(i) {
			sent = sent[1:]
			continue
		}
		length := full
		if i == len(req.Keys)-1 {
			length = last
		}
		c.Lengths = append(c.Lengths, length)
	}
	return c
}

func (s *sim) record(r *reservation.Record) {
	st := s.byID[r.ReqID]
	switch r.Kind {
	case reservation.Admitted:
		st.waited = true
		s.tally.waited(st, r.Waited)
	case reservation.Ready:
		s.tally.ready(s.now - st.due)
		s.later(event{at: s.now + s.world.holds(st.request), kind: release, of: st})
	case reservation.Released:
		s.tally.released(s.now, r.Bytes)
		s.end(st)
	case reservation.TimedOut:
		s.tally.timedOut++
		if !st.waited { // in mode none a later batch may time out
			s.tally.waited(st, r.Waited)
		}
		s.end(st)
	case reservation.Rejected:
		if r.Code == wire.CodeTooLarge {
			s.tally.tooLarge++
		} else {
			s.tally.refuse(r.Code, r.Reason)
		}
		s.end(st)
	case reservation.Expired:
		s.tally.lost++
		s.end(st)
	case reservation.RolledBack, reservation.Cancelled:
		s.tally.refuse(r.Code, r.Reason)
		s.end(st)
	}
}

func (s *sim) end(st *state) {
	st.ended = true
	s.count(st)
}

// count keeps how many requests are running and blocked.
func (s *sim) count(st *state) {
	blocked := !st.ended && st.asked > st.answered
	running := !st.ended && st.answered > 0 && !blocked
	s.blocked += change(&st.isBlocked, blocked)
	s.running += change(&st.isRunning, running)
}

func change(was *bool, is bool) int {
	defer func() { *was = is }()
	switch {
	case is && !*was:
		return 1
	case *was && !is:
		return -1
	}
	return 0
}

// watch sees a deadlock: some wait, and nobody goes on who could free a slot.
func (s *sim) watch() {
	stopped := s.blocked > 0 && s.running == 0
	if stopped && !s.stopped {
		s.tally.deadlock(s)
	}
	s.stopped = stopped
}
