package monitor

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// station is a publisher in its test's goroutine, that sends what it is told.
type station struct {
	t        *testing.T
	ctx      *sock.Context
	socket   *zmq4.Socket
	endpoint string
}

func newStation(t *testing.T, kind zmq4.Type, endpoint string) *station {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &station{t: t, ctx: ctx}
	s.socket, s.endpoint, err = ctx.Listen(kind, endpoint, sock.Options{SendQueue: 10000, RecvQueue: 10000, Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func (s *station) close() {
	if s.ctx != nil {
		s.socket.Close()
		s.ctx.Close()
		s.ctx = nil
	}
}

// subscribed waits for the next subscriber; the station is an XPUB.
func (s *station) subscribed() {
	s.t.Helper()
	s.socket.SetRcvtimeo(patience)
	if frames, err := sock.RecvWait(s.socket, 1); err != nil || string(frames[0]) != "\x01" {
		s.t.Fatalf("%q came, %v", frames, err)
	}
}

func (s *station) send(frames ...[]byte) {
	s.t.Helper()
	if err := sock.Send(s.socket, frames...); err != nil {
		s.t.Fatal(err)
	}
}

func watch(t *testing.T, endpoints ...string) *Watcher {
	t.Helper()
	w, err := Watch(nil, endpoints...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// until reads an endpoint until what has come satisfies.
func until(t *testing.T, w *Watcher, endpoint int, what string, satisfies func(Reading) bool) (all []Reading) {
	t.Helper()
	end := time.After(patience)
	for {
		r := w.Read(endpoint)
		all = append(all, r)
		if satisfies(r) {
			return all
		}
		select {
		case <-w.Changed():
		case <-end:
			t.Fatalf("%s never: %+v", what, r)
		}
	}
}

func pending(n int) []byte {
	return wire.Append(nil, &wire.ProxySnapshot{Kind: wire.KindProxy, Pending: n})
}

func happened(id string) []byte {
	return wire.Append(nil, &wire.Event{Kind: wire.KindProxy, Events: []wire.EventEntry{{ReqID: id}}})
}

func ids(events []*wire.Event) (out []string) {
	for _, e := range events {
		for _, entry := range e.Events {
			out = append(out, entry.ReqID)
		}
	}
	return out
}

// Of each endpoint the newest Snapshot counts, and every Event.
func TestWatch(t *testing.T) {
	a, b := newStation(t, zmq4.XPUB, "tcp://127.0.0.1:*"), newStation(t, zmq4.XPUB, "ipc://"+t.TempDir()+"/b")
	w := watch(t, a.endpoint, b.endpoint)
	a.subscribed()
	b.subscribed()
	for i := range 10 {
		a.send(pending(i))
		a.send(happened(fmt.Sprint(i)))
	}
	b.send(pending(77))
	var told []string
	newest := -1
	until(t, w, 0, "the last Event", func(r Reading) bool {
		if m, ok := r.Snapshot.(*wire.ProxySnapshot); ok {
			if m.Pending <= newest {
				t.Errorf("Snapshot %d after %d", m.Pending, newest)
			}
			newest = m.Pending
		}
		told = append(told, ids(r.Events)...)
		return len(told) == 10
	})
	if want := strings.Fields("0 1 2 3 4 5 6 7 8 9"); newest != 9 || !slices.Equal(told, want) {
		t.Errorf("Snapshot %d, Events %v", newest, told)
	}
	until(t, w, 1, "the other's Snapshot", func(r Reading) bool {
		m, ok := r.Snapshot.(*wire.ProxySnapshot)
		return ok && m.Pending == 77 && r.Connected && !r.Heard.IsZero() && r.Pace == 0
	})
	if r := w.Read(1); r.Snapshot != nil || r.Events != nil {
		t.Errorf("%+v is read twice", r)
	}
}

// What nobody reads is bounded, and what is lost is counted.
func TestWatchKeepsLittle(t *testing.T) {
	s := &source{}
	for i := range maxKept + 10 {
		s.take(pending(i), time.Now())
		s.take(happened(fmt.Sprint(i)), time.Now())
	}
	r := s.read()
	if got := ids(r.Events); len(got) != maxKept || got[0] != "10" || r.Lost != 10 || r.Snapshot.(*wire.ProxySnapshot).Pending != maxKept+9 {
		t.Errorf("%d Events from %s on, %d lost, %+v", len(got), got[0], r.Lost, r.Snapshot)
	}
	large := wire.Append(nil, &wire.Event{Events: []wire.EventEntry{{Reason: strings.Repeat("x", maxKeptBytes/2)}}})
	for range 3 {
		s.take(large, time.Now())
	}
	if len(s.kept) != 1 || s.keptBytes != len(large) {
		t.Errorf("%d Events of %d bytes are kept", len(s.kept), s.keptBytes)
	}
}

// What is no message for monitors is counted and said, and the rest goes on.
func TestWatchBadMessages(t *testing.T) {
	a := newStation(t, zmq4.XPUB, "tcp://127.0.0.1:*")
	w := watch(t, a.endpoint)
	a.subscribed()
	bad := [][]byte{{}, []byte("hello"), wire.Append(nil, &wire.Heartbeat{}), pending(1)[:40]}
	for i, frame := range bad {
		a.send(frame)
		until(t, w, 0, fmt.Sprintf("%q", frame), func(r Reading) bool {
			return r.Snapshot == nil && r.Bad == int64(i+1) && strings.Contains(r.Err, "could not be read")
		})
	}
	a.send([]byte("two"), []byte("frames"))
	a.send(pending(3))
	all := until(t, w, 0, "a good one", func(r Reading) bool { return r.Snapshot != nil })
	if r := all[len(all)-1]; r.Bad != int64(len(bad)+1) || !strings.HasPrefix(r.Err, "5 messages") {
		t.Errorf("%d bad: %s", r.Bad, r.Err)
	}
}

// A publisher that dies is not connected at once, and again when it is back.
func TestWatchReconnects(t *testing.T) {
	a := newStation(t, zmq4.XPUB, "tcp://127.0.0.1:*")
	w := watch(t, a.endpoint)
	a.subscribed()
	a.send(pending(1))
	until(t, w, 0, "the first", func(r Reading) bool { return r.Snapshot != nil && r.Connected })
	a.close()
	until(t, w, 0, "the end", func(r Reading) bool { return !r.Connected })
	until(t, w, 0, "an attempt", func(r Reading) bool { return r.Retry > 1 })
	b := newStation(t, zmq4.XPUB, a.endpoint)
	b.subscribed()
	b.send(pending(2))
	until(t, w, 0, "the second", func(r Reading) bool { return r.Snapshot != nil && r.Connected && r.Retry == 0 })
}

// The endpoint of something else says so.
func TestWatchNoPublisher(t *testing.T) {
	router := newStation(t, zmq4.ROUTER, "tcp://127.0.0.1:*")
	w := watch(t, router.endpoint, "tcp://nowhere.invalid:7602")
	until(t, w, 0, "what it is", func(r Reading) bool { return strings.Contains(r.Err, "--monitor") && !r.Connected })
	if r := w.Read(1); !strings.Contains(r.Err, "nowhere.invalid") {
		t.Errorf("a host that does not exist: %+v", r)
	}
}

// A message over the limit ends its connection, and the next is a new one.
func TestWatchTooLarge(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer func(d time.Duration) { redialAfter = d }(redialAfter)
	redialAfter = 100 * time.Millisecond
	l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	w := watch(t, "tcp://"+l.Addr().String())
	for range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// ZMTP 3.0: greeting, READY as a PUB, then a frame that claims 1 GiB.
		greeting := append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL"), make([]byte, 48)...)
		ready := []byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB")
		for _, b := range [][]byte{greeting, ready, []byte("\x02\x00\x00\x00\x00\x40\x00\x00\x00")} {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		c.SetReadDeadline(time.Now().Add(patience))
		for buf := make([]byte, 4096); err == nil; _, err = c.Read(buf) {
		}
		if nerr, ok := err.(net.Error); ok && nerr.Timeout() {
			t.Fatal("the connection stays")
		}
		c.Close()
	}
	w.Close()
}

// With a real publisher: a Snapshot at once, then at its pace.
func TestWatchPublisher(t *testing.T) {
	n := 0
	cfg := Config{Endpoint: "tcp://127.0.0.1:*", Kind: wire.KindProxy, Ask: func(f func(wire.Message)) {
		n++
		f(&wire.ProxySnapshot{Kind: wire.KindProxy, Pending: n})
	}}
	p, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	w := watch(t, p.Endpoint())
	seen := 0
	all := until(t, w, 0, "a third Snapshot", func(r Reading) bool {
		if r.Snapshot != nil {
			seen++
		}
		return seen == 3
	})
	if r := all[len(all)-1]; r.Pace < gap/2 || r.Pace > patience {
		t.Errorf("they come every %v", r.Pace)
	}
}

// FuzzWatch: whatever a publisher sends, it is counted or it is a message.
func FuzzWatch(f *testing.F) {
	for _, frame := range [][]byte{
		pending(1), happened("A"), {}, []byte("\x81\xa4type\xa8Snapshot"), wire.Append(nil, &wire.Heartbeat{}),
		wire.Append(nil, &wire.Snapshot{Kind: wire.KindReceiver, Requests: make([]wire.SnapshotRequest, 2)}),
		wire.Append(nil, &wire.SenderSnapshot{Kind: wire.KindSender}),
	} {
		f.Add(frame, frame)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		s := &source{}
		now := time.Unix(1000, 0)
		s.take(a, now)
		s.take(b, now.Add(time.Second))
		r := s.read()
		good := len(r.Events)
		switch r.Snapshot.(type) {
		case nil:
		case *wire.Snapshot, *wire.SenderSnapshot, *wire.ProxySnapshot:
			good++
		default:
			t.Errorf("%T is no Snapshot", r.Snapshot)
		}
		if (r.Bad > 0) != (r.Err != "") || good+int(r.Bad) > 2 || good == 0 && r.Bad == 0 {
			t.Errorf("%d good, %d bad, %q", good, r.Bad, r.Err)
		}
		if again := s.read(); again.Snapshot != nil || again.Events != nil || again.Bad != r.Bad {
			t.Errorf("read twice: %+v", again)
		}
	})
}
