package sock

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

const (
	// zapEndpoint is where ZeroMQ asks who may connect (RFC 27).
	zapEndpoint = "inproc://zeromq.zap.01"
	// zapDomain is of no importance, but without one ZeroMQ would not ask in
	// some cases.
	zapDomain = "pd-tools"
	// zapFrames are version, request id, domain, address, identity, mechanism
	// and, of CURVE, the key.
	zapFrames = 7

	// handshakeWithin is how long a peer that has connected may take to say who
	// it is. Then it is disconnected.
	handshakeWithin = 5 * time.Second

	// Names of what ZeroMQ knows of a message.
	userProperty = "User-Id" // as our ZAP reply said it: the key
	fileProperty = "__fd"    // the descriptor of the connection
)

// guard makes a bound socket hear only peers that have a key which is allowed.
func (c *Context) guard(s *zmq4.Socket, t zmq4.Type) error {
	if c.keys == nil {
		return nil
	}
	if err := c.openZAP(); err != nil {
		return err
	}
	err := errors.Join(s.SetCurveServer(1), s.SetCurveSecretkey(c.keys.secret), s.SetZapDomain(zapDomain))
	if err != nil {
		return err
	}
	g := &gate{keys: c.keys, socket: s, conns: map[int]connection{}}
	if t == zmq4.ROUTER {
		g.known, g.keyFrame = map[string]string{}, 1
	}
	c.mu.Lock()
	c.gates = append(c.gates, g)
	c.mu.Unlock()
	return c.watchBound(s)
}

// identify makes a connecting socket use our key, and talk to nobody but who has
// the one that belongs to the endpoint.
func (c *Context) identify(s *zmq4.Socket, endpoint string) error {
	if c.keys == nil {
		return nil
	}
	key, err := c.keys.server(endpoint)
	if err != nil {
		return err
	}
	return errors.Join(s.SetCurveServerkey(key), s.SetCurvePublickey(c.keys.public), s.SetCurveSecretkey(c.keys.secret))
}

// openZAP starts the goroutine that decides who may connect. It ends with the
// Context.
func (c *Context) openZAP() error {
	if c.zap != nil {
		return nil
	}
	rep, err := c.open(zmq4.REP, Options{Linger: -1}, false)
	if err != nil {
		return err
	}
	poller, err := NewPoller()
	if err == nil {
		err = errors.Join(poller.Watch(rep, zmq4.POLLIN), uninterrupted(func() error { return rep.Bind(zapEndpoint) }))
		if err != nil {
			poller.Close()
		}
	}
	if err != nil {
		rep.Close()
		return err
	}
	c.zap = poller
	c.helpers.Go(func() { c.decide(rep, poller) })
	return nil
}

// decide answers ZeroMQ's questions, and cuts off who is not allowed any more.
func (c *Context) decide(rep *zmq4.Socket, poller *Poller) {
	defer rep.Close()
	defer poller.Close()
	list := c.keys.allow.list.Load()
	for {
		if _, err := poller.Wait(lookEvery); err != nil {
			return
		}
		select {
		case <-c.ended:
			return
		default:
		}
		frames, err := Recv(rep, zapFrames)
		if err == nil || errors.Is(err, ErrFrames) {
			_ = Send(rep, c.keys.verdict(frames)...)
		}
		if now := c.keys.allow.list.Load(); now != list {
			list = now
			c.cutRevoked()
		}
	}
}

// verdict is the answer to one question.
func (k *Keys) verdict(ask [][]byte) [][]byte {
	answer := func(code, text, user string) [][]byte {
		id := []byte(nil)
		if len(ask) > 1 {
			id = ask[1]
		}
		return [][]byte{[]byte("1.0"), id, []byte(code), []byte(text), []byte(user), nil}
	}
	if len(ask) != zapFrames || string(ask[5]) != "CURVE" || len(ask[6]) != keyLen*4/5 {
		return answer("400", "no CURVE key", "")
	}
	key := zmq4.Z85encode(string(ask[6]))
	list := k.allow.list.Load()
	switch {
	case list.peers[key]:
		k.generation.Add(1) // before it can send anything
		return answer("200", "OK", key)
	case list.revoked[key]:
		k.refuse("revoked key", fmt.Sprintf("refused %s: its key %s was taken out of %s", ask[3], key, k.allow.name))
	case list.isServer(key):
		k.refuse("unknown key", fmt.Sprintf("refused %s: its key %s is in %s with an endpoint only, for who connects there: add a line without one", ask[3], key, k.allow.name))
	default:
		k.refuse("unknown key", fmt.Sprintf("refused %s: its key %s is not in %s", ask[3], key, k.allow.name))
	}
	return answer("400", "key is not allowed", "")
}

// gate keeps out of a bound socket what comes from peers whose key was revoked
// while they were connected, and ends their connections. Who sent a message
// ZeroMQ knows, and to ask it takes time; so a peer of a ROUTER is asked for
// only once as long as nobody new is let in and the allow file stands. It
// belongs to the goroutine that owns the socket, but for cut.
type gate struct {
	keys     *Keys
	socket   *zmq4.Socket
	keyFrame int               // the frame of a message of which is asked
	known    map[string]string // ROUTER: keys of the peers that were asked for in this generation; nil: ask always
	checked  uint64            // the generation

	mu    sync.Mutex
	conns map[int]connection // by descriptor, from their first message on
}

// connection is one of a peer; the cookie tells it from another that has its
// descriptor later.
type connection struct {
	key    string
	cookie uint64
}

// gateOf is the gate of a bound socket, nil without keys.
func (c *Context) gateOf(s *zmq4.Socket) *gate {
	if c.keys == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.gates {
		if g.socket == s {
			return g
		}
	}
	return nil
}

// asks says whether a message's next frame is the one of which is asked.
func (g *gate) asks(frames [][]byte) bool {
	if g == nil || len(frames) != g.keyFrame {
		return false
	}
	if g.known == nil {
		return true
	}
	if now := g.keys.generation.Load(); now != g.checked {
		clear(g.known)
		g.checked = now
	}
	_, known := g.known[string(frames[0])]
	return !known
}

// KeyOf is the key of the peer from which the last message of a bound ROUTER
// came, by its identity; empty without keys. It is for the goroutine that owns s.
func (c *Context) KeyOf(s *zmq4.Socket, identity string) string {
	if g := c.gateOf(s); g != nil {
		return g.known[identity]
	}
	return ""
}

// recvFrame reads the frame of which is asked. ok is false if whoever sent it is
// not allowed to any more.
func (g *gate) recvFrame(frames [][]byte, flags zmq4.Flag) (frame []byte, ok bool, err error) {
	var about map[string]string
	frame, err = retried(flags, func() (b []byte, err error) {
		b, about, err = g.socket.RecvBytesWithMetadata(flags, userProperty, fileProperty)
		return b, err
	})
	if err != nil {
		return nil, false, err
	}
	key := about[userProperty]
	if key == "" {
		return frame, true, nil // ZeroMQ's own: an XPUB tells so who has left
	}
	if fd, err := strconv.Atoi(about[fileProperty]); err == nil {
		g.meet(fd, key)
	}
	if !g.keys.allow.allows(key) {
		g.cut()
		return frame, false, nil
	}
	if g.known != nil {
		g.known[string(frames[0])] = key
	}
	return frame, true, nil
}

// meet remembers whose a connection is.
func (g *gate) meet(fd int, key string) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return // it is gone
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[fd] = connection{key, cookie}
}

// cut ends the connections of keys that are not allowed any more. Their peers
// may come again, to be refused.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for fd, conn := range g.conns {
		if g.keys.allow.allows(conn.key) {
			continue
		}
		delete(g.conns, fd)
		if conn.end(fd) {
			g.keys.refuse("revoked key", fmt.Sprintf("cut off who has key %s: it was taken out of %s", conn.key, g.keys.allow.name))
		}
	}
}

// end shuts the connection down, unless its descriptor is another's by now: a
// copy of the descriptor stays what it is while it is looked at.
func (conn connection) end(fd int) bool {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return err == nil && cookie == conn.cookie && unix.Shutdown(fd, unix.SHUT_RDWR) == nil
}

func (c *Context) cutRevoked() {
	c.mu.Lock()
	gates := c.gates
	c.mu.Unlock()
	for _, g := range gates {
		g.cut()
	}
}
