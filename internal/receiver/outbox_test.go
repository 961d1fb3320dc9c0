package receiver

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
)

// outboxWithPeer is an outbox and a peer that does not read until told to.
func outboxWithPeer(t *testing.T) (*outbox, *peertest.Peer, *envelope) { return outboxWithPeerOf(t, 8) }

// outboxWithPeerOf is that where ZeroMQ keeps so many messages.
func outboxWithPeerOf(t *testing.T, queue int) (*outbox, *peertest.Peer, *envelope) {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket, endpoint, err := ctx.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", sock.Options{
		SendQueue: queue, Linger: -1,
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
	if _, err := testkit.Poller(t, socket, zmq4.POLLIN).Wait(soon); err != nil {
		t.Fatal(err)
	}
	frames, err := sock.Recv(socket, 2)
	if err != nil {
		t.Fatal(err)
	}
	env, _, _ := open(frames)
	return newOutbox(newRouter(socket)), p, env
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
		if b := o.slow[env.sender]; b == nil || len(b.answers) != 1 || len(o.turn) != 1 {
			t.Error("the backlog is still there, or the newest answer is not")
		}
	}
}

// ZeroMQ's limit for a peer is of messages: of large ones it is given less.
func TestLargeAnswersAreBounded(t *testing.T) {
	const each, queue = 1 << 20, 256
	o, p, env := outboxWithPeerOf(t, queue)
	sent := 0
	for err := error(nil); err == nil && sent < queue; sent++ {
		err = o.try(env.frames, payload(sent, each))
		if err != nil && !errors.Is(err, sock.ErrAgain) {
			t.Fatal(err)
		}
	}
	if most := 64; sent > most {
		t.Errorf("%d answers of %d bytes are on their way to a peer that does not read, want at most %d", sent, each, most)
	}
	// Once it reads there is room again, and nothing is lost.
	for i := range sent - 1 {
		frames, err := p.RecvFrames(soon)
		if err != nil {
			t.Fatal(err)
		}
		if last := frames[len(frames)-1]; len(last) != each || binary.BigEndian.Uint64(last) != uint64(i) {
			t.Fatalf("answer %d has %d bytes", i, len(last))
		}
	}
	for deadline := time.Now().Add(soon); o.try(env.frames, payload(0, each)) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no room")
		}
	}
}

// A peer that stands still is waited for once, not each time that its backlog is
// full: everybody else waits meanwhile.
func TestPeerThatStandsStillCostsNoTime(t *testing.T) {
	o, p, env := outboxWithPeer(t)
	for o.send(env, payload(0, 64<<10)) {
	}
	pauses := 0
	o.pause = func(time.Duration) { pauses++ }
	// The system may take a little more before it does stand still.
	for deadline := time.Now().Add(soon); ; pauses = 0 {
		for overruns := 0; overruns < 3; {
			if !o.send(env, payload(0, 64<<10)) {
				overruns++
			}
		}
		if pauses == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it was waited for %d times more", pauses)
		}
	}
	// It is when it has read something.
	for deadline := time.Now().Add(soon); len(o.slow) > 0; o.flush(time.Now()) {
		if time.Now().After(deadline) {
			t.Fatal("its answers do not go")
		}
		_, _ = p.RecvFrames(time.Millisecond)
	}
	for o.send(env, payload(0, 64<<10)) {
	}
	if pauses == 0 {
		t.Error("it was not waited for after it had read")
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
