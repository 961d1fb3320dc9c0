package main

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// A monitor sees what the receiver has and what happens to a request.
func TestMonitor(t *testing.T) {
	t.Parallel()
	_, first := serveAndSay(t, "--buffer-size", "4KiB", "--chunk-size", "1KiB", "--monitor", "tcp://127.0.0.1:*")
	watch := testkit.Subscribe(t, first.Monitor)
	s := testkit.Next[*wire.Snapshot](watch, patience, "a Snapshot", nil)
	if s.Kind != wire.KindReceiver || s.Epoch != first.Epoch || s.Endpoint != first.Endpoint || s.Slots.Total != 4 || s.Slots.Free != 4 {
		t.Errorf("snapshot %+v", s)
	}
	if err := send(first.Endpoint, "A", []string{"one", "two"}, 0); err != nil {
		t.Fatal(err)
	}
	var told []wire.EventEntry
	for len(told) < 3 {
		e := testkit.Next[*wire.Event](watch, patience, "a Event", nil)
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
		s = testkit.Next[*wire.Snapshot](watch, patience, "a Snapshot", nil)
	}
	if r := s.Requests[0]; r.State != "ready" || r.Written != 2 || r.AdmittedMS < 0 || r.ReadyMS < r.FirstWriteMS {
		t.Errorf("request %+v", r)
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
