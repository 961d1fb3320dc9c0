// Package sender is pd-send: it takes a manifest and has every request of it
// ready at its receiver, or says why not.
//
// One goroutine, the one in Run, owns the core, which decides everything: what
// is asked of which receiver, which chunk gets a staging slot, when a request
// is complete, and what is undone when one fails (core.go, answers.go; staging
// in staging.go). Around it stand helpers that decide nothing, each with what
// may block: a link for each receiver's socket (link.go; its sessions in
// opening.go), a notifier for the proxy's (notifier.go), workers that copy, sum
// and write chunks (job.go), and a reader of the input (input.go). They report
// by mailbox.
//
// The package knows nothing of flags, terminals or exit codes; how a chunk's
// bytes are had is in internal/manifest, how they get to the receiver in rdma.
package sender

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

// Of the shutdown time-out, the part in which what is being written may finish,
// and the part in which the rest is cancelled. What is left is for closing.
const (
	graceShare = 0.6
	closeShare = 0.75
)

// Config is what a run goes by.
type Config struct {
	Files []string  // manifests; Stdin is the standard input
	Stdin io.Reader // read for Stdin
	Pace  float64   // speed factor for a line's `at`; 0: lines are not held back

	Receivers []string      // endpoints
	Keys      *sock.Keys    // of all sockets; may be nil
	Engines   []string      // that may be written by, best first
	Fabric    rdma.Fabric   // of an engine across hosts
	Name      string        // of this sender, for people
	Batch     int           // chunks of an AllocRequest at most
	Staging   int64         // bytes of the staging buffer
	Pending   int64         // bytes of memory for lines read and not finished; 0: no limit
	Timeout   time.Duration // bounds each wait for a receiver or the proxy; 0: none

	Proxy     string // endpoint; "": nobody is told
	OnlyReady bool   // the proxy is not told of failures

	ShutdownTimeout time.Duration // how long Run takes to end after its context; 0: no limit

	// Result is told how each request ended, Note what people should know. Both
	// are called from Run's goroutine and must not block.
	Result func(*Result)
	Note   func(kind Kind, text string)
	// Progress, if any, is told every ProgressEvery how far things are.
	Progress      func(Progress)
	ProgressEvery time.Duration
	// Asks, if any, are answered with a *wire.SenderSnapshot until Run ends.
	Asks  *monitor.Asks
	Epoch uint64 // of the snapshots

	attach attachFunc // nil: engines.Attach
}

// Kind is what a note is about.
type Kind string

// The kinds of notes.
const (
	OfInput  Kind = "input"  // each names a file and, where it is about one, a line
	OfFailed Kind = "failed" // a request that failed otherwise; there may be many of one cause
	OfEngine Kind = "engine" // by which a receiver is written, one a session
)

// minWorkers is how many workers a session has at least: more than there are
// processors, for some wait for a disk, and as many as an engine has writes in
// flight. With 8 the wire runs dry while they read and sum.
const minWorkers = 16

// lastJobs is how long jobs are waited for that were called off when all else
// has ended.
const lastJobs = 250 * time.Millisecond

// Run sends what the files ask for. When ctx is done it reads no more, lets
// finish what is being written, and cancels the rest. The error says why it
// could not begin; what failed later is in the Summary.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	r, err := newRun(cfg)
	if err != nil {
		return Summary{}, err
	}
	r.loop(ctx)
	r.close(ctx)
	return r.summary(), nil
}

func (r *run) summary() Summary {
	s := Summary{
		SenderCounters: r.core.counters,
		AdmitWait:      r.core.admitWait.All(),
		WriteTime:      r.core.writeTime.All(),
		NoProxy:        r.notifier == nil,
		Elapsed:        r.clock.now(),
	}
	s.Undelivered = r.undelivered()
	return s
}

func (r *run) undelivered() int64 {
	if r.notifier == nil {
		return 0
	}
	return r.notifier.undelivered.Load()
}

// run is one Run. It is the core's effects.
type run struct {
	cfg      Config
	clock    *clock
	core     *core
	sock     *sock.Context
	memory   *buffer
	links    []*link
	linksEnd sync.WaitGroup
	notifier *notifier // nil without proxy
	events   *mailbox[any]
	spare    []any
	kick     chan struct{}     // events has something
	deadline time.Duration     // when to have ended, once ctx is done; 0: not set
	sessions map[*session]bool // whose memory is not given up yet
	workers  sync.WaitGroup
}

func newRun(cfg Config) (r *run, err error) {
	r = &run{
		cfg: cfg, clock: newClock(), memory: &buffer{bytes: cfg.Staging},
		kick: make(chan struct{}, 1), sessions: make(map[*session]bool),
	}
	r.events = &mailbox[any]{wake: r.wake}
	if cfg.Asks != nil {
		cfg.Asks.WakeBy(r.wake)
	}
	pending := cfg.Pending
	if pending == 0 {
		pending = math.MaxInt64
	}
	r.core = newCore(coreConfig{
		receivers: cfg.Receivers,
		timeout:   cfg.Timeout,
		batch:     cfg.Batch,
		pending:   pending,
		proxy:     cfg.Proxy != "",
		tellFail:  cfg.Proxy != "" && !cfg.OnlyReady,
	}, r)
	if r.sock, err = sock.NewContext(cfg.Keys); err != nil {
		return nil, err
	}
	if err := r.connect(); err != nil {
		r.closeSockets()
		return nil, err
	}
	return r, nil
}

func (r *run) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *run) connect() (err error) {
	attach := r.cfg.attach
	if attach == nil {
		attach = engines.Attach
	}
	if r.cfg.Proxy != "" {
		emit := func(n noticed) { r.events.put(n) }
		if r.notifier, err = newNotifier(r.sock, r.cfg.Proxy, r.cfg.Timeout, r.clock, emit); err != nil {
			return err
		}
	}
	for i, endpoint := range r.cfg.Receivers {
		l, err := newLink(r.sock, linkConfig{
			receiver: i,
			endpoint: endpoint,
			name:     r.cfg.Name,
			engines:  r.cfg.Engines,
			fabric:   r.cfg.Fabric,
			timeout:  r.cfg.Timeout,
			memory:   r.memory,
			clock:    r.clock,
			attach:   attach,
			emit:     r.events.put,
		})
		if err != nil {
			return err
		}
		r.links = append(r.links, l)
		r.linksEnd.Go(l.run)
	}
	return nil
}

// endSettles is for how long an end of the input that leaves requests unfinished
// may be the work of a signal that is on its way to us: one for the whole pipeline
// ends the program before us, too, and it is the signal that stops us then.
const endSettles = 25 * time.Millisecond

// loop runs until all is done, or the time to end has come.
func (r *run) loop(ctx context.Context) {
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	source := make(chan input)
	go readAll(reading, r.cfg.Files, r.cfg.Stdin, r.cfg.Pace, source)

	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	stop := ctx.Done()
	var progress, grace, ending <-chan time.Time
	if r.cfg.Progress != nil {
		ticker := time.NewTicker(r.cfg.ProgressEvery)
		defer ticker.Stop()
		progress = ticker.C
	}
	for !r.core.done() {
		var lines <-chan input
		if r.core.wantsLine() {
			lines = source
		}
		timer.Reset(r.nextTick())
		select {
		case in, more := <-lines:
			if more || !r.core.unfinished() {
				r.take(in, more)
				break
			}
			source, ending = nil, time.After(endSettles)
		case <-ending:
			r.core.closeInput(r.clock.now())
		case <-r.kick:
		case <-timer.C:
		case <-progress:
			r.cfg.Progress(r.progress())
		case <-stop:
			stop, ending = nil, nil
			r.core.interrupt(r.clock.now(), reason(ctx))
			if d := r.cfg.ShutdownTimeout; d > 0 {
				r.deadline = r.clock.now() + share(d, closeShare)
				grace = time.After(share(d, graceShare))
			}
		case <-grace:
			r.core.cancelAll(r.clock.now(), reason(ctx))
		}
		r.turn()
		if r.deadline > 0 && r.clock.now() >= r.deadline {
			return
		}
	}
}

func share(d time.Duration, part float64) time.Duration { return time.Duration(float64(d) * part) }

// reason words why ctx is done.
func reason(ctx context.Context) string { return "stopped: " + context.Cause(ctx).Error() }

// nextTick is how long nothing needs to be looked at, if nothing comes.
func (r *run) nextTick() time.Duration {
	wait := tickEvery
	now := r.clock.now()
	if due, ok := r.core.nextDue(); ok {
		wait = min(wait, due-now)
	}
	if r.deadline > 0 {
		wait = min(wait, r.deadline-now)
	}
	return max(wait, 0)
}

// turn handles what the helpers reported, then gives up what is overdue.
func (r *run) turn() {
	r.spare = r.events.take(r.spare)
	for _, ev := range r.spare {
		r.handle(ev)
	}
	r.core.expire(r.clock.now())
	r.answer()
}

// answer gives a Snapshot to those who asked.
func (r *run) answer() {
	if r.cfg.Asks != nil {
		r.cfg.Asks.Answer(time.Now(), r.snapshot)
	}
}

// await answers those who ask until done is closed: true; or until stop is.
func (r *run) await(done, stop <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return true
		case <-stop:
			return false
		case <-r.kick:
			r.answer()
		}
	}
}

// over is closed when nothing is left that wg waits for.
func over(wg *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	return done
}

func (r *run) handle(ev any) {
	now := r.clock.now()
	switch ev := ev.(type) {
	case *job:
		r.core.worked(now, ev)
	case answered:
		r.core.answered(now, ev)
	case attached:
		r.cfg.Note(OfEngine, ev.engine)
		r.startWorkers(ev.session, ev.slots)
		r.core.attached(now, ev)
	case refused:
		r.core.refused(now, ev)
	case leaving:
		r.core.leaving(now, ev)
	case lost:
		r.core.lost(now, ev)
	case noticed:
		r.core.noticed(now, ev)
	}
}

// take handles what was read.
func (r *run) take(in input, more bool) {
	now := r.clock.now()
	var bad *manifest.LineError
	switch {
	case !more:
		r.core.closeInput(now)
	case in.err == nil:
		r.core.line(now, in.line)
	case errors.As(in.err, &bad) && bad.ReqID != "":
		r.core.badLine(now, bad)
	default:
		r.core.counters.Faults++
		r.cfg.Note(OfInput, in.err.Error())
	}
}

// startWorkers starts those of one session, which has its own: so a receiver
// whose writes take long keeps no other's waiting. The channel has room for
// every job there can be.
func (r *run) startWorkers(s *session, slots int) {
	r.sessions[s] = true
	s.work = make(chan *job, slots)
	for range min(slots, max(minWorkers, 2*runtime.GOMAXPROCS(0))) {
		r.workers.Go(func() { work(s.ctx, r.memory, s.work, func(j *job) { r.events.put(j) }) })
	}
}

// close delivers the notices that are left and ends the helpers. Whoever asks
// meanwhile is answered: a program that is ending does not hang.
func (r *run) close(ctx context.Context) {
	r.endNotifier(ctx)
	r.closeSockets() // ends the sessions, and so calls off what they write
	if r.gather() {
		r.await(over(&r.workers), nil)
		_ = r.memory.close() // the process ends: nothing depends on it
	}
}

// gather takes the last jobs back and gives up the sessions' memory. It reports
// whether it got all: a worker that reads a slow source may still have one.
func (r *run) gather() bool {
	late := time.After(lastJobs)
	for {
		for _, ev := range r.events.take(nil) {
			switch ev := ev.(type) {
			case *job:
				ev.session.jobs--
			case attached:
				_ = ev.session.remote.Close() // the mapping goes with the process at the latest
			}
		}
		for s := range r.sessions {
			if s.jobs == 0 {
				r.finish(s)
			}
		}
		if len(r.sessions) == 0 {
			return true
		}
		select {
		case <-r.kick:
			r.answer()
		case <-late:
			return false
		}
	}
}

func (r *run) endNotifier(ctx context.Context) {
	if r.notifier == nil {
		return
	}
	r.notifier.in.put(orderEnd{r.deadline})
	if r.await(r.notifier.done, ctx.Done()) {
		return
	}
	if d := r.cfg.ShutdownTimeout; d > 0 && r.deadline == 0 {
		r.deadline = r.clock.now() + share(d, closeShare)
		r.notifier.in.put(orderEnd{r.deadline})
	}
	r.await(r.notifier.done, nil)
}

func (r *run) closeSockets() {
	for _, l := range r.links {
		l.in.put(orderClose{})
	}
	r.await(over(&r.linksEnd), nil)
	if r.notifier != nil {
		r.notifier.in.put(orderEnd{until: 1})
		r.await(r.notifier.done, nil)
	}
	_ = r.sock.Close() // it fails only when called twice
}

// The core's effects.

func (r *run) attach(receiver int) { r.links[receiver].in.put(orderAttach{}) }

func (r *run) send(s *session, id uint64, msg wire.Message) {
	r.links[s.receiver].in.put(orderSend{s, id, msg})
}

func (r *run) abandon(s *session) { r.links[s.receiver].in.put(orderAbandon{s}) }

func (r *run) gone(s *session, err error) { r.links[s.receiver].in.put(orderGone{s, err}) }

func (r *run) write(j *job) { j.session.work <- j }

func (r *run) finish(s *session) {
	delete(r.sessions, s)
	close(s.work)
	r.workers.Go(func() { _ = s.remote.Close() }) // the mapping goes with the process at the latest
}

func (r *run) notify(reqID string) { r.notifier.in.put(orderNotify{reqID}) }

func (r *run) withdraw(reqID string) { r.notifier.in.put(orderWithdraw{reqID}) }

func (r *run) fail(reqID, reason string) { r.notifier.in.put(orderFail{reqID, reason}) }

func (r *run) note(text string) { r.cfg.Note(OfInput, text) }

func (r *run) end(res *Result) {
	r.cfg.Result(res)
	if res.Status != Failed {
		return
	}
	kind := OfFailed
	if res.Code == codeManifest {
		kind = OfInput
	}
	r.cfg.Note(kind, fmt.Sprintf("request %q: %s", res.ReqID, res.Error))
}

var _ effects = (*run)(nil)
