package testkit

import (
	"errors"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// Subscriber is a monitor, in its test's goroutine.
type Subscriber struct {
	t      *testing.T
	ctx    *sock.Context
	socket *zmq4.Socket
	poller *sock.Poller
}

// Subscribe watches what is published at endpoint, until the test ends.
func Subscribe(t *testing.T, endpoint string) *Subscriber {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Subscriber{t: t, ctx: ctx}
	s.socket, err = ctx.Dial(zmq4.SUB, endpoint, sock.Options{
		MaxFrame: wire.MaxResponse, RecvQueue: 4, Linger: -1,
		Prepare: func(z *zmq4.Socket) error { return z.SetSubscribe("") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.poller = Poller(t, s.socket, zmq4.POLLIN)
	return s
}

// Close ends the subscription.
func (s *Subscriber) Close() {
	if s.socket != nil {
		s.poller.Close()
		s.socket.Close()
		s.ctx.Close()
		s.socket = nil
	}
}

// Next is the next message, or nil after d.
func (s *Subscriber) Next(d time.Duration) wire.Message {
	s.t.Helper()
	if _, err := s.poller.Wait(d); err != nil {
		s.t.Fatal(err)
	}
	frames, err := sock.Recv(s.socket, 1)
	if errors.Is(err, sock.ErrAgain) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := wire.Decode(frames[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// Next is the next message of a type that ok likes, within d; what says which
// that is. Without ok it is any of the type.
func Next[M wire.Message](s *Subscriber, d time.Duration, what string, ok func(M) bool) M {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if m, is := s.Next(time.Until(end)).(M); is && (ok == nil || ok(m)) {
			return m
		}
	}
	s.t.Fatalf("no message: %s", what)
	panic("unreachable")
}
