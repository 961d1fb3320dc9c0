package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// Failures that were reported from practice; reports_test.go has all their
// numbers.

// F1: two requests of 8 chunks on 10 slots, first batches at the same moment:
// one is admitted, the other holds nothing while it waits, both finish.
func TestTwoAtTheSameMoment(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	senders := map[string]*fed{"A": send(t, r), "B": send(t, r)}
	for id, s := range senders {
		s.write(batch(id, 8, 0, 4))
	}
	queued := r.event("event", "queued").str("req_id")
	first := map[string]string{"A": "B", "B": "A"}[queued]
	r.happens("admitted", first)
	snap := r.settles("the first batch is written", func(s snapshot) bool { return s.Slots.Written == 4 })
	for _, req := range snap.Requests {
		if req.ReqID == queued && (req.State != "queued" || req.Allocated > 0) {
			t.Errorf("while it waits it has %+v", req)
		}
	}
	if snap.Slots.Promised+snap.Slots.Held != 8 {
		t.Errorf("slots: %+v", snap.Slots)
	}
	for _, id := range []string{first, queued} {
		senders[id].write(batch(id, 8, 4, 4))
		senders[id].result(id, "ready")
		if got := r.take(id); got != pattern(chunkSize, keys(id, 0, 8)...) {
			t.Errorf("the bytes of %s are not its own", id)
		}
		senders[id].ends(0)
	}
	r.inOrder("admitted "+first, "released "+first, "admitted "+queued, "released "+queued)
	r.empty()
}

// F6: a request that is cancelled, or whose source cannot be read any more, half-way:
// its slots are free and the proxy knows why in less than a second. What is ready
// after that is not told.
func TestFailureReachesTheProxy(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	proxy, to := proxied(t)
	s := send(t, r, "--proxy", to)
	source := filepath.Join(t.TempDir(), "kv")
	if err := os.WriteFile(source, []byte(pattern(chunkSize, keys("B", 0, 8)...)), 0o600); err != nil {
		t.Fatal(err)
	}
	fromSource := func(first, count int) string {
		var chunks []string
		for i := range count {
			chunks = append(chunks, fmt.Sprintf(`{"key":"B-%d","file":%q,"offset":%d,"length":%d}`, first+i, source, (first+i)*chunkSize, chunkSize))
		}
		return fmt.Sprintf(`{"req_id":"B","total_chunks":8,"chunks":[%s],"last":false}`+"\n", strings.Join(chunks, ","))
	}
	for id, lines := range map[string][2]string{
		"A": {batch("A", 8, 0, 3), cancelLine("A")},
		"B": {fromSource(0, 3), fromSource(3, 3)},
	} {
		s.write(lines[0])
		r.settles("three chunks are written", func(s snapshot) bool { return s.Slots.Written == 3 })
		if id == "B" {
			if err := os.Truncate(source, 3*chunkSize); err != nil {
				t.Fatal(err)
			}
		}
		began, delay := time.Now(), delays(t)
		s.write(lines[1])
		l := proxy.event("req_id", id, "status", "failed")
		if took := l.at(t).Sub(began); took > time.Second+delay() || l.str("reason") == "" {
			t.Errorf("after %v the proxy says %v", took, l)
		}
		r.empty()
	}
	s.ends(1)
	notify := notifier(t, to)
	for _, id := range []string{"A", "B", "late"} {
		notify(id)
	}
	proxy.event("req_id", "late", "status", "ready") // and so the others have come
	proxy.kill(syscall.SIGTERM)
	if code := proxy.exits(); code != 0 || len(proxy.lines("status", "ready")) != 1 {
		t.Errorf("what had failed is told anew: exit %d, %q", code, proxy.stdout())
	}
}

// F10: a receiver that did not run for longer than the lease handles what has
// come before it takes anybody for silent.
func TestReceiverStandsStill(t *testing.T) {
	t.Parallel()
	r := receive(t, 4, "--lease", "6s")
	s := send(t, r)
	s.write(batch("A", 4, 0, 2))
	r.settles("the first batch is written", func(s snapshot) bool { return s.Slots.Written == 2 })
	r.kill(syscall.SIGSTOP)
	s.write(batch("A", 4, 2, 2))
	stood := time.Now()
	eventually(t, "the lease to pass", func() bool { return time.Since(stood) > 8*time.Second })
	r.kill(syscall.SIGCONT)
	s.result("A", "ready")
	if r.happened("expired", "A") > 0 {
		t.Error("A expired and is ready")
	}
	r.drop("A")
	// The same with nothing on its way but that all is done: no heartbeat.
	done := attached(t, r, "done")
	slots := done.alloc("D", 4, true, keys("D", 0, 4)...)
	r.kill(syscall.SIGSTOP)
	corr := done.ask(done.commitOf("D", slots))
	stood = time.Now()
	eventually(t, "the lease to pass", func() bool { return time.Since(stood) > 8*time.Second })
	r.kill(syscall.SIGCONT)
	if resp := done.committed(corr); !resp.Ready || r.happened("expired", "D") > 0 {
		t.Errorf("what was done in time is answered %+v", resp)
	}
	r.drop("D")
	attached(t, r, "silent").alloc("B", 4, false, keys("B", 0, 2)...)
	r.happens("expired", "B") // who is silent while it runs
	s.ends(0)
}

// F13: a request larger than the buffer is refused at once, with both numbers.
func TestLargerThanTheBuffer(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	s := send(t, r)
	s.write(batch("A", 11, 0, 4))
	l := s.result("A", "failed")
	if l.str("code") != "too_large" || !strings.Contains(l.str("error"), "needs 11 chunks, buffer holds 10") || l["total_ms"].(float64) > 1000 {
		t.Errorf("a request of 11 chunks ends as %v", l)
	}
	s.write(batch("B", 10, 0, 10))
	s.result("B", "ready")
	s.ends(1)
}

// F18: requests with a common prefix: each decoder reads its bytes, a slot is
// freed after its last holder, a cancel takes nothing from the other.
func TestCommonPrefix(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	s := send(t, r)
	a, b := keys("k", 0, 4), append(keys("k", 0, 3), "k-9")
	s.write(batchOf("A", 4, true, a))
	s.result("A", "ready")
	s.write(batchOf("B", 4, true, b))
	if l := s.result("B", "ready"); l.num("shared") != 3 || l.num("sent") != 1 {
		t.Errorf("B ends as %v", l)
	}
	if got := r.stat().Slots; got.Held != 5 {
		t.Errorf("slots: %+v", got)
	}
	s.write(batchOf("C", 5, false, append(keys("k", 0, 3), "c"))) // and is cancelled half-way
	r.settles("C has its slots", func(s snapshot) bool { return s.Slots.Written == 6 })
	s.write(cancelLine("C"))
	s.result("C", "cancelled")
	if got := r.settles("C is gone", func(s snapshot) bool { return len(s.Requests) == 2 }).Slots; got.Held != 5 || got.Free != 5 {
		t.Errorf("the cancel of C leaves %+v", got)
	}
	for i, keys := range [][]string{a, b} {
		id := []string{"A", "B"}[i]
		if got := r.take(id); got != pattern(chunkSize, keys...) {
			t.Errorf("the decoder of %s reads other bytes", id)
		}
		r.happens("released", id)
		if got, held := r.settles("it is gone", func(s snapshot) bool { return len(s.Requests) == 1-i }).Slots, []int{4, 0}[i]; got.Held != held {
			t.Errorf("after %s: %+v, want %d held", id, got, held)
		}
	}
	r.empty()
	s.ends(0)
}

// F25: cancels race with the last batch and with the decoder: every message is
// answered, the request ends once, nothing is freed twice.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	var ids []string
	for place := range 4 {
		for name, drop := range map[string]bool{"dropped": true, "kept": false} {
			id := fmt.Sprint(name, place)
			p, decoder := lmcache(t, r), lmcache(t, r)
			p.alloc(id, 8, false, keys(id, 0, 4)...)
			asked := 0
			for i := range 4 {
				if i == place {
					p.ask(p.request(id, 8, true, keys(id, 4, 4)...))
					asked++
					if drop {
						decoder.ask(&wire.ReleaseRequest{ReqID: id})
					}
				}
				if i < 3 {
					p.ask(&wire.CancelNotif{ReqID: id, Keys: keys(id, 0, 8)})
					asked++
				}
			}
			for range asked {
				p.answer(0)
			}
			if drop {
				if _, _, err := decoder.Recv(patience); err != nil {
					t.Errorf("the decoder of %s: %v", id, err)
				}
			}
			if s := r.stat().Slots; s.Free > s.Total {
				t.Errorf("after %s: %+v", id, s)
			}
			ids = append(ids, id)
		}
	}
	p := lmcache(t, r)
	p.alloc("end", 10, false)
	p.cancel("end")
	r.happens("cancelled", "end") // what happened before has been printed
	for _, id := range ids {
		ends := 0
		for _, event := range []string{"released", "cancelled", "rolled_back", "rejected", "timed_out", "expired"} {
			ends += r.happened(event, id)
		}
		if ends != 1 {
			t.Errorf("%s ended %d times", id, ends)
		}
	}
	r.empty()
}

// F27: fewer chunks than declared, and repeated ones.
func TestFewerAndRepeatedChunks(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	p := attached(t, r, "raw")
	slots := p.alloc("A", 8, true, keys("A", 0, 5)...)
	if l := r.happens("allocated", "A"); l.num("chunks") != 5 || l.num("total_chunks") != 8 || l.num("free") != 5 {
		t.Errorf("after an early last batch: %v", l)
	}
	if resp := p.commit("A", slots); !resp.Ready {
		t.Errorf("of all chunks that came the commit says %+v", resp)
	}
	r.happens("ready", "A")

	first := p.alloc("B", 4, false, keys("B", 0, 2)...)
	if again := p.alloc("B", 4, false, keys("B", 0, 2)...); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("asked again, the same chunks are in %v and not in %v", again, first)
	}
	rest := p.alloc("B", 4, true, keys("B", 2, 2)...)
	if resp := p.commit("B", append(first, rest...)); !resp.Ready {
		t.Errorf("the commit says %+v", resp)
	}
	if l := r.happens("ready", "B"); l.num("chunks") != 4 {
		t.Errorf("repeats were counted: %v", l)
	}
	r.drop("A")
	r.drop("B")
	r.empty()
}

// F28: more chunks than declared.
func TestMoreChunksThanDeclared(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	a, b := lmcache(t, r), lmcache(t, r)
	b.alloc("B", 2, false, "B-0")
	a.alloc("A", 4, false, keys("A", 0, 3)...)
	refused(t, a.call(a.request("A", 4, true, keys("A", 3, 2)...)), wire.CodeProtocolViolation, 2)
	r.happens("rolled_back", "A")
	if s := r.stat(); s.Slots.Free != 8 || s.Counters["rolled_back"] != 1 {
		t.Errorf("after the violation: %+v", s)
	}
	b.alloc("B", 2, true, "B-1")
	r.happens("ready", "B")
}

// F30: all keys of a request are there already.
func TestAllChunksAreThere(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	s := send(t, r)
	s.write(batchOf("A", 4, true, keys("k", 0, 4)))
	s.result("A", "ready")
	s.write(batchOf("B", 4, true, keys("k", 0, 4)))
	if l := s.result("B", "ready"); l.num("sent") != 0 || l.num("shared") != 4 || l.num("bytes") != 0 {
		t.Errorf("B ends as %v", l)
	}
	if got := r.stat().Slots; got.Free != 6 || got.Promised != 0 {
		t.Errorf("slots: %+v", got)
	}
	for _, id := range []string{"A", "B"} {
		if got := r.take(id); got != pattern(chunkSize, keys("k", 0, 4)...) {
			t.Errorf("the decoder of %s reads other bytes", id)
		}
	}
	r.empty()
	s.ends(0)
}

// F33: a request that nobody reads does not block the others for ever, and does
// not go in silence.
func TestReadyAndUnread(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	r := receive(t, 10, "--ready-ttl", ttl.String())
	s, delay := send(t, r), delays(t)
	s.write(batch("A", 8, 0, 8))
	ready := r.happens("ready", "A").at(t)
	s.write(batch("B", 8, 0, 8))
	s.result("B", "ready")
	if waited := r.happens("admitted", "B").at(t).Sub(ready); waited < ttl || waited > ttl+time.Second+delay() {
		t.Errorf("B is admitted %v after A was ready, its time to live is %v", waited, ttl)
	}
	if o := run(t, nil, "pd-recv", "take", r.endpoint, "A"); o.code != 1 || !strings.Contains(o.stderr, "expired") {
		t.Errorf("taking what has expired: %+v", o)
	}
	r.happens("expired", "B") // nobody reads it, either
	if c := r.empty().Counters; c["expired_unread"] != 2 || c["expired"] != 0 || c["released"] != 0 {
		t.Errorf("counters: %v", c)
	}
	s.ends(0)
}

// F52: absurd numbers are refused, each with its own reason, and nothing else
// changes.
func TestAbsurdNumbers(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	p := lmcache(t, r)
	p.alloc("A", 8, false, keys("A", 0, 4)...)
	reasons := map[string]bool{}
	for _, tt := range []struct {
		change func(*wire.AllocRequest)
		code   wire.Code
		keys   int
	}{
		{func(m *wire.AllocRequest) { m.TotalChunks = wire.I(-1) }, wire.CodeBadRequest, 1},
		{func(m *wire.AllocRequest) { m.TotalChunks = wire.I(1 << 31) }, wire.CodeTooLarge, 1},
		{func(m *wire.AllocRequest) { m.TotalChunks = wire.I(1 << 62) }, wire.CodeTooLarge, 1},
		{func(m *wire.AllocRequest) { m.TotalChunks = wire.U(1<<64 - 1) }, wire.CodeTooLarge, 1},
		{func(m *wire.AllocRequest) { m.Keys = keys("k", 0, wire.MaxKeys+1) }, wire.CodeBadRequest, wire.MaxKeys + 1},
		{func(m *wire.AllocRequest) { m.Keys, m.IsLastBatch = []string{}, true }, wire.CodeBadRequest, 0},
		{func(m *wire.AllocRequest) { m.LastChunkToks = wire.I(0) }, wire.CodeBadRequest, 1},
		{func(m *wire.AllocRequest) { m.LastChunkToks = wire.I(-1) }, wire.CodeBadRequest, 1},
		{func(m *wire.AllocRequest) { m.LastChunkToks = wire.I(chunkSize + 1) }, wire.CodeBadRequest, 1},
		{func(m *wire.AllocRequest) { m.Shape = []wire.Int{wire.I(1 << 62), wire.I(1 << 62)} }, wire.CodeBadRequest, 1},
		{func(m *wire.AllocRequest) { m.Keys = []string{"k", "k"} }, wire.CodeBadRequest, 2},
		{func(m *wire.AllocRequest) { m.Keys = []string{strings.Repeat("k", wire.MaxKey+1)} }, wire.CodeBadRequest, 1},
		{func(m *wire.AllocRequest) { m.ReqID = strings.Repeat("r", wire.MaxReqID+1) }, wire.CodeBadRequest, 1},
	} {
		m := p.request(fmt.Sprint("absurd", len(reasons)), 2, false, "k")
		tt.change(m)
		resp := p.call(m)
		if len(m.Keys) > wire.MaxKeys { // how many there were need not be read
			tt.keys = len(resp.RemoteIndexes)
		}
		refused(t, resp, tt.code, tt.keys)
		if reasons[resp.Error] {
			t.Errorf("the reason %q was given before", resp.Error)
		}
		reasons[resp.Error] = true
	}
	if s := r.stat(); s.Slots.Promised != 4 || s.Slots.Held != 4 || len(s.Requests) != 1 {
		t.Errorf("after all that: %+v", s)
	}
	// More than a message may have: ZeroMQ drops the connection, and that alone.
	monster := lmcache(t, r)
	monster.ask(p.request("monster", 2, false, slices.Repeat([]string{"k"}, 1_000_000)...))
	p.alloc("A", 8, true, keys("A", 4, 4)...)
}

// F55: a buffer that is not a multiple of the chunk.
func TestRemainderOfTheBuffer(t *testing.T) {
	t.Parallel()
	less := 32 // by so much buffers and chunks are smaller than reported: pd-recv touches all of its memory
	if literally {
		less = 1
	}
	for _, tt := range []struct {
		buffer, chunk, slots, rest int // the rest is not used
	}{
		{1 << 30, 29_360_128, 36, 16 << 20},
		{2 << 30, 3 << 20, 682, 2 << 20},
		{29_360_128, 29_360_128, 1, 0},
	} {
		tt.buffer, tt.chunk, tt.rest = tt.buffer/less, tt.chunk/less, tt.rest/less
		r := start(t, nil, "pd-recv", "--listen", "tcp://127.0.0.1:*", "--buffer-size", fmt.Sprint(tt.buffer), "--chunk-size", fmt.Sprint(tt.chunk))
		if l := r.event("event", "listening"); l.num("total_chunks") != tt.slots || l.num("chunk_size") != tt.chunk {
			t.Errorf("%d bytes in chunks of %d: %v", tt.buffer, tt.chunk, l)
		}
		r.says("listening on")
		says := fmt.Sprintf("%d bytes of the buffer are not used", tt.rest)
		if strings.Contains(r.stderr(), says) != (tt.rest > 0) || strings.Contains(r.stderr(), "not used") != (tt.rest > 0) {
			t.Errorf("of the remainder stderr says %s", r.stderr())
		}
	}
	run(t, nil, "pd-recv", "--buffer-size", "29360127", "--chunk-size", "29360128").wrongUsage(t, "at least 29360128 bytes")
}

// F58: a queue that is full says so at once, and otherwise than by time-outs.
func TestQueueIsFull(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--queue-limit", "4", "--admit-timeout", "1s")
	r.says("at most 4 requests")
	full(t, r)
	p := dial(t, r)
	var asked []uint64
	for i := range 10 {
		id := fmt.Sprint("r", i)
		asked = append(asked, p.ask(p.request(id, 8, true, keys(id, 0, 8)...)))
	}
	for i, corr := range asked {
		resp := p.answer(corr)
		if i >= 4 {
			refused(t, resp, wire.CodeQueueFull, 8)
			continue
		}
		refused(t, resp, wire.CodeAdmissionTimeout, 8)
		for _, said := range []string{"for 8 slots", "in the queue", "2 free"} {
			if !strings.Contains(resp.Error, said) {
				t.Errorf("who waited in vain is told %q, not %q", resp.Error, said)
			}
		}
	}
	if c := r.stat().Counters; c["timed_out"] != 4 || c["rejected"] != 6 {
		t.Errorf("counters: %v", c)
	}
	if busy, late := r.happens("rejected", "r9").at(t), r.happens("timed_out", "r0").at(t); busy.After(late) {
		t.Error("the busy ones were not told at once")
	}
}

// F59: the default wait is finite, and what is in force is said at the start.
func TestWaitIsSaid(t *testing.T) {
	t.Parallel()
	for value, says := range map[string]string{"": "at most 30s", "inf": "at most inf", "0": "at most inf", "250ms": "at most 250ms"} {
		r := startWith(t, with{env: []string{"PD_RECV_ADMIT_TIMEOUT=" + value}}, "pd-recv", "--listen", "tcp://127.0.0.1:*", "--buffer-size", "1MiB")
		r.says("a request waits " + says)
	}
}

// F59: what nobody said otherwise ends a wait, and what waited is told so.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	byDefault := 30 * time.Second
	wait, env := lasts(byDefault, 2*time.Second), []string(nil)
	if wait != byDefault {
		env = []string{"PD_RECV_ADMIT_TIMEOUT=" + wait.String()}
	}
	r := receiveWith(t, with{env: env}, 10, chunkSize)
	r.says("a request waits at most " + wait.String())
	full(t, r)
	s, delay := send(t, r), delays(t)
	s.write(batch("late", 8, 0, 8))
	if l := s.result("late", "failed"); l.str("code") != "admission_timeout" {
		t.Errorf("who waits too long is told %v", l)
	}
	if ms := r.happens("timed_out", "late").num("waited_ms"); ms < int(wait.Milliseconds()) || ms > int((wait+time.Second+delay()).Milliseconds()) {
		t.Errorf("it waited %d ms of %v", ms, wait)
	}
	s.ends(1)
}

// F74: what stdin can be.
func TestStdin(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--sink=1ms")
	whole := strings.TrimSuffix(batch("A", 8, 0, 8), "\n")
	for _, tt := range []struct {
		name, text string
		code       int
		want       string // on stdout
		says       string
	}{
		{"nothing", "", 0, "", "0 requests"},
		{"no newline at the end", strings.ReplaceAll(whole, "A", "B"), 0, `"req_id":"B","status":"ready"`, "1 ready"},
		{"half a line", batch("C", 8, 0, 4) + strings.ReplaceAll(whole, "A", "C")[:50], 1, `"req_id":"C","status":"failed"`, "C"},
		{"half a request", batch("D", 8, 0, 4), 1, `"code":"unfinished"`, "the input ended before the last line"},
		{"binary", "\x00\xff\x00{\n" + strings.ReplaceAll(whole, "A", "E"), 1, `"req_id":"E","status":"ready"`, "stdin:1: "},
		{"CRLF", strings.ReplaceAll(whole, "A", "F") + "\r\n", 0, `"req_id":"F","status":"ready"`, "1 ready"},
	} {
		s := send(t, r)
		s.write(tt.text)
		s.stdin.Close()
		if code := s.exits(); code != tt.code || !strings.Contains(strings.Join(s.stdout(), "\n"), tt.want) || !strings.Contains(s.stderr(), tt.says) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", tt.name, code, s.stdout(), s.stderr())
		}
	}
	r.empty()
	cut := batch("K", 8, 0, 4) + batch("K", 8, 4, 4)[:50]
	for script, want := range map[string]struct {
		code   int
		stdout string
	}{
		`exec "$0" --to "$1" <&-`:        {0, ""},
		`exec "$0" --to "$1" </dev/null`: {0, ""},
		`(printf %s "$2"; kill -9 $BASHPID) | "$0" --to "$1"; exit ${PIPESTATUS[1]}`: {1, `"req_id":"K","status":"failed"`},
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", script, filepath.Join(bin, "pd-send"), r.endpoint, cut)
		out, err := cmd.Output()
		if cmd.ProcessState.ExitCode() != want.code || !strings.Contains(string(out), want.stdout) {
			t.Errorf("%s: %v, %s", script, err, out)
		}
	}
	r.empty()
}

// F74: the last chunk of a file has the length it has.
func TestLastChunkIsShort(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	file := filepath.Join(t.TempDir(), "kv")
	bytes := pattern(chunkSize*3/2, "file")
	if err := os.WriteFile(file, []byte(bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	s := send(t, r)
	s.write(fmt.Sprintf(`{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","file":%q,"offset":0,"length":%d},{"key":"b","file":%q,"offset":%d,"length":%d}],"last":true}`+"\n",
		file, chunkSize, file, chunkSize, chunkSize/2))
	if l := s.result("A", "ready"); l.num("bytes") != len(bytes) {
		t.Errorf("A ends as %v", l)
	}
	if r.take("A") != bytes {
		t.Error("the decoder reads other bytes than the file has")
	}
	s.ends(0)
}

// F24: a cancel that names finished batches only frees all that its request has.
func TestCancelNamesTooFew(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	for i, named := range [][]string{keys("A", 0, 3), nil, {"of nobody"}} {
		id := fmt.Sprint("A", i)
		p := attached(t, r, id)
		p.commit(id, p.alloc(id, 6, false, keys(id, 0, 3)...))
		p.alloc(id, 6, false, keys(id, 3, 3)...) // and the write fails
		if resp := p.cancel(id, named...); resp.Code != "" {
			t.Errorf("the cancel is answered with %+v", resp)
		}
		if s := r.stat().Slots; s.Free != 10 {
			t.Errorf("after a cancel that names %q: %+v", named, s)
		}
	}
}

// F32: a decoder that asks for other ids than were sent is told so; what nobody
// asks for is seen, with its age, is the reason why others wait, and goes in time.
func TestNobodyAsksForIt(t *testing.T) {
	t.Parallel()
	r := receive(t, 4, "--ready-ttl", "8s") // more than this test is held up before it looks
	s := send(t, r)
	s.write(batch("A", 4, 0, 4))
	s.result("A", "ready")
	s.write(batch("B", 4, 0, 4))
	r.happens("queued", "B")
	o := run(t, nil, "pd-recv", "take", r.endpoint, "a")
	if o.code != 1 || o.stdout != "" || !lineWith(o.stderr, "unknown_request", `"a"`) {
		t.Errorf("taking what nobody sent: %+v", o)
	}
	var stat struct {
		Requests []struct {
			ReqID string `json:"req_id"`
			State string
			Age   int `json:"age_ms"`
		}
		Queue    []struct{ Need, Lacks int }
		Counters map[string]int
	}
	if err := json.Unmarshal([]byte(output(t, 0, "pd-recv", "stat", r.endpoint)), &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Counters["expired_unread"] == 0 {
		if len(stat.Requests) != 2 || stat.Requests[0].State != "ready" || stat.Requests[0].Age <= 0 || len(stat.Queue) != 1 || stat.Queue[0].Lacks != 4 {
			t.Errorf("while it waits to be read: %+v", stat)
		}
	}
	r.happens("expired", "A")
	s.result("B", "ready")
	if c := r.stat().Counters; c["expired_unread"] < 1 || c["expired"] != 0 {
		t.Errorf("counters: %v", c)
	}
	s.ends(0)
}

// F47: four senders are there before their two receivers, a fifth comes later.
func TestSendersComeFirst(t *testing.T) {
	t.Parallel()
	endpoints := []string{"tcp://127.0.0.1:" + freePort(t), "tcp://127.0.0.1:" + freePort(t)}
	var senders []*fed
	begin := func() {
		i := len(senders)
		s := feed(t, "pd-send", "--to", endpoints[0], "--to", endpoints[1], "--name", fmt.Sprint("send-", i))
		s.write(batch(fmt.Sprint("A", i), 2, 0, 2, `"to":0`), batch(fmt.Sprint("B", i), 2, 0, 2, `"to":1`))
		senders = append(senders, s)
	}
	for range 4 {
		begin()
	}
	var receivers []*receiver
	for _, endpoint := range endpoints {
		receivers = append(receivers, receiveAt(t, endpoint, 20))
	}
	begin()
	for i, s := range senders {
		s.result(fmt.Sprint("A", i), "ready")
		s.result(fmt.Sprint("B", i), "ready")
	}
	for _, r := range receivers {
		if stat := r.stat(); len(stat.Senders) != 5 {
			t.Errorf("%s has the senders %+v", r.endpoint, stat.Senders)
		} else {
			for i, s := range stat.Senders {
				if s.Sender != fmt.Sprint("send-", i) || s.Requests != 1 || !s.Attached {
					t.Errorf("%s has the sender %+v", r.endpoint, s)
				}
			}
		}
	}
	for _, s := range senders {
		s.ends(0)
	}
}

// F48: a sender of another protocol version, slot size or engine is refused when it
// attaches, with both values, and others are served.
func TestMisfitIsNamedAtAttach(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	p := dial(t, r)
	for _, tt := range []struct {
		attach wire.AttachRequest
		says   []string
	}{
		{wire.AttachRequest{Version: wire.ProtocolVersion + 1, Engines: []string{"shm"}}, []string{"version 2", "receiver 1"}},
		{wire.AttachRequest{Version: 0, Engines: []string{"shm"}}, []string{"version 0", "receiver 1"}},
		{wire.AttachRequest{Version: wire.ProtocolVersion, SlotSize: 2 * chunkSize, Engines: []string{"shm"}}, []string{"2048 bytes", "1024"}},
		{wire.AttachRequest{Version: wire.ProtocolVersion, Engines: []string{"ucx"}}, []string{"ucx", "shm"}},
	} {
		m, err := p.Call(&tt.attach)
		resp, ok := m.(*wire.AttachResponse)
		if err != nil || !ok || resp.Code != wire.CodeBadRequest || len(resp.Token) > 0 || len(resp.Regions) > 0 {
			t.Fatalf("%+v is answered with %+v, %v", tt.attach, m, err)
		}
		for _, text := range tt.says {
			if !strings.Contains(resp.Error, text) {
				t.Errorf("of %+v is said %q, want %q", tt.attach, resp.Error, text)
			}
		}
	}
	// LMCache's messages name the kind of memory: another dtype has another size.
	for _, dtype := range []string{"fp8", "bfloat16", "float64"} {
		m := p.request("dtype "+dtype, 1, true, "k")
		m.Dtype = dtype
		if resp := p.call(m); dtype == "fp8" != (resp.Code == "") {
			t.Errorf("chunks of %d %s are answered with %+v", chunkSize, dtype, resp)
		}
	}
	s := send(t, r)
	s.write(batch("A", 4, 0, 4))
	s.result("A", "ready")
	s.ends(0)
}

// F50: the same numbers and texts in other forms; what is answered has the shortest.
func TestFormsOfNumbers(t *testing.T) {
	t.Parallel()
	r := receive(t, 300)
	p := lmcache(t, r)
	head := func(n int) string { return string([]byte{0x80 | byte(n)}) }
	text := func(s string) string { return string([]byte{0xa0 | byte(len(s))}) + s }
	send := func(total, key string) *wire.AllocResponse {
		id := fmt.Sprintf("%x", total+key)
		payload := head(9) + text("type") + text("AllocRequest") + text("keys") + "\x91" + key +
			text("fmt") + "\x04" + text("shape") + "\x91\xcd\x04\x00" + text("dtype") + text("uint8") +
			text("last_chunk_toks") + "\xd1\x04\x00" + text("req_id") + "\xd9" + string([]byte{byte(len(id))}) + id +
			text("is_last_batch") + "\xc2" + text("total_chunks") + total
		if _, err := p.SendPayload([]byte(payload)); err != nil {
			t.Fatal(err)
		}
		_, answer, err := p.RecvPayload(patience)
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.Decode(answer)
		if err != nil {
			t.Fatal(err)
		}
		if shortest := wire.Append(nil, m); string(shortest) != string(answer) {
			t.Errorf("the answer is\n%x, could be\n%x", answer, shortest)
		}
		return m.(*wire.AllocResponse)
	}
	for _, total := range []string{
		"\x08", "\xcc\x08", "\xcd\x00\x08", "\xce\x00\x00\x00\x08", "\xcf\x00\x00\x00\x00\x00\x00\x00\x08",
		"\xd0\x08", "\xd1\x00\x08", "\xd2\x00\x00\x00\x08", "\xd3\x00\x00\x00\x00\x00\x00\x00\x08",
	} {
		granted(t, send(total, "\xa1k"), 1)
	}
	for _, key := range []string{"\xd9\x01k", "\xda\x00\x01k", "\xdb\x00\x00\x00\x01k"} {
		granted(t, send("\x08", key), 1)
	}
	for _, tt := range [][2]string{{"\x08", "\xc4\x01k"}, {"\xcb\x40\x20\x00\x00\x00\x00\x00\x00", "\xa1k"}, {"\xa18", "\xa1k"}, {"\xc0", "\xa1k"}} {
		refused(t, send(tt[0], tt[1]), wire.CodeBadRequest, 1)
	}
	for _, index := range []string{"\xff", "\xd0\xff", "\xd1\xff\xff", "\xd2\xff\xff\xff\xff", "\xd3\xff\xff\xff\xff\xff\xff\xff\xff"} {
		m, err := wire.Decode([]byte(head(2) + text("type") + text("AllocResponse") + text("remote_indexes") + "\x91" + index))
		if err != nil || m.(*wire.AllocResponse).RemoteIndexes[0] != -1 {
			t.Errorf("index %x is read as %+v, %v", index, m, err)
		}
	}
}

// F17: what a peer that has attached says of memory that is not its own, or of
// lengths that no slot has, is refused with a reason; the others' bytes and the
// ledger are as before. What it writes there is TestHostileWriter's and the engines'.
func TestCommitsOfForeignMemory(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	good := send(t, r)
	good.write(batch("ready", 3, 0, 3), batch("half", 3, 0, 2))
	good.result("ready", "ready")
	r.settles("what is good is written", func(s snapshot) bool { return s.Slots.Written == 5 })
	before := r.stat().Slots
	reasons := map[string]bool{}
	for i, tt := range []struct {
		slot, length int64 // slot -2: its own
	}{
		{10, chunkSize}, {-1, chunkSize}, {math.MaxInt64, chunkSize}, {-3, chunkSize}, {-4, chunkSize},
		{-2, chunkSize + 1}, {-2, 0}, {-2, -1}, {-2, math.MaxInt64},
	} {
		bad := attached(t, r, "bad")
		id := fmt.Sprint("bad", i)
		own := bad.alloc(id, 2, false, keys(id, 0, 1)...)
		switch tt.slot {
		case -2:
			tt.slot = own[0]
		case -3: // nobody's
			tt.slot = 9
		case -4: // of the request that is half-way
			tt.slot = 4
		}
		m := bad.commitOf(id, []int64{tt.slot})
		m.Lengths[0] = tt.length
		resp := bad.committed(bad.ask(m))
		if resp.Code == "" || resp.Error == "" || resp.Ready || reasons[resp.Error] {
			t.Errorf("slot %d, %d bytes: %+v", tt.slot, tt.length, resp)
		}
		t.Logf("slot %d, %d bytes: %s: %s", tt.slot, tt.length, resp.Code, resp.Error)
		reasons[resp.Error] = true
		bad.cancel(id)
		bad.Kill()
		r.settles("what was its own is free", func(s snapshot) bool { return s.Slots == before })
	}
	good.write(batch("half", 3, 2, 1))
	good.result("half", "ready")
	for _, id := range []string{"ready", "half"} {
		if r.take(id) != pattern(chunkSize, keys(id, 0, 3)...) {
			t.Errorf("%s has other bytes", id)
		}
	}
	good.ends(0)
	r.empty()
}

// F8: what is no message, on ZeroMQ's connections and on bare ones, ends nobody:
// between each a good request goes through both, all of it is counted, a little of
// it is said, and who can be answered is.
func TestStrayFrames(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r := receive(t, 10, "--sink")
	proxy, to := proxied(t)
	s := send(t, r, "--proxy", to)
	goods := 0
	good := func() {
		t.Helper()
		id := fmt.Sprint("good", goods)
		goods++
		s.write(batch(id, 2, 0, 2))
		s.result(id, "ready")
		proxy.event("req_id", id, "status", "ready")
	}
	random := make([]byte, 1024)
	rand.NewChaCha8([32]byte{8}).Read(random)
	strays := map[string][]string{
		"an empty message": {""}, "one frame": {"x"}, "seven frames": {"1", "2", "3", "4", "5", "6", "7"},
		"HTTP": {"GET / HTTP/1.1\r\n\r\n"}, "random bytes": {string(random)}, "an integer": {"\x07"}, "an unknown type": {"\x81\xa4type\xa4What"},
	}
	push := pusher(t, to)
	for name, frames := range strays {
		var raw [][]byte
		for _, f := range frames {
			raw = append(raw, []byte(f))
		}
		p := dial(t, r)
		if err := p.SendFrames(raw...); err != nil {
			t.Fatal(err)
		}
		if _, err := p.RecvFrames(patience); err != nil {
			t.Errorf("%s: no answer: %v", name, err)
		}
		if _, err := push.SendMessage(raw); err != nil {
			t.Fatal(err)
		}
		good()
	}
	r.settles("all of it is counted", func(s snapshot) bool { return s.Counters["bad_frames"] == len(strays) })
	for _, endpoint := range []string{r.endpoint, to} { // and without ZeroMQ's greeting: to libzmq some of it is a peer of long ago
		for _, bytes := range []string{"", "\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", string(random), strings.Repeat("\xff", 1<<16)} {
			c := dialTCP(t, strings.TrimPrefix(endpoint, "tcp://"))
			_, _ = c.Write([]byte(bytes)) // which may end it
			good()
			c.Close()
		}
	}
	s.ends(0)
	for _, p := range []*program{r.program, proxy} {
		p.kill(syscall.SIGTERM)
		if code := p.exits(); code != 0 {
			t.Errorf("%s ends with %d", p.name, code)
		}
		most := 5 * (1 + int(time.Since(began)/(10*time.Second))) // of a kind in ten seconds, and then how many more
		if n := strings.Count(p.stderr(), ": bad "); n < 5 || n > most {
			t.Errorf("%s says %d times that frames are bad: %s", p.name, n, p.stderr())
		}
	}
	if m := regexp.MustCompile(`(\d+) bad frames\n`).FindStringSubmatch(proxy.stderr()); m == nil {
		t.Errorf("the proxy's summary: %s", tail(proxy.stderr(), 300))
	} else if n, err := strconv.Atoi(m[1]); err != nil || n < len(strays) {
		t.Errorf("the proxy says %s bad frames, want %d or more", m[1], len(strays))
	}
}
