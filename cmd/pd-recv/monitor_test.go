package main

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// A monitor sees what the receiver has and what happens to a request.
func TestMonitor(t *testing.T) {
	t.Parallel()
	_, first := serveAndSay(t, "--buffer-size", "4KiB", "--chunk-size", "1KiB", "--monitor", "tcp://127.0.0.1:*")
	messages := watch(t, first.Monitor)
	s := next[*wire.Snapshot](t, messages)
	if s.Kind != wire.KindReceiver || s.Epoch != first.Epoch || s.Endpoint != first.Endpoint || s.Slots.Total != 4 || s.Slots.Free != 4 {
		t.Errorf("snapshot %+v", s)
	}
	if err := send(first.Endpoint, "A", []string{"one", "two"}, 0); err != nil {
		t.Fatal(err)
	}
	var told []wire.EventEntry
	for len(told) < 3 {
		e := next[*wire.Event](t, messages)
		if e.Kind != wire.KindReceiver || e.ID != s.ID || e.Epoch != s.Epoch || e.Dropped != 0 {
			t.Errorf("event %+v, the snapshot %+v", e, s)
		}
		told = append(told, e.Events...)
	}
	for i, want := range []string{"admitted", "allocated", "ready"} {
		e := told[i]
		if e.Event != want || e.ReqID != "A" || e.Sender != "script" || e.TotalChunks != 2 || e.Free != 2 {
			t.Errorf("entry %d: %+v, want %s", i, e, want)
		}
		if ready := want == "ready"; ready != (e.TookMS > 0) || ready && (e.Bytes != 6 || e.Chunks != 2) {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	for s.Slots.Ready == 0 {
		s = next[*wire.Snapshot](t, messages)
	}
	if r := s.Requests[0]; r.State != "ready" || r.Written != 2 || r.AdmittedMS < 0 || r.ReadyMS < r.FirstWriteMS {
		t.Errorf("request %+v", r)
	}
}

// watch subscribes; what comes is decoded.
func watch(t *testing.T, endpoint string) <-chan wire.Message {
	t.Helper()
	ctx, err := sock.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	socket, err := ctx.Dial(zmq4.SUB, endpoint, sock.Options{
		MaxFrame: wire.MaxResponse, Linger: -1,
		Prepare: func(s *zmq4.Socket) error { return s.SetSubscribe("") },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.SetRcvtimeo(10 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	messages, stop, done := make(chan wire.Message, 1000), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer ctx.Close()
		defer socket.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			frames, err := sock.RecvWait(socket, 1)
			if err != nil {
				continue
			}
			m, err := wire.Decode(frames[0])
			if err != nil {
				t.Error(err)
				continue
			}
			messages <- m
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
	return messages
}

// next is the next message of a type.
func next[M wire.Message](t *testing.T, messages <-chan wire.Message) M {
	t.Helper()
	for late := time.After(patience); ; {
		select {
		case m := <-messages:
			if m, ok := m.(M); ok {
				return m
			}
		case <-late:
			t.Fatalf("no %T comes", *new(M))
		}
	}
}

// Without --monitor a second receiver on a host works all the same, unwatched.
func TestDefaultMonitorIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:7602")
	if err != nil {
		t.Skipf("another program has the port: %v", err)
	}
	defer taken.Close()
	p, first := serveAndSay(t, "--buffer-size", "4KiB", "--chunk-size", "1KiB")
	if first.Monitor != "" {
		t.Errorf("the first line says it is watched on %s", first.Monitor)
	}
	if err := send(first.Endpoint, "A", []string{"one"}, 0); err != nil {
		t.Error(err)
	}
	p.signal(syscall.SIGINT)
	p.ends(0)
	if got := p.stderr.String(); !strings.Contains(got, "warning: pd-top cannot watch: --monitor: cannot listen on tcp://127.0.0.1:7602: address already in use") {
		t.Errorf("stderr %s", got)
	}
}

func TestEventOf(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, tc := range []struct {
		rec          reservation.Record
		waited, took float64
	}{
		{reservation.Record{Kind: reservation.Queued}, 0, 0},
		{reservation.Record{Kind: reservation.Admitted, Waited: 1500 * time.Microsecond}, 1.5, 0},
		{reservation.Record{Kind: reservation.Ready, Wrote: time.Millisecond, Took: 3 * time.Millisecond}, 0, 3},
		{reservation.Record{Kind: reservation.TimedOut, Waited: time.Second, Took: 2 * time.Second, Code: wire.CodeAdmissionTimeout, Reason: "why"}, 1000, 2000},
		{reservation.Record{Kind: reservation.Cancelled, Waited: time.Second, Took: 2 * time.Second}, 0, 2000},
	} {
		e := eventOf(at, &tc.rec)
		if e.Event != tc.rec.Kind.String() || e.WaitedMS != tc.waited || e.TookMS != tc.took ||
			e.Code != string(tc.rec.Code) || e.Reason != tc.rec.Reason || !e.Time.Equal(at) {
			t.Errorf("%+v becomes %+v", tc.rec, e)
		}
	}
}
