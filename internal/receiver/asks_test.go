package receiver

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// ask is a Snapshot by Asks, as monitors get it.
func ask(t *testing.T, asks *monitor.Asks) *wire.Snapshot {
	t.Helper()
	got := make(chan wire.Message, 1)
	asks.Add(func(m wire.Message) { got <- m })
	select {
	case m := <-got:
		return m.(*wire.Snapshot)
	case <-time.After(soon):
		t.Fatal("nobody answers")
		return nil
	}
}

// Asks are answered at once, also by a receiver that nobody talks to, and say
// what a StatRequest's answer does.
func TestAsks(t *testing.T) {
	asks := monitor.NewAsks(nil)
	r := start(t, func(c *Config) { c.Asks = asks })
	began, held := time.Now(), testkit.Delays(t)
	for range 20 {
		ask(t, asks)
	}
	if took := time.Since(began); took > idleTick*10+held() {
		t.Errorf("20 asks took %v: only by the clock", took)
	}
	p := r.dial(peertest.Options{})
	stat := call[*wire.Snapshot](p, &wire.StatRequest{})
	if s := ask(t, asks); s.Time == stat.Time {
		b, _ := json.Marshal(s)
		if other, _ := json.Marshal(stat); string(b) != string(other) {
			t.Errorf("an ask gets %s, a StatRequest %s", b, other)
		}
	}
}

// What monitors want to know of a request's life is told with its records and
// is in the Snapshot.
func TestToldAndTimes(t *testing.T) {
	told := make(chan reservation.Record, 10)
	r := start(t, func(c *Config) {
		c.Told = func(at time.Time, rec *reservation.Record) {
			if time.Since(at) > soon {
				t.Errorf("told of %v", at)
			}
			told <- *rec
		}
	})
	began := time.Now()
	p := r.dial(peertest.Options{})
	p.attach("sender")
	resp := p.alloc("A", 2, true, "a0", "a1")
	wantSlots(t, resp, 2)
	commit := &wire.CommitRequest{
		ReqID: "A", Slots: resp.RemoteIndexes, Lengths: []int64{testSlot, testSlot}, CRCs: []uint32{1, 2}, Epoch: 77,
	}
	if got := call[*wire.CommitResponse](p, commit); !got.Ready {
		t.Fatalf("commit: %+v", got)
	}
	p.alloc("A", 3, false, "a0") // declares another total
	var kinds []reservation.Kind
	for range 4 {
		rec := <-told
		kinds = append(kinds, rec.Kind)
		if rec.Kind >= reservation.Ready && (rec.Took <= 0 || rec.Took > time.Since(began)) ||
			rec.Kind == reservation.Ready && (rec.Wrote <= 0 || rec.Wrote > rec.Took) {
			t.Errorf("record %+v", rec)
		}
	}
	if want := reservation.RolledBack; kinds[3] != want {
		t.Errorf("told %v, want %v last", kinds, want)
	}
	s := r.free(10)
	if s.WriteTime.Max <= 0 || s.ReadyTime.Max < s.WriteTime.Max || s.ReadyTime.P50 <= 0 {
		t.Errorf("write %+v, ready %+v", s.WriteTime, s.ReadyTime)
	}
	if s.Refusals["protocol_violation"] != 1 || len(s.Refusals) != 1 {
		t.Errorf("refusals %v", s.Refusals)
	}
	if c := s.Counters; c.WrittenChunks != 2 || c.WrittenBytes != 2*testSlot || s.Slots.Peak != 2 {
		t.Errorf("counters %+v, slots %+v", c, s.Slots)
	}
	if len(s.Senders) != 1 || s.Senders[0].Ready != 1 || s.Senders[0].Bytes != 2*testSlot || s.Senders[0].Slots != 0 {
		t.Errorf("senders %+v", s.Senders)
	}
	if s.Limits.LeaseMS != time.Hour.Milliseconds() {
		t.Errorf("limits %+v", s.Limits)
	}
}
