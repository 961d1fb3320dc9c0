package main

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/sender"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// next waits for a message that ok likes.
func next[T wire.Message](s *testkit.Subscriber, what string, ok func(T) bool) T {
	return testkit.Next(s, patience, what, ok)
}

// stderrMatch waits until stderr matches and returns the first group.
func (p *process) stderrMatch(pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p.mu.Lock()
		m := re.FindStringSubmatch(p.stderr.String())
		p.mu.Unlock()
		if m != nil {
			return m[1]
		}
	}
	p.t.Fatalf("%s does not say %q on stderr", p.name, pattern)
	return ""
}

// A monitor sees what is blocked in the staging buffer and what waits for
// admission, that it goes, and how each request ends.
func TestMonitor(t *testing.T) {
	_, endpoint := startReceiver(t, "--sink=300ms")
	s := start(t, "pd-send", "--to", endpoint, "--monitor", "tcp://127.0.0.1:*", "--name", "S")
	watch := testkit.Subscribe(t, s.stderrMatch(`pd-send: to watch it: pd-top (\S+)\n`))
	first := next(watch, "the first snapshot", func(*wire.SenderSnapshot) bool { return true })
	if first.Kind != wire.KindSender || first.ID != "S" || first.Receivers[0].Endpoint != endpoint {
		t.Errorf("%+v", first)
	}
	s.write(batch("A", 10, 0, 8, "") + batch("B", 10, 0, 8, ""))
	snap := next(watch, "A writes, B waits", func(s *wire.SenderSnapshot) bool {
		return len(s.Requests) == 2 && s.Requests[0].Sent == 8 && s.Requests[1].State == "waiting"
	})
	if a := snap.Requests[0]; a.ReqID != "A" || a.State != "writing" || a.AdmittedMS < 0 || snap.Epoch != first.Epoch {
		t.Errorf("%+v", snap)
	}
	s.write(batch("A", 10, 8, 2, "") + batch("B", 10, 8, 2, ""))
	var ends []string
	next(watch, "both have ended", func(e *wire.Event) bool {
		if e.Kind != wire.KindSender || e.ID != "S" || e.Epoch != first.Epoch {
			t.Errorf("%+v", e)
		}
		for _, entry := range e.Events {
			ends = append(ends, fmt.Sprintf("%s %s %s %d/%d", entry.Event, entry.Sender, entry.ReqID, entry.Chunks, entry.TotalChunks))
		}
		return len(ends) == 2
	})
	if want := "ready S A 10/10, ready S B 10/10"; strings.Join(ends, ", ") != want {
		t.Errorf("events %q, want %q", ends, want)
	}
	next(watch, "nothing is left", func(s *wire.SenderSnapshot) bool {
		return len(s.Requests) == 0 && s.Counters.Ready == 2 && s.Counters.SentBytes == 20*4096 && s.Staging.Used == 0
	})
	s.stdin.Close()
	s.exit(cli.ExitOK)
	s.says("pd-send: 2 requests: 2 ready, 0 failed, 0 cancelled; 20 chunks sent, 0 shared; 80 KiB in ")
	s.stderrMatch(`(admission p50 \S+ p99 \S+ max \S+, write p50 \S+ p99 \S+ max \S+; notices were off)`)
	if strings.ContainsAny(s.stderr.String(), "\r\x1b") {
		t.Errorf("a progress line without a terminal: %q", s.stderr.String())
	}
}

// A port that is taken is said within a second, and nothing is sent.
func TestMonitorPortTaken(t *testing.T) {
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	socket, taken, err := ctx.Listen(zmq4.PULL, "tcp://127.0.0.1:*", sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	began, held := time.Now(), testkit.Delays(t)
	code, stdout, stderr := run("--to", "tcp://127.0.0.1:9", "--monitor", taken)
	if code != cli.ExitFailed || stdout != "" || !strings.Contains(stderr, "--monitor: cannot listen on "+taken) || time.Since(began) > time.Second+held() {
		t.Errorf("exit %d after %v, stdout %q, stderr %q", code, time.Since(began), stdout, stderr)
	}
}

func TestProgressLine(t *testing.T) {
	p := &sender.Progress{Staging: 64, Used: 60, Live: 12}
	p.Ready, p.Failed = 42, 1
	if got, want := progressLine(p, 3<<29), "42 ready, 1 failed, 12 live, 1.5 GiB/s, staging 60/64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p.Blocked, p.Waiting, p.OldestWait = 3, 5, 1234*time.Millisecond
	if got, want := progressLine(p, 0), "42 ready, 1 failed, 12 live, 0 B/s, staging 60/64, 3 blocked, 5 wait for admission, the oldest for 1.2s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRateOfTheLastSamples(t *testing.T) {
	var r rate
	if got := r.add(0, 0); got != 0 {
		t.Errorf("at the start: %v", got)
	}
	for i := 1; i <= 20; i++ { // 100 bytes a second, then 1000
		got := r.add(time.Duration(i)*time.Second, int64(100*min(i, 10)+1000*max(i-10, 0)))
		if i == 10 && got != 100 || i == 20 && got != 1000 {
			t.Errorf("after %d s: %v", i, got)
		}
	}
	if got := r.add(20*time.Second, 99_000); got < 1000 {
		t.Errorf("a clock that stood still: %v", got)
	}
}

// screen is a terminal's other end.
type screen struct {
	mu   sync.Mutex
	news *sync.Cond
	text string
}

func (s *screen) read(r io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		s.mu.Lock()
		s.text += string(buf[:n])
		s.news.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// drawn waits for a progress line that ok likes.
func (s *screen) drawn(t *testing.T, what string, ok func(line string) bool) {
	t.Helper()
	seen := testkit.Until(s.news, patience, func() bool {
		lines := strings.Split(s.text, clearLine)
		for i := 1; i < len(lines)-1; i++ { // the last may not be whole
			if line := lines[i]; !strings.HasSuffix(line, "\n") && ok(line) {
				s.text = clearLine + lines[len(lines)-1]
				return true
			}
		}
		return false
	})
	if !seen {
		t.Fatalf("no progress line: %s", what)
	}
}

// On a terminal the progress line fits, whatever the terminal's width, and is
// gone at the end.
func TestProgressOnATerminal(t *testing.T) {
	_, endpoint := startReceiver(t)
	cmd := exec.Command(filepath.Join(bin, "pd-send"), "--to", endpoint)
	cmd.Env = append(cmd.Environ(), "TERM=xterm")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	cmd.Stderr = tty
	size := func(columns uint16) {
		if err := pty.Setsize(master, &pty.Winsize{Rows: 5, Cols: columns}); err != nil {
			t.Fatal(err)
		}
	}
	size(120)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill() }()
	tty.Close()
	s := &screen{}
	s.news = sync.NewCond(&s.mu)
	over := make(chan struct{})
	go func() { defer close(over); s.read(master) }()

	io.WriteString(stdin, batch("A", 10, 0, 8, "")+batch("B", 10, 0, 8, ""))
	s.drawn(t, "all of it", func(line string) bool {
		return strings.HasPrefix(line, "0 ready, 0 failed, 2 live, ") && strings.Contains(line, ", 1 wait for admission, the oldest for ")
	})
	for _, columns := range []int{40, 20, 2, 1} {
		size(uint16(columns))
		s.drawn(t, fmt.Sprintf("of %d columns", columns), func(line string) bool { return len(line) == columns-1 })
	}
	size(0) // it does not say
	s.drawn(t, "of the usual width", func(line string) bool { return len(line) == usualWidth-1 })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-over
	cmd.Wait()
	lines := strings.Split(s.text, clearLine)
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "pd-send: ") || !strings.Contains(last, "2 cancelled") {
		t.Errorf("at the end: %q", lines)
	}
}
