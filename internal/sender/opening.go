package sender

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// opening is one session, from its first AttachRequest on.
type opening struct {
	state      linkState
	ctx        context.Context // ends with the session
	cancel     context.CancelFunc
	socket     *zmq4.Socket
	connection *sock.Connection
	out        [][]byte // correlation and payload of messages ZeroMQ has not taken yet, in turn; nil and all of those in one frame

	oneFrame bool // the receiver takes those

	engines  []string  // that are asked for, best first
	firstAsk uint64    // correlation of the first AttachRequest that asks for them
	failures []failure // of engines that were tried before

	asked       time.Duration // when the last AttachRequest was sent
	heard       time.Time     // when the last answer came; goes on while the process is stopped
	beat        time.Duration // when the last Heartbeat was sent
	beatEvery   time.Duration
	silentSince time.Duration // when the first of own messages was sent that nothing followed; 0: none
	goneAt      time.Duration // when the data connection was seen to have ended; 0: it has not
	writeErr    error         // of a write that saw it

	session *session // nil before up
	epoch   uint64
	lease   time.Duration
	regions map[int64]bool // known to the engine
	pending []parked       // answers that name others
}

// parked is an answer that waits for a region to become known.
type parked struct {
	answered
	updates int // since it came
}

// maxUpdates is after how many updates a region must be known: it was there
// when the answer that names it was sent, and so when the second was asked for.
const maxUpdates = 2

// linkState is how far a session is.
type linkState uint8

const (
	attaching  linkState = iota // asked
	mapping                     // answered; a helper reaches for the memory
	up                          // open
	refreshing                  // open, and asked for the regions of now
	updating                    // open; a helper learns them
)

// begin opens a socket and asks the receiver to attach us.
func (l *link) begin() {
	socket, connection, err := l.ctx.DialFollowed(zmq4.DEALER, l.cfg.endpoint, sock.Options{
		MaxFrame: wire.MaxResponse + wire.MarkLen, Meant: "a pd-recv's --listen", Prepare: prepareDealer,
	})
	if err == nil {
		if err = l.poller.Watch(connection.Socket(), zmq4.POLLIN); err != nil {
			socket.Close()
			connection.Close()
		}
	}
	if err != nil {
		l.cfg.emit(refused{receiver: l.cfg.receiver, err: err, code: codeUnreachable})
		return
	}
	o := &opening{socket: socket, connection: connection, engines: l.cfg.engines}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	l.opening = o
	l.ask()
}

// prepareDealer gives the socket an identity that nobody can guess, and lets it
// take messages only for a live connection: what waits here can still be given
// up.
func prepareDealer(s *zmq4.Socket) error {
	identity := make([]byte, 16)
	if _, err := rand.Read(identity); err != nil {
		return err
	}
	identity[0] |= 1 // identities that begin with 0 are ZeroMQ's own
	return errors.Join(
		s.SetIdentity(string(identity)),
		s.SetImmediate(true),
		s.SetReconnectIvl(redialMin),
		s.SetReconnectIvlMax(redialMax),
	)
}

// ask sends an AttachRequest.
func (l *link) ask() {
	o := l.opening
	o.asked = l.cfg.clock.now()
	o.out = nil // an AttachRequest that found no connection is not worth two
	l.introduce()
}

func (l *link) introduce() {
	l.sendOwn(&wire.AttachRequest{
		Name:      l.cfg.name,
		Version:   wire.ProtocolVersion,
		SlotSize:  l.cfg.memory.slotSize(),
		Engines:   l.opening.engines,
		ByteOrder: hostOrder(),
	})
}

// hostOrder is the byte order of this host, as wire has it.
func hostOrder() string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return wire.LittleEndian
	}
	return wire.BigEndian
}

// gone takes note that the data connection has ended, seen by a write if err is
// not nil. A receiver that has taken its memory back lives, and has ended us;
// of any other only what it said last may tell more.
func (l *link) gone(err error) {
	o := l.opening
	if err != nil {
		o.writeErr = err
	}
	switch {
	case errors.Is(o.cause(), rdma.ErrEnded):
		l.lose(l.ended())
	case o.goneAt == 0:
		o.goneAt = l.cfg.clock.now()
		l.sendOwn(&wire.Heartbeat{Epoch: o.epoch}) // why?
		l.cfg.emit(leaving{o.session})
	}
}

// cause is why the data connection has ended, nil when it has not.
func (o *opening) cause() error {
	if o.session != nil {
		if err := o.session.remote.Cause(); err != nil {
			return err
		}
	}
	return o.writeErr
}

// estranged words why the receiver does not know us any more. It names its
// epoch only to those it knows; but the data connection dies with the receiver
// and not with the lease, unless the receiver ended it and said so.
func (l *link) estranged(epoch uint64) lost {
	o := l.opening
	cause := o.cause()
	switch {
	case epoch != 0 && epoch != o.epoch:
		return lost{code: wire.CodeStaleEpoch, err: fmt.Errorf("%s was restarted: what it had is gone", l.cfg.endpoint)}
	case cause != nil && !errors.Is(cause, rdma.ErrEnded):
		return lost{code: wire.CodeStaleEpoch, err: fmt.Errorf("%s was restarted or cut off, what it had is gone: %w", l.cfg.endpoint, cause)}
	}
	return l.ended()
}

// ended is the loss of a session that a living receiver has ended.
func (l *link) ended() lost {
	return lost{code: wire.CodeStaleEpoch, alive: true, err: fmt.Errorf(
		"%s ended this sender: it was not heard for the lease of %v", l.cfg.endpoint, l.opening.lease)}
}

// deliver hands an answer to the core, once all regions it names are known.
func (l *link) deliver(a parked) {
	o := l.opening
	switch {
	case a.session == nil:
		return // an answer before any question
	case o.knows(a.msg):
		l.cfg.emit(a.answered)
		return
	case a.updates == maxUpdates:
		l.lose(lost{code: wire.CodeInternal, err: fmt.Errorf("%s names a region of memory that it does not describe", l.cfg.endpoint)})
		return
	}
	o.pending = append(o.pending, a)
	if o.state == up {
		o.state = refreshing
		l.introduce()
	}
}

func (o *opening) knows(msg wire.Message) bool {
	resp, ok := msg.(*wire.AllocResponse)
	if !ok {
		return true
	}
	for _, region := range resp.Regions {
		if !o.regions[region] {
			return false
		}
	}
	return true
}

// attachAnswered goes on with a session whose receiver answered. Asked several
// times, it answers as often; what it answers to an earlier choice of engines
// does not matter any more.
func (l *link) attachAnswered(id uint64, resp *wire.AttachResponse) {
	o := l.opening
	switch {
	case id < o.firstAsk:
	case len(o.failures) > 0 && resp.Epoch != 0 && resp.Epoch != o.epoch: // why it was not reached
		l.lose(l.estranged(resp.Epoch))
	case resp.Error != "" || resp.Code != "":
		l.lose(l.refusal(resp))
	case resp.Version != wire.ProtocolVersion:
		l.lose(lost{code: wire.CodeBadRequest, err: fmt.Errorf(
			"%s speaks protocol version %d, this sender %d", l.cfg.endpoint, resp.Version, wire.ProtocolVersion)})
	case !slices.Contains(o.engines, resp.Engine):
		l.lose(lost{code: wire.CodeBadRequest, err: fmt.Errorf(
			"%s wants to be written by %q, this sender asked for %s", l.cfg.endpoint, resp.Engine, strings.Join(o.engines, ", "))})
	case o.state == attaching:
		o.state = mapping
		o.epoch = resp.Epoch
		o.oneFrame = resp.OneFrame
		o.lease = time.Duration(resp.LeaseMS) * time.Millisecond
		o.beat = l.cfg.clock.now()
		o.beatEvery = beatEvery(o.lease, l.cfg.timeout)
		l.help(func() { l.in.put(l.reach(o, resp)) })
	case resp.Epoch != o.epoch:
		l.lose(l.estranged(resp.Epoch))
	case o.state == refreshing:
		o.state = updating
		l.help(func() { l.in.put(updated{o, resp, o.session.remote.Update(regions(resp))}) })
	}
}

// beatEvery is a third of the lease, so that two heartbeats may be lost; and of
// the time-out, so that a receiver that lives is heard within it.
func beatEvery(lease, timeout time.Duration) time.Duration {
	every := beatDefault
	for _, d := range []time.Duration{lease, timeout} {
		if d > 0 {
			every = min(every, d/3)
		}
	}
	return max(every, time.Millisecond)
}

func (o *opening) learn(resp *wire.AttachResponse) {
	o.regions = make(map[int64]bool, len(resp.Regions))
	for _, r := range resp.Regions {
		o.regions[r.ID] = true
	}
}

// mapped opens the session, unless it is over already.
func (l *link) mapped(m mapped) {
	o := m.opening
	switch {
	case l.opening != o:
		if m.remote != nil {
			l.help(func() { _ = m.remote.Close() }) // its session is over: nobody cares
		}
		return
	case m.misfit != nil:
		l.lose(lost{err: m.misfit, code: wire.CodeBadRequest})
		return
	case m.err != nil:
		l.unmapped(m.resp.Engine, m.err)
		return
	}
	l.anew = 0
	o.state = up
	o.learn(m.resp)
	o.engines = []string{m.resp.Engine} // asked again, the receiver is to stay with it
	o.session = &session{
		receiver: l.cfg.receiver,
		engine:   m.resp.Engine,
		remote:   m.remote,
		ctx:      o.ctx,
		epoch:    m.resp.Epoch,
		slots:    m.resp.SlotCount,
		slotSize: m.resp.SlotSize,
	}
	o.session.heard.Store(int64(l.cfg.clock.now()))
	l.help(func() {
		select {
		case <-m.remote.Done():
			l.in.put(targetGone{o})
		case <-o.ctx.Done():
		}
	})
	l.cfg.emit(attached{o.session, l.cfg.memory.slots(), l.writesBy()})
}

// updated delivers the answers that waited for new regions.
func (l *link) updated(u updated) {
	o := u.opening
	switch {
	case l.opening != o:
		return
	case u.err != nil:
		l.lose(lost{code: wire.CodeInternal, err: fmt.Errorf("cannot reach new memory of %s: %w", l.cfg.endpoint, u.err)})
		return
	}
	o.state = up
	o.learn(u.resp)
	pending := o.pending
	o.pending = nil
	for _, a := range pending {
		if l.opening == o { // else the one before ended it
			a.updates++
			l.deliver(a)
		}
	}
}

// lose ends the session and tells the core why. One that was not open yet is
// refused.
func (l *link) lose(ev lost) {
	o := l.opening
	if o == nil {
		return
	}
	if o.session != nil {
		ev.session = o.session
		// Before the writes under way end with the session: they would only say
		// that they were called off, and not why.
		l.cfg.emit(ev)
		l.drop()
		return
	}
	heard := !o.heard.IsZero()
	l.drop()
	if ev.code == wire.CodeStaleEpoch && l.anew < maxAnew {
		l.anew++
		l.begin()
		return
	}
	l.anew = 0
	l.cfg.emit(refused{receiver: l.cfg.receiver, err: ev.err, code: ev.code, heard: heard})
}

// drop ends the session. The core gives up its memory when no job uses it.
func (l *link) drop() {
	o := l.opening
	l.opening = nil
	o.cancel()
	l.poller.Forget(o.socket)
	o.socket.Close()
	l.poller.Forget(o.connection.Socket())
	o.connection.Close()
}
