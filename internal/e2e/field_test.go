package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// F6: a request that is cancelled, or whose source cannot be read, half-way:
// its slots are free and the proxy knows why in less than a second.
func TestFailureReachesTheProxy(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	proxy, to := proxied(t)
	s := send(t, r, "--proxy", to)
	for id, end := range map[string]string{
		"A": cancelLine("A"),
		"B": `{"req_id":"B","total_chunks":8,"chunks":[{"key":"B-3","file":"gone","length":1024}],"last":false}` + "\n",
	} {
		s.write(batch(id, 8, 0, 3))
		r.settles("three chunks are written", func(s snapshot) bool { return s.Slots.Written == 3 })
		began, delay := time.Now(), delays(t)
		s.write(end)
		l := proxy.event("req_id", id, "status", "failed")
		if took := l.at(t).Sub(began); took > time.Second+delay() || l.str("reason") == "" {
			t.Errorf("after %v the proxy says %v", took, l)
		}
		r.empty()
	}
	s.ends(1)
}

// F10: a receiver that did not run for longer than the lease handles what has
// come before it takes anybody for silent.
func TestReceiverStandsStill(t *testing.T) {
	t.Parallel()
	r := receive(t, 4, "--lease", "3s")
	s := send(t, r)
	s.write(batch("A", 4, 0, 2))
	r.settles("the first batch is written", func(s snapshot) bool { return s.Slots.Written == 2 })
	r.kill(syscall.SIGSTOP)
	s.write(batch("A", 4, 2, 2))
	stood := time.Now()
	eventually(t, "the lease to pass", func() bool { return time.Since(stood) > 5*time.Second })
	r.kill(syscall.SIGCONT)
	s.result("A", "ready")
	if r.happened("expired", "A") > 0 {
		t.Error("A expired and is ready")
	}
	r.drop("A")
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
	for id, keys := range map[string][]string{"A": a, "B": b} {
		if got := r.take(id); got != pattern(chunkSize, keys...) {
			t.Errorf("the decoder of %s reads other bytes", id)
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
	const ttl = time.Second
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
	if c := r.stat().Counters; c["expired_unread"] < 1 || c["expired"] != 0 {
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
	for _, tt := range []struct {
		buffer, chunk, slots int
		rest                 string
	}{
		{32 << 20, 29_360_128 / 32, 36, "524288 bytes of the buffer are not used"},
		{64 << 20, 3 << 15, 682, "65536 bytes of the buffer are not used"},
		{3 << 20, 3 << 20, 1, ""},
	} {
		r := start(t, nil, "pd-recv", "--listen", "tcp://127.0.0.1:*", "--buffer-size", fmt.Sprint(tt.buffer), "--chunk-size", fmt.Sprint(tt.chunk))
		if l := r.event("event", "listening"); l.num("total_chunks") != tt.slots || l.num("chunk_size") != tt.chunk {
			t.Errorf("%d bytes in chunks of %d: %v", tt.buffer, tt.chunk, l)
		}
		r.says("listening on")
		if said := strings.Contains(r.stderr(), "not used"); said != (tt.rest != "") || !strings.Contains(r.stderr(), tt.rest) {
			t.Errorf("of the remainder stderr says %s", r.stderr())
		}
	}
	run(t, nil, "pd-recv", "--buffer-size", "3145727", "--chunk-size", "3145728").wrongUsage(t, "at least 3145728 bytes")
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
		if i < 4 {
			refused(t, p.answer(corr), wire.CodeAdmissionTimeout, 8)
		} else {
			refused(t, p.answer(corr), wire.CodeQueueFull, 8)
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
	if o := run(t, nil, "pd-send", "--to", r.endpoint); o.code != 0 { // /dev/null
		t.Errorf("stdin closed: %+v", o)
	}
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
	r := receive(t, 4, "--ready-ttl", "2s")
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
		Queue []struct{ Need, Lacks int }
	}
	if err := json.Unmarshal([]byte(output(t, 0, "pd-recv", "stat", r.endpoint)), &stat); err != nil {
		t.Fatal(err)
	}
	if r.happened("expired", "A") == 0 {
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
