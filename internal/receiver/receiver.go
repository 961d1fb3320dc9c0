// Package receiver is pd-recv serve: one loop around the admission core. It
// carries messages between the ROUTER socket and the core, grants and takes
// back write access, tells what happened, and knows no rule of admission: what
// becomes of a message is decided in internal/reservation and nowhere else.
//
// One goroutine, the one in Run, owns the socket and the core. Helpers own
// what may block: the engine's revocations (revoke.go) and the notifications
// to the proxy (notify.go). They hand over by mailbox and wake the loop.
//
// Start reading at Run and turn; a message goes through receive, dispatch and
// step to answer.
package receiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/window"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	// turnMessages is how many received messages are handled before time
	// passes in the core, unless they take turnTime.
	turnMessages = 1024
	turnTime     = 100 * time.Millisecond

	// turnWait is for how long a turn waits for more messages once there was
	// one, busyWait for each of them. To wait in the call that receives is
	// cheaper than to poll.
	turnWait = 5 * time.Millisecond
	busyWait = 2 * time.Millisecond

	// spinFor is for how long a peer in lockstep is waited for without sleeping:
	// to be woken costs as much as the rest of a round trip. Its next message
	// comes after a tenth of this to a half.
	spinFor = 500 * time.Microsecond

	// idleTick is how often time passes in the core while nothing happens.
	idleTick = MaxGap / 2

	// Events are handed over when there are so many bytes of them or the first
	// has waited so long: waking who writes them for each would cost more than
	// they do.
	eventBytes = 64 << 10
	eventDelay = 4 * time.Millisecond

	// What ZeroMQ keeps of one peer, messages.
	recvQueue = 256
	sendQueue = 256
)

// MaxGap is the longest stretch without a turn that counts as time: a receiver
// that was stopped for longer was not there to listen. Reservation.Config.MaxGap
// should have it.
const MaxGap = 500 * time.Millisecond

// Config is what a Receiver is made of.
type Config struct {
	Listen      string     // endpoint
	Keys        *sock.Keys // of all sockets; may be nil
	ID          string     // of this instance; the engine's names derive from it
	Reservation reservation.Config
	// OpenTarget makes the buffer, which may take seconds, once the endpoint is
	// had. Run closes it.
	OpenTarget func() (rdma.Target, error)

	Sink      bool          // play the decoder: release what is ready
	SinkDelay time.Duration // after this long
	Proxy     string        // endpoint that is told of requests that expire; "" for none

	ShutdownTimeout time.Duration // how long Run may take to end; 0: as long as any request lives

	// Asks are answered each turn. May be nil.
	Asks *monitor.Asks
	// Told, if any, is called in the loop for what happens to each request, at
	// the time of it. It must not block; the record is the callee's until it
	// returns.
	Told func(at time.Time, rec *reservation.Record)

	// Events takes lines of JSON, some at a time, and must not block. The
	// bytes are the callee's until it returns.
	Events func(lines []byte, n int)
	// Warn tells people something on stderr. It must not block; equal kinds may
	// come often.
	Warn func(kind, text string)
}

// Receiver is one running pd-recv.
type Receiver struct {
	cfg      Config
	endpoint string
	started  time.Time

	ctx     *sock.Context
	socket  *zmq4.Socket
	poller  *sock.Poller
	core    *reservation.Machine
	target  rdma.Target
	out     *outbox
	writers *writers
	access  *access
	revoker *revoker
	notify  *notifier // nil without --proxy
	sink    sink
	stat    stat

	waits     *window.Window // first batch until admission
	writeTime *window.Window // admission until ready
	readyTime *window.Window // first batch until ready

	ended     bool                // all requests are, for good
	lull      time.Duration       // how long recvSoon waited last
	now       time.Time           // of the step under way
	next      []reservation.Event // to step after it
	badFrames int64
	// engineRefused are the batches that the core granted and the engine did not.
	engineRefused int64
	buf           []byte // the answer being encoded
	marked        []byte // the same behind its mark
	lines         []byte // events not handed over yet
	lineCount     int
	firstLine     time.Time
	clock         clockFace
}

// New binds the socket. Messages are heard from Run on.
func New(cfg Config) (*Receiver, error) {
	ctx, err := sock.NewContext(cfg.Keys)
	if err != nil {
		return nil, err
	}
	r := newReceiver(cfg)
	r.ctx = ctx
	err = r.openSockets()
	var target rdma.Target
	if err == nil {
		target, err = cfg.OpenTarget()
	}
	if err != nil {
		r.closeSockets(0)
		return nil, err
	}
	r.setTarget(target)
	r.revoker = newRevoker(r.target, r.poller.Wake)
	r.cfg.Asks.WakeBy(r.poller.Wake)
	if cfg.Proxy != "" {
		if r.notify, err = newNotifier(ctx, cfg.Proxy, cfg.Warn); err != nil {
			return nil, errors.Join(err, r.close(0))
		}
	}
	return r, nil
}

// newReceiver is what handles messages, without what carries them.
func newReceiver(cfg Config) *Receiver {
	if cfg.Asks == nil {
		cfg.Asks = monitor.NewAsks(nil)
	}
	return &Receiver{
		cfg:       cfg,
		started:   time.Now(),
		core:      reservation.New(cfg.Reservation),
		waits:     window.New(),
		writeTime: window.New(),
		readyTime: window.New(),
		sink:      sink{on: cfg.Sink, delay: cfg.SinkDelay},
	}
}

func (r *Receiver) setTarget(target rdma.Target) {
	r.target = target
	r.writers = newWriters(target)
	r.access = newAccess(target)
}

func (r *Receiver) openSockets() (err error) {
	if r.poller, err = sock.NewPoller(); err != nil {
		return err
	}
	r.socket, r.endpoint, err = r.ctx.Listen(zmq4.ROUTER, r.cfg.Listen, sock.Options{
		MaxFrame:  wire.MaxMessage,
		RecvQueue: recvQueue,
		SendQueue: sendQueue,
		Prepare: func(s *zmq4.Socket) error {
			return errors.Join(s.SetRouterHandover(true), s.SetRouterMandatory(1), s.SetRcvtimeo(busyWait))
		},
	})
	if err != nil {
		return err
	}
	r.out = newOutbox(newRouter(r.socket))
	return r.poller.Watch(r.socket, zmq4.POLLIN)
}

// Endpoint is where peers connect.
func (r *Receiver) Endpoint() string { return r.endpoint }

// Engines are those by which senders can write, best first.
func (r *Receiver) Engines() []string { return r.target.Engines() }

// WrittenBy says the same for people, and more if the target can tell.
func (r *Receiver) WrittenBy() string {
	if s, ok := r.target.(fmt.Stringer); ok {
		return s.String()
	}
	return strings.Join(r.target.Engines(), ", ")
}

// Run serves until ctx ends, then answers everybody who waits, lets what is
// admitted or ready go its way for a while, ends what is left, and closes all, the
// buffer included, within ShutdownTimeout.
func (r *Receiver) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.poller.Wake)()
	go r.writers.watch(r.poller.Wake)
	busy := false
	for ctx.Err() == nil {
		var err error
		if busy, err = r.turn(busy); err != nil {
			r.endAll()
			return errors.Join(err, r.close(part(cmp.Or(r.cfg.ShutdownTimeout, waitsUnlimited), waitShare)))
		}
	}
	return r.shutdown()
}

// turn waits until there is something to do and does a bounded amount of it.
// Messages that have come are handled before anything expires or any writer is
// taken for gone. It reports whether any had come.
func (r *Receiver) turn(busy bool) (bool, error) {
	now := time.Now()
	read := r.recvSoon
	if !busy || r.quiet(now) < busyWait {
		read = r.ctx.Recv
		if err := r.sleep(now); err != nil {
			return false, err
		}
	}
	gone := r.writers.left()
	busy, err := r.receive(read)
	if err != nil {
		return false, err
	}
	r.pass(gone)
	return busy, nil
}

// pass does what time and the helpers bring, once the messages that came before
// are handled; gone are writers that were gone before those were read.
func (r *Receiver) pass(gone []rdma.Writer) {
	for _, w := range gone {
		r.step(reservation.Gone{Writer: uint64(w)})
	}
	for _, ev := range r.revoker.results.take() {
		r.step(ev)
	}
	for _, e := range r.sink.due(time.Now()) {
		r.step(reservation.Release{Conn: sinkConn, ReqID: e.reqID, Tag: e})
	}
	r.step(reservation.Tick{})
	r.out.flush(r.now)
	r.emitWhenDue()
	r.cfg.Asks.Answer(r.now, r.snapshot)
}

// quiet is for how long nothing is due unless somebody sends something.
func (r *Receiver) quiet(now time.Time) time.Duration {
	d := r.sink.wait(now, r.out.wait(now, idleTick))
	if in, ok := r.core.NextDue(); ok {
		d = min(d, max(in-now.Sub(r.now), 0))
	}
	return d
}

// sleep waits until something comes or is due.
func (r *Receiver) sleep(now time.Time) error {
	d := r.quiet(now)
	if r.lineCount > 0 {
		d = min(d, max(eventDelay-now.Sub(r.firstLine), 0))
	}
	if _, err := r.poller.Wait(d); err != nil {
		return fmt.Errorf("cannot wait for messages: %w", err)
	}
	return nil
}

// receive handles the messages that have come or come soon, a bounded number,
// the first as read gets it. It reports whether there were any.
func (r *Receiver) receive(read func(*zmq4.Socket, int) ([][]byte, error)) (some bool, err error) {
	began := time.Now()
	for range turnMessages {
		frames, err := read(r.socket, maxFrames)
		switch {
		case errors.Is(err, sock.ErrAgain):
			return some, nil
		case errors.Is(err, sock.ErrFrames):
			r.tooLong(frames)
		case err != nil:
			return some, fmt.Errorf("cannot receive: %w", err)
		default:
			r.handle(frames)
		}
		some = true
		r.emitWhenDue()
		switch took := r.now.Sub(began); {
		case took > turnTime:
			return true, nil
		case took > turnWait, r.quiet(r.now) < busyWait:
			read = r.ctx.Recv
		default:
			read = r.recvSoon
		}
	}
	return some, nil
}

// recvSoon gets the next message of a socket that is busy, or ErrAgain after
// busyWait. It spins for one that is likely to come at once: the one before
// came alone and within spinFor. Where many come together, and where they are
// far apart, sleeping is better. (1 client in lockstep: 1.0 of a bare echo and
// more, against 0.8 to 0.93 without; no difference for pipelined ones.)
func (r *Receiver) recvSoon(s *zmq4.Socket, maxFrames int) ([][]byte, error) {
	frames, err := r.ctx.Recv(s, maxFrames)
	if !errors.Is(err, sock.ErrAgain) {
		r.lull = spinFor
		return frames, err
	}
	began := time.Now()
	for r.lull < spinFor && errors.Is(err, sock.ErrAgain) && time.Since(began) < spinFor {
		giveWay()
		frames, err = r.ctx.Recv(s, maxFrames)
	}
	if errors.Is(err, sock.ErrAgain) {
		frames, err = r.ctx.RecvWait(s, maxFrames)
	}
	r.lull = time.Since(began)
	return frames, err
}

// giveWay lets a thread run that waits for this core: ZeroMQ's own, which brings
// what is spun for. (Two cores, 1 client in lockstep: 1.10 times as many
// messages a second.)
func giveWay() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// tooLong takes the first maxFrames of a message that has more.
func (r *Receiver) tooLong(frames [][]byte) {
	env, _, _ := open(frames)
	r.bad(env, &wire.DecodeError{Reason: fmt.Sprintf("message has more than %d frames", maxFrames)})
}

func (r *Receiver) handle(frames [][]byte) {
	env, payload, fault := open(frames)
	if fault != "" {
		r.bad(env, &wire.DecodeError{Reason: fault})
		return
	}
	msg, err := wire.Decode(payload)
	if err != nil {
		r.bad(env, err)
		return
	}
	r.dispatch(env, msg, len(payload)+env.size())
}

// dispatch gives a message to whoever answers it: the core, but for those that
// touch nothing of the core's.
func (r *Receiver) dispatch(env *envelope, msg wire.Message, bytes int) {
	switch m := msg.(type) {
	case *wire.AllocRequest:
		r.step(reservation.Alloc{Sender: env.sender, Tenant: r.tenant(env.sender), Req: m, Size: bytes, Tag: env})
	case *wire.CommitRequest:
		r.step(reservation.Commit{Sender: env.sender, Req: m, Tag: env})
	case *wire.CancelNotif:
		r.step(reservation.Cancel{Sender: env.sender, ReqID: m.ReqID, Tag: env})
	case *wire.Heartbeat:
		r.step(reservation.Heartbeat{Sender: env.sender, Epoch: m.Epoch, Tag: env})
	case *wire.TakeRequest:
		r.step(reservation.Take{Conn: env.sender, ReqID: m.ReqID, Tag: env})
	case *wire.ReleaseRequest:
		r.step(reservation.Release{Conn: env.sender, ReqID: m.ReqID, Keep: m.Keep, Tag: env})
	case *wire.ReadyRequest:
		r.step(reservation.ListReady{Conn: env.sender, Req: m, Tag: env})
	case *wire.AttachRequest:
		r.attach(env, m)
	case *wire.StatRequest:
		r.step(reservation.Heard{Sender: env.sender})
		r.deliver(env, r.encodedSnapshot())
	default:
		r.bad(env, &wire.DecodeError{Field: "type", Reason: fmt.Sprintf("a receiver takes no %T", msg)})
	}
}

// tenant is whose quotas what a sender asks for is on: its key's, for identities
// cost nothing.
func (r *Receiver) tenant(sender string) string {
	if r.cfg.Keys == nil {
		return ""
	}
	return r.ctx.KeyOf(r.socket, sender)
}

// bad counts a message that means nothing here and answers it all the same.
func (r *Receiver) bad(env *envelope, err error) {
	r.badFrames++
	r.cfg.Warn("bad message", fmt.Sprintf("bad message from %q: %v", env.sender, err))
	ev := reservation.Malformed{Sender: env.sender, Reason: err.Error(), Tag: env}
	var fault *wire.DecodeError
	if errors.As(err, &fault) {
		ev.ReqID, ev.Keys = fault.ReqID, min(fault.Keys, wire.MaxKeys)
	}
	r.step(ev)
}

// step gives the core an event, does what it says, and then what that led to.
func (r *Receiver) step(ev reservation.Event) {
	r.apply(ev)
	for len(r.next) > 0 {
		ev, r.next = r.next[0], r.next[1:]
		r.apply(ev)
	}
	r.next = r.next[:0]
}

// apply gives the core an event and does what it says. What the engine then
// cannot do is told before anything else.
func (r *Receiver) apply(ev reservation.Event) {
	for ev != nil {
		ev = r.applyOne(ev)
	}
}

func (r *Receiver) applyOne(ev reservation.Event) (failed reservation.Event) {
	r.now = time.Now()
	fx := r.core.Step(r.now.Sub(r.started), ev)
	unopened := r.access.follow(fx.Doors, fx.Revocations)
	if unopened != nil {
		failed = accessFailed(fx.Doors, unopened)
	}
	for _, a := range fx.Answers { // soon: somebody waits for them
		r.answer(a, unopened)
	}
	for i := range fx.Records {
		r.record(&fx.Records[i])
	}
	for i := range fx.Revocations {
		r.revoker.queue.put(fx.Revocations[i])
	}
	for _, w := range fx.Ended {
		if !r.writers.withdraw(rdma.Writer(w)) {
			r.next = append(r.next, reservation.Gone{Writer: w})
		}
	}
	return failed
}

// answer sends one answer of the core's; unopened are slots that it may tell of
// and that could not be opened.
func (r *Receiver) answer(a reservation.Answer, unopened map[reservation.Door]error) {
	if e, ok := a.Tag.(*sinkEntry); ok {
		if m, ok := a.Msg.(*wire.ReleaseResponse); ok && m.Code == wire.CodeTaken {
			r.sink.taken(e, r.now)
		}
		return
	}
	env, ok := a.Tag.(*envelope)
	if !ok {
		return // nobody waits for it
	}
	if m, ok := a.Msg.(*wire.AllocResponse); ok && (unopened != nil || len(r.access.open) > 0) {
		if g, ok := r.writers.bySender[env.sender]; ok {
			if !r.access.give(g.writer, m, unopened) {
				r.engineRefused++
			}
		}
	}
	taken, ok := a.Msg.(*wire.TakeResponse)
	ok = ok && taken.Code == ""
	if ok {
		r.describe(taken)
	}
	r.buf = wire.Append(r.buf[:0], a.Msg.(wire.Message))
	if ok && len(r.buf) > wire.MaxResponse {
		r.buf = wire.Append(r.buf[:0], r.tooLongToTake(env, taken))
	}
	r.deliver(env, r.buf)
}

// tooLongToTake gives a take back whose chunks make a longer list than an
// answer may be. Such a request can only be dropped.
func (r *Receiver) tooLongToTake(env *envelope, taken *wire.TakeResponse) *wire.TakeResponse {
	r.next = append(r.next, reservation.Release{Conn: env.sender, ReqID: taken.ReqID, Keep: true})
	return &wire.TakeResponse{
		ReqID: taken.ReqID,
		Code:  wire.CodeInternal,
		Error: fmt.Sprintf("the list of %d chunks is over the %d bytes of an answer: send larger chunks", len(taken.Chunks), wire.MaxResponse),
	}
}

func (r *Receiver) deliver(env *envelope, payload []byte) {
	if env.mark != nil {
		r.marked = append(append(r.marked[:0], env.mark...), payload...)
		payload = r.marked
	}
	if !r.out.send(env, payload) {
		r.cfg.Warn("overrun", fmt.Sprintf("peer %q does not read its answers: ended", env.sender))
		r.next = append(r.next, reservation.Overrun{Sender: env.sender})
	}
}

// describe says where a taken request's chunks can be read.
func (r *Receiver) describe(m *wire.TakeResponse) {
	m.SlotCount = int64(r.cfg.Reservation.Slots)
	m.ReceiverID = r.cfg.ID
	var regions []int64
	for _, c := range m.Chunks {
		regions = append(regions, c.Region)
	}
	slices.Sort(regions)
	for _, id := range slices.Compact(regions) {
		m.Regions = append(m.Regions, wire.Region{ID: id})
	}
	token, err := r.target.GrantRead()
	if err != nil {
		r.cfg.Warn("grant", fmt.Sprintf("request %q cannot be read on this host: %v", m.ReqID, err))
	}
	m.Token = token
}

// record tells everybody who listens what happened to a request.
func (r *Receiver) record(rec *reservation.Record) {
	if r.lineCount == 0 {
		r.firstLine = r.now
	}
	r.lines = r.clock.recordLine(r.lines, r.now, rec)
	r.lineCount++
	switch rec.Kind {
	case reservation.Admitted:
		r.waits.Add(r.now.Sub(r.started), rec.Waited)
	case reservation.Ready:
		r.writeTime.Add(r.now.Sub(r.started), rec.Wrote)
		r.readyTime.Add(r.now.Sub(r.started), rec.Took)
		r.sink.add(rec.ReqID, r.now)
	case reservation.Expired:
		if r.notify != nil {
			r.notify.fail(rec.ReqID, rec.Reason)
		}
	}
	if r.cfg.Told != nil {
		r.cfg.Told(r.now, rec)
	}
}

func (r *Receiver) emitWhenDue() {
	if len(r.lines) >= eventBytes || r.lineCount > 0 && r.now.Sub(r.firstLine) >= eventDelay {
		r.emit()
	}
}

// emit hands over the events there are.
func (r *Receiver) emit() {
	if r.lineCount > 0 {
		r.cfg.Events(r.lines, r.lineCount)
		r.lines, r.lineCount = r.lines[:0], 0
	}
}
