package receiver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// F4: a sender that dies holding slots is expired by the clock, without any
// traffic, and the next waiter is admitted.
func TestExpiryWithoutTraffic(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Reservation.Lease = time.Second })
	s1, s2 := r.dial(peertest.Options{}), r.dial(peertest.Options{})
	s1.attach("one")
	wantSlots(t, s1.alloc("A", 8, false, keys("A", 0, 5)...), 5)
	s1.kill()
	b := s2.ask(peertest.Alloc("B", 8, true, testSlot, keys("B", 0, 8)...))
	wantSlots(t, s2.wait(b), 8)
	if e := r.event("expired", "A"); e.Reason == "" || e.Sender != "one" {
		t.Errorf("expired: %+v", e)
	}
	s := r.free(2)
	if s.Counters.Expired != 1 {
		t.Errorf("counters: %+v", s.Counters)
	}
}

// The end of its data connection ends a sender at once.
func TestGone(t *testing.T) {
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	p.attach("sender")
	r.target.connect(1)
	wantSlots(t, p.alloc("A", 8, false, keys("A", 0, 5)...), 5)
	r.target.disconnect(1)
	r.event("expired", "A")
	r.free(10)
	if resp := call[*wire.AllocResponse](p, &wire.Heartbeat{Epoch: 77}); resp.Code != wire.CodeStaleEpoch {
		t.Errorf("heartbeat after the end: %+v", resp)
	}
	if resp := p.attach("again"); string(resp.Token) != "writer 2" {
		t.Errorf("attached anew with token %q", resp.Token)
	}
}

// An attach asked again keeps what there is, and tells the regions of now.
func TestAttachAgain(t *testing.T) {
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	first := p.attach("sender")
	r.target.connect(1)
	wantSlots(t, p.alloc("A", 4, false, "k"), 1)
	if _, err := r.target.Revoke([]int{9}); err != nil {
		t.Fatal(err)
	}
	again := p.attach("sender, renamed")
	if string(again.Token) != string(first.Token) || len(first.Regions) != 1 || len(again.Regions) != 2 {
		t.Errorf("first %+v, again %+v", first, again)
	}
	s := r.stat("the new name", func(s *wire.Snapshot) bool { return len(s.Senders) == 1 && s.Senders[0].Sender == "sender, renamed" })
	if s.Slots.Held != 1 || s.Slots.Promised != 3 {
		t.Errorf("slots: %+v", s.Slots)
	}
}

// Slots that may still be written get new memory before anyone gets them, and
// the next writer is told where.
func TestRevocation(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Reservation.Lease = time.Second })
	let := make(chan struct{})
	r.target.revoke = func([]int) error { <-let; return nil }
	p := r.dial(peertest.Options{})
	p.attach("silent")
	r.target.connect(1)
	wantSlots(t, p.alloc("A", 10, false, keys("A", 0, 10)...), 10)
	r.event("expired", "A")
	r.stat("10 in quarantine", func(s *wire.Snapshot) bool { return s.Slots.Quarantined == 10 && s.Slots.Free == 0 })
	q := r.dial(peertest.Options{})
	q.attach("next")
	b := q.ask(peertest.Alloc("B", 2, true, testSlot, keys("B", 0, 2)...))
	q.nothing(r)
	close(let)
	resp := q.wait(b)
	wantSlots(t, resp, 2)
	if len(resp.Regions) != 2 || resp.Regions[0] != 1 || resp.Regions[1] != 1 {
		t.Errorf("regions %v, want the new one", resp.Regions)
	}
}

// Where the engine cannot revoke, slots wait until their writer is gone.
func TestRevocationFails(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Reservation.Lease = time.Second })
	var tried atomic.Bool
	r.target.revoke = func([]int) error { tried.Store(true); return errors.New("no") }
	p := r.dial(peertest.Options{})
	p.attach("silent")
	r.target.connect(1)
	wantSlots(t, p.alloc("A", 10, false, keys("A", 0, 4)...), 4)
	r.event("expired", "A")
	r.stat("4 in quarantine", func(s *wire.Snapshot) bool { return tried.Load() && s.Slots.Quarantined == 4 && s.Slots.Free == 6 })
	r.target.disconnect(1)
	r.free(10)
}

// A sender that ended and never connected can write nothing: its slots need no
// new memory to be free.
func TestNeverConnected(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Reservation.Lease = time.Second })
	r.target.revoke = func([]int) error { return errors.New("no") }
	p := r.dial(peertest.Options{})
	p.attach("silent")
	wantSlots(t, p.alloc("A", 10, false, keys("A", 0, 4)...), 4)
	r.event("expired", "A")
	r.free(10)
}

// F38: answers whose peer is gone are counted, and nothing blocks.
func TestUndeliverable(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Reservation.LegacyLease = 300 * time.Millisecond })
	holder := r.dial(peertest.Options{})
	holder.attach("holder")
	slots := wantSlots(t, holder.alloc("A", 10, true, keys("A", 0, 10)...), 10)
	p := r.dial(peertest.Options{})
	const n = 50
	for i := range n {
		p.ask(peertest.Alloc(fmt.Sprint("B", i), 1, true, testSlot, "k"))
	}
	r.event("queued", fmt.Sprint("B", n-1))
	p.kill()
	holder.commit("A", slots...)
	call[*wire.ReleaseResponse](holder, &wire.ReleaseRequest{ReqID: "A"})
	s := r.stat("all expired", func(s *wire.Snapshot) bool { return s.Slots.Free == 10 && len(s.Queue) == 0 })
	// The first ten are answered at once, when ZeroMQ may not have seen yet that
	// the peer is gone; the others as those before them expire.
	if got := s.Counters.Undeliverable; got < n-10 || got > n {
		t.Errorf("undeliverable %d, want %d", got, n)
	}
}

// bigSnapshot makes Snapshots large, so that few of them fill a peer's queues.
func (r *running) bigSnapshot() {
	r.t.Helper()
	p := r.dial(peertest.Options{})
	const n = 100
	for i := range n {
		p.ask(peertest.Alloc(fmt.Sprint("waits", i), 10, true, testSlot, "k"))
	}
	r.event("queued", fmt.Sprint("waits", n-1))
}

// A sender that does not read its answers ends; others are served meanwhile.
func TestOverrun(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	p := r.dial(peertest.Options{Identity: "deaf", Queue: 1, Buffer: 4096})
	p.attach("deaf")
	wantSlots(t, p.alloc("A", 4, false, "k"), 1)
	r.bigSnapshot()
	bystander := r.dial(peertest.Options{})
	for i, ended := 0, false; !ended; i++ {
		if i == 100_000 {
			t.Fatal("the sender that does not read still has its request")
		}
		p.ask(&wire.StatRequest{})
		if i%50 == 0 {
			ended = call[*wire.Snapshot](bystander, &wire.StatRequest{}).Counters.Expired > 0
		}
	}
	if e := r.event("expired", "A"); e.Sender != "deaf" {
		t.Errorf("expired: %+v", e)
	}
	r.stat("the lost answers", func(s *wire.Snapshot) bool { return s.Counters.Undeliverable > 0 })
}

// A burst of more answers than a backlog holds does not end a sender that
// reads.
func TestBurst(t *testing.T) {
	t.Parallel()
	const n = 4 * maxBacklog
	r := start(t, func(c *Config) { c.Reservation.AdmitTimeout = 500 * time.Millisecond })
	holder := r.dial(peertest.Options{})
	wantSlots(t, holder.alloc("A", 10, false, "k"), 1)
	p := r.dial(peertest.Options{})
	for i := range n {
		p.ask(peertest.Alloc(fmt.Sprint("B", i), 1, true, testSlot, "k"))
	}
	for range n {
		_, m, err := p.Recv(soon)
		wantCode(t, as[*wire.AllocResponse](p, m, err), wire.CodeAdmissionTimeout, 1)
	}
}

// Shutdown answers everybody who waits, then the receiver ends.
func TestShutdown(t *testing.T) {
	r := start(t, nil)
	holder, legacy, attached := r.dial(peertest.Options{}), r.dial(peertest.Options{Legacy: true}), r.dial(peertest.Options{})
	wantSlots(t, holder.alloc("A", 10, true, keys("A", 0, 10)...), 10)
	attached.attach("attached")
	b := attached.ask(peertest.Alloc("B", 2, true, testSlot, "k", "l"))
	legacy.ask(peertest.Alloc("C", 1, true, testSlot, "k"))
	r.event("queued", "B")
	r.event("queued", "C")
	r.end()
	wantCode(t, attached.wait(b), wire.CodeShuttingDown, 2)
	_, m, err := legacy.Recv(soon)
	wantCode(t, as[*wire.AllocResponse](legacy, m, err), wire.CodeShuttingDown, 1)
	if !r.target.closed {
		t.Error("the buffer is still there")
	}
	if got := r.events("B"); got[len(got)-1] != "rejected" {
		t.Errorf("events of B: %v", got)
	}
}

// Who comes while it drains is refused, what is admitted ends, and then it ends.
func TestShutdownDrains(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.ShutdownTimeout = 0 })
	p := r.dial(peertest.Options{})
	p.attach("sender")
	slots := wantSlots(t, p.alloc("A", 2, false, "k"), 1)
	r.stop()
	for r.said("stopping: ") == 0 {
		time.Sleep(time.Millisecond)
	}
	wantCode(t, p.alloc("B", 1, true, "b"), wire.CodeShuttingDown, 1)
	slots = append(slots, wantSlots(t, p.alloc("A", 2, true, "l"), 1)...)
	if resp := p.commit("A", slots...); !resp.Ready {
		t.Errorf("the commit says %+v", resp)
	}
	select {
	case <-r.ended:
		t.Fatal("it ended before the request was taken")
	case <-time.After(100 * time.Millisecond):
	}
	if resp := call[*wire.ReleaseResponse](p, &wire.ReleaseRequest{ReqID: "A"}); resp.Code != "" {
		t.Errorf("the release says %+v", resp)
	}
	r.end()
}

// Shutdown does not wait longer than it may for a peer that does not read.
func TestShutdownWithADeafPeer(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.ShutdownTimeout = time.Second })
	r.bigSnapshot()
	p := r.dial(peertest.Options{Queue: 1, Buffer: 4096})
	for range 350 { // more than ZeroMQ keeps, less than a full backlog
		p.ask(&wire.StatRequest{})
	}
	p.ask(peertest.Alloc("last", 1, true, testSlot, "k"))
	r.event("queued", "last")
	began, held := time.Now(), testkit.Delays(t)
	r.end()
	if took := time.Since(began); took > 3*time.Second+held() { // one, on a machine that has nothing else to do
		t.Errorf("took %v", took)
	}
}

func TestTakeAndRelease(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Reservation.Lease = 1500 * time.Millisecond; c.Reservation.ReadyTTL = time.Hour })
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	one, two := r.client(), r.client()
	p := r.dial(peertest.Options{})
	p.attach("sender")
	slots := wantSlots(t, p.alloc("A", 3, true, keys("A", 0, 3)...), 3)
	refused := func(err error, code wire.Code) {
		t.Helper()
		var no *client.Refused
		if !errors.As(err, &no) || no.Code != code || no.Reason == "" {
			t.Errorf("error %v, want %s", err, code)
		}
	}
	_, err := one.Take(ctx, "B")
	refused(err, wire.CodeUnknownRequest)
	_, err = one.Take(ctx, "A")
	refused(err, wire.CodeNotReady)
	p.commit("A", slots...)

	taken, err := one.Take(ctx, "A")
	if err != nil {
		t.Fatal(err)
	}
	if taken.SlotSize != testSlot || taken.SlotCount != 10 || taken.LeaseMS != 1500 || taken.ReceiverID != "test" ||
		string(taken.Token) != "reader" || len(taken.Regions) != 1 || len(taken.Chunks) != 3 {
		t.Errorf("taken: %+v", taken)
	}
	for i, c := range taken.Chunks {
		if c.Key != fmt.Sprint("A-", i) || c.Slot != slots[i] || c.Length != testSlot || !c.HasCRC {
			t.Errorf("chunk %d: %+v", i, c)
		}
	}
	_, err = two.Take(ctx, "A")
	refused(err, wire.CodeTaken)
	refused(two.Release(ctx, "A"), wire.CodeTaken)
	if err := one.GiveBack(ctx, "A"); err != nil {
		t.Error(err)
	}
	if _, err = two.Take(ctx, "A"); err != nil {
		t.Error(err)
	}
	// The take lapses with the lease, and the request is ready again.
	for {
		if _, err := one.Take(ctx, "A"); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if err := one.Release(ctx, "A"); err != nil {
		t.Error(err)
	}
	refused(one.Release(ctx, "A"), wire.CodeUnknownRequest)
	if s, err := one.Stat(ctx); err != nil || s.Slots.Free != 10 || s.Counters.Released != 1 {
		t.Errorf("snapshot %+v, %v", s, err)
	}
}

// A take whose list of chunks is too long for an answer is refused, and the
// request stays ready.
func TestTakeTooLong(t *testing.T) {
	t.Parallel()
	const batch, batches = 240, 72
	r := start(t, func(c *Config) { c.Reservation.Slots = batch * batches })
	p := r.dial(peertest.Options{})
	long := strings.Repeat("k", 4000)
	for i := range batches {
		wantSlots(t, p.alloc("A", batch*batches, i == batches-1, keys(long, i*batch, batch)...), batch)
	}
	resp := call[*wire.TakeResponse](p, &wire.TakeRequest{ReqID: "A"})
	if resp.Code != wire.CodeInternal || !strings.Contains(resp.Error, "17280 chunks") || len(resp.Chunks) > 0 {
		t.Errorf("answer %s %s, %d chunks", resp.Code, resp.Error, len(resp.Chunks))
	}
	other := r.dial(peertest.Options{})
	if resp := call[*wire.ReleaseResponse](other, &wire.ReleaseRequest{ReqID: "A"}); resp.Code != "" {
		t.Errorf("still taken: %+v", resp)
	}
}

// A request that expired is told so to the decoder that comes too late.
func TestTakeExpired(t *testing.T) {
	r := start(t, func(c *Config) { c.Reservation.LegacyLease = 100 * time.Millisecond })
	p := r.dial(peertest.Options{})
	wantSlots(t, p.alloc("A", 1, true, "k"), 1)
	r.event("expired", "A")
	resp := call[*wire.TakeResponse](p, &wire.TakeRequest{ReqID: "A"})
	if resp.Code != wire.CodeExpired {
		t.Errorf("answer %+v", resp)
	}
}

func (r *running) client() *client.Conn {
	r.t.Helper()
	c, err := client.Dial(r.Endpoint(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

func TestClientSaysWhenNobodyAnswers(t *testing.T) {
	r := start(t, nil)
	endpoint := r.Endpoint()
	r.end()
	c, err := client.Dial(endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Stat(ctx); err == nil {
		t.Error("an answer from nobody")
	}
}

// --sink plays the decoder, after its delay.
func TestSink(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
		r := start(t, func(c *Config) { c.Sink, c.SinkDelay = true, delay })
		p := r.dial(peertest.Options{})
		for i := range 20 { // 20 of 10 slots each
			wantSlots(t, p.alloc(fmt.Sprint("A", i), 10, true, keys("k", 0, 10)...), 10)
			if delay > 0 && i == 1 {
				break
			}
		}
		ready, released := r.event("ready", "A0"), r.event("released", "A0")
		at := func(e event) time.Time {
			v, err := time.Parse(time.RFC3339Nano, e.Time)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		if got := at(released).Sub(at(ready)); got < delay {
			t.Errorf("released %v after it was ready, want %v", got, delay)
		}
		r.free(10)
	}
}

// --proxy is told of requests that expire.
func TestProxyIsTold(t *testing.T) {
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	pull, endpoint, err := ctx.Listen(zmq4.PULL, "tcp://127.0.0.1:*", sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer pull.Close()
	r := start(t, func(c *Config) { c.Reservation.LegacyLease = 100 * time.Millisecond; c.Proxy = endpoint })
	p := r.dial(peertest.Options{})
	wantSlots(t, p.alloc("A", 4, false, "k"), 1)
	if told, err := testkit.Poller(t, pull, zmq4.POLLIN).Wait(soon); err != nil || !told {
		t.Fatalf("nothing came: %v", err)
	}
	frames, err := sock.Recv(pull, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.Decode(frames[0])
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := m.(*wire.FailNotif); !ok || n.ReqID != "A" || n.Reason == "" {
		t.Errorf("came %+v", m)
	}
}

// A proxy that is away holds nothing up; it is said once that it is, and at the
// end what it missed.
func TestProxyIsAway(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Reservation.LegacyLease = 50 * time.Millisecond
		c.Proxy = "tcp://127.0.0.1:1"
		c.ShutdownTimeout = 200 * time.Millisecond
	})
	p := r.dial(peertest.Options{})
	wantSlots(t, p.alloc("A", 4, false, "k"), 1)
	r.event("expired", "A")
	const away = "proxy: the proxy is not told what expires: nobody takes it at tcp://127.0.0.1:1: is pd-proxy running there?"
	testkit.Eventually(t, 2*soon, "it is said", func() bool { return r.said(away) == 1 })
	began, held := time.Now(), testkit.Delays(t)
	r.end()
	if took := time.Since(began); took > time.Second+held() {
		t.Errorf("took %v to end", took)
	}
	if len(r.warned) != 2 || r.warned[1] != "proxy: 1 notifications were not delivered to the proxy at tcp://127.0.0.1:1" {
		t.Errorf("said %q", r.warned)
	}
}

// A Snapshot is built at most ten times a second, however many ask.
func TestSnapshotIsShared(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	began := time.Now()
	built := make(map[time.Time]bool)
	for range 200 {
		built[call[*wire.Snapshot](p, &wire.StatRequest{}).Time.Time] = true
	}
	if most := int(time.Since(began)/monitor.MaxAge) + 1; len(built) > most {
		t.Errorf("%d snapshots in %v", len(built), time.Since(began))
	}
}

func TestSnapshotFields(t *testing.T) {
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	wantSlots(t, p.alloc("A", 4, false, "k"), 1)
	s := r.free(6)
	if s.Kind != "receiver" || s.ID != "test" || s.Epoch != 77 || s.Endpoint != r.Endpoint() || s.Engine != testEngine ||
		s.Admission != "reserve" || s.UptimeS <= 0 || time.Since(s.Time.Time) > soon || s.Slots.Bytes != testSlot {
		t.Errorf("snapshot: %+v", s)
	}
}

// A port that is taken is an error that names the endpoint, before any memory
// is had.
func TestPortTaken(t *testing.T) {
	r := start(t, nil)
	cfg := r.cfg
	cfg.Listen = r.Endpoint()
	cfg.OpenTarget = func() (rdma.Target, error) { t.Error("memory for nothing"); return newFakeTarget(), nil }
	if _, err := New(cfg); err == nil {
		t.Error("two on one port")
	}
}

func TestNoMemory(t *testing.T) {
	r := start(t, nil)
	cfg := r.cfg
	cfg.OpenTarget = func() (rdma.Target, error) { return nil, errors.New("no memory") }
	if _, err := New(cfg); err == nil || err.Error() != "no memory" {
		t.Errorf("error %v", err)
	}
}
