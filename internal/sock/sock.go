// Package sock sets up ZeroMQ sockets, in one place: time-outs, queue sizes,
// endpoints, and the errors that people see when one cannot be had. It knows
// nothing of messages. Start at Context.Listen and Context.Dial; a loop reads
// with Recv, writes with Send, and waits and is woken by a Poller. Who may
// connect to a Context that has Keys is decided in zap.go.
//
// A ZeroMQ socket belongs to one goroutine, from Listen or Dial to Close.
package sock

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
)

// What Options mean when they are zero.
const (
	DefaultMaxFrame = 1 << 20     // bytes
	DefaultQueue    = 64          // messages a peer, each way
	DefaultLinger   = time.Second // for what is still unsent at Close
)

// leastFrame is the least limit of a frame with keys, bytes: what is said of them
// at the start of a connection must come through.
const leastFrame = 4096

// A connection that is idle for keepaliveIdle is probed keepaliveCount times,
// keepaliveEvery apart; then it counts as gone. Seconds.
const (
	keepaliveIdle  = 30
	keepaliveEvery = 10
	keepaliveCount = 3
)

// ErrAgain says that a socket has nothing to read, or no room to write, now.
var ErrAgain = errors.New("would block")

// ErrUnreachable says that a ROUTER has no connection to the peer named in the
// first frame (only with SetRouterMandatory).
var ErrUnreachable = errors.New("peer is not connected")

// ErrFrames says that a message had more frames than the reader takes. The
// message is gone.
var ErrFrames = errors.New("message has too many frames")

// Options of one socket. The zero value is ready to use.
type Options struct {
	MaxFrame  int64         // largest frame taken, bytes; a peer that sends a larger one is disconnected by ZeroMQ
	RecvQueue int           // messages ZeroMQ keeps unread, a peer
	SendQueue int           // messages ZeroMQ keeps unsent, a peer
	Linger    time.Duration // how long Context.Close waits for unsent messages; negative: not at all
	Meant     string        // where a followed connection should lead, for people: "a pd-recv's --listen"
	// Prepare, if any, sets further options before the socket is bound or
	// connected: identity, subscriptions, ROUTER_MANDATORY.
	Prepare func(*zmq4.Socket) error
}

// Context owns the sockets of a process, or of a part of it.
type Context struct {
	zmq   *zmq4.Context
	keys  *Keys         // nil: none
	zap   *Poller       // of who decides who may connect, if somebody does
	files []string      // paths of the ipc endpoints, to be removed
	stop  func()        // ends what goes on beside the sockets
	ended chan struct{} // closed by stop

	helpers sync.WaitGroup // goroutines that have sockets

	mu    sync.Mutex
	gates []*gate // of the bound sockets; with keys
}

// leastFiles is how many open files a process must be allowed: ZeroMQ aborts it
// when one of its own cannot be had.
const leastFiles = 32

// NewContext fails only when the process is out of file descriptors or threads.
// All that is bound or connected with it uses the keys, if there are any.
func NewContext(keys *Keys) (*Context, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < leastFiles {
		return nil, fmt.Errorf("cannot start ZeroMQ: at most %d files may be open, it needs %d: raise the limit (ulimit -n)", files.Cur, leastFiles)
	}
	c, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("cannot start ZeroMQ: %w", err)
	}
	// zmq4 would begin an interrupted wait anew with its full time-out; signals
	// that keep coming would make it endless. We go on with what is left of it.
	c.SetRetryAfterEINTR(false)
	stop := make(chan struct{})
	go tidy(stop)
	unused := keys.use()
	return &Context{zmq: c, keys: keys, ended: stop, stop: sync.OnceFunc(func() {
		close(stop)
		unused()
	})}, nil
}

// Close waits until what closed sockets have left to send is sent or their
// linger has passed. All sockets must have been closed. It removes the files of
// ipc endpoints: ZeroMQ leaves them.
func (c *Context) Close() error {
	c.stop()
	if c.zap != nil {
		c.zap.Wake()
	}
	c.helpers.Wait()
	for _, file := range c.files {
		_ = os.Remove(file) // the next one to listen there replaces it
	}
	c.zmq.SetRetryAfterEINTR(true) // zmq4 lets nobody else call it again
	return c.zmq.Term()
}

// uninterrupted calls again what a signal has interrupted.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !interrupted(err) {
			return err
		}
	}
}

func interrupted(err error) bool {
	return err != nil && zmq4.AsErrno(err) == zmq4.Errno(syscall.EINTR)
}

// Listen makes a bound socket. It returns the endpoint that peers can use:
// with the port that was taken for "*" or 0, and this host's address for a
// wildcard. The error names the endpoint and, where it is known, the cure.
func (c *Context) Listen(t zmq4.Type, endpoint string, o Options) (*zmq4.Socket, string, error) {
	addr, err := parseListen(endpoint)
	if err != nil {
		return nil, "", err
	}
	if err := addr.resolveToBind(); err != nil {
		return nil, "", fmt.Errorf("cannot listen on %s: %w", endpoint, err)
	}
	s, err := c.open(t, o, addr.wantsIPv6())
	if err != nil {
		return nil, "", fmt.Errorf("cannot listen on %s: %w", endpoint, err)
	}
	var actual string
	if err = errors.Join(s.SetHandshakeIvl(handshakeWithin), c.guard(s, t)); err == nil {
		actual, err = bind(s, addr)
	}
	if err != nil {
		s.Close()
		return nil, "", fmt.Errorf("cannot listen on %s: %w", endpoint, err)
	}
	if addr.scheme == "ipc" && !strings.HasPrefix(addr.path, "@") {
		c.files = append(c.files, addr.path)
	}
	return s, actual, nil
}

// Dial makes a connecting socket. It does not wait for the peer: ZeroMQ
// connects, and connects anew, behind the scenes. The error names the endpoint.
func (c *Context) Dial(t zmq4.Type, endpoint string, o Options) (*zmq4.Socket, error) {
	return c.dial(t, endpoint, o, func(*zmq4.Socket) error { return nil })
}

// dial calls before when all but the connection is made.
func (c *Context) dial(t zmq4.Type, endpoint string, o Options, before func(*zmq4.Socket) error) (*zmq4.Socket, error) {
	addr, err := parseDial(endpoint)
	if err != nil {
		return nil, err
	}
	ipv6, err := addr.resolveToDial()
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", endpoint, err)
	}
	s, err := c.open(t, o, ipv6)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", endpoint, err)
	}
	// With a domain ZeroMQ refuses peers of its protocol before version 3, as which
	// it would take whoever does not speak it at all, and lose messages to him.
	if err = errors.Join(s.SetZapDomain("pd-tools"), c.identify(s, endpoint)); err == nil {
		err = before(s)
	}
	if err == nil {
		err = connect(s, addr.String())
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("cannot connect to %s: %w", endpoint, err)
	}
	return s, nil
}

func connect(s *zmq4.Socket, endpoint string) error {
	return uninterrupted(func() error { return s.Connect(endpoint) })
}

func bind(s *zmq4.Socket, addr address) (string, error) {
	if addr.taken() {
		return "", inUse(syscall.EADDRINUSE)
	}
	if err := uninterrupted(func() error { return s.Bind(addr.String()) }); err != nil {
		if zmq4.AsErrno(err) == zmq4.Errno(syscall.EADDRINUSE) {
			return "", inUse(err)
		}
		return "", err
	}
	last, err := s.GetLastEndpoint()
	if err != nil {
		return "", err
	}
	return advertise(last), nil
}

func inUse(err error) error {
	return fmt.Errorf("%w: stop the program that has it or choose another port (* takes a free one)", err)
}

func (c *Context) open(t zmq4.Type, o Options, ipv6 bool) (*zmq4.Socket, error) {
	s, err := c.zmq.NewSocket(t)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	if c.keys != nil {
		o.MaxFrame = max(o.MaxFrame, leastFrame)
	}
	if err := o.apply(s, ipv6); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.MaxFrame == 0 {
		o.MaxFrame = DefaultMaxFrame
	}
	if o.RecvQueue == 0 {
		o.RecvQueue = DefaultQueue
	}
	if o.SendQueue == 0 {
		o.SendQueue = DefaultQueue
	}
	if o.Linger == 0 {
		o.Linger = DefaultLinger
	}
	return o
}

func (o Options) apply(s *zmq4.Socket, ipv6 bool) error {
	err := errors.Join(
		s.SetLinger(max(o.Linger, 0)),
		s.SetMaxmsgsize(o.MaxFrame),
		s.SetRcvhwm(o.RecvQueue),
		s.SetSndhwm(o.SendQueue),
		s.SetIpv6(ipv6),
		s.SetTcpKeepalive(1),
		s.SetTcpKeepaliveIdle(keepaliveIdle),
		s.SetTcpKeepaliveIntvl(keepaliveEvery),
		s.SetTcpKeepaliveCnt(keepaliveCount),
	)
	if err == nil && o.Prepare != nil {
		err = o.Prepare(s)
	}
	return err
}

// Recv reads one whole message without blocking: ErrAgain when there is none.
// The rest of a message of more than maxFrames frames is thrown away, and the
// first maxFrames come back with ErrFrames.
func Recv(s *zmq4.Socket, maxFrames int) ([][]byte, error) {
	return recv(s, maxFrames, zmq4.DONTWAIT, nil)
}

// RecvWait is Recv that waits for a message as long as the socket's RCVTIMEO
// says, or until a signal comes. For a loop that is busy it costs two system
// calls less than Wait and Recv.
func RecvWait(s *zmq4.Socket, maxFrames int) ([][]byte, error) { return recv(s, maxFrames, 0, nil) }

// Recv is the Recv of a bound socket: with keys it passes over messages of peers
// whose key was revoked.
func (c *Context) Recv(s *zmq4.Socket, maxFrames int) ([][]byte, error) {
	return recv(s, maxFrames, zmq4.DONTWAIT, c.gateOf(s))
}

// RecvWait is the RecvWait of a bound socket.
func (c *Context) RecvWait(s *zmq4.Socket, maxFrames int) ([][]byte, error) {
	return recv(s, maxFrames, 0, c.gateOf(s))
}

func recv(s *zmq4.Socket, maxFrames int, flags zmq4.Flag, g *gate) ([][]byte, error) {
	for {
		frames, ok, err := recvFrames(s, maxFrames, flags, g)
		if ok || err != nil && !errors.Is(err, ErrFrames) {
			return frames, err
		}
	}
}

// recvFrames reads one message; ok is false for one that is to be passed over.
func recvFrames(s *zmq4.Socket, maxFrames int, flags zmq4.Flag, g *gate) (frames [][]byte, ok bool, err error) {
	frames = make([][]byte, 0, min(maxFrames, 4))
	tooMany := false
	ok = true
	for more := true; more; flags = zmq4.DONTWAIT {
		var frame []byte
		if g.asks(frames) {
			frame, ok, err = g.recvFrame(frames, flags)
		} else {
			frame, err = recvFrame(s, flags)
		}
		if err != nil {
			return nil, false, err
		}
		if more, err = s.GetRcvmore(); err != nil {
			return nil, false, err
		}
		if tooMany = len(frames) == maxFrames; !tooMany {
			frames = append(frames, frame)
		}
	}
	if tooMany {
		return frames, ok, ErrFrames
	}
	return frames, ok, nil
}

func recvFrame(s *zmq4.Socket, flags zmq4.Flag) ([]byte, error) {
	return retried(flags, func() ([]byte, error) { return s.RecvBytes(flags) })
}

// retried begins a read anew that a signal has interrupted, unless it waits.
func retried(flags zmq4.Flag, read func() ([]byte, error)) ([]byte, error) {
	for {
		frame, err := read()
		switch {
		case !interrupted(err):
			return frame, plain(err)
		case flags&zmq4.DONTWAIT == 0:
			return nil, ErrAgain
		}
	}
}

// Send writes one whole message without blocking: ErrAgain when there is no
// room or no peer, ErrUnreachable when a mandatory ROUTER does not know the
// peer. Either all of the message is taken or nothing.
func Send(s *zmq4.Socket, frames ...[]byte) error {
	for i, frame := range frames {
		flags := zmq4.DONTWAIT
		if i < len(frames)-1 {
			flags |= zmq4.SNDMORE
		}
		if err := sendFrame(s, frame, flags); err != nil {
			return err
		}
	}
	return nil
}

func sendFrame(s *zmq4.Socket, frame []byte, flags zmq4.Flag) error {
	return plain(uninterrupted(func() error {
		_, err := s.SendBytes(frame, flags)
		return err
	}))
}

func plain(err error) error {
	if err == nil {
		return nil
	}
	switch zmq4.AsErrno(err) {
	case zmq4.Errno(syscall.EAGAIN):
		return ErrAgain
	case zmq4.Errno(syscall.EHOSTUNREACH):
		return ErrUnreachable
	}
	return err
}
