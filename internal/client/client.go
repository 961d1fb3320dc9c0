// Package client asks a receiver things: for its state, for a ready request's
// chunks, to release them, for what is ready. It is what pd-recv stat, take and
// drop and pd-proxy --recover are made of, and for tests and checkers. It knows nothing of memory: where chunks lie it
// hands on as it came. Start at Dial.
package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// Refused is an answer that says no.
type Refused struct {
	Code   wire.Code
	Reason string
}

func (e *Refused) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Reason) }

// Conn is one connection to a receiver: what it takes is its own. Its methods
// may be called from several goroutines.
type Conn struct {
	endpoint string
	ctx      *sock.Context
	socket   *zmq4.Socket
	link     *sock.Connection
	poller   *sock.Poller
	calls    chan call
	closing  chan struct{}
	broke    atomic.Pointer[error] // why its handshakes failed so far
	done     chan struct{}         // closed when the connection is
	why      error                 // it is closed by itself; good once done is closed
}

// call is one question on its way to the goroutine that owns the socket.
type call struct {
	payload []byte
	answer  chan wire.Message // has room for the one answer
	forget  <-chan struct{}   // the asker does not wait any more
}

// Dial connects, with the keys if there are any. A receiver that is not there
// shows only when it is asked.
func Dial(endpoint string, keys *sock.Keys) (*Conn, error) {
	ctx, err := sock.NewContext(keys)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		endpoint: endpoint,
		ctx:      ctx,
		calls:    make(chan call, 16),
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
	}
	if err := c.open(); err != nil {
		c.closeSockets()
		return nil, err
	}
	go c.run()
	return c, nil
}

func (c *Conn) open() (err error) {
	if c.poller, err = sock.NewPoller(); err != nil {
		return err
	}
	c.socket, c.link, err = c.ctx.DialFollowed(zmq4.DEALER, c.endpoint, sock.Options{MaxFrame: wire.MaxResponse, Linger: -1, Meant: "a pd-recv's --listen"})
	if err != nil {
		return err
	}
	return c.poller.Watch(c.link.Socket(), zmq4.POLLIN)
}

func (c *Conn) closeSockets() {
	if c.poller != nil {
		c.poller.Close()
	}
	if c.socket != nil {
		c.socket.Close()
		c.link.Close()
	}
	c.ctx.Close()
}

// Close ends the connection; a take that is not released ends with its lease.
func (c *Conn) Close() {
	close(c.closing)
	c.poller.Wake()
	<-c.done
}

// Stat asks for a Snapshot.
func (c *Conn) Stat(ctx context.Context) (*wire.Snapshot, error) {
	return ask[*wire.Snapshot](ctx, c, &wire.StatRequest{})
}

// Take takes a ready request, or renews the take of this connection. It may
// return *Refused.
func (c *Conn) Take(ctx context.Context, reqID string) (*wire.TakeResponse, error) {
	m, err := ask[*wire.TakeResponse](ctx, c, &wire.TakeRequest{ReqID: reqID})
	if err == nil && m.Code != "" {
		return nil, &Refused{m.Code, m.Error}
	}
	return m, err
}

// Ready asks which requests became ready after a number of an epoch; in another
// epoch, of all that are. It may return *Refused.
func (c *Conn) Ready(ctx context.Context, epoch, after uint64) (*wire.ReadyResponse, error) {
	m, err := ask[*wire.ReadyResponse](ctx, c, &wire.ReadyRequest{Epoch: epoch, After: after})
	if err == nil && m.Code != "" {
		return nil, &Refused{m.Code, m.Error}
	}
	return m, err
}

// Release frees a ready request's slots. It may return *Refused.
func (c *Conn) Release(ctx context.Context, reqID string) error { return c.release(ctx, reqID, false) }

// GiveBack makes a request that this connection has taken ready again. It may
// return *Refused.
func (c *Conn) GiveBack(ctx context.Context, reqID string) error { return c.release(ctx, reqID, true) }

func (c *Conn) release(ctx context.Context, reqID string, keep bool) error {
	m, err := ask[*wire.ReleaseResponse](ctx, c, &wire.ReleaseRequest{ReqID: reqID, Keep: keep})
	if err == nil && m.Code != "" {
		return &Refused{m.Code, m.Error}
	}
	return err
}

// ask is one round trip; ctx bounds it.
func ask[T wire.Message](ctx context.Context, c *Conn, m wire.Message) (answer T, err error) {
	one := call{payload: wire.Append(nil, m), answer: make(chan wire.Message, 1), forget: ctx.Done()}
	start := time.Now()
	select {
	case c.calls <- one:
		c.poller.Wake()
	case <-c.done:
		return answer, c.closed()
	case <-ctx.Done():
		return answer, c.late(ctx, start)
	}
	select {
	case got := <-one.answer:
		return as[T](got)
	case <-c.done:
		return answer, c.closed()
	case <-ctx.Done():
		return answer, c.late(ctx, start)
	}
}

func as[T wire.Message](got wire.Message) (answer T, err error) {
	switch m := got.(type) {
	case T:
		return m, nil
	case *wire.AllocResponse: // what could not be decoded there
		return answer, &Refused{m.Code, m.Error}
	}
	return answer, fmt.Errorf("the receiver answered with %T, not %T", got, answer)
}

func (c *Conn) closed() error {
	if c.why != nil {
		return c.why
	}
	return errors.New("connection is closed")
}

func (c *Conn) late(ctx context.Context, start time.Time) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		within := time.Since(start).Truncate(time.Millisecond)
		if broke := c.broke.Load(); broke != nil && *broke != nil {
			return fmt.Errorf("no answer within %v: %w", within, *broke)
		}
		return fmt.Errorf("no answer from %s within %v: is pd-recv running there?", c.endpoint, within)
	}
	return context.Cause(ctx)
}

// run owns the socket.
func (c *Conn) run() {
	defer close(c.done)
	defer c.closeSockets()
	open := make(map[uint64]call)
	last := uint64(0)
	var unsent []call // ZeroMQ's queue was full
	for {
		events := zmq4.POLLIN
		if len(unsent) > 0 {
			events |= zmq4.POLLOUT
		}
		if err := c.poller.Watch(c.socket, events); err != nil {
			return
		}
		if _, err := c.poller.Wait(-1); err != nil {
			return
		}
		select {
		case <-c.closing:
			return
		default:
		}
		hopeless := c.link.Read()
		why := c.link.Why()
		if hopeless {
			c.why = why
			return
		}
		c.broke.Store(&why)
		for unsent = c.collect(unsent); len(unsent) > 0; unsent = unsent[1:] {
			if err := c.send(last+1, unsent[0].payload); err != nil {
				break
			}
			last++
			open[last] = unsent[0]
		}
		c.receive(open)
		maps.DeleteFunc(open, func(_ uint64, one call) bool { return one.forgotten() })
		unsent = slices.DeleteFunc(unsent, call.forgotten)
	}
}

func (one call) forgotten() bool {
	select {
	case <-one.forget:
		return true
	default:
		return false
	}
}

// collect adds the calls that have come.
func (c *Conn) collect(calls []call) []call {
	for {
		select {
		case one := <-c.calls:
			calls = append(calls, one)
		default:
			return calls
		}
	}
}

func (c *Conn) send(corr uint64, payload []byte) error {
	return sock.Send(c.socket, binary.BigEndian.AppendUint64(nil, corr), nil, payload)
}

// receive hands out the answers that have come. What is not one is dropped.
func (c *Conn) receive(open map[uint64]call) {
	for {
		frames, err := sock.Recv(c.socket, 3)
		if errors.Is(err, sock.ErrFrames) {
			continue
		}
		if err != nil {
			return
		}
		if len(frames) != 3 || len(frames[0]) != 8 || len(frames[1]) != 0 {
			continue
		}
		corr := binary.BigEndian.Uint64(frames[0])
		if one, ok := open[corr]; ok {
			if m, err := wire.Decode(frames[2]); err == nil {
				one.answer <- m
				delete(open, corr)
			}
		}
	}
}
