package monitor

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	// recvQueue is what ZeroMQ keeps unread of an endpoint, messages. They are
	// read as they come.
	recvQueue = 8

	// maxKept is how many messages with events are kept of an endpoint until
	// they are asked for, and maxKeptBytes how much of them.
	maxKept      = 64
	maxKeptBytes = 4 << 20

	// maxTurn is how many messages of one endpoint are read before the others
	// have their turn.
	maxTurn = 64

	// A connection that is lost is tried again after the first of these, then
	// more and more seldom.
	retryFirst = 250 * time.Millisecond
	retryLast  = 5 * time.Second

	// A peer whose host is gone says no goodbye: it is asked for a sign of life.
	// A program that has stopped does not count as gone so soon.
	heartbeat      = 2 * time.Second
	heartbeatWaits = 10 * time.Second

	// attemptWaits bounds each attempt to connect, and to shake hands then.
	attemptWaits = 5 * time.Second
)

// redialAfter is how long nothing may become of a connection that is lost, not
// even another attempt. ZeroMQ gives up for good on a peer that has broken the
// protocol; but another may come to its address.
var redialAfter = attemptWaits + retryLast + 2*time.Second

// Watcher keeps, of each endpoint that it watches, the newest Snapshot and the
// Events that have come, undecoded until somebody reads them. However much
// comes, it keeps little.
type Watcher struct {
	sources []*source
	changed chan struct{}
	closing atomic.Bool
	done    chan struct{}
	panic   atomic.Pointer[string] // of the goroutine below, told to who reads

	// That of the goroutine that owns the sockets.
	ctx    *sock.Context
	poller *sock.Poller
}

// source is one endpoint.
type source struct {
	endpoint string
	socket   *zmq4.Socket // SUB; nil if it could not be made
	link     *sock.Connection

	mu        sync.Mutex
	snapshot  []byte // the newest, nil once it is read
	kept      [][]byte
	keptBytes int
	state     Reading // all but what is to be decoded
}

// Reading is what an endpoint has told since it was read before, and how it
// is.
type Reading struct {
	Snapshot wire.Message  // the newest, nil if none came
	Events   []*wire.Event // those that came, oldest first
	Lost     int64         // Events, so far, that came and found no room

	Heard     time.Time     // when a Snapshot last came; zero: never
	Pace      time.Duration // between the last two Snapshots; 0 unless there are two
	Connected bool
	Refused   bool   // its keys and ours are why it is not, as Err says
	Retry     int    // attempts to connect since it was connected
	Bad       int64  // messages, so far, that were neither a Snapshot nor an Event
	Err       string // what is wrong with it; empty: nothing
}

// Watch subscribes to the endpoints, with the keys if there are any. One that cannot be watched at all says why
// when it is read; the error is about what none can do without.
func Watch(keys *sock.Keys, endpoints ...string) (*Watcher, error) {
	ctx, err := sock.NewContext(keys)
	if err != nil {
		return nil, err
	}
	w := &Watcher{changed: make(chan struct{}, 1), done: make(chan struct{}), ctx: ctx}
	if w.poller, err = sock.NewPoller(); err != nil {
		ctx.Close()
		return nil, err
	}
	for _, endpoint := range endpoints {
		s := &source{endpoint: endpoint}
		if err := s.open(w); err != nil {
			s.state.Err = err.Error()
			s.close(w)
		}
		w.sources = append(w.sources, s)
	}
	go w.run()
	return w, nil
}

func (s *source) open(w *Watcher) error {
	socket, link, err := w.ctx.DialFollowed(zmq4.SUB, s.endpoint, sock.Options{
		MaxFrame: wire.MaxResponse, RecvQueue: recvQueue, Linger: -1, Meant: "a --monitor", Prepare: prepareSub,
	})
	if err != nil {
		return err
	}
	s.socket, s.link = socket, link
	return errors.Join(w.poller.Watch(s.socket, zmq4.POLLIN), w.poller.Watch(s.link.Socket(), zmq4.POLLIN))
}

// redial begins anew.
func (s *source) redial(w *Watcher) error {
	s.close(w)
	return s.open(w)
}

func prepareSub(s *zmq4.Socket) error {
	return errors.Join(
		s.SetSubscribe(""),
		s.SetReconnectIvl(retryFirst),
		s.SetReconnectIvlMax(retryLast),
		s.SetHeartbeatIvl(heartbeat),
		s.SetHeartbeatTimeout(heartbeatWaits),
		s.SetConnectTimeout(attemptWaits),
		s.SetHandshakeIvl(attemptWaits),
	)
}

func (s *source) close(w *Watcher) {
	if s.socket != nil {
		w.poller.Forget(s.socket)
		w.poller.Forget(s.link.Socket())
		s.socket.Close()
		s.link.Close()
	}
	s.socket, s.link = nil, nil
}

// Changed gets a value after something has come, or a connection was made or
// lost.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close ends it. What was not read is lost.
func (w *Watcher) Close() {
	w.closing.Store(true)
	w.poller.Wake()
	<-w.done
}

func (w *Watcher) run() {
	defer close(w.done)
	defer w.caught()
	defer w.closeSockets()
	for !w.closing.Load() {
		if err := w.turn(); err != nil {
			for _, s := range w.sources {
				s.fail(fmt.Sprintf("nothing is read any more: %v", err))
			}
			w.tell()
			return
		}
	}
}

// caught passes a panic on, so that it comes to who knows what to do before the
// process ends.
func (w *Watcher) caught() {
	if r := recover(); r != nil {
		text := fmt.Sprintf("%v\n%s", r, debug.Stack())
		w.panic.Store(&text)
		w.tell()
	}
}

func (w *Watcher) closeSockets() {
	for _, s := range w.sources {
		s.close(w)
	}
	w.poller.Close()
	w.ctx.Close()
}

// turn waits for something to read and reads it.
func (w *Watcher) turn() error {
	if _, err := w.poller.Wait(w.wait()); err != nil {
		return err
	}
	now := time.Now()
	for _, s := range w.sources {
		if s.socket == nil {
			continue
		}
		s.connection()
		if err := s.messages(); err != nil {
			return err
		}
		if !s.connected() && now.Sub(s.link.Last()) > redialAfter {
			if err := s.redial(w); err != nil {
				s.close(w)
				s.fail(err.Error())
			}
		}
	}
	w.tell()
	return nil
}

// wait is for how long nothing is to be done unless something comes.
func (w *Watcher) wait() time.Duration {
	for _, s := range w.sources {
		if s.socket != nil && !s.connected() {
			return redialAfter
		}
	}
	return -1
}

func (s *source) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Connected
}

func (w *Watcher) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// messages reads what has come.
func (s *source) messages() error {
	for range maxTurn {
		frames, err := sock.Recv(s.socket, 1)
		switch {
		case errors.Is(err, sock.ErrAgain):
			return nil
		case errors.Is(err, sock.ErrFrames):
			s.bad(err)
		case err != nil:
			return err
		default:
			s.take(frames[0], time.Now())
		}
	}
	return nil
}

// take keeps a message, if it is one of those that are published.
func (s *source) take(frame []byte, now time.Time) {
	name, err := wire.NameOf(frame)
	switch {
	case err != nil:
		s.bad(err)
	case name == wire.NameSnapshot:
		s.takeSnapshot(frame, now)
	case name == wire.NameEvent:
		s.takeEvent(frame)
	default:
		s.bad(fmt.Errorf("%.64q is not for monitors", name))
	}
}

func (s *source) takeSnapshot(frame []byte, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Heard.IsZero() {
		s.state.Pace = now.Sub(s.state.Heard)
	}
	s.snapshot, s.state.Heard = frame, now
}

// takeEvent drops older ones where there is no room for it.
func (s *source) takeEvent(frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, frame)
	s.keptBytes += len(frame)
	for len(s.kept) > maxKept || s.keptBytes > maxKeptBytes {
		s.keptBytes -= len(s.kept[0])
		s.kept = s.kept[1:]
		s.state.Lost++
	}
}

// bad counts what is no message for monitors.
func (s *source) bad(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Bad++
	s.state.Err = fmt.Sprintf("%d messages could not be read, the last one: %v", s.state.Bad, err)
	if s.state.Bad == 1 {
		s.state.Err = fmt.Sprintf("a message could not be read: %v", err)
	}
}

func (s *source) fail(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Connected, s.state.Err = false, why
}

// connection reads what has become of the connection.
func (s *source) connection() {
	last := s.link.Last()
	if s.link.Read(); s.link.Last() == last {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Connected, s.state.Retry, s.state.Refused, s.state.Err = s.link.Up(), s.link.Retries(), s.link.Refused(), ""
	if why := s.link.Why(); why != nil {
		s.state.Err = why.Error()
	}
}

// Read takes what an endpoint has told since it was last read. The endpoints
// are counted from 0, in the order of Watch. Any goroutine may call it, but not
// two at a time.
func (w *Watcher) Read(endpoint int) Reading {
	w.rethrow()
	return w.sources[endpoint].read()
}

// Look is how an endpoint is, without what it has told.
func (w *Watcher) Look(endpoint int) Reading {
	w.rethrow()
	s := w.sources[endpoint]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (w *Watcher) rethrow() {
	if text := w.panic.Load(); text != nil {
		panic(*text)
	}
}

func (s *source) read() Reading {
	s.mu.Lock()
	snapshot, kept := s.snapshot, s.kept
	s.snapshot, s.kept, s.keptBytes = nil, nil, 0
	s.mu.Unlock()

	newest := s.decode(snapshot)
	events := s.decodeEvents(kept)

	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.state
	r.Snapshot, r.Events = newest, events
	return r
}

func (s *source) decodeEvents(frames [][]byte) (events []*wire.Event) {
	for _, frame := range frames {
		if e, ok := s.decode(frame).(*wire.Event); ok {
			events = append(events, e)
		}
	}
	return events
}

// decode counts what does not decode, and returns nil for it.
func (s *source) decode(frame []byte) wire.Message {
	if frame == nil {
		return nil
	}
	m, err := wire.Decode(frame)
	if err != nil {
		s.bad(err)
		return nil
	}
	return m
}
