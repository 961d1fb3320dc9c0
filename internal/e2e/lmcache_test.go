package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

// TestLMCacheFailures has the failures that were seen in LMCache's running
// code, row by row of the design's table of them, and checks that none of them
// happens here, under the default admission policy.
func TestLMCacheFailures(t *testing.T) {
	t.Parallel()
	for i, row := range []struct {
		saw  string
		test func(*testing.T)
	}{
		{"Admitted A's next batch queues behind B's first batch in the same sender", batchBehindBatch},
		{"Cancelling A queues behind B as well", cancelBehindBatch},
		{"B, bound for a full receiver, holds all staging", stagingForAFullReceiver},
		{"Sender killed after its first batch", senderKilledAfterFirstBatch},
		{"Cancel while waiting: no CancelNotif", cancelWhileWaiting},
		{"Cancel while an allocation blocks: the answer names the same slot twice", cancelWhileAllocationBlocks},
		{"Two first batches of one request both waiting: counted twice", twoFirstBatches},
		{"Reservation given back at the last batch although the chunks still fill the buffer", reservationAfterLastBatch},
		{"Slots freed by a cancel while the write is in flight go to B", cancelWhileWriting},
		{"Already sent for a chunk that is allocated and not yet written", sharedBeforeWritten},
		{"CancelNotif frees any key it names, whoever owns it", cancelOfForeignKeys},
		{"Last batch first: released; the earlier batch is taken for a new first one", lastBatchFirst},
		{"B1 times out, B2 (last) is admitted later: ProxyNotif although B1's chunks are missing", timedOutThenLastBatch},
		{"Receiver restarted while a sender waits for an answer", restartedWhileWaiting},
		{`req_id "" bypasses admission`, emptyReqID},
		{"Unknown dtype or fmt: refused, reservation leaks; negative total_chunks", refusedWithoutLeak},
		{"No order: a small request that fits always passes; a large one starves", smallOnesPass},
		{"A failed bind is swallowed and the process looks healthy", failedBind},
	} {
		t.Run(fmt.Sprintf("%d %s", i+1, row.saw), func(t *testing.T) {
			t.Parallel()
			row.test(t)
		})
	}
}

// eitherPeer runs a test with a peer that talks as LMCache does, and with one
// that talks as pd-send does.
func eitherPeer(t *testing.T, test func(*testing.T, *receiver, *peer)) {
	t.Helper()
	for name, o := range map[string]peertest.Options{"legacy": {Legacy: true}, "ours": {}} {
		t.Run(name, func(t *testing.T) {
			r := receive(t, 10)
			test(t, r, connect(t, r, o))
		})
	}
}

// full fills 8 slots with the ready request X of a sender that never attached.
func full(t *testing.T, r *receiver) {
	t.Helper()
	lmcache(t, r).alloc("X", 8, true, keys("X", 0, 8)...)
	r.happens("ready", "X")
}

// Ours: a waiting batch never delays another request's batch, whoever the sender.
func batchBehindBatch(t *testing.T) {
	t.Run("pd-send", func(t *testing.T) {
		r := receive(t, 10)
		s := send(t, r)
		s.write(batch("A", 8, 0, 4))
		r.happens("admitted", "A")
		s.write(batch("B", 8, 0, 4))
		r.happens("queued", "B")
		s.write(batch("A", 8, 4, 4))
		s.result("A", "ready")
		if r.happened("admitted", "B") > 0 {
			t.Error("A and B have 16 chunks of 10 slots")
		}
		r.drop("A")
		r.happens("admitted", "B")
		s.write(batch("B", 8, 4, 4))
		s.result("B", "ready")
		s.ends(0)
	})
	eitherPeer(t, func(t *testing.T, r *receiver, p *peer) {
		p.alloc("A", 8, false, keys("A", 0, 4)...)
		b := p.ask(p.request("B", 8, false, keys("B", 0, 4)...))
		r.happens("queued", "B")
		p.alloc("A", 8, true, keys("A", 4, 4)...)
		r.drop("A")
		granted(t, p.answer(b), 4)
	})
}

// Ours: a cancel is never delayed by a waiting batch.
func cancelBehindBatch(t *testing.T) {
	t.Run("pd-send", func(t *testing.T) {
		r := receive(t, 10, "--sink")
		s := send(t, r)
		s.write(batch("A", 8, 0, 4))
		r.happens("admitted", "A")
		s.write(batch("B", 8, 0, 8))
		r.happens("queued", "B")
		s.write(cancelLine("A"))
		s.result("A", "cancelled")
		s.result("B", "ready")
		r.inOrder("queued B", "cancelled A", "admitted B")
		s.ends(0)
		r.empty()
	})
	eitherPeer(t, func(t *testing.T, r *receiver, p *peer) {
		p.alloc("A", 8, false, keys("A", 0, 4)...)
		b := p.ask(p.request("B", 8, false, keys("B", 0, 8)...))
		r.happens("queued", "B")
		c := p.ask(&wire.CancelNotif{ReqID: "A", Keys: []string{}})
		granted(t, p.answer(c), 0)
		granted(t, p.answer(b), 8)
	})
}

// Ours: staging only for batches whose remote slots are allocated; one slow
// receiver never starves another.
func stagingForAFullReceiver(t *testing.T) {
	busy, idle := receive(t, 10), receive(t, 10, "--sink")
	full(t, busy)
	s := send(t, busy, "--to", idle.endpoint, "--staging-size", fmt.Sprint(chunkSize))
	s.write(batch("B", 8, 0, 8, `"to":0`))
	busy.happens("queued", "B")
	s.write(batch("A", 8, 0, 4, `"to":1`))
	idle.happens("admitted", "A")
	s.write(batch("A", 8, 4, 4, `"to":1`))
	s.result("A", "ready")
	busy.kill(syscall.SIGSTOP) // full and deaf
	s.write(batch("C", 8, 0, 8, `"to":1`))
	s.result("C", "ready")
	busy.kill(syscall.SIGCONT)
	if busy.happened("admitted", "B") > 0 {
		t.Error("B was admitted to a full buffer")
	}
	busy.drop("X")
	s.result("B", "ready")
	s.ends(0)
}

// Ours: lease.
func senderKilledAfterFirstBatch(t *testing.T) {
	r := receive(t, 10, "--lease", "3s", "--legacy-lease", "3s", "--sink")
	dead := lmcache(t, r)
	dead.alloc("A", 8, false, keys("A", 0, 4)...)
	dead.Kill()
	waiting := send(t, r)
	waiting.write(batch("B", 8, 0, 8))
	waiting.result("B", "ready")
	r.inOrder("expired A", "admitted B", "released B")

	sender := send(t, r)
	sender.write(batch("C", 8, 0, 4))
	r.happens("admitted", "C")
	waiting.write(batch("D", 8, 0, 8))
	r.happens("queued", "D")
	sender.kill(syscall.SIGKILL)
	waiting.result("D", "ready")
	r.inOrder("queued D", "expired C", "admitted D", "released D")
	waiting.ends(0)
	if s := r.empty(); s.Counters["expired"] != 2 {
		t.Errorf("%d requests expired, want 2", s.Counters["expired"])
	}
}

// Ours: cancelled stays cancelled, nothing held, no notification.
func cancelWhileWaiting(t *testing.T) {
	r := receive(t, 10)
	proxy, to := proxied(t)
	full(t, r)
	s := send(t, r, "--proxy", to)
	s.write(batch("A", 8, 0, 8)) // its only batch is its last
	r.happens("queued", "A")
	s.write(cancelLine("A"))
	s.result("A", "cancelled")
	r.happens("cancelled", "A")
	r.drop("X")
	s.write(batch("C", 8, 0, 8))
	s.result("C", "ready")
	proxy.event("req_id", "C", "status", "ready")
	if n := r.happened("admitted", "A") + r.happened("ready", "A"); n > 0 {
		t.Errorf("a cancelled request was admitted: %s", r.stdout())
	}
	if lines := proxy.lines("req_id", "A"); len(lines) != 1 || lines[0].str("status") != "failed" {
		t.Errorf("of the cancelled request the proxy says %v, want that it failed", lines)
	}
	r.drop("C")
	r.empty()
	s.ends(0)
}

// Ours: never.
func cancelWhileAllocationBlocks(t *testing.T) {
	for _, mode := range []string{"reserve", "none"} {
		t.Run(mode, func(t *testing.T) {
			r := receive(t, 10, "--admission", mode)
			full(t, r)
			p := dial(t, r)
			b := p.ask(p.request("B", 4, false, keys("B", 0, 4)...)) // 2 slots are free
			r.happens("queued", "B")
			granted(t, p.cancel("B"), 0)
			refused(t, p.answer(b), wire.CodeRolledBack, 4)
			r.drop("X")
			r.empty()
			p.alloc("C", 10, true, keys("C", 0, 10)...)
		})
	}
}

// Ours: one reservation a request.
func twoFirstBatches(t *testing.T) {
	r := receive(t, 10)
	full(t, r)
	p := dial(t, r)
	one := p.ask(p.request("A", 8, false, keys("A", 0, 4)...))
	two := p.ask(p.request("A", 8, false, keys("A", 4, 4)...))
	s := r.settles("A waits", func(s snapshot) bool { return len(s.Queue) > 0 })
	if len(s.Queue) != 1 || s.Queue[0].Need != 8 || r.happened("queued", "A") != 1 {
		t.Errorf("two first batches of one request wait as %+v, want one place and 8 slots", s.Queue)
	}
	r.drop("X")
	slots := append(granted(t, p.answer(one), 4), granted(t, p.answer(two), 4)...)
	if slices.Sort(slots); len(slices.Compact(slots)) != 8 {
		t.Errorf("8 chunks are in slots %v", slots)
	}
	if s := r.stat().Slots; s.Promised != 0 || s.Held != 8 || s.Free != 2 {
		t.Errorf("slots: %+v", s)
	}
	p.cancel("A")
	r.empty()
}

// Ours: promised + held never exceeds the buffer; admitted means guaranteed.
func reservationAfterLastBatch(t *testing.T) {
	r := receive(t, 10)
	s := send(t, r)
	s.write(batch("A", 8, 0, 8))
	s.result("A", "ready") // and not consumed
	s.write(batch("B", 8, 0, 4))
	r.happens("queued", "B")
	snap := r.stat()
	if snap.Slots.Promised+snap.Slots.Held > 10 || len(snap.Queue) != 1 || snap.Queue[0].Lacks != 6 {
		t.Errorf("beside 8 chunks in 10 slots, B is not waiting for 6 more: %+v", snap)
	}
	r.drop("A")
	r.happens("admitted", "B")
	if s := r.settles("B's first batch is written", func(s snapshot) bool { return s.Slots.Written == 4 }); s.Slots.Promised != 4 || s.Slots.Held != 4 {
		t.Errorf("B is admitted with %+v", s.Slots)
	}
	s.write(batch("B", 8, 4, 4))
	s.result("B", "ready")
	if got, want := r.take("B"), pattern(chunkSize, keys("B", 0, 8)...); got != want {
		t.Error("B's bytes are not B's")
	}
	s.ends(0)
	r.empty()
}

// Ours: no slot is reused while its writer may still write. The sender cancels
// when its write is over, and not before; death_test.go has the writer that
// the receiver gives up.
func cancelWhileWriting(t *testing.T) {
	const attempts = 10 // what is held may be more than the write
	for range attempts {
		if cancelOfAHeldWrite(t) {
			return
		}
	}
	t.Skipf("NOT RUN: in %d attempts the sender could do nothing while its write was held", attempts)
}

// cancelOfAHeldWrite cancels a request one of whose writes is held in the
// middle. It reports false when the sender did not get to the cancel.
func cancelOfAHeldWrite(t *testing.T) bool {
	r, mem := receiveWhole(t)
	a := send(t, r)
	half := stopInWrite(t, a, newSource(t), mem)
	release := holdBusyThreads(t, a.program)
	b := dial(t, r)
	corr := b.ask(peertest.Alloc("B", 2, true, wholeChunk, "B0", "B1"))
	r.happens("queued", "B")
	a.write(cancelLine(half.reqID), batch("C", 1, 0, 1)) // what A says of C comes behind what it says of its cancel
	a.kill(syscall.SIGCONT)
	if !r.within(3*time.Second, func() bool { return strings.Contains(strings.Join(r.out, ""), `"req_id":"C"`) }) {
		release()
		a.kill(syscall.SIGKILL)
		r.kill(syscall.SIGKILL)
		return false
	}
	a.result(half.reqID, "cancelled")
	if r.happened("admitted", "B") > 0 {
		t.Errorf("B got the slot of %s while it was being written", half.reqID)
	}
	release()
	granted(t, b.answer(corr), 2)
	if !half.image.ended(half.slot) {
		t.Errorf("B got the slot of %s before it was written", half.reqID)
	}
	r.inOrder("queued B", "cancelled "+half.reqID, "admitted B")
	b.cancel("B")
	a.result("C", "ready")
	a.ends(0)
	return true
}

// Ours: only committed chunks are shared.
func sharedBeforeWritten(t *testing.T) {
	r := receive(t, 16)
	slow := attached(t, r, "slow")
	slots := slow.alloc("A", 4, true, keys("k", 0, 4)...)
	old := lmcache(t, r) // its chunks count as written and are never shared
	old.alloc("O", 4, true, keys("k", 0, 4)...)
	r.happens("ready", "O")
	s := send(t, r)
	s.write(batchOf("B", 4, true, keys("k", 0, 4)))
	if l := s.result("B", "ready"); l.num("sent") != 4 || l.num("shared") != 0 {
		t.Errorf("of chunks that nobody had written B sent %d and shared %d", l.num("sent"), l.num("shared"))
	}
	if r.happened("ready", "A") > 0 {
		t.Error("A is ready, and nothing of it is written")
	}
	if got, want := output(t, 0, "pd-recv", "take", "--keep", r.endpoint, "B"), pattern(chunkSize, keys("k", 0, 4)...); got != want {
		t.Error("B's decoder does not read B's bytes")
	}
	s.write(batchOf("C", 4, true, keys("k", 0, 4)))
	if l := s.result("C", "ready"); l.num("sent") != 0 || l.num("shared") != 4 {
		t.Errorf("of chunks that B had committed C sent %d and shared %d", l.num("sent"), l.num("shared"))
	}
	if resp := slow.commit("A", slots); resp.Code != "" || !resp.Ready {
		t.Errorf("the late commit is answered %+v", resp)
	}
	for _, id := range []string{"A", "O", "B", "C"} {
		r.drop(id)
	}
	s.ends(0)
	r.empty()
}

// Ours: a cancel touches what its request holds, once.
func cancelOfForeignKeys(t *testing.T) {
	r := receive(t, 10)
	a, b := lmcache(t, r), lmcache(t, r)
	a.alloc("A", 4, false, keys("A", 0, 4)...)
	b.alloc("B", 4, false, keys("B", 0, 2)...)

	granted(t, b.cancel("A", keys("A", 0, 4)...), 0) // another's request
	granted(t, b.cancel("none", keys("A", 0, 4)...), 0)
	granted(t, b.cancel("B", append(keys("A", 0, 4), keys("B", 0, 1)...)...), 0)
	r.happens("cancelled", "B")
	if s := r.stat(); s.Slots.Held != 4 || s.Slots.Free != 6 {
		t.Errorf("the cancel of B leaves %+v", s.Slots)
	}
	granted(t, a.cancel("A", "A-0", "A-0", "A-1"), 0)
	granted(t, a.cancel("A", "A-0", "A-0", "A-1"), 0)
	if s := r.empty(); r.happened("cancelled", "A") != 1 || s.Counters["cancelled"] != 2 {
		t.Errorf("counters after two cancels: %v", s.Counters)
	}
	a.alloc("C", 10, true, keys("C", 0, 10)...)
}

// Ours: one request, one reservation: the late batch is a violation that rolls
// the request back, even a ready one nobody takes; nothing leaks.
func lastBatchFirst(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *receiver) *peer{
		"legacy":   lmcache,
		"attached": func(t *testing.T, r *receiver) *peer { return attached(t, r, "raw") },
	} {
		t.Run(name, func(t *testing.T) {
			r := receive(t, 10)
			p := open(t, r)
			slots := p.alloc("A", 8, true, keys("A", 4, 4)...)
			if name == "attached" {
				p.commit("A", slots)
			}
			if l := r.happens("ready", "A"); l.num("chunks") != 4 || l.num("total_chunks") != 8 || l.num("free") != 6 {
				t.Errorf("after an early last batch: %v", l)
			}
			refused(t, p.call(p.request("A", 8, false, keys("A", 0, 4)...)), wire.CodeProtocolViolation, 4)
			r.happens("rolled_back", "A")
			refused(t, p.call(p.request("A", 8, true, keys("A", 0, 4)...)), wire.CodeRolledBack, 4)
			r.empty()
			p.alloc("B", 10, true, keys("B", 0, 10)...)
		})
	}
}

// Ours: a request that failed once never becomes ready.
func timedOutThenLastBatch(t *testing.T) {
	r := receive(t, 10, "--admit-timeout", "300ms")
	proxy, to := proxied(t)
	full(t, r)
	s := send(t, r, "--proxy", to)
	s.write(batch("A", 8, 0, 4))
	if l := s.result("A", "failed"); l.str("code") != "admission_timeout" {
		t.Errorf("A ends as %v", l)
	}
	old := lmcache(t, r)
	refused(t, old.call(old.request("B", 8, false, keys("B", 0, 4)...)), wire.CodeAdmissionTimeout, 4)
	r.drop("X")
	s.write(batch("A", 8, 4, 4))
	refused(t, old.call(old.request("B", 8, true, keys("B", 4, 4)...)), wire.CodeRolledBack, 4)
	s.write(batch("C", 8, 0, 8))
	s.result("C", "ready")
	proxy.event("req_id", "C", "status", "ready")
	if lines := proxy.lines("req_id", "A"); len(lines) != 1 || lines[0].str("status") != "failed" {
		t.Errorf("of the request that timed out the proxy says %v", lines)
	}
	for _, id := range []string{"A", "B"} {
		if r.happened("timed_out", id) != 1 || r.happened("ready", id)+r.happened("admitted", id) > 0 {
			t.Errorf("%s did not just time out:\n%s", id, strings.Join(r.stdout(), "\n"))
		}
	}
	r.drop("C")
	r.empty()
	s.ends(1)
}

// Ours: bounded waits; a new instance is recognized by its epoch.
func restartedWhileWaiting(t *testing.T) {
	r := receive(t, 10)
	full(t, r)
	s := send(t, r, "--timeout", "5s")
	s.write(batch("A", 8, 0, 8))
	r.happens("queued", "A")
	p := attached(t, r, "raw")
	r.kill(syscall.SIGKILL)
	r.exits()
	killed := time.Now()
	again := receiveAt(t, r.endpoint, 10)
	if l := s.result("A", "failed"); !strings.Contains(l.str("error"), r.endpoint) || time.Since(killed) > 5*time.Second+soon {
		t.Errorf("after %v A ends as %v", time.Since(killed), l)
	}
	s.write(batch("B", 8, 0, 8))
	s.result("B", "ready")
	again.happens("ready", "B")
	refused(t, p.call(p.request("C", 2, true, keys("C", 0, 2)...)), wire.CodeStaleEpoch, 2)
	s.ends(1)
}

// Ours: refused.
func emptyReqID(t *testing.T) {
	r := receive(t, 10)
	p := lmcache(t, r)
	p.alloc("A", 10, false, keys("A", 0, 2)...)
	refused(t, p.call(p.request("", 2, false, "x", "y")), wire.CodeBadRequest, 2)
	refused(t, p.call(p.request("", 0, true, "x", "y")), wire.CodeBadRequest, 2)
	if s := r.stat().Slots; s.Promised != 8 || s.Held != 2 {
		t.Errorf("what A has reserved is now %+v", s)
	}
	p.alloc("A", 10, true, keys("A", 2, 8)...)
}

// Ours: validate before anything changes.
func refusedWithoutLeak(t *testing.T) {
	r := receive(t, 10)
	p := lmcache(t, r)
	for name, change := range map[string]func(*wire.AllocRequest){
		"dtype":          func(m *wire.AllocRequest) { m.Dtype = "float128" },
		"fmt":            func(m *wire.AllocRequest) { m.Fmt = wire.I(99) },
		"negative fmt":   func(m *wire.AllocRequest) { m.Fmt = wire.I(-1) },
		"negative total": func(m *wire.AllocRequest) { m.TotalChunks = wire.I(-8) },
		"negative shape": func(m *wire.AllocRequest) { m.Shape = []wire.Int{wire.I(-chunkSize)} },
		"no last tokens": func(m *wire.AllocRequest) { m.LastChunkToks = wire.I(0) },
		"key twice":      func(m *wire.AllocRequest) { m.Keys[1] = m.Keys[0] },
		"chunk too long": func(m *wire.AllocRequest) { m.Shape[0], m.LastChunkToks = wire.I(chunkSize+1), wire.I(chunkSize+1) },
	} {
		m := p.request("bad "+name, 8, false, keys(name, 0, 4)...)
		change(m)
		refused(t, p.call(m), wire.CodeBadRequest, 4)
		r.happens("rejected", "bad "+name)
		if s := r.stat().Slots; s.Free != 10 {
			t.Errorf("%s: a refused request leaves %+v", name, s)
		}
	}
	p.alloc("A", 8, false, keys("A", 0, 4)...)
	b := p.ask(p.request("B", 8, false, keys("B", 0, 4)...))
	r.happens("queued", "B") // not over-admitted
	p.cancel("A")
	granted(t, p.answer(b), 4)
}

// Ours: arrival order, bounded overtaking.
func smallOnesPass(t *testing.T) {
	for _, overtake := range []int{0, 3} {
		t.Run(fmt.Sprint("overtake ", overtake), func(t *testing.T) {
			r := receive(t, 10, "--overtake", fmt.Sprint(overtake), "--sink=1ms")
			p := dial(t, r)
			p.alloc("A", 8, false, keys("A", 0, 4)...)
			large := p.ask(p.request("B", 8, false, keys("B", 0, 8)...))
			r.happens("queued", "B")
			const small = 20
			for i := range small {
				id := fmt.Sprint("s", i)
				p.ask(p.request(id, 2, true, keys(id, 0, 2)...))
			}
			if overtake < small {
				r.happens("queued", fmt.Sprint("s", small-1))
			}
			for i := range overtake { // those that may pass do, as the sink frees slots
				r.happens("admitted", fmt.Sprint("s", i))
			}
			p.cancel("A")
			granted(t, p.answer(large), 8)
			passed := 0
			for _, l := range r.lines("event", "admitted") {
				if l.str("req_id") == "B" {
					break
				}
				passed++
			}
			if passed -= 1; passed != overtake { // A was there before
				t.Errorf("%d small requests passed a large one, want %d", passed, overtake)
			}
			p.cancel("B")
			for i := range small {
				r.happens("released", fmt.Sprint("s", i))
			}
			r.empty()
		})
	}
}

// Ours: exit 1, naming the endpoint.
func failedBind(t *testing.T) {
	r := receive(t, 10)
	for _, args := range [][]string{{"pd-recv", "serve"}, {"pd-proxy"}} {
		checkPortTaken(t, r.endpoint, args[0], append(args[1:], "--listen", r.endpoint)...)
	}
}

// checkPortTaken starts a program on a port that is taken: it ends within a
// second, of three attempts in one at least, for other tests run beside it.
func checkPortTaken(t *testing.T, endpoint, name string, args ...string) {
	t.Helper()
	for try := 1; ; try++ {
		began := time.Now()
		p := start(t, nil, name, args...)
		code := p.exits()
		took := time.Since(began)
		if code != 1 || len(p.stdout()) > 0 || !strings.Contains(p.stderr(), endpoint) || !strings.Contains(p.stderr(), "in use") {
			t.Fatalf("%s on a port that is taken ends with %d; stdout %q, stderr %q", name, code, p.stdout(), p.stderr())
		}
		if took <= time.Second {
			return
		}
		if try == 3 {
			t.Fatalf("%s takes %v to see that its port is taken", name, took)
		}
	}
}
