package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// F44: a receiver that is told to stop refuses what is new and answers who
// waits; what is admitted is written, what is ready is taken, and it ends as soon
// as nothing is left.
func TestReceiverDrains(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--shutdown-timeout", "0", "--metrics", "127.0.0.1:*")
	if code, body, err := testkit.Fetch(metricsOf(r.program) + "/healthz"); code != 200 || r.stat().Draining {
		t.Errorf("before: %d %s, %v", code, body, err)
	}
	s, waiting, old := send(t, r), send(t, r), lmcache(t, r)
	s.write(batch("ready", 2, 0, 2), batch("half", 6, 0, 3))
	s.result("ready", "ready")
	r.settles("half of it is written", func(s snapshot) bool { return s.Slots.Written == 5 })
	waiting.write(batch("waits", 8, 0, 8))
	r.happens("queued", "waits")

	began := time.Now()
	r.kill(syscall.SIGTERM)
	if l := waiting.result("waits", "failed"); l.str("code") != "shutting_down" {
		t.Errorf("who waits is told %v", l)
	}
	r.says("waiting for as long as it takes until the last 2 requests are written and taken")
	refused(t, old.call(old.request("new", 1, true, "k")), wire.CodeShuttingDown, 1)
	if got := r.take("ready"); got != pattern(chunkSize, keys("ready", 0, 2)...) {
		t.Error("what was ready has other bytes while it drains")
	}
	r.settles("it says that it drains", func(s snapshot) bool { return len(s.Requests) == 1 && s.Slots.Free == 4 && s.Draining })
	if code, body, err := testkit.Fetch(metricsOf(r.program) + "/healthz"); code != 503 || body != "draining\n" {
		t.Errorf("while it drains: %d %q, %v", code, body, err)
	}
	s.write(batch("half", 6, 3, 3))
	s.result("half", "ready")
	if got := r.take("half"); got != pattern(chunkSize, keys("half", 0, 6)...) {
		t.Error("what was finished while it drained has other bytes")
	}
	if code := r.exits(); code != 0 || time.Since(began) > soon {
		t.Errorf("it ends with %d after %v", code, time.Since(began))
	}
	s.ends(0)
	waiting.ends(1)
}

// What nobody comes for holds up the end no longer than it may; the second signal
// not even so long.
func TestReceiverDrainsInTime(t *testing.T) {
	t.Parallel()
	full := func(flags ...string) *receiver {
		r := receive(t, 10, flags...)
		s := send(t, r)
		s.write(batch("A", 2, 0, 2), batch("B", 6, 0, 3))
		s.result("A", "ready")
		r.happens("admitted", "B")
		return r
	}
	r, delay := full("--shutdown-timeout", "2s"), delays(t)
	began := time.Now()
	r.kill(syscall.SIGTERM)
	if code, took := r.exits(), time.Since(began); code != 0 || took < 800*time.Millisecond || took > 2*time.Second+delay() {
		t.Errorf("it ends with %d after %v", code, took)
	}
	r = full("--shutdown-timeout", "3m")
	began = time.Now()
	r.kill(syscall.SIGTERM)
	r.says("stopping: ")
	r.kill(syscall.SIGTERM)
	if code := r.exits(); code != 143 || time.Since(began) > soon {
		t.Errorf("the second signal ends it with %d after %v", code, time.Since(began))
	}
}

// What still lives when the draining is over ends then: each request once, in the
// lines and in the summary, and whoever counts on it hears why: the sender of a
// half-written one, the proxy that was told of a ready one. A limit of nothing is
// none: who would come has any time.
func TestReceiverEndsWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"shm", "ofi"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			proxy, endpoint := proxied(t)
			r := receive(t, 20, "--engine", engine, "--proxy", endpoint, "--shutdown-timeout", "10s")
			s, old := send(t, r, "--proxy", endpoint), lmcache(t, r)
			s.write(batch("whole", 2, 0, 2), batch("half", 6, 0, 3), batch("bare", 3, 0, 1))
			s.result("whole", "ready")
			granted(t, old.call(old.request("legacy", 2, false, "k")), 1)
			r.settles("what there is to write is", func(s snapshot) bool { return s.Slots.Written == 6 })
			proxy.event("req_id", "whole", "status", "ready")
			r.kill(syscall.SIGTERM)
			for _, id := range []string{"half", "bare"} {
				if l := s.result(id, "failed"); l.str("code") != "shutting_down" || !strings.Contains(l.str("error"), "the receiver has stopped") {
					t.Errorf("the sender of a half-written one is told %v", l)
				}
			}
			if code := r.exits(); code != 0 {
				t.Errorf("it ends with %d", code)
			}
			for id, end := range map[string]string{"whole": "expired", "half": "rolled_back", "bare": "rolled_back", "legacy": "rolled_back"} {
				l := r.event("event", end, "req_id", id)
				if l.str("code") != "shutting_down" || l.str("reason") == "" {
					t.Errorf("%s ends as %v", id, l)
				}
				for _, other := range []string{"rejected", "timed_out", "cancelled", "expired", "rolled_back", "released"} {
					if n := r.happened(other, id); n > 1 || n == 1 && other != end {
						t.Errorf("%s has ended %d times as %s", id, n, other)
					}
				}
			}
			r.says("requests: 1 ready, 0 released, 3 rolled back, 1 expired unread")
			proxy.says("the receiver has stopped: nobody took it")
			s.ends(1)
		})
	}
}

// F44: a sender that is told to stop finishes what is admitted and read, takes
// back what waits, and reads nothing new.
func TestSenderDrains(t *testing.T) {
	t.Parallel()
	const total = 200 // chunks, one a batch
	r := receive(t, total, "--lease", "1m")
	s := send(t, r, "--batch", "1", "--shutdown-timeout", "2m")
	s.write(batch("active", total, 0, 1))
	r.happens("admitted", "active")
	for i := range 2 {
		id := fmt.Sprint("waits", i)
		s.write(batch(id, total, 0, 1))
		r.happens("queued", id)
	}
	r.kill(syscall.SIGSTOP)
	s.write(batch("active", total, 1, total-1), cancelLine("nothing"))
	s.says(`cancel of request "nothing"`) // so what is before it has been read
	s.kill(syscall.SIGTERM)
	for i := range 2 {
		s.result(fmt.Sprint("waits", i), "cancelled")
	}
	r.kill(syscall.SIGCONT)
	if l := s.result("active", "ready"); l.num("sent") != total {
		t.Errorf("the active one ends as %v", l)
	}
	for i := range 2 {
		r.happens("cancelled", fmt.Sprint("waits", i))
	}
	if code := s.exits(); code != 143 {
		t.Errorf("it ends with %d", code)
	}
	if r.take("active") != pattern(chunkSize, keys("active", 0, total)...) {
		t.Error("what was delivered while it ended has other bytes")
	}
	r.empty()
}

// Each life of a receiver has an epoch of its own, larger than the one before, and
// refuses what belongs to another.
func TestEpochs(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	last := r.stat().Epoch
	for range 3 {
		p := attached(t, r, "raw")
		p.alloc("A", 2, false, "A-0")
		r.kill(syscall.SIGKILL)
		r.exits()
		r = receiveAt(t, r.endpoint, 10)
		if now := r.stat().Epoch; now <= last {
			t.Errorf("epoch %d after %d", now, last)
		} else {
			last = now
		}
		q := attached(t, r, "anew")
		m := q.request("B", 2, false, "B-0")
		m.Epoch = last - 1
		refused(t, q.call(m), wire.CodeStaleEpoch, 1)
	}
}
