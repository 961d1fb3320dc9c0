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
	// connectionEvents are what a connecting socket can tell of its connection.
	connectionEvents = zmq4.EVENT_CONNECTED | zmq4.EVENT_CONNECT_RETRIED | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_HANDSHAKE_SUCCEEDED |
		zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq4.EVENT_HANDSHAKE_FAILED_AUTH

	// boundEvents are what a socket with keys tells of those who come.
	boundEvents = zmq4.EVENT_ACCEPTED | zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL |
		zmq4.EVENT_DISCONNECTED | zmq4.EVENT_MONITOR_STOPPED
)

// Some numbers that come with EVENT_HANDSHAKE_FAILED_PROTOCOL, of zmq.h.
const (
	failedCryptographic = 0x11000001
	failedMechanism     = 0x11000002
)

// event is what has happened to a connection.
type event struct {
	kind  zmq4.Event
	value int
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

func recvEvent(s *zmq4.Socket, flags zmq4.Flag) (event, error) {
	frames, err := recv(s, 2, flags, nil)
	if err != nil {
		return event{}, err
	}
	if len(frames[0]) < 6 {
		return event{}, errors.New("ZeroMQ's event has no number")
	}
	return event{zmq4.Event(binary.NativeEndian.Uint16(frames[0])), int(binary.NativeEndian.Uint32(frames[0][2:]))}, nil
}

// Connection tells what becomes of a connecting socket's connection, from the
// first attempt on, and why there is none. It belongs to the goroutine that owns
// the socket, which reads it without delay, as ZeroMQ waits for its reader, and
// is closed after that.
type Connection struct {
	keys     *Keys
	endpoint string
	meant    string
	key      string // the peer's, as the socket has it
	events   *zmq4.Socket
	within   time.Duration // how long ZeroMQ lets a handshake take

	last     time.Time
	up       bool
	retries  int
	why      error
	refused  bool // by keys
	hopeless bool
	reached  time.Time // when the handshake began; zero: nobody took the last attempt to connect
	failed   bool      // the handshake has, and the connection ends next
	broken   int       // in a row
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

// DialFollowed is Dial, and follows the connection from the first attempt on: it
// may be the last, for after some that fail ZeroMQ does not try again.
func (c *Context) DialFollowed(t zmq4.Type, endpoint string, o Options) (*zmq4.Socket, *Connection, error) {
	n := &Connection{keys: c.keys, endpoint: endpoint, meant: o.Meant, last: time.Now()}
	s, err := c.dial(t, endpoint, o, func(s *zmq4.Socket) (err error) {
		if c.keys != nil {
			n.key, err = s.GetCurveServerkeyZ85()
		}
		if err == nil {
			n.within, err = s.GetHandshakeIvl()
		}
		if err == nil {
			n.events, err = c.monitor(s, connectionEvents)
		}
		return err
	})
	if err != nil && n.events != nil {
		n.events.Close()
	}
	return s, n, err
}

// Socket is to be polled for zmq4.POLLIN.
func (n *Connection) Socket() *zmq4.Socket { return n.events }

// Close ends it.
func (n *Connection) Close() { n.events.Close() }

// Up says whether there is a connection.
func (n *Connection) Up() bool { return n.up }

// Retries is how many attempts to connect there were since there was a
// connection.
func (n *Connection) Retries() int { return n.retries }

// Why is what the last handshake failed by, nil if none has failed since one
// succeeded, or since nobody listens there.
func (n *Connection) Why() error { return n.why }

// Refused says whether the keys of the two are that.
func (n *Connection) Refused() bool { return n.refused }

// Outdated says whether the allow file has another key by now for the peer than
// the socket: one made anew would have that.
func (n *Connection) Outdated() bool {
	if n.keys == nil {
		return false
	}
	key, err := n.keys.server(n.endpoint)
	return err == nil && key != n.key
}

// Last is when something last happened, at first the dial.
func (n *Connection) Last() time.Time { return n.last }

// Read takes what has happened. It reports whether the peer will not have us:
// there is no use in waiting with this socket then, and Why tells what to do.
func (n *Connection) Read() (hopeless bool) {
	for {
		ev, err := recvEvent(n.events, zmq4.DONTWAIT)
		if err != nil {
			return n.hopeless
		}
		n.last = time.Now()
		n.take(ev, n.last)
	}
}

func (n *Connection) take(ev event, now time.Time) {
	switch ev.kind {
	case zmq4.EVENT_CONNECTED:
		n.reached, n.failed, n.hopeless = now, false, false
	case zmq4.EVENT_CONNECT_RETRIED:
		if n.retries++; n.reached.IsZero() {
			n.why, n.refused, n.broken = nil, false, 0
		}
		n.reached = time.Time{}
	case zmq4.EVENT_HANDSHAKE_SUCCEEDED:
		n.up, n.retries, n.why, n.refused, n.broken = true, 0, nil, false, 0
	case zmq4.EVENT_DISCONNECTED:
		if !n.up && !n.failed { // ZeroMQ's word for a socket of a type that ours does not talk to
			n.why, n.refused, n.broken, n.hopeless = fmt.Errorf("%s is an endpoint for something else: give that of %s", n.endpoint, n.meant), false, 0, true
		}
		n.up = false
	default:
		n.up, n.failed = false, true
		n.fail(ev, now)
	}
}

// fail takes a handshake that has failed.
func (n *Connection) fail(ev event, now time.Time) {
	n.hopeless, n.refused = true, true
	broken := n.broken
	n.broken = 0
	switch {
	case ev.kind == zmq4.EVENT_HANDSHAKE_FAILED_AUTH:
		n.why = fmt.Errorf("%s refused our key: add the line in %s.pub to the --curve-allow file there", n.endpoint, n.keys.fileName())
	case ev.kind == zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL && ev.value != failedMechanism:
		n.why, n.refused = fmt.Errorf("%s is an endpoint for something else (ZeroMQ's error %#x): give that of %s", n.endpoint, ev.value, n.meant), false
	case ev.kind == zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL && n.keys == nil:
		n.why = fmt.Errorf("%s asks for a key: give --curve-key and --curve-allow", n.endpoint)
	case ev.kind == zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL:
		n.why = fmt.Errorf("%s has no keys: start it with --curve-key, or do without them here", n.endpoint)
	case now.Sub(n.reached) > n.within*9/10:
		n.why = fmt.Errorf("%s lets us connect and says nothing: it has stopped, or is no endpoint of %s", n.endpoint, n.meant)
		n.refused, n.hopeless = false, false
	case n.keys == nil:
		n.why = fmt.Errorf("%s broke off before it let us in: it asks for a key (give --curve-key and --curve-allow), has ended, or is no endpoint of %s", n.endpoint, n.meant)
		n.refused, n.hopeless = false, false
	default:
		if n.broken = broken + 1; n.broken == 1 {
			n.since = now
		}
		n.why = fmt.Errorf("%s broke off before it showed the key that we have for it: it has none (start it with --curve-key, or do without them here), or another than its line in %s", n.endpoint, n.keys.allow.name)
		n.hopeless = n.broken >= enoughBroken && now.Sub(n.since) >= brokenFor
		if n.Outdated() {
			n.why, n.hopeless = fmt.Errorf("%s has another key by now: that of its line in %s is tried", n.endpoint, n.keys.allow.name), true
		}
	}
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
			ev, err := recvEvent(events, 0)
			switch {
			case errors.Is(err, ErrAgain):
			case err != nil || ev.kind == zmq4.EVENT_MONITOR_STOPPED:
				return
			default:
				w.handle(ev, time.Now())
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

func (w *strangers) handle(ev event, now time.Time) {
	switch ev.kind {
	case zmq4.EVENT_ACCEPTED:
		w.drop(ev.value)
		w.here[ev.value] = w.meet(ev.value, now)
	case zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL:
		w.kind, w.fault = "broken protocol", "it broke the protocol"
		switch ev.value {
		case failedMechanism:
			w.kind, w.fault = "no key", "it has no key"
		case failedCryptographic:
			w.kind, w.fault = "another's key", "it takes us for another: it has another public key of ours than the one in "+w.keys.file+".pub"
		}
	case zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
		w.failed = true
	case zmq4.EVENT_DISCONNECTED:
		who, ok := w.here[ev.value]
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
		w.drop(ev.value)
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
