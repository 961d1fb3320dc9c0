package receiver

import (
	"errors"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
)

// A loop that waits for a peer in lockstep spins; one whose last wait was long,
// or whose messages come together, sleeps.
func TestRecvSoon(t *testing.T) {
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	in, endpoint, err := ctx.Listen(zmq4.PULL, "tcp://127.0.0.1:*", sock.Options{
		Prepare: func(s *zmq4.Socket) error { return s.SetRcvtimeo(busyWait) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := ctx.Dial(zmq4.PUSH, endpoint, sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()

	r := &Receiver{ctx: ctx}
	began := time.Now()
	_, err = r.recvSoon(in, 1)
	if took := time.Since(began); !errors.Is(err, sock.ErrAgain) || r.lull > took {
		t.Fatalf("nothing was sent: %v after %v, counted as %v", err, took, r.lull)
	}
	// Not as long as busyWait: ZeroMQ counts whole milliseconds, and a signal,
	// of which Go sends itself some, ends the wait.
	if r.lull < spinFor {
		t.Errorf("waited %v", r.lull)
	}
	for i := range 3 {
		if _, err := out.SendBytes([]byte{byte(i)}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		frames, err := r.recvSoon(in, 1)
		for errors.Is(err, sock.ErrAgain) {
			frames, err = r.recvSoon(in, 1)
		}
		if err != nil || frames[0][0] != byte(i) {
			t.Fatalf("message %d is %v, %v", i, frames, err)
		}
	}
}
