package reservation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	simSeed     = flag.Uint64("sim.seed", 0, "run the simulator with this seed only")
	simFrom     = flag.Uint64("sim.from", 1, "first seed")
	simRequests = flag.Int64("sim.requests", 100_000, "simulated requests at least")
	simDay      = flag.Duration("sim.day", 10*time.Minute, "how long TestSimDay's worlds live, in simulated time")
)

// TestSim walks at random through small worlds: senders that attached and
// such that did not, batches interleaved, retried, duplicated, refused, cancels
// at every moment, crashes, silence, returns, early last batches, shared
// prefixes, slow and dying decoders, clock jumps, revocations that come late or
// fail, slots that the engine cannot open. After every event everything is checked; at the end of each world
// everybody does their part and nothing may be left.
func TestSim(t *testing.T) {
	if *simSeed != 0 {
		if w, err := simulate(*simSeed); err != nil {
			t.Fatal(report(*simSeed, err))
		} else {
			t.Logf("%d requests, %d events, %v", w.requests, w.events, w.md.now)
		}
		return
	}
	want := *simRequests
	if testing.Short() {
		want = min(want, 10_000)
	}
	var mu sync.Mutex // of all of these
	var requests, ready, events, worlds int64
	var ran time.Duration
	var failure string
	next := *simFrom
	claim := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if failure != "" || requests >= want {
			return 0, false
		}
		next++
		return next - 1, true
	}
	done := func(seed uint64, w *world, err error) {
		mu.Lock()
		defer mu.Unlock()
		requests += int64(w.requests)
		ready += w.md.counters.Ready
		events += int64(w.events)
		ran += w.md.now
		worlds++
		if err != nil && failure == "" {
			failure = report(seed, err)
		}
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed, ok := claim(); ok; seed, ok = claim() {
				w, err := simulate(seed)
				done(seed, w, err)
			}
		})
	}
	wg.Wait()
	t.Logf("seeds %d to %d: %d requests in %d worlds, of which %d became ready; %d events, after each of which all was checked; %.1f hours of simulated time",
		*simFrom, next-1, requests, worlds, ready, events, ran.Hours())
	if failure != "" {
		t.Fatal(failure)
	}
}

// simulate walks through one world.
func simulate(seed uint64) (*world, error) {
	s := newSim(seed)
	for range 40 + s.rnd.IntN(160) {
		for _, o := range s.act() {
			if err := s.w.do(o); err != nil {
				return s.w, err
			}
		}
	}
	return s.w, s.w.do(op{verb: "drain"})
}

// TestSimDay lives in a world of each mode for a day without a new start: again
// and again a walk, until all is drained.
func TestSimDay(t *testing.T) {
	day := *simDay
	if testing.Short() {
		day = min(day, time.Minute)
	}
	for _, mode := range []Mode{Reserve, Serial, None} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			s := newSim(*simFrom)
			cfg := s.w.cfg
			cfg.Mode, cfg.AdmitTimeout, cfg.SenderShare = mode, 3*time.Second, cfg.Slots/2
			s.w = newWorld(cfg)
			for s.w.md.now < day {
				if err := s.walk(); err != nil {
					t.Fatalf("seed %d, after %v: %v", *simFrom, s.w.md.now, err)
				}
			}
			t.Logf("%d requests, %d became ready; %d events, %v", s.w.requests, s.w.md.counters.Ready, s.w.events, s.w.md.now)
		})
	}
}

// walk is part of a long life: it ends with everything drained, and what is past
// is forgotten.
func (s *sim) walk() error {
	for range 40 + s.rnd.IntN(160) {
		for _, o := range s.act() {
			if o.verb == "shutdown" || o.verb == "close" {
				continue
			}
			if err := s.w.do(o); err != nil {
				return err
			}
		}
	}
	if err := s.w.do(op{verb: "drain"}); err != nil {
		return err
	}
	s.plans = s.plans[max(0, len(s.plans)-20):]
	clear(s.dead)
	clear(s.w.watch.open)
	clear(s.w.started)
	return nil
}

// report shrinks a failing walk and prints it as a scenario.
func report(seed uint64, err error) string {
	s := newSim(seed)
	var ops []op
	for range 40 + s.rnd.IntN(160) {
		acts := s.act()
		ops = append(ops, acts...)
		for _, o := range acts {
			_ = s.w.do(o)
		}
		if s.w.failed != nil {
			break
		}
	}
	ops = shrink(append(ops, op{verb: "drain"}), func(ops []op) bool { return replay(s.w.cfg, ops).failed != nil })
	w := replay(s.w.cfg, ops)
	return fmt.Sprintf("seed %d: %v\n\nagain: go test ./internal/reservation -run TestSim -sim.seed=%d\n\nas a scenario:\n\ncase %s\n%s----\n\n%v\n\ntrace:\n%s",
		seed, err, seed, caseLine(s.w.cfg), lines(ops), w.failed, w.trace)
}

func lines(ops []op) string {
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

func replay(cfg Config, ops []op) *world {
	w := newWorld(cfg)
	w.trace = &strings.Builder{}
	for _, o := range ops {
		fmt.Fprintf(w.trace, "%s\n", o)
		if w.do(o) != nil {
			break
		}
	}
	return w
}

// shrink removes whatever is not needed for the failure: halves, then smaller
// pieces, then single commands, until none can go.
func shrink(ops []op, fails func([]op) bool) []op {
	deadline := time.Now().Add(20 * time.Second)
	for size := len(ops) / 2; size > 0; {
		removed := false
		for at := 0; at+size <= len(ops); {
			less := slices.Concat(ops[:at], ops[at+size:])
			if time.Now().Before(deadline) && fails(less) {
				ops, removed = less, true
			} else {
				at += size
			}
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	return ops
}

// sim makes up what the peers do next.
type sim struct {
	rnd     *rand.Rand
	w       *world
	plans   []*plan
	opened  int
	dead    map[string]bool // senders that crashed and do nothing more
	senders []string
}

// plan is what a sender means to send.
type plan struct {
	sender, id string
	total      int
	batches    [][]string
	sent       int
	size, tail int
	last       int // which batch says that it is the last; -1: none does
	gone       bool
}

func newSim(seed uint64) *sim {
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := &sim{rnd: rnd, w: newWorld(simConfig(rnd)), dead: map[string]bool{}}
	tenants := rnd.IntN(3) == 0
	for i := range 2 + rnd.IntN(3) {
		name := fmt.Sprintf("s%d", i+1)
		if tenants && i < 2 {
			name = "t/" + name // of one tenant
		}
		s.senders = append(s.senders, name)
	}
	return s
}

func oneOf[T any](rnd *rand.Rand, choices ...T) T { return choices[rnd.IntN(len(choices))] }

func simConfig(rnd *rand.Rand) Config {
	cfg := Config{
		Slots:        oneOf(rnd, 3, 4, 6, 8, 10),
		Mode:         oneOf(rnd, Reserve, Reserve, Reserve, Reserve, Serial, None),
		AdmitTimeout: oneOf(rnd, 0, 3*time.Second, 6*time.Second),
		Lease:        oneOf(rnd, 2*time.Second, 4*time.Second, 4*time.Second, 0),
		LegacyLease:  oneOf(rnd, 0, 3*time.Second, 7*time.Second),
		ReadyTTL:     oneOf(rnd, 0, 5*time.Second, 9*time.Second),
		Memory:       oneOf(rnd, 10*time.Second, 60*time.Second),
		Remember:     1000,
		Overtake:     oneOf(rnd, 0, 0, 1, 3),
		MaxGap:       oneOf(rnd, 500*time.Millisecond, time.Second),
	}
	if rnd.IntN(4) == 0 {
		cfg.QueueLimit = 1 + rnd.IntN(3)
	}
	if rnd.IntN(4) == 0 {
		cfg.QueueBytes = 500
	}
	if rnd.IntN(4) == 0 {
		cfg.SenderRequests = 1 + rnd.IntN(3)
	}
	if rnd.IntN(4) == 0 {
		cfg.SenderQueue = 1 + rnd.IntN(cfg.Slots)
	}
	if rnd.IntN(3) == 0 {
		cfg.SenderShare = 1 + rnd.IntN(cfg.Slots)
	}
	if rnd.IntN(8) == 0 {
		cfg.Remember = 2
	}
	if rnd.IntN(40) == 0 {
		cfg.Slots = 60 // requests of many keys
	}
	if cfg.Mode == None && cfg.AdmitTimeout == 0 {
		cfg.AdmitTimeout = 3 * time.Second
	}
	return cfg
}

func (s *sim) sender() string { return s.senders[s.rnd.IntN(len(s.senders))] }

// act is what happens next, and now and then the engine fails at it.
func (s *sim) act() []op {
	ops := s.choose()
	if n := len(ops); n > 0 && s.rnd.IntN(12) == 0 {
		last := &ops[n-1]
		last.opts = append(slices.Clone(last.opts), oneOf(s.rnd, "noaccess", "noaccess", "noaccess=1", "noaccess=2"))
	}
	return ops
}

// choose: mostly what well-behaved peers do, now and then anything.
func (s *sim) choose() []op {
	switch n := s.rnd.IntN(100); {
	case n < 20:
		return s.begin()
	case n < 45:
		return s.goOn()
	case n < 60:
		return s.commit()
	case n < 72:
		return s.decode()
	case n < 78:
		return s.time()
	case n < 84:
		return s.cancelOrRetry()
	case n < 90:
		return s.fences()
	case n < 95:
		return s.attachment()
	}
	return s.mischief()
}

// begin opens a request and sends its first batch.
func (s *sim) begin() []op {
	sender := s.sender()
	if s.dead[sender] {
		return nil
	}
	s.opened++
	p := &plan{
		sender: sender, id: fmt.Sprintf("R%d", s.opened), size: oneOf(s.rnd, chunkSize, chunkSize, chunkSize, 8), tail: -1,
		total: 1 + s.rnd.IntN(s.w.cfg.Slots),
	}
	if s.rnd.IntN(20) == 0 {
		p.total = s.w.cfg.Slots + s.rnd.IntN(2)
	}
	if s.rnd.IntN(12) == 0 && len(s.plans) > 0 { // somebody's id, live or not
		p.id = s.plans[s.rnd.IntN(len(s.plans))].id
	}
	if s.rnd.IntN(6) == 0 {
		p.tail = 1 + s.rnd.IntN(p.size)
	}
	s.plan(p)
	s.plans = append(s.plans, p)
	return s.next(p)
}

// plan cuts a request's keys into batches: a prefix that others have too, then
// keys of its own.
func (s *sim) plan(p *plan) {
	n := p.total
	switch s.rnd.IntN(12) {
	case 0: // ends early
		n = s.rnd.IntN(p.total + 1)
	case 1: // sends too many
		n = p.total + 1
	}
	prefix := 0
	if s.rnd.IntN(2) == 0 {
		prefix = s.rnd.IntN(n + 1)
	}
	family := s.rnd.IntN(2)
	var keys []string
	for i := range n {
		if i < prefix {
			keys = append(keys, fmt.Sprintf("p%d-%d", family, i))
		} else {
			keys = append(keys, fmt.Sprintf("%s-%s-%d", p.id, p.sender, i))
		}
	}
	if s.rnd.IntN(10) == 0 {
		p.batches = append(p.batches, []string{}) // reserves, no keys
	}
	for len(keys) > 0 {
		k := 1 + s.rnd.IntN(len(keys))
		p.batches = append(p.batches, keys[:k:k])
		keys = keys[k:]
	}
	if s.rnd.IntN(10) == 0 || len(p.batches) == 0 {
		p.batches = append(p.batches, []string{}) // says the last, no keys
	}
	p.last = len(p.batches) - 1
	if s.rnd.IntN(25) == 0 {
		p.last = s.rnd.IntN(len(p.batches)) // too early
	}
}

func (s *sim) next(p *plan) []op {
	o := s.batch(p, p.sent)
	p.sent++
	return []op{o}
}

func (s *sim) batch(p *plan, i int) op {
	o := op{verb: "alloc", who: p.sender, req: p.id, keys: p.batches[i]}
	o.opts = append(o.opts, fmt.Sprintf("total=%d", p.total))
	if i > 0 && s.rnd.IntN(5) == 0 {
		o.opts[0] = "total=0"
	}
	if p.size != chunkSize {
		o.opts = append(o.opts, fmt.Sprintf("size=%d", p.size))
	}
	if i == len(p.batches)-1 && p.tail > 0 {
		o.opts = append(o.opts, fmt.Sprintf("tail=%d", p.tail))
	}
	if i == p.last {
		o.opts = append(o.opts, "last")
	}
	if s.rnd.IntN(3) == 0 && s.w.md.sender(p.sender) != nil {
		o.opts = append(o.opts, "epoch=mine")
	}
	return o
}

// somePlan is one with batches left to send, or nil.
func (s *sim) somePlan(ok func(*plan) bool) *plan {
	var list []*plan
	for _, p := range s.plans[max(0, len(s.plans)-12):] {
		if !s.dead[p.sender] && ok(p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[s.rnd.IntN(len(list))]
}

func (s *sim) goOn() []op {
	p := s.somePlan(func(p *plan) bool { return p.sent < len(p.batches) })
	if p == nil {
		return s.begin()
	}
	return s.next(p)
}

func (s *sim) someLive(ok func(*mReq) bool) *mReq {
	var list []*mReq
	for _, r := range s.w.md.live {
		if ok(r) {
			list = append(list, r)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[s.rnd.IntN(len(list))]
}

func (s *sim) commit() []op {
	r := s.someLive(func(r *mReq) bool { return !s.dead[r.sender] && !r.ready && len(s.w.watch.toWrite(r.sender, r.id)) > 0 })
	if r == nil {
		return s.goOn()
	}
	o := op{verb: "commit", who: r.sender, req: r.id}
	if all := s.w.watch.toWrite(r.sender, r.id); s.rnd.IntN(3) == 0 {
		o.keys = []string{all[s.rnd.IntN(len(all))].key}
	}
	return []op{o}
}

func (s *sim) decode() []op {
	conn := oneOf(s.rnd, "d1", "d2")
	if s.rnd.IntN(12) == 0 {
		o := op{verb: "list", who: conn, opts: []string{fmt.Sprintf("after=%d", s.rnd.IntN(s.opened+2))}}
		if s.rnd.IntN(5) == 0 {
			o.opts = append(o.opts, "epoch="+oneOf(s.rnd, "stale", "none"))
		}
		return []op{o}
	}
	r := s.someLive(func(r *mReq) bool { return r.ready })
	if r == nil || s.rnd.IntN(15) == 0 {
		if len(s.plans) == 0 {
			return nil
		}
		id := s.plans[s.rnd.IntN(len(s.plans))].id
		return []op{{verb: oneOf(s.rnd, "take", "release"), who: conn, req: id}}
	}
	switch s.rnd.IntN(6) {
	case 0, 1:
		return []op{{verb: "take", who: conn, req: r.id}}
	case 2:
		return []op{{verb: "release", who: conn, req: r.id, opts: []string{"keep"}}}
	case 3:
		return []op{{verb: "take", who: conn, req: r.id}, {verb: "release", who: conn, req: r.id}}
	}
	return []op{{verb: "release", who: conn, req: r.id}}
}

func (s *sim) time() []op {
	d := time.Duration(s.rnd.IntN(900)) * time.Millisecond
	switch s.rnd.IntN(10) {
	case 0:
		d += s.w.cfg.Lease / 2
	case 1:
		d += s.w.cfg.Lease
	case 2:
		return []op{{verb: "jump", who: (time.Duration(1+s.rnd.IntN(20)) * time.Second).String()}}
	}
	ops := []op{{verb: "advance", who: d.String()}}
	if s.rnd.IntN(2) == 0 {
		for _, snd := range s.w.md.senders { // those who live go on
			if !s.dead[snd.id] {
				ops = append(ops, op{verb: "heartbeat", who: snd.id})
			}
		}
	}
	return ops
}

func (s *sim) cancelOrRetry() []op {
	if s.rnd.IntN(2) == 0 {
		p := s.somePlan(func(p *plan) bool { return p.sent > 0 })
		if p == nil {
			return nil
		}
		return []op{s.batch(p, s.rnd.IntN(p.sent))}
	}
	r := s.someLive(func(r *mReq) bool { return !s.dead[r.sender] })
	if r == nil || s.rnd.IntN(8) == 0 {
		return []op{{verb: "cancel", who: s.sender(), req: fmt.Sprintf("R%d", 1+s.rnd.IntN(s.opened+2))}}
	}
	return []op{{verb: "cancel", who: r.sender, req: r.id}}
}

// fences: the engine revokes, in its own time and order, or cannot; writers
// end.
func (s *sim) fences() []op {
	if n := len(s.w.pending); n > 0 && s.rnd.IntN(4) > 0 {
		id := fmt.Sprintf("id=%d", s.w.pending[s.rnd.IntN(n)].ID)
		return []op{{verb: oneOf(s.rnd, "revoked", "revoked", "revoke-failed"), opts: []string{id}}}
	}
	if s.w.writers == 0 || s.rnd.IntN(3) > 0 {
		return nil
	}
	old := s.w.writers - min(s.w.writers, 40) // in a long life these are gone
	return []op{{verb: "gone", opts: []string{fmt.Sprintf("writer=%d", old+1+s.rnd.Uint64N(s.w.writers-old))}}}
}

func (s *sim) attachment() []op {
	who := s.sender()
	switch n := s.rnd.IntN(10); {
	case n < 6:
		delete(s.dead, who) // it comes back
		if s.rnd.IntN(4) == 0 {
			return []op{{verb: "attach", who: who, opts: []string{"anew"}}}
		}
		return []op{{verb: "attach", who: who}}
	case n < 8:
		s.dead[who] = true // silence from now on, until it comes back
		return nil
	case n == 8:
		s.dead[who] = true
		return []op{{verb: "gone", who: who}}
	}
	return []op{{verb: oneOf(s.rnd, "heard", "heard", "overrun"), who: who}}
}

func (s *sim) mischief() []op {
	who := s.sender()
	req := fmt.Sprintf("R%d", 1+s.rnd.IntN(s.opened+1))
	if r := s.someLive(func(*mReq) bool { return true }); r != nil && s.rnd.IntN(2) == 0 {
		who, req = r.sender, r.id
	}
	o := op{verb: "alloc", who: who, req: req, keys: []string{"x", "y"}, opts: []string{"total=2"}}
	switch s.rnd.IntN(16) {
	case 0:
		o.opts = append(o.opts, "bad="+oneOf(s.rnd, "fmt", "dtype", "shape", "tail", "big", "neg", "key", "id", "longid", "huge"))
	case 1:
		o.keys = []string{"x", "x"}
	case 2:
		o.keys = []string{}
		o.opts = append(o.opts, "last")
	case 3:
		o.opts = []string{"total=0"}
	case 4:
		o.opts = []string{fmt.Sprintf("total=%d", s.w.cfg.Slots+1)}
	case 5:
		o.opts = append(o.opts, "epoch="+oneOf(s.rnd, "stale", "mine"))
	case 6:
		o.opts = append(o.opts, "bytes=450")
	case 7:
		return []op{{verb: "malformed", who: who, req: oneOf(s.rnd, req, ""), keys: []string{"x"}}}
	case 8:
		return []op{{verb: "heartbeat", who: who, opts: []string{"epoch=" + oneOf(s.rnd, "stale", "mine", "none")}}}
	case 9:
		return []op{{verb: "commit", who: who, req: req, opts: []string{fmt.Sprintf("slot=%d", s.rnd.IntN(s.w.cfg.Slots+1))}}}
	case 10:
		return []op{{verb: "commit", who: who, req: req, opts: []string{"epoch=" + oneOf(s.rnd, "stale", "none")}}}
	case 11:
		return []op{{verb: "commit", who: who, req: req, opts: []string{oneOf(s.rnd, "crc=1", "len=3", "bad=twice", "bad=lists")}}}
	case 12:
		switch s.rnd.IntN(12) {
		case 0:
			return []op{{verb: "shutdown"}}
		case 1:
			return []op{{verb: "close"}}
		}
		return []op{{verb: "cancel", who: who}}
	case 13:
		o := op{verb: "commit", who: who, req: req, opts: []string{"again"}}
		if s.rnd.IntN(3) == 0 {
			o.opts = append(o.opts, "crc=1")
		}
		return []op{o}
	case 14:
		return []op{{verb: "take", who: "d1"}, {verb: "release", who: "d1"}}
	}
	return []op{o}
}

// caseLine is a scenario's first line for this configuration.
func caseLine(cfg Config) string {
	var words []string
	add := func(name string, value any, is bool) {
		if is {
			words = append(words, fmt.Sprintf("%s=%v", name, value))
		}
	}
	add("slots", cfg.Slots, true)
	add("mode", cfg.Mode, cfg.Mode != Reserve)
	add("overtake", cfg.Overtake, cfg.Overtake != 0)
	add("admit-timeout", cfg.AdmitTimeout, true)
	add("lease", cfg.Lease, true)
	add("legacy-lease", cfg.LegacyLease, true)
	add("ready-ttl", cfg.ReadyTTL, true)
	add("memory", cfg.Memory, true)
	add("remember", cfg.Remember, cfg.Remember != 0)
	add("queue-limit", cfg.QueueLimit, cfg.QueueLimit != 0)
	add("queue-bytes", cfg.QueueBytes, cfg.QueueBytes != 0)
	add("sender-requests", cfg.SenderRequests, cfg.SenderRequests != 0)
	add("sender-queue", cfg.SenderQueue, cfg.SenderQueue != 0)
	add("sender-share", cfg.SenderShare, cfg.SenderShare != 0)
	add("max-gap", cfg.MaxGap, true)
	return strings.Join(words, " ")
}

// TestShrink: a failure that needs two commands far apart is shrunk to the two.
func TestShrink(t *testing.T) {
	s := newSim(3)
	var ops []op
	for len(ops) < 100 {
		ops = append(ops, op{verb: "tick"})
		ops = append(ops, s.act()...)
	}
	ops[20], ops[77] = op{verb: "cause"}, op{verb: "effect"}
	is := func(verb string) func(op) bool { return func(o op) bool { return o.verb == verb } }
	got := shrink(ops, func(ops []op) bool {
		cause := slices.IndexFunc(ops, is("cause"))
		return cause >= 0 && slices.IndexFunc(ops[cause:], is("effect")) >= 0
	})
	if len(got) != 2 || got[0].verb != "cause" || got[1].verb != "effect" {
		t.Errorf("shrunk to %v", got)
	}
}
