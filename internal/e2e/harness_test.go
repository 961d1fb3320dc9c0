// Package e2e runs the real programs as real processes over real sockets and
// checks what they print, how they end and what they leave behind. It knows
// the programs only by their flags, lines and exit codes. Start reading at
// TestTrace.
package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/built"
	"github.com/pd-tools/pd-tools/internal/testkit"
)

// bin is the folder of the programs under test, built as the tests are: with
// the race detector where they have it.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "pd-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = dir
		// A program with the race detector otherwise waits for a second at its end.
		os.Setenv("GORACE", "atexit_sleep_ms=0")
		// Of many receivers at once only one could have the default.
		os.Setenv("PD_RECV_MONITOR", "none")
		if err := built.Programs(dir, root(), "./cmd/...", "./scripts/gentrace", "./scripts/pd-check", "./scripts/chaos"); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		return m.Run()
	}())
}

// root is the repository.
func root() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// soon is more than what must happen within a few seconds takes on a machine that
// is busy, and less than what happens by a default time-out only.
const soon = patience / 3

// delays is by how much the machine holds programs up.
var delays = testkit.Delays

// line is one JSON line of a program's stdout.
type line map[string]any

func (l line) str(field string) string {
	s, _ := l[field].(string)
	return s
}

func (l line) num(field string) int {
	n, _ := l[field].(float64)
	return int(n)
}

// program is a running process whose output is collected.
type program struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd

	mu     sync.Mutex
	news   *sync.Cond
	out    []string // whole lines of stdout
	err    bytes.Buffer
	ended  bool
	status int // exit code, or -signal
}

// start runs a program; whatever becomes of the test, it ends with it.
func start(t *testing.T, stdin io.Reader, name string, args ...string) *program {
	t.Helper()
	return startWith(t, with{stdin: stdin}, name, args...)
}

func usesOFI(arg string) bool { return slices.Contains(strings.Split(arg, ","), "ofi") }

// with is what a program is run with besides its arguments.
type with struct {
	stdin  io.Reader
	stdout *os.File // nil: it is collected
	env    []string // added to ours
}

func startWith(t *testing.T, w with, name string, args ...string) *program {
	t.Helper()
	if !built.With("ofi") && slices.ContainsFunc(args, usesOFI) {
		t.Skip("built without ofi")
	}
	p := &program{t: t, name: name, cmd: exec.Command(filepath.Join(bin, name), args...)}
	p.news = sync.NewCond(&p.mu)
	p.cmd.Stdin = w.stdin
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = append(append(os.Environ(), "TMPDIR="+p.cmd.Dir), w.env...)
	p.cmd.Stderr = writerFunc(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.news.Broadcast()
		return p.err.Write(b)
	})
	wait := p.reap
	if w.stdout != nil {
		p.cmd.Stdout = w.stdout
	} else {
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		wait = func() {
			p.collect(out)
			p.reap()
		}
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go wait()
	t.Cleanup(func() {
		p.kill(syscall.SIGCONT)
		p.kill(syscall.SIGKILL)
		p.wait()
		if strings.Contains(p.stderr(), "DATA RACE") {
			t.Errorf("%s has a data race:\n%s", name, p.stderr())
		}
		if t.Failed() {
			t.Logf("%s %q ended with %d; stderr:\n%s", name, args, p.status, tail(p.stderr(), 4000))
		}
	})
	return p
}

func (p *program) collect(out io.Reader) {
	r := bufio.NewReader(out)
	for {
		s, err := r.ReadString('\n')
		p.mu.Lock()
		if s != "" {
			p.out = append(p.out, strings.TrimSuffix(s, "\n"))
		}
		p.news.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *program) reap() {
	p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.status = p.cmd.ProcessState.ExitCode()
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		p.status = -int(ws.Signal())
	}
	p.news.Broadcast()
}

// until waits for a condition on the output; what says what was waited for.
func (p *program) until(what string, ok func() bool) {
	p.t.Helper()
	if !p.within(patience, ok) {
		p.t.Fatalf("%s: waited %v for %s; stdout ends in:\n%s\nstderr ends in:\n%s",
			p.name, patience, what, strings.Join(last(p.stdout(), 10), "\n"), tail(p.stderr(), 2000))
	}
}

func (p *program) within(limit time.Duration, ok func() bool) bool {
	so := false
	testkit.Until(p.news, limit, func() bool {
		so = ok()
		return so || p.ended
	})
	return so
}

// event waits for a line of stdout with these fields, given in pairs.
func (p *program) event(fields ...string) line {
	p.t.Helper()
	var found line
	p.until("a line with "+strings.Join(fields, " "), func() bool {
		for _, s := range p.out {
			if l := parse(s); l != nil && l.has(fields) {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// says waits for a text on stderr.
func (p *program) says(text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q on stderr", text), func() bool { return strings.Contains(p.err.String(), text) })
}

// exits waits for the end and returns the exit code, or minus the signal.
func (p *program) exits() int {
	p.t.Helper()
	return p.exitsWithin(patience)
}

func (p *program) exitsWithin(limit time.Duration) int {
	p.t.Helper()
	if !p.within(limit, func() bool { return p.ended }) {
		p.t.Fatalf("%s did not end within %v; stdout ends in:\n%s", p.name, limit, strings.Join(last(p.stdout(), 10), "\n"))
	}
	return p.status
}

func (p *program) wait() { p.within(patience, func() bool { return p.ended }) }

func (p *program) kill(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.cmd.Process.Signal(sig)
	}
}

func (p *program) stdout() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.out...)
}

func (p *program) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

// lines are the JSON lines so far that have these fields.
func (p *program) lines(fields ...string) []line {
	var found []line
	for _, s := range p.stdout() {
		if l := parse(s); l != nil && l.has(fields) {
			found = append(found, l)
		}
	}
	return found
}

func (l line) has(fields []string) bool {
	for i := 0; i+1 < len(fields); i += 2 {
		if l.str(fields[i]) != fields[i+1] {
			return false
		}
	}
	return true
}

func parse(s string) line {
	var l line
	if json.Unmarshal([]byte(s), &l) != nil {
		return nil
	}
	return l
}

// receiver is a running pd-recv.
type receiver struct {
	*program
	endpoint string
}

// receive starts pd-recv on a free port with slots of 1 KiB, and waits until it
// listens.
func receive(t *testing.T, slots int, flags ...string) *receiver {
	t.Helper()
	return receiveChunks(t, slots, 1<<10, flags...)
}

// receiveChunks is receive with slots of another size, bytes.
func receiveChunks(t *testing.T, slots, size int, flags ...string) *receiver {
	t.Helper()
	return receiveWith(t, with{}, slots, size, flags...)
}

func receiveWith(t *testing.T, w with, slots, size int, flags ...string) *receiver {
	t.Helper()
	args := append([]string{"serve", "--listen", "tcp://127.0.0.1:*", "--chunk-size", fmt.Sprint(size),
		"--buffer-size", fmt.Sprint(slots * size)}, flags...)
	r := &receiver{program: startWith(t, w, "pd-recv", args...)}
	r.endpoint = r.event("event", "listening").str("endpoint")
	return r
}

// stat is one Snapshot, as pd-recv stat prints it.
func (r *receiver) stat() snapshot {
	r.t.Helper()
	var s snapshot
	if err := json.Unmarshal([]byte(output(r.t, 0, "pd-recv", "stat", r.endpoint)), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// empty waits until every slot is free and nobody waits.
func (r *receiver) empty() snapshot {
	r.t.Helper()
	return r.settles("everything is free", func(s snapshot) bool {
		return s.Slots.Free == s.Slots.Total && len(s.Queue) == 0
	})
}

// settles asks for snapshots until one is as wanted: there is no event for all
// that a snapshot shows.
func (r *receiver) settles(what string, ok func(snapshot) bool) snapshot {
	r.t.Helper()
	for began := time.Now(); ; {
		s := r.stat()
		if ok(s) {
			return s
		}
		if time.Since(began) > patience {
			r.t.Fatalf("waited %v until %s; the last snapshot is %+v", patience, what, s)
		}
	}
}

type snapshot struct {
	Epoch    uint64
	Draining bool
	Slots    struct{ Total, Promised, Held, Written, Ready, Quarantined, Free int }
	Requests []struct {
		ReqID                      string `json:"req_id"`
		Sender, State              string
		TotalChunks                int `json:"total_chunks"`
		Allocated, Written, Shared int
	}
	Queue []struct {
		Pos         int
		ReqID       string `json:"req_id"`
		Need, Lacks int
		AtShare     bool `json:"at_share"`
	}
	Senders []struct {
		Sender, Engine string
		Requests       int
		Attached       bool
	}
	Counters map[string]int
}

// output runs a program to its end, which must have this exit code.
func output(t *testing.T, code int, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, name), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%s %q ends with %d, want %d; stderr:\n%s", name, args, got, code, stderr.String())
	}
	return string(out)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func last(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// literally says whether reported times and sizes are to be taken as they were
// reported, as make test-reports does.
var literally = os.Getenv("PD_TEST_REPORTS") != ""

// lasts is for how long a test keeps up what was reported to go on for so long.
// Usually as much of it is enough as lets the same happen.
func lasts(reported, enough time.Duration) time.Duration {
	if literally {
		return reported
	}
	return enough
}
