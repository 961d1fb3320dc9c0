// Package monitor carries the state of a program to those who watch it. Asks
// get a Snapshot out of a program's loop; a Publisher sends Snapshots and
// Events to every subscriber of an endpoint.
//
// Nothing here can hold up the loop: what it gives is a value, encoded and sent
// by the Publisher's goroutine, and a subscriber that is slow or has stopped
// misses messages, nothing else.
package monitor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	// maxEvents is how many entries an Event has at most, the newest.
	maxEvents = 200

	// sendQueue is what ZeroMQ keeps for a subscriber that does not read,
	// messages. One more than the newest is of little use.
	sendQueue = 4

	// maxSubscription is the largest frame of a subscriber, bytes: room for what it
	// says of itself at first.
	maxSubscription = 64
	// maxSubscriptions are handled before something is sent.
	maxSubscriptions = 1024
	// maxTopics bounds what subscriptions to single topics have ZeroMQ keep, bytes
	// of them. When any subscriber leaves it goes through all of it, inside the one
	// call that receives: with 16 KiB and a hundred that left a second, on a busy
	// machine, that call did not end any more, and what came meanwhile took 100 MiB.
	// No monitor has any topics.
	maxTopics = 1 << 10
	// reopenTime is how long the endpoint may take to be free again.
	reopenTime = 5 * time.Second
)

// Config says what a Publisher publishes.
type Config struct {
	Endpoint string
	Kind     string // wire.KindReceiver, KindSender or KindProxy
	ID       string // as in the Snapshots
	Epoch    uint64 // as in the Snapshots
	// Ask asks for a Snapshot: Asks.Add.
	Ask  func(func(wire.Message))
	Keys *sock.Keys // may be nil
	// Warn, if any, tells people on stderr that nothing is published any more.
	Warn func(kind, text string)
}

// Publisher sends to subscribers what a program is and does. While there are
// none it asks for nothing and keeps nothing.
type Publisher struct {
	cfg      Config
	endpoint string
	watched  atomic.Bool
	closing  atomic.Bool
	done     chan struct{}

	ctx    *sock.Context
	socket *zmq4.Socket // XPUB, so that it is known whether anybody listens
	poller *sock.Poller
	pace   pace
	topics int  // bytes of single topics subscribed to, since the socket was opened
	asking bool // an answer to Ask is still to come
	buf    []byte

	mu       sync.Mutex
	snapshot wire.Message // the answer, once it has come
	events   []wire.EventEntry
	oldest   int // of events, once they are as many as may be
	dropped  int64
}

// Listen binds the endpoint and publishes from then on. The error names the
// endpoint.
func Listen(cfg Config) (*Publisher, error) {
	p := &Publisher{cfg: cfg, done: make(chan struct{})}
	ctx, err := sock.NewContext(cfg.Keys) // with an I/O thread that is not the transfers'
	if err != nil {
		return nil, err
	}
	p.ctx = ctx
	if err := p.open(); err != nil {
		p.closeSockets()
		return nil, err
	}
	go p.run()
	return p, nil
}

func (p *Publisher) open() (err error) {
	if p.poller, err = sock.NewPoller(); err != nil {
		return err
	}
	p.endpoint, err = p.bind(p.cfg.Endpoint)
	return err
}

func (p *Publisher) bind(endpoint string) (actual string, err error) {
	p.socket, actual, err = p.ctx.Listen(zmq4.XPUB, endpoint, sock.Options{
		MaxFrame:  maxSubscription,
		SendQueue: sendQueue,
		Linger:    -1,
		// Each new subscriber is told of, not only the first.
		Prepare: func(s *zmq4.Socket) error { return s.SetXpubVerbose(1) },
	})
	if err == nil {
		if err = p.poller.Watch(p.socket, zmq4.POLLIN); err != nil {
			p.socket.Close()
			p.socket = nil
		}
	}
	return actual, err
}

// reopen throws out all subscribers: there is no other way to be rid of what one
// has subscribed to. Those that mean well connect anew by themselves.
func (p *Publisher) reopen() error {
	p.poller.Forget(p.socket)
	p.socket.Close()
	p.socket = nil
	p.topics = 0
	p.watched.Store(false)
	p.takeEvents()
	endpoint := sock.SamePort(p.cfg.Endpoint, p.endpoint)
	for end := time.Now().Add(reopenTime); ; time.Sleep(time.Millisecond) { // ZeroMQ closes behind the scenes
		_, err := p.bind(endpoint)
		if err == nil {
			return nil
		}
		if time.Now().After(end) || p.closing.Load() {
			return err
		}
	}
}

func (p *Publisher) closeSockets() {
	if p.poller != nil {
		p.poller.Close()
	}
	if p.socket != nil {
		p.socket.Close()
	}
	p.ctx.Close()
}

// Endpoint is where monitors connect.
func (p *Publisher) Endpoint() string { return p.endpoint }

// Watched says whether somebody is subscribed.
func (p *Publisher) Watched() bool { return p.watched.Load() }

// Event tells those who watch. It may be called by any goroutine and never
// blocks.
func (p *Publisher) Event(e wire.EventEntry) {
	if !p.watched.Load() {
		return
	}
	p.mu.Lock()
	first := len(p.events) == 0
	if len(p.events) < maxEvents {
		p.events = append(p.events, e)
	} else {
		p.events[p.oldest] = e
		p.oldest = (p.oldest + 1) % maxEvents
		p.dropped++
	}
	p.mu.Unlock()
	if first {
		p.poller.Wake()
	}
}

// Close ends it at once: what is unsent is not sent any more.
func (p *Publisher) Close() {
	p.closing.Store(true)
	p.poller.Wake()
	<-p.done
}

func (p *Publisher) run() {
	defer close(p.done)
	defer p.closeSockets()
	defer p.watched.Store(false)
	for !p.closing.Load() {
		if err := p.turn(); err != nil {
			if p.cfg.Warn != nil {
				p.cfg.Warn("monitor", fmt.Sprintf("nothing is published on %s any more: %v", p.endpoint, err))
			}
			return
		}
	}
}

// turn waits until something is to be done and does it.
func (p *Publisher) turn() error {
	if _, err := p.poller.Wait(p.wait(time.Now())); err != nil {
		return err
	}
	if err := p.subscriptions(); err != nil {
		return err
	}
	now := time.Now()
	if m := p.answered(); m != nil {
		p.asking = false
		if p.Watched() {
			p.pace.snapshotSent(now, entries(m))
			return p.send(m)
		}
	}
	if !p.Watched() || p.asking {
		return nil // what an answer says comes before what happens meanwhile
	}
	switch what, _ := p.pace.next(now, p.hasEvents()); what {
	case sendSnapshot:
		p.asking = true
		p.pace.asked()
		p.cfg.Ask(p.answer)
	case sendEvent:
		p.pace.eventSent(now)
		return p.send(p.takeEvents())
	}
	return nil
}

// wait is for how long there is nothing to do unless somebody wakes.
func (p *Publisher) wait(now time.Time) time.Duration {
	if !p.Watched() || p.asking {
		return -1
	}
	_, in := p.pace.next(now, p.hasEvents())
	return in
}

// subscriptions reads who came and went. Messages have no topic: only who
// subscribes to all of them counts.
func (p *Publisher) subscriptions() error {
	for range maxSubscriptions {
		frames, err := p.ctx.Recv(p.socket, 1)
		switch {
		case errors.Is(err, sock.ErrAgain):
			return nil
		case errors.Is(err, sock.ErrFrames): // means nothing
		case err != nil:
			return err
		case p.heard(frames[0]):
			return p.reopen()
		}
	}
	return nil
}

// heard takes what a subscriber says, and says whether it is one topic too many.
func (p *Publisher) heard(frame []byte) (tooMany bool) {
	switch {
	case len(frame) == 1 && frame[0] == 1:
		p.watched.Store(true)
		p.pace.joined(time.Now())
	case len(frame) == 1 && frame[0] == 0: // the last one
		p.watched.Store(false)
		p.takeEvents()
	case len(frame) > 1 && frame[0] == 1:
		p.topics += len(frame)
	}
	return p.topics > maxTopics
}

// answer is what Ask calls, in the program's loop.
func (p *Publisher) answer(m wire.Message) {
	p.mu.Lock()
	p.snapshot = m
	p.mu.Unlock()
	p.poller.Wake()
}

func (p *Publisher) answered() wire.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.snapshot
	p.snapshot = nil
	return m
}

func (p *Publisher) hasEvents() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.events) > 0
}

// takeEvents is what has happened since it was last called.
func (p *Publisher) takeEvents() *wire.Event {
	p.mu.Lock()
	events, oldest, dropped := p.events, p.oldest, p.dropped
	p.events, p.oldest, p.dropped = nil, 0, 0
	p.mu.Unlock()
	return &wire.Event{
		Time: wire.StampOf(time.Now()), Kind: p.cfg.Kind, ID: p.cfg.ID, Epoch: p.cfg.Epoch,
		Events:  append(events[oldest:len(events):len(events)], events[:oldest]...),
		Dropped: dropped,
	}
}

// send hands a message to every subscriber who has room for it.
func (p *Publisher) send(m wire.Message) error {
	p.buf = wire.Append(p.buf[:0], m)
	if err := sock.Send(p.socket, p.buf); err != nil && !errors.Is(err, sock.ErrAgain) {
		return err
	}
	return nil
}

// entries is how long the lists of a Snapshot are together.
func entries(m wire.Message) int {
	switch m := m.(type) {
	case *wire.Snapshot:
		return len(m.Requests) + len(m.Queue) + len(m.Senders)
	case *wire.SenderSnapshot:
		return len(m.Requests) + len(m.Receivers) + len(m.Staging.Blocked)
	case *wire.ProxySnapshot:
		return len(m.Waiting)
	}
	return 0
}
