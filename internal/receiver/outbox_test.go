package receiver

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/sock"
)

// outboxWithPeer is an outbox and a peer that does not read until told to.
func outboxWithPeer(t *testing.T) (*outbox, *peertest.Peer, *envelope) {
	t.Helper()
	ctx, err := sock.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	socket, endpoint, err := ctx.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", sock.Options{
		SendQueue: 8, Linger: -1,
		Prepare: func(s *zmq4.Socket) error { return errors.Join(s.SetRouterMandatory(1), s.SetSndbuf(4096)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := peertest.Dial(endpoint, peertest.Options{Identity: "slow", Queue: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		socket.Close()
		ctx.Close()
	})
	if err := p.SendFrames([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	poller := zmq4.NewPoller()
	poller.Add(socket, zmq4.POLLIN)
	if _, err := sock.Wait(poller, soon); err != nil {
		t.Fatal(err)
	}
	frames, err := sock.Recv(socket, 2)
	if err != nil {
		t.Fatal(err)
	}
	env, _, _ := open(frames)
	return newOutbox(router{socket}), p, env
}

// payload is a numbered answer of n bytes.
func payload(i, n int) []byte {
	b := make([]byte, n)
	binary.BigEndian.PutUint64(b, uint64(i))
	return b
}

// fill sends answers until the peer has a backlog of n, and says how many.
func fill(t *testing.T, o *outbox, env *envelope, n, size int) int {
	t.Helper()
	for i := 0; i < 100_000; i++ {
		if b := o.slow[env.sender]; b != nil && len(b.answers) == n {
			return i
		}
		if !o.send(env, payload(i, size)) {
			t.Fatalf("overrun after %d answers", i)
		}
	}
	t.Fatal("the peer has room for ever")
	return 0
}

// A slow peer gets all its answers, in order, once it reads.
func TestBacklogKeepsTheOrder(t *testing.T) {
	o, p, env := outboxWithPeer(t)
	total := fill(t, o, env, 500, 4096)
	deadline := time.Now().Add(soon)
	for i := 0; i < total; {
		o.flush(time.Now())
		frames, err := p.RecvFrames(time.Millisecond)
		if errors.Is(err, peertest.ErrTimeout) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint64(frames[len(frames)-1]); got != uint64(i) {
			t.Fatalf("answer %d came as number %d", got, i)
		}
		i++
	}
	if len(o.slow) != 0 || len(o.turn) != 0 {
		t.Errorf("backlogs left: %v", o.slow)
	}
	if o.undeliverable != 0 {
		t.Errorf("%d undeliverable", o.undeliverable)
	}
}

// Over its limit, in answers or in bytes, a backlog that stands still is given
// up, and what was in it is counted.
func TestBacklogIsBounded(t *testing.T) {
	for _, tc := range []struct{ size, most int }{
		{4096, maxBacklog},
		{64 << 10, maxBacklogBytes / (64 << 10)},
	} {
		o, _, env := outboxWithPeer(t)
		lost := 0
		for i := 0; lost == 0; i++ {
			if b := o.slow[env.sender]; b != nil && (len(b.answers) > maxBacklog || b.bytes > maxBacklogBytes) {
				t.Fatalf("backlog has %d answers, %d bytes", len(b.answers), b.bytes)
			}
			if !o.send(env, payload(i, tc.size)) {
				lost = int(o.undeliverable)
			}
		}
		if lost < tc.most-1 || lost > tc.most+1 {
			t.Errorf("%d answers of %d bytes lost, want about %d", lost, tc.size, tc.most)
		}
		if len(o.slow) != 0 || len(o.turn) != 0 {
			t.Error("the backlog is still there")
		}
	}
}

// When the peer goes, its backlog goes, and is counted.
func TestBacklogOfAPeerThatWent(t *testing.T) {
	o, p, env := outboxWithPeer(t)
	fill(t, o, env, 100, 4096)
	p.Kill()
	for deadline := time.Now().Add(soon); len(o.slow) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the backlog stays")
		}
		o.flush(time.Now())
	}
	if o.undeliverable < 1 || o.undeliverable > 100 {
		t.Errorf("%d undeliverable", o.undeliverable)
	}
}

// Trying backlogs in vain gets rarer, so that an idle receiver stays idle.
func TestRetryBacksOff(t *testing.T) {
	o, _, env := outboxWithPeer(t)
	fill(t, o, env, 100, 4096)
	now := time.Now()
	for range 20 {
		now = o.next
		o.flush(now)
	}
	if got := o.wait(now, time.Hour); got != retryMax {
		t.Errorf("next try in %v, want %v", got, retryMax)
	}
}
