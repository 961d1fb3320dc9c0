package e2e

import (
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

// A sender is killed after its first batch, stopped, or never attached: what
// it had is back within its lease and a second, without any traffic; the next
// waiter is admitted, the proxy told.
func TestSenderDies(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	for name, test := range map[string]struct {
		begin  func(*testing.T, *receiver) (die func()) // A's first batch
		reason string
	}{
		"killed": {func(t *testing.T, r *receiver) func() {
			s := firstBatch(t, r)
			return func() { s.kill(syscall.SIGKILL) }
		}, "connection closed"},
		"stopped": {func(t *testing.T, r *receiver) func() {
			s := firstBatch(t, r)
			return func() { s.kill(syscall.SIGSTOP) }
		}, "lease"},
		"attached and not connected": {func(t *testing.T, r *receiver) func() {
			p := attached(t, r, "raw")
			p.alloc("A", 8, false, keys("A", 0, 5)...)
			return p.Kill
		}, "lease"},
		"legacy": {func(t *testing.T, r *receiver) func() {
			p := lmcache(t, r)
			p.alloc("A", 8, false, keys("A", 0, 5)...)
			return p.Kill
		}, "lease"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, to := proxied(t)
			legacy := time.Duration(0) // none
			if name == "legacy" {
				legacy = lease
			}
			r := receive(t, 10, "--lease", lease.String(), "--legacy-lease", legacy.String(), "--proxy", to)
			die := test.begin(t, r)
			next := lmcache(t, r) // says nothing more than this, so that only the clock moves the receiver
			corr := next.ask(next.request("B", 8, true, keys("B", 0, 8)...))
			r.happens("queued", "B")
			silent, delay := time.Now(), delays(t)
			die()
			granted(t, next.answer(corr), 8)
			expired := r.happens("expired", "A")
			if took := expired.at(t).Sub(silent); took > lease+time.Second+delay() {
				t.Errorf("its slots are back %v after it was heard last", took)
			}
			if late := r.happens("admitted", "B").at(t).Sub(expired.at(t)); late > time.Second/2+delay() {
				t.Errorf("the next is admitted %v later", late)
			}
			if !strings.Contains(expired.str("reason"), test.reason) {
				t.Errorf("the reason is %q, want one with %q", expired.str("reason"), test.reason)
			}
			failed := proxy.event("req_id", "A", "status", "failed")
			if failed.str("reason") != expired.str("reason") {
				t.Errorf("the proxy says %q, the receiver %q", failed.str("reason"), expired.str("reason"))
			}
			want := map[string]int{"expired": 1, "released": 1, "expired_unread": 0}
			if legacy > 0 { // B's sender says nothing more, either
				r.happens("expired", "B")
				want = map[string]int{"expired": 1, "released": 0, "expired_unread": 1}
			} else {
				r.drop("B")
			}
			c := r.empty().Counters
			for name, n := range want {
				if c[name] != n {
					t.Errorf("%s: %d, want %d", name, c[name], n)
				}
			}
		})
	}
}

// firstBatch is a pd-send that has written 5 of A's 8 chunks and is not told more.
func firstBatch(t *testing.T, r *receiver) *fed {
	t.Helper()
	s := send(t, r)
	s.write(batch("A", 8, 0, 5))
	r.settles("the first batch is written", func(s snapshot) bool { return s.Slots.Written == 5 })
	return s
}

// The receiver is killed in mid-run: every sender ends with a clear error
// within its time-out, whatever it was doing.
func TestReceiverDies(t *testing.T) {
	t.Parallel()
	const timeout = 8 * time.Second // nobody's ends before the receiver is killed
	r := receive(t, 10)
	flags := []string{"--timeout", timeout.String()}
	admitted, waiting, open := send(t, r, flags...), send(t, r, flags...), send(t, r, flags...)
	admitted.write(batch("A", 8, 0, 4))
	r.happens("admitted", "A")
	for _, s := range []*fed{waiting, open} {
		id := fmt.Sprint("B", s.cmd.Process.Pid)
		s.write(batch(id, 8, 0, 8))
		r.happens("queued", id)
	}
	waiting.stdin.Close()
	r.kill(syscall.SIGKILL)
	r.exits()
	killed := time.Now()
	open.write(batch("late", 1, 0, 1)) // asked for when nobody is there
	open.stdin.Close()
	admitted.result("A", "failed") // while its stdin is open
	for _, s := range []*fed{admitted, waiting, open} {
		s.ends(1)
		if took := time.Since(killed); took > timeout+soon {
			t.Errorf("a sender ends %v after its receiver, its time-out is %v", took, timeout)
		}
		for _, l := range s.lines() {
			if l.str("status") != "failed" || !strings.Contains(l.str("error"), r.endpoint) || l.str("code") != "unreachable" {
				t.Errorf("when its receiver was killed a request ends as %v", l)
			}
		}
		if len(s.lines()) == 0 || !strings.Contains(s.stderr(), r.endpoint) {
			t.Errorf("a sender says nothing of its receiver's end: %s", s.stderr())
		}
	}
}

// Nothing is left behind by anyone: no shared memory, socket, file or process,
// whoever is killed and whoever survives.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--lease", "3s", "--sink")
	survivor := send(t, r)
	survivor.write(batch("A", 8, 0, 8))
	r.happens("released", "A")
	sockets, files := unixSockets(t, r.program), openFiles(r.program)
	if len(sockets) == 0 || len(mappings(survivor.program, "/memfd:")) == 0 {
		t.Fatal("the sender's way into the receiver's memory is not seen: the test proves nothing")
	}

	programs := []*program{r.program, survivor.program}
	for i := range 5 {
		s := send(t, r)
		id := fmt.Sprint("D", i)
		s.write(batch(id, 4, 0, 2))
		r.happens("admitted", id)
		noneOfOurs(t, s.program)
		s.kill(syscall.SIGKILL)
		s.exits()
		r.happens("expired", id)
		programs = append(programs, s.program)
	}
	eventually(t, "the receiver to close what the dead senders had", func() bool { return len(openFiles(r.program)) <= len(files) })
	if n := len(memoryFiles(r.program)); n > 2 {
		t.Errorf("the receiver has %d regions", n)
	}
	noneOfOurs(t, r.program)

	survivor.write(batch("B", 8, 0, 4))
	r.happens("admitted", "B")
	r.kill(syscall.SIGKILL)
	r.exits()
	survivor.result("B", "failed")
	eventually(t, "the sender to let go of the memory", func() bool {
		return len(mappings(survivor.program, "/memfd:")) == 0 && len(memoryFiles(survivor.program)) == 0
	})
	noneOfOurs(t, survivor.program)
	if left := slices.DeleteFunc(sockets, func(name string) bool { return !strings.Contains(read(t, "/proc/net/unix"), name) }); len(left) > 0 {
		t.Errorf("sockets that nobody has: %q", left)
	}
	survivor.ends(1)
	for _, p := range programs {
		if left, err := os.ReadDir(p.cmd.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s leaves %v (%v) where it ran", p.name, left, err)
		}
	}
}

// A receiver that ends cleanly takes its socket file along.
func TestSocketFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "recv")
	r := receiveAt(t, "ipc://"+file, 10)
	s := send(t, r)
	s.write(batch("A", 8, 0, 8))
	s.result("A", "ready")
	s.ends(0)
	r.kill(syscall.SIGTERM)
	if code := r.exits(); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	if left, _ := filepath.Glob(file + "*"); len(left) > 0 {
		t.Errorf("it leaves %q", left)
	}
}

// noneOfOurs checks that a running program has no child and nothing that would
// outlive it.
func noneOfOurs(t *testing.T, p *program) {
	t.Helper()
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	for _, file := range children {
		if list := read(t, file); list != "" {
			t.Errorf("%s has children: %s", p.name, list)
		}
	}
	if list := append(openFiles(p), mappings(p, "/")...); slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, "/dev/shm") }) {
		t.Errorf("%s uses /dev/shm: %q", p.name, list)
	}
}

// openFiles says what a program's descriptors are.
func openFiles(p *program) (list []string) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err == nil {
			list = append(list, name)
		}
	}
	return list
}

// mappings are the lines of a program's memory map that name a file like that.
func mappings(p *program, file string) (list []string) {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.cmd.Process.Pid))
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, file) {
			list = append(list, line)
		}
	}
	return list
}

// unixSockets are the names on which a program listens.
func unixSockets(t *testing.T, p *program) (names []string) {
	t.Helper()
	files := openFiles(p)
	for line := range strings.Lines(read(t, "/proc/net/unix")) {
		// Num RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == "00010000" && slices.Contains(files, "socket:["+f[6]+"]") {
			names = append(names, f[7])
		}
	}
	return names
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Shutdown: everybody who waits is answered, then the receiver exits with 0.
func TestReceiverIsTerminated(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		r := receive(t, 10)
		holder, waiting, old := send(t, r), send(t, r), lmcache(t, r)
		holder.write(batch("A", 8, 0, 4))
		r.happens("admitted", "A")
		waiting.write(batch("B", 8, 0, 8))
		r.happens("queued", "B")
		corr := old.ask(old.request("C", 8, false, keys("C", 0, 8)...))
		r.happens("queued", "C")
		began := time.Now()
		r.kill(sig)
		if l := waiting.result("B", "failed"); l.str("code") != "shutting_down" {
			t.Errorf("a request that waits when the receiver stops ends as %v", l)
		}
		refused(t, old.answer(corr), wire.CodeShuttingDown, 8)
		holder.result("A", "failed")
		if code := r.exits(); code != 0 || time.Since(began) > 5*time.Second+soon {
			t.Errorf("after signal %v the receiver ends with %d within %v", sig, code, time.Since(began))
		}
		holder.ends(1)
		waiting.ends(1)
	}
}

// A sender that is told to stop cancels what it has and says so.
func TestSenderIsTerminated(t *testing.T) {
	t.Parallel()
	for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		r := receive(t, 10)
		proxy, to := proxied(t)
		s := send(t, r, "--proxy", to)
		s.write(batch("A", 8, 0, 4))
		r.happens("admitted", "A")
		s.write(batch("B", 8, 0, 8))
		r.happens("queued", "B")
		s.kill(sig)
		if got := s.exits(); got != code {
			t.Errorf("after signal %v it ends with %d", sig, got)
		}
		for _, id := range []string{"A", "B"} {
			s.result(id, "cancelled")
			r.happens("cancelled", id)
			proxy.event("req_id", id, "status", "failed")
		}
		r.empty()
	}
}

// The second signal ends a program at once, whatever it waits for.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	const nobody = "tcp://127.0.0.1:9"
	r := receive(t, 10, "--proxy", nobody, "--legacy-lease", "100ms", "--shutdown-timeout", "inf")
	lmcache(t, r).alloc("A", 8, false, keys("A", 0, 4)...)
	r.happens("expired", "A") // and the proxy is to be told
	s := feed(t, "pd-send", "--to", nobody, "--proxy", nobody, "--timeout", "inf", "--shutdown-timeout", "inf")
	s.write(batch("A", 1, 0, 1), cancelLine("A"))
	s.result("A", "cancelled") // and the proxy is to be told
	for _, p := range []*program{r.program, s.program} {
		p.kill(syscall.SIGTERM)
		if p.within(300*time.Millisecond, func() bool { return p.ended }) {
			t.Errorf("%s did not wait for its proxy: the test proves nothing", p.name)
		}
		began := time.Now()
		p.kill(syscall.SIGINT)
		if code := p.exits(); code != 130 || time.Since(began) > soon {
			t.Errorf("%s ends with %d within %v of the second signal", p.name, code, time.Since(began))
		}
	}
}
