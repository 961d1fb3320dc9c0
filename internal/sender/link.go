package sender

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	// attachRetry is how often a receiver that does not answer is asked anew: it
	// may have come up, or gone and come back, since.
	attachRetry = time.Second

	// maxAnew is how often in a row a session whose lease ran out before it was
	// open is begun anew: nothing was asked in it.
	maxAnew = 5

	// lastWords is how long answers are still read from a receiver whose data
	// connection has ended: it may have said why.
	lastWords = 500 * time.Millisecond

	// beatDefault is how often a heartbeat goes out where neither the lease nor
	// the time-out asks for one.
	beatDefault = 5 * time.Second

	// Without a connection ZeroMQ dials anew after redialMin, doubling up to
	// redialMax.
	redialMin = 50 * time.Millisecond
	redialMax = time.Second

	// ownIDs are the correlations of the link's own messages; those of the
	// core's flights are below.
	ownIDs = uint64(1) << 63

	// answerFrames is what an answer has: correlation, delimiter, payload.
	answerFrames = 3
)

// linkConfig is what a link goes by.
type linkConfig struct {
	receiver int
	endpoint string
	name     string        // of this sender, for people
	engines  []string      // that may be written by, best first
	fabric   rdma.Fabric   // of an engine across hosts
	timeout  time.Duration // silence after which a session is over; 0: none
	memory   *buffer
	clock    *clock
	attach   attachFunc
	emit     func(event any) // to the core
}

// link is the connection to one receiver. Its goroutine owns the DEALER socket:
// it attaches, keeps the lease alive, carries messages and answers, and sees
// when the receiver is gone or is another than before. It knows nothing of
// requests. What may take long, reaching for the receiver's memory, it leaves
// to helpers; so neither that nor any source or copy holds a heartbeat back.
//
// A session begins with a socket of its own and a new identity and ends with
// both: nothing of an old one can be taken for the new one's.
type link struct {
	cfg     linkConfig
	ctx     *sock.Context
	poller  *sock.Poller
	in      *mailbox[any] // orders and what helpers report
	spare   []any
	helpers sync.WaitGroup
	ids     uint64 // of own messages, below ownIDs
	opening *opening
	anew    int // sessions in a row that were lost before they were open
	closed  bool
}

// Orders to a link, and what its helpers report.
type (
	orderAttach  struct{}
	orderAbandon struct{ session *session }
	orderGone    struct {
		session *session
		err     error
	}
	orderClose struct{}
	orderSend  struct {
		session *session
		id      uint64
		msg     wire.Message
	}
	mapped struct {
		opening *opening
		resp    *wire.AttachResponse
		remote  rdma.Remote
		err     error // of the engine
		misfit  error // the receiver cannot be ours, whatever the engine
	}
	updated struct {
		opening *opening
		resp    *wire.AttachResponse
		err     error
	}
	targetGone struct{ opening *opening }
)

func newLink(ctx *sock.Context, cfg linkConfig) (*link, error) {
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, err
	}
	return &link{cfg: cfg, ctx: ctx, poller: poller, in: &mailbox[any]{wake: poller.Wake}}, nil
}

// run is the link's goroutine. It returns after orderClose, all sockets closed.
func (l *link) run() {
	defer l.poller.Close()
	for {
		if err := l.wait(); err != nil {
			l.lose(lost{err: fmt.Errorf("cannot wait for %s: %w", l.cfg.endpoint, err), code: wire.CodeInternal})
		}
		l.spare = l.in.take(l.spare)
		for _, ev := range l.spare {
			l.handle(ev)
		}
		if l.closed {
			l.shut()
			return
		}
		l.read()
		l.tick()
		l.flush()
	}
}

// wait returns when there is something to do.
func (l *link) wait() (err error) {
	o := l.opening
	if o == nil {
		_, err = l.poller.Wait(-1)
		return err
	}
	events := zmq4.POLLIN
	if len(o.out) > 0 {
		events |= zmq4.POLLOUT
	}
	if err := l.poller.Watch(o.socket, events); err != nil {
		return err
	}
	_, err = l.poller.Wait(max(0, l.nextTick()-l.cfg.clock.now()))
	return err
}

func (l *link) handle(ev any) {
	switch ev := ev.(type) {
	case orderAttach:
		if l.opening == nil {
			l.begin()
		}
	case orderSend:
		if o := l.opening; o != nil && o.session == ev.session {
			l.send(ev.id, ev.msg)
		}
	case orderAbandon:
		if o := l.opening; o != nil && o.session == ev.session {
			l.drop()
		}
	case orderGone:
		if o := l.opening; o != nil && o.session == ev.session {
			l.gone(ev.err)
		}
	case orderClose:
		l.closed = true
	case mapped:
		l.mapped(ev)
	case updated:
		l.updated(ev)
	case targetGone:
		if l.opening == ev.opening {
			l.gone(nil)
		}
	}
}

func (l *link) sendOwn(msg wire.Message) {
	l.ids++
	l.send(ownIDs|l.ids, msg)
}

func (l *link) send(id uint64, msg wire.Message) {
	o := l.opening
	marked := wire.Append(wire.AppendMark(nil, id), msg)
	if o.oneFrame && len(marked) <= wire.MaxMessage { // a frame is as large as a message may be
		o.out = append(o.out, nil, marked)
	} else {
		o.out = append(o.out, binary.BigEndian.AppendUint64(nil, id), marked[wire.MarkLen:])
	}
	l.flush()
}

// flush gives ZeroMQ what it takes.
func (l *link) flush() {
	o := l.opening
	if o == nil {
		return
	}
	sent := 0
	for ; sent < len(o.out); sent += 2 {
		frames := [][]byte{o.out[sent], nil, o.out[sent+1]}
		if frames[0] == nil {
			frames = frames[2:]
		}
		if err := sock.Send(o.socket, frames...); err != nil {
			break // no room, or no connection: later, or never
		}
	}
	o.out = o.out[sent:]
}

// unfit ends a session whose receiver does not get on with our socket. With the
// key that the allow file has by now a new one may.
func (l *link) unfit() {
	o := l.opening
	switch outdated := o.connection.Outdated(); {
	case outdated && o.session == nil:
		l.drop()
		l.begin()
	case outdated:
		l.lose(lost{code: wire.CodeStaleEpoch, err: fmt.Errorf("%s was restarted, with another key: what it had is gone", l.cfg.endpoint)})
	default:
		l.lose(lost{err: o.connection.Why(), code: codeUnreachable})
	}
}

// read takes the answers that have come.
func (l *link) read() {
	for o := l.opening; o != nil && o == l.opening; {
		frames, err := sock.Recv(o.socket, answerFrames)
		if errors.Is(err, sock.ErrAgain) {
			if o.connection.Read() {
				l.unfit()
			}
			return
		}
		if err == nil {
			err = l.receive(frames)
		}
		if err != nil {
			l.lose(lost{err: fmt.Errorf("cannot understand %s: %w", l.cfg.endpoint, err), code: wire.CodeInternal})
		}
	}
}

func (l *link) receive(frames [][]byte) error {
	o := l.opening
	id, payload, err := split(frames)
	if errors.Is(err, errUnmarked) && o.oneFrame {
		l.lose(l.estranged(0)) // an older receiver has taken the place of the one that takes them
		return nil
	}
	if err != nil {
		return err
	}
	msg, err := wire.Decode(payload)
	if err != nil {
		return err
	}
	o.silentSince, o.heard = 0, time.Now()
	if o.session != nil {
		o.session.heard.Store(int64(l.cfg.clock.now()))
	}
	switch msg := msg.(type) {
	case *wire.AttachResponse:
		l.attachAnswered(id, msg)
	case *wire.AllocResponse:
		if msg.Code == wire.CodeStaleEpoch || msg.Epoch != 0 && msg.Epoch != o.epoch {
			l.lose(l.estranged(msg.Epoch))
			return nil
		}
		if id >= ownIDs && msg.Code == wire.CodeShuttingDown {
			l.lose(lost{code: msg.Code, err: fmt.Errorf("%s: %s", l.cfg.endpoint, msg.Error)})
			return nil
		}
		if id < ownIDs {
			l.deliver(parked{answered: answered{o.session, id, msg}})
		}
	case *wire.CommitResponse:
		if msg.Code == wire.CodeStaleEpoch {
			l.lose(l.estranged(0))
			return nil
		}
		l.deliver(parked{answered: answered{o.session, id, msg}})
	default:
		return fmt.Errorf("a %T is no answer", msg)
	}
	return nil
}

// errUnmarked: what takes our messages in one frame has answered otherwise.
var errUnmarked = errors.New("an answer of one frame does not begin with its correlation")

// split finds what an answer belongs to.
func split(frames [][]byte) (id uint64, payload []byte, err error) {
	switch {
	case len(frames) == 1:
		mark, payload := wire.CutMark(frames[0])
		if mark == nil {
			return 0, nil, errUnmarked
		}
		return wire.Correlation(mark), payload, nil
	case len(frames) == 2 && len(frames[0]) == 0:
		return 0, nil, errors.New("it carries no correlation back, as LMCache's receiver does not: pd-send needs pd-recv there")
	case len(frames) != answerFrames || len(frames[0]) != 8 || len(frames[1]) != 0:
		return 0, nil, fmt.Errorf("an answer has %d frames and not correlation, delimiter, payload", len(frames))
	}
	return binary.BigEndian.Uint64(frames[0]), frames[2], nil
}

func (l *link) help(f func()) {
	l.helpers.Add(1)
	go func() {
		defer l.helpers.Done()
		f()
	}()
}

// tick does what is due.
func (l *link) tick() {
	o := l.opening
	if o == nil {
		return
	}
	now := l.cfg.clock.now()
	switch {
	case o.goneAt != 0 && now-o.goneAt >= lastWords:
		l.lose(lost{code: codeUnreachable, err: fmt.Errorf("%s: %w", l.cfg.endpoint, cmp.Or(o.cause(), rdma.ErrGone))})
	case l.cfg.timeout > 0 && o.silentSince != 0 && now-o.silentSince >= l.cfg.timeout:
		l.lose(lost{code: codeUnreachable, err: cmp.Or(o.connection.Why(), fmt.Errorf(
			"%s has not answered for %v: it is stopped or unreachable", l.cfg.endpoint, l.cfg.timeout))})
	case o.state == attaching && now-o.asked >= attachRetry:
		l.ask()
	case o.state != attaching && now-o.beat >= o.beatEvery:
		o.beat = now
		if o.silentSince == 0 {
			o.silentSince = now
		}
		l.sendOwn(&wire.Heartbeat{Epoch: o.epoch})
	}
}

// nextTick is when tick has something to do next.
func (l *link) nextTick() time.Duration {
	o := l.opening
	if o.state == attaching {
		return o.asked + attachRetry
	}
	next := o.beat + o.beatEvery
	if o.goneAt != 0 {
		next = min(next, o.goneAt+lastWords)
	}
	if o.silentSince != 0 && l.cfg.timeout > 0 {
		next = min(next, o.silentSince+l.cfg.timeout)
	}
	return next
}

// shut ends the link. What ZeroMQ has taken goes out within the socket's linger.
func (l *link) shut() {
	if l.opening != nil {
		l.flush()
		l.drop()
	}
	l.helpers.Wait()
	for _, ev := range l.in.take(nil) {
		if m, ok := ev.(mapped); ok {
			l.handle(m)
		}
	}
	l.helpers.Wait()
}
