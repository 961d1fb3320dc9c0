package sender

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

func TestSnapshotOfEveryStage(t *testing.T) {
	c, do, s := newTestCore(func(cfg *coreConfig) { cfg.batch = 2 })
	s.engine = "shm"
	c.staging = newStaging(1, 1)
	c.line(time.Second, batchLine("A", 2, 0, 2))
	c.line(2*time.Second, batchLine("B", 4, 0, 2))
	c.line(3*time.Second, batchLine("C", 3, 0, 3))
	c.now = 3 * time.Second
	answer := func(now time.Duration, resp wire.Message) {
		m := do.sent[0]
		do.sent = do.sent[1:]
		c.answered(now, answered{s, m.id, resp})
	}
	work := func(now time.Duration) {
		j := do.jobs[0]
		do.jobs = do.jobs[1:]
		j.state.Store(jobWriting)
		c.worked(now, j)
	}
	// A is told to the proxy, one chunk of B is under way, C waits.
	answer(4*time.Second, &wire.AllocResponse{RemoteIndexes: []int64{0}, AlreadySentIndexes: []int64{1}})
	work(5 * time.Second)
	commit := do.sent[len(do.sent)-1]
	c.answered(6*time.Second, answered{s, commit.id, &wire.CommitResponse{}})
	s.heard.Store(int64(7 * time.Second))
	answer(7*time.Second, &wire.AllocResponse{RemoteIndexes: []int64{1, 2}})

	got := c.snapshot(9 * time.Second)
	want := &wire.SenderSnapshot{
		Staging: wire.Staging{Total: 1, Used: 1, Blocked: []wire.Blocked{{ReqID: "B", Chunks: 1, WaitingMS: 2000}}},
		Requests: []wire.SenderRequest{
			{ReqID: "A", State: "notifying", TotalChunks: 2, Sent: 1, Shared: 1, Bytes: 100, AgeMS: 8000, AdmittedMS: 3000},
			{ReqID: "B", State: "writing", TotalChunks: 4, AgeMS: 7000, AdmittedMS: 5000},
			{ReqID: "C", State: "waiting", TotalChunks: 3, AgeMS: 6000, AdmittedMS: -1},
		},
		Receivers: []wire.SenderLink{{
			Endpoint: "r0", State: "attached", Engine: "shm", Requests: 3, Staging: 1, Blocked: 1, HeardMS: 2000, Bytes: 100,
		}},
		Totals:   wire.SenderTotals{Requests: 3, Blocked: 1},
		Counters: wire.SenderCounters{SentChunks: 1, SharedChunks: 1, SentBytes: 100},
	}
	for name, w := range map[string]struct {
		got  *wire.SnapshotWait
		want float64
	}{"admission": {&got.AdmitWait, 5000}, "write": {&got.WriteTime, 2000}, "ready": {&got.ReadyTime, 0}} {
		if w.got.Max < w.want || w.got.Max > w.want*1.02 {
			t.Errorf("%s: %+v, want %v", name, *w.got, w.want)
		}
		*w.got = wire.SnapshotWait{}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("is\n%s\nwant\n%s", asJSON(got), asJSON(want))
	}

	c.noticed(10*time.Second, noticed{reqID: "A"})
	c.stop(c.reqs["B"], verdict{status: Failed})
	c.stop(c.reqs["C"], verdict{status: Cancelled})
	got = c.snapshot(10 * time.Second)
	if n := got.Counters; n.Ready != 1 || n.Failed != 1 || n.Cancelled != 1 || len(got.Requests) != 0 || got.Totals != (wire.SenderTotals{}) {
		t.Errorf("at the end: %s", asJSON(got))
	}
	if got.ReadyTime.Max < 9000 || got.ReadyTime.Max > 9180 {
		t.Errorf("ready after %v ms, want 9000", got.ReadyTime.Max)
	}
}

func asJSON(v any) string {
	text, _ := json.MarshalIndent(v, "", " ")
	return string(text)
}

func TestSnapshotOfReceivers(t *testing.T) {
	c := newCore(coreConfig{receivers: []string{"r0"}, batch: 8, pending: 1 << 30}, &recorder{results: map[string]*Result{}})
	check := func(now time.Duration, state string, heard int64) {
		t.Helper()
		if r := c.snapshot(now).Receivers[0]; r.State != state || r.HeardMS != heard {
			t.Errorf("%+v, want %s, heard %d ms ago", r, state, heard)
		}
	}
	check(0, "connecting", -1)
	c.line(time.Second, batchLine("A", 1, 0, 1))
	check(time.Second, "connecting", -1)
	c.refused(2*time.Second, refused{err: rdma.ErrGone})
	check(2*time.Second, "refused", -1)
	c.refused(2*time.Second, refused{err: rdma.ErrGone, heard: true})
	check(3*time.Second, "refused", 1000)
	c.line(3*time.Second, batchLine("B", 1, 0, 1))
	s := &session{slots: 10, slotSize: 100}
	s.heard.Store(int64(4 * time.Second))
	c.attached(4*time.Second, attached{session: s, slots: 10})
	check(4*time.Second, "attached", 0)
	c.lost(6*time.Second, lost{session: s, err: rdma.ErrGone})
	check(6*time.Second, "connecting", 2000)
}

// The lists are cut to the oldest; the totals tell the truth.
func TestSnapshotIsCut(t *testing.T) {
	c, do, s := newTestCore(func(*coreConfig) {})
	const n = wire.MaxSnapshotList + 10
	for i := range n {
		c.line(0, batchLine(fmt.Sprint("r", i), 2, 0, 1))
	}
	for range 5 {
		grant(c, do, s)
	}
	got := c.snapshot(0)
	if len(got.Requests) != wire.MaxSnapshotList || got.Totals.Requests != n || got.Receivers[0].Requests != n {
		t.Errorf("%d requests listed, %+v, %+v", len(got.Requests), got.Totals, got.Receivers)
	}
	for i, r := range got.Requests {
		if want := map[bool]string{true: "writing", false: "waiting"}[i < 5]; r.ReqID != fmt.Sprint("r", i) || r.State != want {
			t.Fatalf("at %d: %+v", i, r)
		}
	}
	req := &request{id: "blocked", receiver: c.receivers[0]}
	for range n {
		b := &batch{req: req, claim: claim{left: 1}}
		b.claim.batch = b
		c.staging.add(0, 0, &b.claim)
	}
	got = c.snapshot(0)
	if len(got.Staging.Blocked) != wire.MaxSnapshotList || got.Totals.Blocked != n || got.Receivers[0].Blocked != n {
		t.Errorf("%d blocked listed, %+v, %+v", len(got.Staging.Blocked), got.Totals, got.Receivers)
	}
}

// ask gets a Snapshot of the run, as a monitor does.
func (s *sending) ask(asks *monitor.Asks) *wire.SenderSnapshot {
	s.t.Helper()
	got := make(chan wire.Message, 1)
	asks.Add(func(m wire.Message) { got <- m })
	select {
	case m := <-got:
		return m.(*wire.SenderSnapshot)
	case <-time.After(patience):
		s.t.Fatal("nobody answers")
	case <-s.done:
		s.t.Fatal("the run has ended without an answer")
	}
	panic("unreachable")
}

// until asks until a Snapshot is as wanted.
func (s *sending) until(asks *monitor.Asks, what string, ok func(*wire.SenderSnapshot) bool) *wire.SenderSnapshot {
	s.t.Helper()
	for end := time.Now().Add(patience); ; {
		snap := s.ask(asks)
		if ok(snap) {
			return snap
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s: not so: %s", what, asJSON(snap))
		}
	}
}

// A receiver that hangs has its chunks blocked, and not those of the other; they
// are gone from the first Snapshot that is made after it goes on.
func TestBlockedStagingShows(t *testing.T) {
	first, second := newFakeRemote(), newFakeRemote()
	first.setHold(true)
	asks := monitor.NewAsks(nil)
	s, in, fakes := hangingWith(t, Config{Staging: 4 * fakeSlot, Asks: asks, Name: "S", Epoch: 7}, first, second)
	in.write(lineTo(0, "A", 4))
	first.waitWrites(t, 2)
	snap := s.until(asks, "A is blocked", func(s *wire.SenderSnapshot) bool { return s.Totals.Blocked == 1 })
	if b := snap.Staging.Blocked[0]; b.ReqID != "A" || b.Chunks != 2 || b.Receiver != 0 || b.WaitingMS < 0 {
		t.Errorf("blocked: %+v", b)
	}
	if st := snap.Staging; st.Total != 4 || st.Used != 2 || st.Bytes != fakeSlot {
		t.Errorf("staging: %+v", st)
	}
	if snap.Kind != wire.KindSender || snap.ID != "S" || snap.Epoch != 7 || snap.UptimeS <= 0 || snap.Time.IsZero() {
		t.Errorf("%s", asJSON(snap))
	}
	if r := snap.Receivers[0]; r.Endpoint != fakes[0].endpoint || r.State != "attached" || r.Staging != 2 || r.Blocked != 1 || r.HeardMS < 0 {
		t.Errorf("receiver: %+v", r)
	}
	in.write(lineTo(1, "B", 4))
	wantResult(t, s.result("B"), Ready, "")
	first.setHold(false)
	wantResult(t, s.result("A"), Ready, "")
	snap = s.until(asks, "all is over", func(s *wire.SenderSnapshot) bool { return s.Counters.Ready == 2 })
	if snap.Totals.Blocked != 0 || snap.Staging.Used != 0 || len(snap.Requests) != 0 || snap.Counters.SentChunks != 8 {
		t.Errorf("%s", asJSON(snap))
	}
	in.close()
	s.wait()
}

// Whoever asks is answered while the last notices wait for the proxy, too.
func TestAnswersWhileNoticesWait(t *testing.T) {
	asks := monitor.NewAsks(nil)
	bad := `{"req_id":"A","total_chunks":1,"chunks":"none"}` + "\n"
	s := send(t, Config{Asks: asks, Proxy: "tcp://127.0.0.1:1", Receivers: []string{"tcp://127.0.0.1:1"}, Stdin: strings.NewReader(bad)})
	wantResult(t, s.result("A"), Failed, codeManifest)
	for range 20 {
		if snap := s.ask(asks); snap.Counters.Failed != 1 {
			t.Errorf("%s", asJSON(snap))
		}
	}
	s.stop(errors.New("enough"))
	if sum := s.wait(); sum.Undelivered != 1 {
		t.Errorf("%+v", sum)
	}
}
