package main

import (
	"bufio"
	"bytes"
	"encoding/json"
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

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/built"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// These tests run pd-send and pd-recv as processes.

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// bin is where the programs are, built as the tests are.
var bin string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pd-send-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	if err := built.Programs(dir, "", "../pd-send", "../pd-recv"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// process is a program under test; its output is collected.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu     sync.Mutex
	news   *sync.Cond
	lines  []map[string]any
	stderr bytes.Buffer
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(filepath.Join(bin, name), args...), ended: make(chan struct{})}
	p.news = sync.NewCond(&p.mu)
	p.cmd.Stderr = p
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.collect(stdout)
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s on stderr:\n%s", name, p.stderr.String())
		}
	})
	return p
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

func (p *process) collect(stdout io.Reader) {
	r := bufio.NewScanner(stdout)
	for r.Scan() {
		var line map[string]any
		if err := json.Unmarshal(r.Bytes(), &line); err != nil {
			p.t.Errorf("%s wrote %q: %v", p.name, r.Text(), err)
		}
		p.mu.Lock()
		p.lines = append(p.lines, line)
		p.news.Broadcast()
		p.mu.Unlock()
	}
	p.cmd.Wait()
	close(p.ended)
	p.mu.Lock()
	p.news.Broadcast()
	p.mu.Unlock()
}

// line waits for a line of stdout that has these fields, given in pairs.
func (p *process) line(pairs ...string) map[string]any {
	p.t.Helper()
	var found map[string]any
	testkit.Until(p.news, patience, func() bool {
		for _, line := range p.lines {
			if has(line, pairs) {
				found = line
				return true
			}
		}
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	})
	if found == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.t.Fatalf("%s has no line with %q: %v", p.name, pairs, p.lines)
	}
	return found
}

func has(line map[string]any, pairs []string) bool {
	for i := 0; i < len(pairs); i += 2 {
		if fmt.Sprint(line[pairs[i]]) != pairs[i+1] {
			return false
		}
	}
	return true
}

// signal sends a signal. One that stops the process has done so on return.
func (p *process) signal(s syscall.Signal) {
	p.cmd.Process.Signal(s)
	if s == syscall.SIGSTOP {
		unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
}

func (p *process) write(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, text); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and checks the exit code.
func (p *process) exit(code int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s ended with %d, want %d", p.name, got, code)
	}
}

func (p *process) says(text string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !strings.Contains(p.stderr.String(), text) {
		p.t.Errorf("%s does not say %q on stderr: %s", p.name, text, p.stderr.String())
	}
}

// startReceiver starts a pd-recv on a free port, of 10 slots of 4 KiB if args do
// not say otherwise.
func startReceiver(t *testing.T, args ...string) (p *process, endpoint string) {
	t.Helper()
	return startReceiverAt(t, "tcp://127.0.0.1:*", args...)
}

func startReceiverAt(t *testing.T, listen string, args ...string) (p *process, endpoint string) {
	t.Helper()
	if !slices.Contains(args, "--buffer-size") {
		args = append(args, "--buffer-size", "40KiB")
	}
	if !slices.Contains(args, "--chunk-size") {
		args = append(args, "--chunk-size", "4KiB")
	}
	p = start(t, "pd-recv", append(args, "--listen", listen)...)
	return p, p.line("event", "listening")["endpoint"].(string)
}

// wantFree waits until all slots of a receiver are free.
func wantFree(t *testing.T, endpoint string) {
	t.Helper()
	var out []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		var err error
		if out, err = exec.Command(filepath.Join(bin, "pd-recv"), "stat", endpoint).Output(); err != nil {
			t.Fatal(err)
		}
		var snap struct{ Slots struct{ Total, Free int } }
		if err := json.Unmarshal(out, &snap); err != nil {
			t.Fatal(err)
		}
		if snap.Slots.Free == snap.Slots.Total {
			return
		}
	}
	t.Errorf("slots stay taken: %s", out)
}

// batch is a manifest line: chunks of 4 KiB from first on, of total.
func batch(id string, total, first, count int, more string) string {
	return sized(id, total, first, count, 4096, more)
}

func sized(id string, total, first, count, size int, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"req_id":%q,"total_chunks":%d,"chunks":[`, id, total)
	for i := first; i < first+count; i++ {
		if i > first {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"key":"%s-%d","length":%d}`, id, i, size)
	}
	fmt.Fprintf(&b, `],"last":%v%s}`+"\n", first+count == total, more)
	return b.String()
}

// The source design's example: 10 slots, A and B of 8 chunks, interleaved.
func TestInterleavedRequests(t *testing.T) {
	for mode, wait := range map[string]time.Duration{"reserve": patience, "serial": patience, "none": time.Second} {
		t.Run(mode, func(t *testing.T) {
			_, endpoint := startReceiver(t, "--admission", mode, "--admit-timeout", wait.String(), "--sink")
			s := start(t, "pd-send", "--to", endpoint)
			s.write(batch("A", 8, 0, 4, "") + batch("B", 8, 0, 4, "") + batch("A", 8, 4, 4, "") + batch("B", 8, 4, 4, ""))
			s.stdin.Close()
			if mode != "none" {
				s.line("req_id", "A", "status", "ready", "sent", "8")
				s.line("req_id", "B", "status", "ready", "sent", "8")
				s.exit(0)
			} else {
				s.line("status", "failed", "code", "admission_timeout")
				s.exit(1)
			}
			wantFree(t, endpoint)
		})
	}
}

// eachEngine runs a test under every engine that there is.
func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	for _, name := range engines.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for most of their time
			test(t, name)
		})
	}
}

func TestReceiverIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		r, endpoint := startReceiver(t, "--engine", engine)
		s := start(t, "pd-send", "--to", endpoint)
		s.write(batch("A", 8, 0, 4, "") + batch("B", 8, 0, 4, ""))
		r.line("event", "queued", "req_id", "B")
		start := time.Now()
		r.signal(syscall.SIGKILL)
		for _, id := range []string{"A", "B"} {
			line := s.line("req_id", id, "status", "failed", "code", "unreachable")
			if text := line["error"].(string); !strings.HasPrefix(text, endpoint+": ") || strings.Count(text, "gone")+strings.Count(text, "ended") > 2 {
				t.Errorf("the error is %q", text)
			}
		}
		if took := time.Since(start); took > patience/2 { // --timeout is 60s
			t.Errorf("it took %v to see that the receiver is gone", took)
		}
		again, _ := startReceiverAt(t, endpoint, "--engine", engine, "--buffer-size", "16KiB", "--sink")
		s.write(batch("A", 8, 4, 4, "") + batch("C", 4, 0, 4, "") + batch("D", 8, 0, 8, ""))
		s.line("req_id", "C", "status", "ready")
		s.line("req_id", "D", "status", "failed", "code", "too_large")
		again.line("event", "released", "req_id", "C")
		s.stdin.Close()
		s.exit(1)
		wantFree(t, endpoint)
	})
}

// F45: a stalled receiver holds up nobody else.
func TestReceiverIsStopped(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		stopped, first := startReceiver(t, "--engine", engine)
		_, second := startReceiver(t, "--engine", engine, "--sink")
		s := start(t, "pd-send", "--to", first, "--to", second, "--timeout", "8s", "--staging-size", "16KiB")
		s.write(batch("A", 8, 0, 4, `,"to":0`))
		stopped.line("event", "admitted", "req_id", "A")
		stopped.signal(syscall.SIGSTOP)
		s.write(batch("A", 8, 4, 4, `,"to":0`) + batch("X", 8, 0, 8, `,"to":0`))
		for _, id := range []string{"B", "C", "D"} {
			s.write(batch(id, 8, 0, 8, `,"to":1`))
			s.line("req_id", id, "status", "ready")
		}
		s.line("req_id", "A", "status", "failed", "code", "unreachable")
		s.line("req_id", "X", "status", "failed", "code", "unreachable")
		stopped.signal(syscall.SIGCONT)
		s.write(batch("E", 2, 0, 2, `,"to":0`))
		s.line("req_id", "E", "status", "ready")
		s.stdin.Close()
		s.exit(1)
		exec.Command(filepath.Join(bin, "pd-recv"), "drop", first, "E").Run()
		wantFree(t, first)
	})
}

// The same in the middle of its writes, of which there are more than its share
// of the staging buffer has room for.
func TestReceiverIsStoppedInMidWrite(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		large := []string{"--engine", engine, "--buffer-size", "32MiB", "--chunk-size", "1MiB", "--sink"}
		stopped, first := startReceiver(t, large...)
		_, second := startReceiver(t, large...)
		s := start(t, "pd-send", "--to", first, "--to", second, "--timeout", "8s", "--staging-size", "8MiB")
		for i := range 100 {
			s.write(sized(fmt.Sprint("A", i), 16, 0, 16, 1<<20, `,"to":0`))
		}
		stopped.line("event", "released", "req_id", "A0")
		stopped.signal(syscall.SIGSTOP)
		for i := range 20 {
			id := fmt.Sprint("B", i)
			s.write(sized(id, 16, 0, 16, 1<<20, `,"to":1`))
			s.line("req_id", id, "status", "ready")
		}
		s.line("status", "failed", "code", "unreachable") // one that was being written
		stopped.signal(syscall.SIGCONT)
		s.write(sized("E", 2, 0, 2, 1<<20, `,"to":0`))
		s.line("req_id", "E", "status", "ready")
		s.stdin.Close()
		s.exit(1)
		wantFree(t, first)
	})
}

func TestSenderIsStoppedForLongerThanItsLease(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		r, endpoint := startReceiver(t, "--engine", engine, "--lease", "2s")
		s := start(t, "pd-send", "--to", endpoint)
		s.write(batch("A", 8, 0, 4, ""))
		r.line("event", "admitted", "req_id", "A")
		s.signal(syscall.SIGSTOP)
		r.line("event", "expired", "req_id", "A")
		s.signal(syscall.SIGCONT)
		line := s.line("req_id", "A", "status", "failed", "code", "stale_epoch")
		if !strings.Contains(line["error"].(string), "lease") {
			t.Errorf("the error does not say why: %v", line)
		}
		s.write(batch("B", 1, 0, 1, ""))
		s.line("req_id", "B", "status", "ready")
		s.stdin.Close()
		s.exit(1)
	})
}

// Where the receiver cannot be written by an engine of --engine, both sides'
// are named.
func TestEnginesThatDoNotMeet(t *testing.T) {
	if !built.With("ofi") {
		t.Skip("built without ofi")
	}
	_, endpoint := startReceiver(t, "--engine", "shm")
	s := start(t, "pd-send", "--to", endpoint, "--engine", "ofi")
	s.write(batch("A", 8, 0, 8, ""))
	s.stdin.Close()
	line := s.line("req_id", "A", "status", "failed", "code", "bad_request")
	for _, word := range []string{endpoint, "ofi", "shm"} {
		if !strings.Contains(line["error"].(string), word) {
			t.Errorf("the error does not name %s: %v", word, line)
		}
	}
	s.exit(1)
}

// F46: an address where nobody is costs nobody else anything.
func TestReceiverThatIsNotThere(t *testing.T) {
	t.Parallel()
	r, dead := startReceiver(t)
	r.signal(syscall.SIGKILL)
	<-r.ended
	_, live := startReceiver(t, "--sink")
	s := start(t, "pd-send", "--to", live, "--to", dead, "--timeout", "8s")
	for i := range 10 {
		s.write(batch(fmt.Sprint("L", i), 2, 0, 2, `,"to":0`) + batch(fmt.Sprint("D", i), 2, 0, 2, `,"to":1`))
	}
	for i := range 10 {
		s.line("req_id", fmt.Sprint("L", i), "status", "ready")
		s.line("req_id", fmt.Sprint("D", i), "status", "failed", "code", "unreachable")
	}
	startReceiverAt(t, dead, "--sink")
	s.write(batch("E", 2, 0, 2, `,"to":1`))
	s.line("req_id", "E", "status", "ready")
	s.stdin.Close()
	s.exit(1)
}

// F42: it ends when it is told to, whoever is absent, and says what was left.
func TestSignalsWhileNobodyAnswers(t *testing.T) {
	t.Parallel()
	_, live := startReceiver(t)
	for name, sig := range map[string]struct {
		signal syscall.Signal
		code   int
	}{"interrupt": {syscall.SIGINT, 130}, "terminate": {syscall.SIGTERM, 143}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "pd-send", "--to", live, "--to", "tcp://127.0.0.1:9", "--proxy", "tcp://127.0.0.1:9", "--shutdown-timeout", "5s")
			s.write(`{"req_id":"Z","total_chunks":0,"chunks":[],"last":true}` + "\n")
			s.write(batch(name, 8, 0, 1, `,"to":0`) + batch("X", 1, 0, 1, `,"to":1`) + `{"cancel":"X"}` + "\n")
			s.line("req_id", "X", "status", "cancelled")
			start := time.Now()
			s.signal(sig.signal)
			s.line("req_id", name, "status", "cancelled")
			s.exit(sig.code)
			if took := time.Since(start); took > patience/2 {
				t.Errorf("it took %v to end", took)
			}
			s.says("notices undelivered")
			wantFree(t, live)
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	s := start(t, "pd-send", "--to", "tcp://127.0.0.1:9", "--proxy", "tcp://127.0.0.1:9", "--shutdown-timeout", "inf")
	s.write(batch("X", 1, 0, 1, "") + batch("Y", 1, 0, 1, "") + `{"cancel":"Y"}` + "\n")
	s.line("req_id", "Y", "status", "cancelled")
	s.signal(syscall.SIGINT)
	s.line("req_id", "X", "status", "cancelled") // its FailNotif waits for the proxy
	s.signal(syscall.SIGINT)
	s.exit(130)
}

// F74; must-show: each bad line is named.
func TestInputThatIsNoManifest(t *testing.T) {
	_, endpoint := startReceiver(t, "--sink")
	empty := start(t, "pd-send", "--to", endpoint)
	empty.stdin.Close()
	empty.exit(0)
	empty.says("0 requests")

	s := start(t, "pd-send", "--to", endpoint)
	for i := range 20 {
		s.write(fmt.Sprintf("\x00\xff%d\n", i))
	}
	s.write(batch("A", 2, 0, 2, "") + batch("B", 2, 0, 1, ""))
	s.line("req_id", "A", "status", "ready")
	s.write(batch("B", 2, 1, 1, "")[:40])
	s.stdin.Close()
	s.line("req_id", "B", "status", "failed")
	s.exit(1)
	for i := range 20 {
		s.says(fmt.Sprintf("stdin:%d:", i+1))
	}
	wantFree(t, endpoint)
}
