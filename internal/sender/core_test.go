package sender

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// recorder is effects that only remembers, and a receiver that is reached at once.
type recorder struct {
	did     []string
	results map[string]*Result
	sent    []sentMessage
	jobs    []*job
}

type sentMessage struct {
	id  uint64
	msg wire.Message
}

func (r *recorder) say(format string, args ...any) {
	r.did = append(r.did, fmt.Sprintf(format, args...))
}

func (r *recorder) attach(receiver int) { r.say("attach %d", receiver) }
func (r *recorder) send(_ *session, id uint64, msg wire.Message) {
	r.sent = append(r.sent, sentMessage{id, msg})
}
func (r *recorder) abandon(*session)           { r.say("abandon") }
func (r *recorder) gone(*session, error)       { r.say("gone") }
func (r *recorder) write(j *job)               { r.jobs = append(r.jobs, j) }
func (r *recorder) finish(*session)            { r.say("finish") }
func (r *recorder) notify(reqID string)        { r.say("notify %s", reqID) }
func (r *recorder) withdraw(reqID string)      { r.say("withdraw %s", reqID) }
func (r *recorder) fail(reqID, reason string)  { r.say("fail %s", reqID) }
func (r *recorder) end(res *Result)            { r.results[res.ReqID] = res }
func (r *recorder) note(text string)           { r.say("note %s", text) }
func (r *recorder) has(what string) bool       { return slices.Contains(r.did, what) }
func (r *recorder) status(reqID string) Status { return r.results[reqID].Status }

// newTestCore makes a core with one receiver of 10 slots, attached.
func newTestCore(change func(*coreConfig)) (*core, *recorder, *session) {
	cfg := coreConfig{receivers: []string{"r0"}, timeout: time.Minute, batch: 8, pending: 1 << 30, proxy: true, tellFail: true}
	change(&cfg)
	do := &recorder{results: map[string]*Result{}}
	c := newCore(cfg, do)
	s := &session{slots: 10, slotSize: 100}
	c.attached(0, attached{session: s, slots: 10})
	return c, do, s
}

// batchLine is a line of a request: n chunks from first on.
func batchLine(id string, total, first, n int) manifest.Line {
	b := &manifest.Batch{ReqID: id, Total: int64(total), Last: first+n == total, To: manifest.AnyReceiver}
	for i := first; i < first+n; i++ {
		b.Chunks = append(b.Chunks, manifest.Chunk{Key: fmt.Sprintf("%s-%d", id, i), Length: 100})
	}
	return manifest.Line{File: "m", No: 1, Batch: b}
}

// grant answers the oldest batch that is out.
func grant(c *core, do *recorder, s *session) {
	m := do.sent[0]
	do.sent = do.sent[1:]
	resp := &wire.AllocResponse{}
	for i := range m.msg.(*wire.AllocRequest).Keys {
		resp.RemoteIndexes = append(resp.RemoteIndexes, int64(i))
	}
	c.answered(0, answered{s, m.id, resp})
}

// finishJobs does the work of all jobs and answers the commit that follows.
func finishJobs(c *core, do *recorder, s *session) {
	for _, j := range do.jobs {
		j.state.Store(jobWriting)
		c.worked(0, j)
	}
	do.jobs = nil
	m := do.sent[len(do.sent)-1]
	do.sent = do.sent[:len(do.sent)-1]
	c.answered(0, answered{s, m.id, &wire.CommitResponse{}})
}

// Contract §6: reading pauses only while --pending is full and no admitted
// request still needs a line. If one does, reading goes on and the youngest
// request not yet admitted fails to make room.
func TestPendingIsFull(t *testing.T) {
	line := requestCost + costOf(batchLine("A", 4, 0, 1).Batch.Chunks)
	c, do, s := newTestCore(func(cfg *coreConfig) { cfg.pending = 3 * line })
	for _, id := range []string{"A", "B", "C"} {
		if !c.wantsLine() {
			t.Fatal("reading pauses although --pending is not full")
		}
		c.line(0, batchLine(id, 4, 0, 1))
	}
	if c.wantsLine() {
		t.Fatal("reading goes on although --pending is full and nobody admitted needs a line")
	}
	grant(c, do, s) // A's
	if !c.wantsLine() {
		t.Fatal("reading pauses although A is admitted and needs a line")
	}
	c.line(0, batchLine("D", 4, 0, 1)) // stands before A's next line
	if r := do.results["D"]; r == nil || r.Code != codeNoRoom || !strings.Contains(r.Error, "--pending") || len(do.results) != 1 {
		t.Fatalf("D is the youngest: %v", do.results)
	}
	if c.pending != 3*line {
		t.Fatalf("%d bytes, want %d", c.pending, 3*line)
	}
	c.line(0, batchLine("A", 4, 1, 1)) // A's own costs the youngest left
	if r := do.results["C"]; r == nil || r.Code != codeNoRoom || len(do.results) != 2 {
		t.Fatalf("C is the youngest: %v", do.results)
	}
	c.line(0, batchLine("A", 4, 2, 2)) // the last: no more room is needed
	if len(do.results) != 2 {
		t.Fatalf("B stood in nobody's way: %v", do.results)
	}
	if c.wantsLine() != (c.pending < 3*line) {
		t.Fatal("A needs no line: --pending alone decides")
	}
}

// Contract §4: a ready request outlives its sender; only a receiver that is
// gone takes it along.
func TestReadyRequestAndItsSendersLease(t *testing.T) {
	for _, alive := range []bool{true, false} {
		c, do, s := newTestCore(func(*coreConfig) {})
		c.line(0, batchLine("A", 2, 0, 2))
		c.line(0, batchLine("B", 2, 0, 1))
		grant(c, do, s)
		finishJobs(c, do, s)
		if !do.has("notify A") {
			t.Fatalf("A is complete: %q", do.did)
		}
		c.lost(0, lost{session: s, err: errors.New("lost"), code: wire.CodeStaleEpoch, alive: alive})
		if r := do.results["B"]; r == nil || r.Status != Failed {
			t.Errorf("alive %v: B ended %+v", alive, r)
		}
		if do.has("withdraw A") == alive {
			t.Errorf("alive %v: %q", alive, do.did)
		}
		outcome := map[bool]error{true: nil, false: errWithdrawn}[alive]
		c.noticed(0, noticed{"A", outcome})
		if got, want := do.status("A"), map[bool]Status{true: Ready, false: Failed}[alive]; got != want {
			t.Errorf("alive %v: A is %s, want %s", alive, got, want)
		}
	}
}

// Whom a request waited for in vain is said by what was heard of it: one that
// lives and has no room, one that has been silent for long, one that never spoke.
func TestWhyARequestWaitedInVain(t *testing.T) {
	for heard, want := range map[time.Duration]struct {
		code wire.Code
		says string
	}{
		0:                {codeUnreachable, "r0 has not answered for 1m0s: it is stopped or unreachable"},
		time.Second:      {codeUnreachable, "r0 did not grant slots within 1m0s, and has not answered for 59s: it is stopped or unreachable"},
		29 * time.Second: {codeUnreachable, "and has not answered for 31s"},
		31 * time.Second: {codeTimeout, "r0 did not grant slots for 2 chunks of 2 within 1m0s: raise --timeout or --buffer-size there"},
		time.Minute:      {codeTimeout, "raise --timeout"},
	} {
		c, do, s := newTestCore(func(*coreConfig) {})
		c.line(0, batchLine("A", 2, 0, 2))
		s.heard.Store(int64(heard))
		c.expire(time.Minute)
		if r := do.results["A"]; r == nil || r.Status != Failed || r.Code != want.code || !strings.Contains(r.Error, want.says) {
			t.Errorf("heard after %v: %+v", heard, r)
		}
	}
}

// The receiver takes a request as whole whose last batch it has, so that batch
// is not sent while another may have been lost on its way.
func TestLastBatchIsAskedForLast(t *testing.T) {
	c, do, s := newTestCore(func(cfg *coreConfig) { cfg.batch = 2 })
	asked := func(want ...int) {
		t.Helper()
		var got []int // first chunk of each batch
		for _, m := range do.sent {
			a := m.msg.(*wire.AllocRequest)
			n := 0
			_, _ = fmt.Sscanf(a.Keys[0], "A-%d", &n)
			got = append(got, n)
			if a.IsLastBatch != (n == 6) {
				t.Errorf("batch from %d on: last is %v", n, a.IsLastBatch)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("asked for %v, want %v", got, want)
		}
	}
	c.line(0, batchLine("A", 8, 0, 6))
	asked(0)
	grant(c, do, s)
	asked(2, 4)
	c.line(0, batchLine("A", 8, 6, 2))
	asked(2, 4)
	grant(c, do, s)
	asked(4)
	grant(c, do, s)
	asked(6)

	// Read before it is admitted, it waits for the same.
	c, do, s = newTestCore(func(cfg *coreConfig) { cfg.batch = 2 })
	c.line(0, batchLine("A", 8, 0, 8))
	grant(c, do, s)
	asked(2, 4)
	grant(c, do, s)
	grant(c, do, s)
	asked(6)
}

// With several receivers it matters which one is stopping.
func TestWhoIsStopping(t *testing.T) {
	c, do, s := newTestCore(func(*coreConfig) {})
	c.line(0, batchLine("A", 2, 0, 2))
	c.answered(0, answered{s, do.sent[0].id, &wire.AllocResponse{Error: "the receiver is stopping", Code: wire.CodeShuttingDown}})
	if r := do.results["A"]; r == nil || r.Code != wire.CodeShuttingDown || r.Error != "r0: the receiver is stopping" {
		t.Errorf("%+v", r)
	}
}

// The end of the data connection reaches a write before the session: its request
// waits for the reason, gives its staging back, and can be cancelled meanwhile.
func TestRequestWhoseWriteFoundTheReceiverGone(t *testing.T) {
	for name, tt := range map[string]struct {
		end    func(c *core)
		status Status
	}{
		"lost":        {func(*core) {}, Failed},
		"cancelled":   {func(c *core) { c.line(0, manifest.Line{Cancel: "A"}) }, Cancelled},
		"interrupted": {func(c *core) { c.interrupt(0, "stopped"); c.cancelAll(0, "stopped") }, Cancelled},
	} {
		c, do, s := newTestCore(func(*coreConfig) {})
		c.line(0, batchLine("A", 2, 0, 2))
		grant(c, do, s)
		for _, j := range do.jobs {
			j.state.Store(jobWriting)
			j.err = &writeError{fmt.Errorf("write: %w", rdma.ErrGone)}
			c.worked(0, j)
		}
		if len(do.results) != 0 || !do.has("gone") || c.staging.used != 0 {
			t.Fatalf("%s: ended %v, %d slots, %q", name, do.results, c.staging.used, do.did)
		}
		tt.end(c)
		if ended := len(do.results) == 1; ended != (tt.status == Cancelled) {
			t.Fatalf("%s: ended %v", name, do.results)
		}
		c.lost(0, lost{session: s, err: errors.New("power cut"), code: codeUnreachable})
		if r := do.results["A"]; r == nil || r.Status != tt.status || r.Status == Failed && r.Error != "power cut" || c.owed != 0 {
			t.Errorf("%s: %+v, %d owed", name, r, c.owed)
		}
		if !do.has("finish") {
			t.Errorf("%s: %q", name, do.did)
		}
	}
}

// What is read when the data connection has ended already is not begun in the
// session that ends with it, but in the next one.
func TestRequestReadWhileItsSessionEnds(t *testing.T) {
	c, do, s := newTestCore(func(*coreConfig) {})
	c.line(0, batchLine("old", 2, 0, 2))
	c.leaving(0, leaving{s})
	c.line(0, batchLine("new", 2, 0, 2))
	if len(do.sent) != 1 || len(do.results) != 0 {
		t.Fatalf("sent %v, ended %v", do.sent, do.results)
	}
	c.lost(0, lost{session: s, err: errors.New("killed"), code: codeUnreachable})
	if r := do.results["old"]; r == nil || r.Error != "killed" || len(do.results) != 1 || !do.has("attach 0") {
		t.Fatalf("ended %v, %q", do.results, do.did)
	}
	next := &session{slots: 10, slotSize: 100}
	do.sent = nil
	c.attached(0, attached{session: next, slots: 10})
	grant(c, do, next)
	finishJobs(c, do, next)
	c.noticed(0, noticed{reqID: "new"})
	if r := do.results["new"]; r == nil || r.Status != Ready {
		t.Errorf("it ends as %+v", r)
	}
	c.leaving(0, leaving{s}) // the old one's, late
	if c.receivers[0].leaving {
		t.Error("the next session is taken for the old one")
	}
}

// A cancel that comes when the proxy has been told is too late.
func TestCancelCrossesTheNotification(t *testing.T) {
	for _, delivered := range []bool{true, false} {
		c, do, s := newTestCore(func(*coreConfig) {})
		c.line(0, batchLine("A", 1, 0, 1))
		grant(c, do, s)
		finishJobs(c, do, s)
		c.line(0, manifest.Line{Cancel: "A"})
		c.line(0, manifest.Line{Cancel: "A"})
		if !do.has("withdraw A") || len(do.results) != 0 {
			t.Fatalf("%q, %v", do.did, do.results)
		}
		if delivered {
			c.noticed(0, noticed{"A", nil})
		} else {
			c.noticed(0, noticed{"A", errWithdrawn})
		}
		if want := map[bool]Status{true: Ready, false: Cancelled}[delivered]; do.status("A") != want {
			t.Errorf("delivered %v: A is %s, want %s", delivered, do.status("A"), want)
		}
		if cancelled := len(do.sent) == 1; cancelled == delivered || do.has("fail A") == delivered {
			t.Errorf("delivered %v: receiver is told of %v, %q", delivered, do.sent, do.did)
		}
	}
}

// Nothing is left of a request that has ended, however many there were.
func TestEndedRequestsAreForgotten(t *testing.T) {
	c, _, _ := newTestCore(func(*coreConfig) {})
	for i := range remembered + 10 {
		id := fmt.Sprint(i)
		c.line(0, batchLine(id, 2, 0, 1))
		c.line(0, manifest.Line{Cancel: id})
		c.receivers[0].reset(0) // its answers do not matter here
		c.receivers[0].session = &session{slots: 10, slotSize: 100}
	}
	if len(c.reqs) != 0 || len(c.gone.ids) != remembered || c.gone.has("0") || !c.gone.has("10") {
		t.Errorf("%d live, %d remembered", len(c.reqs), len(c.gone.ids))
	}
	if err := c.track.Check(batchLine("0", 3, 0, 1)); err != nil {
		t.Errorf("the tracker remembers an ended request: %v", err)
	}
}

// A write that has begun cannot be called back; one that was called back never
// begins.
func TestJobThatIsCalledBack(t *testing.T) {
	memory := &buffer{bytes: 4096}
	if err := memory.cut(4096); err != nil {
		t.Fatal(err)
	}
	defer memory.close()
	remote := newFakeRemote()
	called := 0
	for i := range 2000 {
		j := &job{session: &session{remote: remote}, chunk: &manifest.Chunk{Key: fmt.Sprint(i), Length: 4096}, remote: i}
		done := make(chan struct{})
		go func() {
			defer close(done)
			work(t.Context(), memory, oneJob(j), func(*job) {})
		}()
		back := j.abort()
		<-done
		if back {
			called++
		}
		wrote := len(remote.writes) > 0 && remote.writes[len(remote.writes)-1].Slot == i
		if back == wrote || back != errors.Is(j.err, errAborted) || back != j.recalled() {
			t.Fatalf("called back %v, written %v, error %v", back, wrote, j.err)
		}
	}
	if called == 0 {
		t.Error("none was called back in time")
	}
}

func oneJob(j *job) <-chan *job {
	jobs := make(chan *job, 1)
	jobs <- j
	close(jobs)
	return jobs
}
