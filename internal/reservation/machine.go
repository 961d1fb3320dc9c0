package reservation

import (
	"cmp"
	"container/heap"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pd-tools/pd-tools/wire"
)

// Config is fixed for the life of a Machine.
type Config struct {
	Slots     int    // slots in the buffer, at least 1
	SlotBytes int64  // bytes of one slot, at least 1
	Epoch     uint64 // new at each start of a receiver, not 0
	Mode      Mode

	// AdmitTimeout is how long a request may wait for admission (Mode None:
	// each batch). 0: for ever.
	AdmitTimeout time.Duration
	// Lease is how long an attached sender may be silent, and how long a take
	// lasts. 0: for ever.
	Lease time.Duration
	// LegacyLease is how long a request of a sender that never attached may be
	// silent. 0: for ever.
	LegacyLease time.Duration
	// ReadyTTL is how long a ready request of an attached sender waits for a
	// decoder. 0: for ever.
	ReadyTTL time.Duration
	// Memory is how long an ended request is remembered, Remember how many are
	// at most. 0: 60 s and 65,536.
	Memory   time.Duration
	Remember int

	Overtake   int   // requests that may pass a waiting one at most; 0 is strict order
	QueueLimit int   // requests that may wait; 0: any number
	QueueBytes int64 // bytes of the batches that may wait; 0: any number

	// What one sender may have; 0: any number.
	SenderRequests int // live requests
	SenderQueue    int // slots that its waiting requests need together
	SenderShare    int // slots promised to it and held by it

	// MaxGap is the longest time between two Steps that counts as time: what
	// goes beyond is taken for the receiver not having run. 0: any gap counts.
	MaxGap time.Duration
}

const (
	defaultMemory   = 60 * time.Second
	defaultRemember = 65_536
)

// Machine is the state of one receiver. It is not safe for concurrent use.
type Machine struct {
	cfg Config

	last Time // of the previous Step, on the caller's clock
	now  Time // time in which the receiver ran

	ledger   ledger
	queue    queue
	loose    []*tenant // whose share may have become free in this Step
	owner    *request  // Mode Serial: the request that owns the buffer
	stopping bool      // nobody is let in any more
	closed   bool      // and nothing lives

	live    map[string]*request // by req_id
	opened  uint64              // requests so far
	senders map[string]*sender  // by identity: attached, or with live requests
	tenants map[string]*tenant  // by name: with live requests
	writers map[uint64]*sender  // by each grant under which an attached sender may write
	ended   memory
	readied readied
	fences  fences
	timers  timers

	counters wire.Counters
	refused  map[wire.Code]int64 // batches
	fx       Effects
}

// request is one live request.
type request struct {
	id     string
	seq    uint64 // order of arrival
	sender *sender
	tenant *tenant // whose quotas it is on
	legacy bool    // its sender has not been attached since it came
	total  int     // declared chunks

	chunks   []chunk        // in the order asked: chunk order
	byKey    map[string]int // index into chunks; nil while they are few
	promised int            // slots reserved and not yet allocated
	placed   int            // chunks that have a slot
	written  int            // of those, committed
	shared   int            // of those, already there when asked for
	bytes    int64          // of those

	admitted  bool
	lastAsked bool // the batch with is_last_batch has come
	lastDone  bool // and has been allocated: the reservation has ended
	ready     bool
	readySeq  uint64 // its number among those that became ready; 0: it has none
	taker     string // connection of the decoder that is taking it

	waiting []batch // batches that wait, in order
	place   place   // in the queue while waiting is not empty

	born       Time // first batch came
	named      Time // a message last named it, or it was last answered
	admittedAt Time // this and the three below may be never
	firstWrite Time // of a chunk, or one was shared
	lastWrite  Time
	wholeAt    Time // it became ready
	readyAt    Time // it waits for a decoder from here
	takenAt    Time

	timer timer
}

// chunk is one key of a request.
type chunk struct {
	key    string
	length int64 // bytes
	slot   int32 // noSlot while its batch waits
}

const noSlot = -1

// never is the time of what has not happened.
const never Time = -1

// sender is who is attached or has live requests.
type sender struct {
	identity string
	name     string
	engine   string
	shown    string // the identity as people see it, once asked for
	attached bool
	grants   []uint64 // under which it may write, the current one last; empty when not attached
	heard    Time
	requests map[*request]struct{}
	queued   int    // of those, waiting
	own      tenant // of those that are on no other's quotas
	ready    int64  // requests of it that became ready
	bytes    int64  // written by it
	timer    timer
}

// New makes a Machine with an empty buffer.
func New(cfg Config) *Machine {
	if cfg.Slots < 1 || cfg.SlotBytes < 1 || cfg.Epoch == 0 {
		panic(fmt.Sprintf("reservation: config %+v: slots, slot bytes and epoch must be positive", cfg))
	}
	if cfg.Memory == 0 {
		cfg.Memory = defaultMemory
	}
	if cfg.Remember == 0 {
		cfg.Remember = defaultRemember
	}
	return &Machine{
		cfg:     cfg,
		ledger:  newLedger(cfg.Slots),
		live:    make(map[string]*request),
		senders: make(map[string]*sender),
		tenants: make(map[string]*tenant),
		writers: make(map[uint64]*sender),
		ended:   newMemory(cfg.Remember),
		readied: newReadied(),
		fences:  newFences(),
		refused: make(map[wire.Code]int64),
	}
}

// Step takes one event at a time of the caller's clock and says what to do.
// The effects are valid until the next Step.
func (m *Machine) Step(now Time, ev Event) *Effects {
	m.fx.reset()
	m.advance(now)
	switch ev := ev.(type) {
	case Attach:
		m.attach(ev)
	case Alloc:
		m.alloc(ev)
	case Malformed:
		m.malformed(ev)
	case Commit:
		m.commit(ev)
	case Cancel:
		m.cancel(ev)
	case Heartbeat:
		m.heartbeat(ev)
	case Heard:
		m.heard(ev.Sender)
	case Take:
		m.take(ev)
	case Release:
		m.release(ev)
	case ListReady:
		m.listReady(ev)
	case Gone:
		m.gone(ev)
	case Overrun:
		m.overrun(ev)
	case Revoked:
		m.revoked(ev)
	case RevokeFailed:
		m.revokeFailed(ev)
	case AccessFailed:
		m.accessFailed(ev)
	case Shutdown:
		m.shutdown()
	case Close:
		m.close()
	case Tick:
		m.expire()
	default:
		panic(fmt.Sprintf("reservation: unknown event %T", ev))
	}
	// Whatever frees slots re-runs admission: here, after every event, so that
	// none is forgotten.
	m.admitWaiting()
	m.ledger.notePeak()
	return &m.fx
}

// advance lets time pass: time in which the receiver itself did not run does
// not count, nor does a clock that goes back.
func (m *Machine) advance(now Time) {
	gap := now - m.last
	m.last = now
	if m.cfg.MaxGap > 0 {
		gap = min(gap, m.cfg.MaxGap)
	}
	m.now += max(gap, 0)
}

func (fx *Effects) reset() {
	clear(fx.Answers)
	clear(fx.Records)
	clear(fx.Revocations)
	fx.Doors = fx.Doors[:0]
	fx.Answers = fx.Answers[:0]
	fx.Records = fx.Records[:0]
	fx.Revocations = fx.Revocations[:0]
	fx.Ended = fx.Ended[:0]
}

func (m *Machine) answer(tag Tag, msg any) {
	m.fx.Answers = append(m.fx.Answers, Answer{tag, msg})
}

// record tells a request's history; the counters are those of the records.
func (m *Machine) record(r *request, rec Record) {
	rec.ReqID = r.id
	rec.Sender = r.sender.display()
	rec.Chunks = r.placed
	rec.TotalChunks = uint64(r.total)
	rec.Bytes = r.bytes
	rec.Shared = r.shared
	switch {
	case rec.Kind == Ready:
		rec.Wrote = m.now - r.admittedAt
		rec.Took = m.now - r.born
	case rec.Kind > Ready:
		rec.Took = m.now - r.born
	}
	m.emit(rec)
}

func (m *Machine) emit(rec Record) {
	rec.Free = m.ledger.free()
	m.fx.Records = append(m.fx.Records, rec)
	c := &m.counters
	switch rec.Kind {
	case Admitted:
		c.Admitted++
	case Ready:
		c.Ready++
	case Released:
		c.Released++
	case Cancelled:
		c.Cancelled++
	case Rejected:
		c.Rejected++
		if rec.Code == wire.CodeDuplicateRequest {
			c.Duplicates++
		}
	case TimedOut:
		c.TimedOut++
	case RolledBack:
		c.RolledBack++
	case Expired:
		if rec.Unread {
			c.ExpiredUnread++
		} else {
			c.Expired++
		}
	}
}

// senderOf finds a sender, or makes one that has not attached.
func (m *Machine) senderOf(identity string) *sender {
	s := m.senders[identity]
	if s == nil {
		s = &sender{identity: identity, requests: make(map[*request]struct{})}
		s.timer.fire = s
		m.senders[identity] = s
	}
	return s
}

// forgetIdle drops a sender that is not attached and has nothing.
func (m *Machine) forgetIdle(s *sender) {
	if !s.attached && len(s.requests) == 0 {
		delete(m.senders, s.identity)
	}
}

// inOrder lists a sender's live requests in order of arrival.
func (s *sender) inOrder() []*request {
	return slices.SortedFunc(maps.Keys(s.requests), byArrival)
}

// slots are promised to its requests and held by them, shared ones included.
func (s *sender) slots() (n int) {
	for r := range s.requests {
		n += r.promised + r.placed
	}
	return n
}

func byArrival(a, b *request) int { return cmp.Compare(a.seq, b.seq) }

func (s *sender) display() string {
	if s.name != "" {
		return s.name
	}
	if s.shown == "" {
		s.shown = displayIdentity(s.identity)
	}
	return s.shown
}

// displayIdentity shows a ROUTER identity: as it is where people can read it,
// else in hexadecimal.
func displayIdentity(identity string) string {
	readable := utf8.ValidString(identity)
	for _, c := range identity {
		readable = readable && unicode.IsPrint(c)
	}
	if readable {
		return identity
	}
	return hex.EncodeToString([]byte(identity))
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// fewChunks is up to how many keys a scan is cheaper than a map.
const fewChunks = 16

// find is the position of a key in chunks, or -1.
func (r *request) find(key string) int {
	if r.byKey != nil {
		if i, ok := r.byKey[key]; ok {
			return i
		}
		return -1
	}
	for i := range r.chunks {
		if r.chunks[i].key == key {
			return i
		}
	}
	return -1
}

func (r *request) addChunk(key string, length int64) {
	r.chunks = append(r.chunks, chunk{key: key, length: length, slot: noSlot})
	switch {
	case r.byKey != nil:
		r.byKey[key] = len(r.chunks) - 1
	case len(r.chunks) > fewChunks:
		r.byKey = make(map[string]int, 2*len(r.chunks))
		for i := range r.chunks {
			r.byKey[r.chunks[i].key] = i
		}
	}
}

// timer is one deadline in the heap. It may fire early: whoever it belongs to
// then says when it is really due, so that renewing a lease costs nothing.
type timer struct {
	at    Time
	index int // position in the heap, plus 1; 0 when not armed
	fire  interface{ due(m *Machine) }
}

type timers []*timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h) + 1
	*h = append(*h, t)
}

func (h *timers) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = 0
	return t
}

func (m *Machine) arm(t *timer, at Time) {
	t.at = at
	if t.index == 0 {
		heap.Push(&m.timers, t)
	} else {
		heap.Fix(&m.timers, t.index-1)
	}
}

func (m *Machine) disarm(t *timer) {
	if t.index != 0 {
		heap.Remove(&m.timers, t.index-1)
	}
}
