package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

const (
	// handshakeEvents say how it is that two peers do not, or do, get on.
	handshakeEvents = zmq4.EVENT_HANDSHAKE_SUCCEEDED | zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL |
		zmq4.EVENT_HANDSHAKE_FAILED_AUTH

	// connectionEvents are what a connecting socket can tell of its connection.
	connectionEvents = handshakeEvents | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CONNECT_RETRIED

	// boundEvents are what a socket with keys tells of those who come.
	boundEvents = zmq4.EVENT_ACCEPTED | zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL |
		zmq4.EVENT_DISCONNECTED | zmq4.EVENT_MONITOR_STOPPED
)

// Some numbers that come with EVENT_HANDSHAKE_FAILED_PROTOCOL, of zmq.h.
const (
	failedCryptographic = 0x11000001
	failedMechanism     = 0x11000002
)

// Event is what has happened to a connection.
type Event struct {
	Kind  zmq4.Event
	value int
}

// DialMonitored is Dial, and makes a socket that tells what becomes of the
// connection, from the first attempt on, to be read with RecvEvent, and without
// delay: ZeroMQ waits for its reader. It belongs to the same goroutine and is to
// be closed after the other.
func (c *Context) DialMonitored(t zmq4.Type, endpoint string, o Options) (s, events *zmq4.Socket, err error) {
	return c.dialMonitored(t, endpoint, o, connectionEvents, func(*zmq4.Socket) error { return nil })
}

// dialMonitored calls before when all but the monitor and the connection is made.
func (c *Context) dialMonitored(t zmq4.Type, endpoint string, o Options, which zmq4.Event, before func(*zmq4.Socket) error) (s, events *zmq4.Socket, err error) {
	s, err = c.dial(t, endpoint, o, func(s *zmq4.Socket) (err error) {
		if err = before(s); err == nil {
			events, err = c.monitor(s, which)
		}
		return err
	})
	if err != nil && events != nil {
		events.Close()
	}
	return s, events, err
}

// monitors numbers the inproc endpoints of this process.
var monitors atomic.Uint64

func (c *Context) monitor(s *zmq4.Socket, events zmq4.Event) (*zmq4.Socket, error) {
	endpoint := fmt.Sprintf("inproc://monitor-%d", monitors.Add(1))
	if err := uninterrupted(func() error { return s.Monitor(endpoint, events) }); err != nil {
		return nil, err
	}
	pair, err := c.open(zmq4.PAIR, Options{Linger: -1}, false)
	if err != nil {
		return nil, err
	}
	if err := connect(pair, endpoint); err != nil {
		pair.Close()
		return nil, err
	}
	return pair, nil
}

// RecvEvent reads what has happened to a connection without blocking: ErrAgain
// when that is nothing.
func RecvEvent(s *zmq4.Socket) (Event, error) { return recvEvent(s, zmq4.DONTWAIT) }

func recvEvent(s *zmq4.Socket, flags zmq4.Flag) (Event, error) {
	frames, err := recv(s, 2, flags, nil)
	if err != nil {
		return Event{}, err
	}
	if len(frames[0]) < 6 {
		return Event{}, errors.New("ZeroMQ's event has no number")
	}
	return Event{zmq4.Event(binary.NativeEndian.Uint16(frames[0])), int(binary.NativeEndian.Uint32(frames[0][2:]))}, nil
}

// Handshakes tell why a connecting socket does not come to terms with its peer.
// They belong to the goroutine that owns the socket, which reads them often, and
// are closed after it.
type Handshakes struct {
	keys     *Keys
	endpoint string
	key      string // the peer's, as the socket has it
	events   *zmq4.Socket
	why      error
	broken   int // in a row
	since    time.Time
}

// So many handshakes in a row, and for so long, must be broken off, with keys, to
// mean that the peer does not have the key that we know of it: ZeroMQ itself
// would go on for ever. A peer without keys breaks off too where it is the first
// to see that ours do not fit; it is told by another try, where we are.
const (
	enoughBroken = 3
	brokenFor    = 2 * time.Second
)

// DialFollowed is Dial, and follows the handshakes from the first on: it may be
// the last, for after some that fail ZeroMQ does not try again.
func (c *Context) DialFollowed(t zmq4.Type, endpoint string, o Options) (*zmq4.Socket, *Handshakes, error) {
	h := &Handshakes{keys: c.keys, endpoint: endpoint}
	s, events, err := c.dialMonitored(t, endpoint, o, handshakeEvents, func(s *zmq4.Socket) (err error) {
		if c.keys != nil {
			h.key, err = s.GetCurveServerkeyZ85()
		}
		return err
	})
	h.events = events
	return s, h, err
}

// Socket is to be polled for zmq4.POLLIN.
func (h *Handshakes) Socket() *zmq4.Socket { return h.events }

// Close ends it.
func (h *Handshakes) Close() { h.events.Close() }

// Why is what the last handshake failed by, nil if none has failed since one
// succeeded.
func (h *Handshakes) Why() error { return h.why }

// Outdated says whether the allow file has another key by now for the peer than
// the socket: one made anew would have that.
func (h *Handshakes) Outdated() bool {
	if h.keys == nil {
		return false
	}
	key, err := h.keys.server(h.endpoint)
	return err == nil && key != h.key
}

// Read takes what has happened. It reports whether the peer will not have us:
// there is no use in waiting with this socket then, and Why tells what to do.
func (h *Handshakes) Read() (refused bool) {
	for {
		event, err := RecvEvent(h.events)
		if err != nil {
			return refused
		}
		if event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL {
			if h.broken++; h.broken == 1 {
				h.since = time.Now()
			}
		} else {
			h.broken = 0
		}
		h.why = h.keys.WhyNot(event, h.endpoint)
		protocol := event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL
		if protocol && h.why == nil {
			h.why = fmt.Errorf("%s is an endpoint for something else (ZeroMQ's error %#x)", h.endpoint, event.value)
		}
		refused = protocol || event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_AUTH ||
			h.keys != nil && h.broken >= enoughBroken && time.Since(h.since) >= brokenFor
		if h.broken > 0 && h.Outdated() {
			refused = true
			h.why = fmt.Errorf("%s has another key by now: that of its line in %s is tried", h.endpoint, h.keys.allow.name)
		}
	}
}

// WhyNot says why a connecting socket and its peer do not come to terms, and
// what to do, where keys are why; else nil.
func (k *Keys) WhyNot(event Event, endpoint string) error {
	switch mismatch := event.value == failedMechanism; {
	case event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_AUTH:
		return fmt.Errorf("%s refused our key: add the line in %s.pub to the --curve-allow file there", endpoint, k.fileName())
	case event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL && mismatch && k == nil:
		return fmt.Errorf("%s asks for a key: give --curve-key and --curve-allow", endpoint)
	case event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL && mismatch:
		return fmt.Errorf("%s has no keys: start it with --curve-key, or do without them here", endpoint)
	case event.Kind == zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL && k != nil:
		return fmt.Errorf("%s broke off before it showed the key that we have for it: it has none (start it with --curve-key, or do without them here), or another than its line in %s", endpoint, k.allow.name)
	}
	return nil
}

func (k *Keys) fileName() string {
	if k == nil {
		return ""
	}
	return k.file
}

// watchBound counts those that a bound socket with keys does not let in before
// their key is even asked about (decide does the others), in a goroutine that
// ends with the socket. Who leaves by itself is not counted, nor who is too slow:
// whether it has a key cannot be known then, not even of one without, if it is
// the first to see that we ask for one.
func (c *Context) watchBound(s *zmq4.Socket) error {
	events, err := c.monitor(s, boundEvents)
	if err == nil {
		err = events.SetRcvtimeo(handshakeWithin / 5)
	}
	if err != nil {
		return err
	}
	c.helpers.Go(func() {
		defer events.Close()
		w := strangers{keys: c.keys, here: map[int]stranger{}}
		defer func() { w.forget(time.Now()) }()
		for swept := time.Now(); ; {
			event, err := recvEvent(events, 0)
			switch {
			case errors.Is(err, ErrAgain):
			case err != nil || event.Kind == zmq4.EVENT_MONITOR_STOPPED:
				return
			default:
				w.handle(event, time.Now())
			}
			if now := time.Now(); now.Sub(swept) > handshakeWithin/5 {
				w.forget(now.Add(-2 * handshakeWithin))
				swept = now
			}
		}
	})
	return nil
}

// maxCopies bounds the descriptors that strangers take.
const maxCopies = 16

// strangers are those who have connected of late, by descriptor.
type strangers struct {
	keys   *Keys
	here   map[int]stranger
	copies int
	fault  string // of the one who is disconnected next, which is what ZeroMQ tells then
	kind   string // of the fault, for those that are like it
	failed bool   // it is disconnected before it has shown a key
}

type stranger struct {
	copy int // of its connection's descriptor, so that it can be asked about when it has gone; -1: none
	came time.Time
}

func (w *strangers) handle(event Event, now time.Time) {
	switch event.Kind {
	case zmq4.EVENT_ACCEPTED:
		w.drop(event.value)
		w.here[event.value] = w.meet(event.value, now)
	case zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL:
		w.kind, w.fault = "broken protocol", "it broke the protocol"
		switch event.value {
		case failedMechanism:
			w.kind, w.fault = "no key", "it has no key"
		case failedCryptographic:
			w.kind, w.fault = "another's key", "it takes us for another: it has another public key of ours than the one in "+w.keys.file+".pub"
		}
	case zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
		w.failed = true
	case zmq4.EVENT_DISCONNECTED:
		who, ok := w.here[event.value]
		if !ok {
			who.copy = -1
		}
		switch {
		case !ok || w.fault != "" || !w.failed:
		case now.Sub(who.came) > handshakeWithin*9/10: // a good one that is held up, too
			w.keys.warn("too slow", fmt.Sprintf("%s did not say who it is within %v and was disconnected: it is held up, or it has no key", who.address(), handshakeWithin))
		case !who.silent():
			w.keys.warn("broke off", who.address()+" broke off before it said who it is: it was ended, or it has no key")
		}
		if w.fault != "" {
			w.keys.refuse(w.kind, fmt.Sprintf("refused %s: %s", who.address(), w.fault))
		}
		w.drop(event.value)
		w.fault, w.failed = "", false
	}
}

func (w *strangers) meet(fd int, now time.Time) stranger {
	s := stranger{copy: -1, came: now}
	if w.copies == maxCopies {
		return s
	}
	if fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		s.copy = fd
		w.copies++
	}
	return s
}

func (w *strangers) drop(fd int) {
	if s, ok := w.here[fd]; ok {
		delete(w.here, fd)
		if s.copy >= 0 {
			unix.Close(s.copy)
			w.copies--
		}
	}
}

// forget drops those who came before: whatever became of them is known.
func (w *strangers) forget(before time.Time) {
	for fd, s := range w.here {
		if s.came.Before(before) {
			w.drop(fd)
		}
	}
}

// silent says whether nothing is known to have come from it: it only looked
// whether anybody is here.
func (s stranger) silent() bool {
	if s.copy < 0 {
		return true
	}
	info, err := unix.GetsockoptTCPInfo(s.copy, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.Bytes_received <= 1 // its end counts as one
}

// address is whose the connection is, for people.
func (s stranger) address() string {
	if s.copy >= 0 {
		addr, err := unix.Getpeername(s.copy)
		if err == nil {
			switch a := addr.(type) {
			case *unix.SockaddrInet4:
				return netip.AddrFrom4(a.Addr).String()
			case *unix.SockaddrInet6:
				return netip.AddrFrom16(a.Addr).Unmap().String()
			case *unix.SockaddrUnix:
				return "a process of this host"
			}
		}
	}
	return "somebody who left at once"
}
