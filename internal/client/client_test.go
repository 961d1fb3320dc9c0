package client

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"go.uber.org/goleak"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second // for what takes milliseconds

// router is a receiver whose every answer the test decides. It belongs to the
// test's goroutine.
type router struct {
	t      *testing.T
	socket *zmq4.Socket
	poller *sock.Poller
}

func newRouter(t *testing.T) (*router, *Conn) {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket, endpoint, err := ctx.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", sock.Options{Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		socket.Close()
		ctx.Close()
	})
	r := &router{t, socket, testkit.Poller(t, socket, zmq4.POLLIN)}
	return r, c
}

// next is the frames of the next question.
func (r *router) next() [][]byte {
	r.t.Helper()
	if asked, err := r.poller.Wait(patience); err != nil || !asked {
		r.t.Fatalf("no question came: %v", err)
	}
	frames, err := sock.Recv(r.socket, 8)
	if err != nil || len(frames) != 4 {
		r.t.Fatalf("question %q, %v", frames, err)
	}
	return frames
}

func (r *router) answer(question [][]byte, payload []byte) {
	r.t.Helper()
	if err := sock.Send(r.socket, question[0], question[1], question[2], payload); err != nil {
		r.t.Fatal(err)
	}
}

func encode(m wire.Message) []byte { return wire.Append(nil, m) }

func start[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return done
}

func result[T any](t *testing.T, done <-chan T) T {
	t.Helper()
	select {
	case v := <-done:
		return v
	case <-time.After(patience):
		t.Fatal("still waiting")
		panic("unreachable")
	}
}

func TestAnswersInAnyOrder(t *testing.T) {
	r, c := newRouter(t)
	defer c.Close()
	ctx := context.Background()
	one := start(func() error { _, err := c.Take(ctx, "A"); return err })
	first := r.next()
	two := start(func() error { return c.Release(ctx, "B") })
	second := r.next()
	r.answer(second, encode(&wire.ReleaseResponse{}))
	r.answer(second, encode(&wire.ReleaseResponse{Code: wire.CodeTaken})) // once more, to nobody
	r.answer(first, encode(&wire.TakeResponse{Code: wire.CodeNotReady, Error: "1 of 2"}))
	if err := result(t, two); err != nil {
		t.Error(err)
	}
	var no *Refused
	if err := result(t, one); !errors.As(err, &no) || no.Code != wire.CodeNotReady || err.Error() != "not_ready: 1 of 2" {
		t.Error(err)
	}
}

func TestWrongAnswers(t *testing.T) {
	r, c := newRouter(t)
	defer c.Close()
	for _, tc := range []struct {
		answer []byte
		want   string
	}{
		{encode(&wire.AllocResponse{RemoteIndexes: []int64{-1}, Code: wire.CodeBadRequest, Error: "bad"}), "bad_request: bad"},
		{encode(&wire.ReleaseResponse{}), "the receiver answered with *wire.ReleaseResponse, not *wire.Snapshot"},
	} {
		got := start(func() error { _, err := c.Stat(context.Background()); return err })
		r.answer(r.next(), tc.answer)
		if err := result(t, got); err == nil || err.Error() != tc.want {
			t.Errorf("error %v, want %s", err, tc.want)
		}
	}
}

// What is no answer is passed over.
func TestNoise(t *testing.T) {
	r, c := newRouter(t)
	defer c.Close()
	got := start(func() error { _, err := c.Stat(context.Background()); return err })
	q := r.next()
	r.answer(q, []byte("nonsense"))
	for _, frames := range [][][]byte{
		{q[0], []byte("x")}, {q[0], q[1], q[2], q[3], q[3], q[3]}, {q[0], []byte("12345678"), nil, encode(&wire.Snapshot{})},
	} {
		if err := sock.Send(r.socket, frames...); err != nil {
			t.Fatal(err)
		}
	}
	r.answer(q, encode(&wire.Snapshot{}))
	if err := result(t, got); err != nil {
		t.Error(err)
	}
}

func TestDeadlineAndCancel(t *testing.T) {
	_, c := newRouter(t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Stat(ctx); err == nil || !strings.Contains(err.Error(), "is pd-recv running there?") {
		t.Error(err)
	}
	stopped, stop := context.WithCancelCause(context.Background())
	why := errors.New("stopped")
	got := start(func() error { return c.Release(stopped, "A") })
	stop(why)
	if err := result(t, got); err != why {
		t.Error(err)
	}
}

func TestCloseWhileWaiting(t *testing.T) {
	r, c := newRouter(t)
	got := start(func() error { _, err := c.Stat(context.Background()); return err })
	r.next()
	c.Close()
	if err := result(t, got); err == nil || err.Error() != "connection is closed" {
		t.Error(err)
	}
}

// More questions than ZeroMQ keeps unsent, to a receiver that is not there yet:
// each is asked once it is.
func TestMoreThanTheQueueHolds(t *testing.T) {
	const many = 3 * sock.DefaultQueue
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	// Not a port that was just closed: ZeroMQ closes in its own time, and a dialler
	// that is quicker gives its questions to the old socket.
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "s")
	c, err := Dial(endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answers := make(chan error, many)
	var asked sync.WaitGroup
	for range many {
		asked.Add(1)
		go func() {
			asked.Done()
			_, err := c.Stat(until)
			answers <- err
		}()
	}
	asked.Wait()
	socket, _, err := ctx.Listen(zmq4.ROUTER, endpoint, sock.Options{SendQueue: many, Linger: -1}) // a ROUTER drops what its queue has no room for
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	r := &router{t, socket, testkit.Poller(t, socket, zmq4.POLLIN)}
	for range many {
		r.answer(r.next(), encode(&wire.Snapshot{}))
	}
	for range many {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}
