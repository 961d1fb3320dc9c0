package monitor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"go.uber.org/goleak"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/internal/usage"
	"github.com/pd-tools/pd-tools/wire"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is a loop that answers asks at once, as one that turns does.
type program struct {
	*Publisher
	built   atomic.Int64
	entries int
	name    string // of each entry's sender
}

func publish(t *testing.T, entries int) *program {
	return publishNamed(t, entries, "prefill-0")
}

func publishNamed(t *testing.T, entries int, name string) *program {
	t.Helper()
	prog := &program{entries: entries, name: name}
	turns := make(chan struct{}, 1)
	asks := NewAsks(func() {
		select {
		case turns <- struct{}{}:
		default:
		}
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-turns:
				asks.Answer(time.Now(), prog.build)
			case <-stop:
				return
			}
		}
	}()
	var err error
	prog.Publisher, err = Listen(Config{
		Endpoint: "tcp://127.0.0.1:*", Kind: wire.KindReceiver, ID: "r", Epoch: 7, Ask: asks.Add,
		Warn: func(_, text string) { t.Error(text) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close(); close(stop); <-stopped })
	return prog
}

func (prog *program) build() wire.Message {
	n := prog.built.Add(1)
	s := &wire.Snapshot{Time: wire.StampOf(time.Now()), Kind: wire.KindReceiver, ID: "r", Epoch: 7, UptimeS: float64(n)}
	for i := range prog.entries {
		s.Requests = append(s.Requests, wire.SnapshotRequest{ReqID: fmt.Sprintf("request-%d", i), Sender: prog.name})
	}
	return s
}

// subscriber is a monitor.
type subscriber struct{ *testkit.Subscriber }

func subscribe(t *testing.T, endpoint string) subscriber {
	t.Helper()
	return subscriber{testkit.Subscribe(t, endpoint)}
}

func (s subscriber) snapshot() *wire.Snapshot {
	return testkit.Next[*wire.Snapshot](s.Subscriber, patience, "a Snapshot", nil)
}

func (s subscriber) event() *wire.Event {
	return testkit.Next[*wire.Event](s.Subscriber, patience, "an Event", nil)
}

func (prog *program) until(t *testing.T, watched bool) {
	t.Helper()
	for end := time.Now().Add(patience); prog.Watched() != watched; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("Watched stays %v", !watched)
		}
	}
}

func TestNobodyWatches(t *testing.T) {
	prog := publish(t, 1)
	prog.Event(wire.EventEntry{ReqID: "before"})
	s := subscribe(t, prog.Endpoint())
	s.snapshot()
	prog.Event(wire.EventEntry{ReqID: "during"})
	if e := s.event(); len(e.Events) != 1 || e.Events[0].ReqID != "during" || e.Dropped != 0 || e.Kind != wire.KindReceiver || e.ID != "r" || e.Epoch != 7 {
		t.Errorf("event %+v, want what happened while somebody was subscribed", e)
	}
	s.Close()
	prog.until(t, false)
	prog.Event(wire.EventEntry{ReqID: "after"})
	built := prog.built.Load()
	time.Sleep(2 * period)                       // nothing is to happen
	if now := prog.built.Load(); now > built+1 { // one may have been asked for
		t.Errorf("%d Snapshots built while nobody watches", now-built)
	}
	s = subscribe(t, prog.Endpoint())
	s.snapshot()
	prog.Event(wire.EventEntry{ReqID: "again"})
	if e := s.event(); len(e.Events) != 1 || e.Events[0].ReqID != "again" {
		t.Errorf("event %+v, want what happened after the second came", e)
	}
}

// A late joiner need not wait for the next Snapshot that is due.
func TestLateJoiner(t *testing.T) {
	prog := publish(t, manyEntries+1) // then every second only
	first := subscribe(t, prog.Endpoint())
	first.snapshot()
	held := testkit.Delays(t)
	for range 3 {
		began := time.Now()
		s := subscribe(t, prog.Endpoint())
		m := s.snapshot()
		if took := time.Since(began); took > longPeriod/2+held() {
			t.Errorf("a new subscriber waited %v", took)
		}
		if age := time.Since(m.Time.Time); age > longPeriod/2+held() || len(m.Requests) != manyEntries+1 {
			t.Errorf("a Snapshot of %v ago with %d requests", age, len(m.Requests))
		}
		s.Close()
	}
}

func TestTenMessagesASecond(t *testing.T) {
	prog := publish(t, 1)
	s := subscribe(t, prog.Endpoint())
	s.snapshot()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // as fast as it can
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				prog.Event(wire.EventEntry{ReqID: "x"})
			}
		}
	}()
	looking := make(chan struct{})
	go func() { // others look in, one after the other
		defer close(looking)
		for {
			select {
			case <-stop:
				return
			default:
				subscribe(t, prog.Endpoint()).Close()
			}
		}
	}()
	defer func() { close(stop); <-stopped; <-looking }()
	snapshots, events := 0, 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		switch m := s.Next(100 * time.Millisecond).(type) {
		case *wire.Snapshot:
			snapshots++
		case *wire.Event:
			events++
			if len(m.Events) > maxEvents || m.Dropped == 0 {
				t.Errorf("an Event with %d entries, %d dropped", len(m.Events), m.Dropped)
			}
		}
	}
	if all := snapshots + events; all > 31 || snapshots < 6 || events < 6 {
		t.Errorf("%d Snapshots and %d Events in 3 s", snapshots, events)
	}
}

// The newest entries are kept, in order, and the rest counted.
func TestEventBounded(t *testing.T) {
	prog := publish(t, 1)
	s := subscribe(t, prog.Endpoint())
	s.snapshot()
	total := 0
	happen := func(n int) {
		for range n {
			prog.Event(wire.EventEntry{Chunks: total})
			total++
		}
	}
	happen(3*maxEvents + 7)
	got := 0
	for got < total {
		e := s.event()
		got += int(e.Dropped)
		for i, entry := range e.Events {
			if entry.Chunks != got+i {
				t.Fatalf("entry %d of an Event is number %d, want %d", i, entry.Chunks, got+i)
			}
		}
		if got += len(e.Events); len(e.Events) > maxEvents {
			t.Fatalf("%d entries", len(e.Events))
		}
	}
}

// One who does not read misses messages; the others and the program do not.
func TestStoppedSubscriber(t *testing.T) {
	prog := publishNamed(t, 900, strings.Repeat("x", 4000)) // large, so that its buffers fill up
	var stopped []subscriber
	for range 3 {
		stopped = append(stopped, subscribe(t, prog.Endpoint()))
	}
	s := subscribe(t, prog.Endpoint())
	for last, n := 0.0, 0; n < 10; n++ {
		m := s.snapshot()
		if m.UptimeS <= last {
			t.Fatalf("Snapshot %v after %v", m.UptimeS, last)
		}
		last = m.UptimeS
	}
	if m := stopped[0].snapshot(); len(m.Requests) != 900 {
		t.Errorf("one that was late reads %d requests", len(m.Requests))
	}
}

// Nothing but a subscription to all makes anybody a monitor, and nothing a
// subscriber sends does harm.
func TestStrangeSubscribers(t *testing.T) {
	prog := publish(t, 1)
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	for _, message := range [][]byte{{}, {2}, []byte("hello"), []byte("\x01topic"), {0}, make([]byte, maxSubscription), make([]byte, maxSubscription+1)} {
		x, err := ctx.Dial(zmq4.XSUB, prog.Endpoint(), sock.Options{Linger: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.SetSndtimeo(patience); err != nil {
			t.Fatal(err)
		}
		if _, err := x.SendBytes(message, 0); err != nil {
			t.Fatal(err)
		}
		x.Close()
	}
	s := subscribe(t, prog.Endpoint())
	s.snapshot()
	s.Close()
	prog.until(t, false)
}

// ZeroMQ keeps every topic that anybody subscribes to. Whoever wants ever more of
// them does not fill the memory, and monitors are served all the same.
func TestTopicsWithoutEnd(t *testing.T) {
	prog := publish(t, 1)
	s := subscribe(t, prog.Endpoint())
	s.snapshot()
	before := resident(t)
	for i := range 25 {
		// By hand: a socket of ZeroMQ would come again with all its topics.
		c, err := net.Dial("tcp", strings.TrimPrefix(prog.Endpoint(), "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		said := make([]byte, 64)
		copy(said, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL")
		said = append(said, "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"...)
		for j := range 2000 { // 120 kB, of which ZeroMQ makes 5 MB
			topic := make([]byte, maxSubscription-4)
			copy(topic, fmt.Sprint("\x01", j, " ", i))
			said = append(append(said, 0, byte(len(topic))), topic...)
		}
		if _, err := c.Write(said); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("it is not thrown out")
		}
		s.snapshot()
	}
	if grown := resident(t) - before; grown > 64<<20 {
		t.Errorf("%d MiB are kept of its topics", grown>>20)
	}
}

// resident is this process's resident memory, bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	u, err := usage.Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return u.Resident()
}

func TestTakenPort(t *testing.T) {
	prog := publish(t, 1)
	_, err := Listen(Config{Endpoint: prog.Endpoint()})
	if err == nil || !strings.Contains(err.Error(), prog.Endpoint()) {
		t.Errorf("error %v, want one that names %s", err, prog.Endpoint())
	}
}

// Close waits neither for a subscriber that does not read nor for an answer
// that does not come.
func TestCloseQuick(t *testing.T) {
	asked := make(chan func(wire.Message), 1)
	p, err := Listen(Config{Endpoint: "tcp://127.0.0.1:*", Kind: wire.KindReceiver, Ask: func(f func(wire.Message)) { asked <- f }})
	if err != nil {
		t.Fatal(err)
	}
	subscribe(t, p.Endpoint())
	var answer func(wire.Message)
	select {
	case answer = <-asked:
	case <-time.After(patience):
		t.Fatal("no Snapshot is asked for")
	}
	p.Event(wire.EventEntry{})
	began, held := time.Now(), testkit.Delays(t)
	p.Close()
	if took := time.Since(began); took > time.Second+held() {
		t.Errorf("Close took %v", took)
	}
	answer(&wire.Snapshot{})
	p.Event(wire.EventEntry{})
	if p.Watched() {
		t.Error("watched after Close")
	}
}
