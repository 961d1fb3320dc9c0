package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Whoever reads stdout may close it early, or its disk may be full.

// onPipe is a program whose stdout the test reads itself.
type onPipe struct {
	*fed
	pipe  *os.File
	lines *bufio.Reader
}

func piped(t *testing.T, name string, args ...string) *onPipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &onPipe{feedWith(t, with{stdout: w}, name, args...), r, bufio.NewReader(r)}
	w.Close()
	t.Cleanup(func() { r.Close() })
	return p
}

// head reads a line and then closes the pipe, as head -1 does.
func (p *onPipe) head() line {
	p.t.Helper()
	s, err := p.lines.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s wrote no line: %v; stderr:\n%s", p.name, err, p.stderr())
	}
	p.pipe.Close()
	return parse(s)
}

// endsQuietly checks that a program ends as all do whose stdout is closed. If it
// needs more to say something, more gives it that, again and again: a process
// that was just forked may have the other end of the pipe a moment longer.
func (p *onPipe) endsQuietly(more ...func(i int)) {
	p.t.Helper()
	for i := 0; len(more) > 0 && !p.within(100*time.Millisecond, func() bool { return p.ended }); i++ {
		more[0](i)
	}
	if code := p.exits(); code != -int(syscall.SIGPIPE) || strings.Contains(p.stderr(), "pipe") {
		p.t.Errorf("%s ends with %d when its stdout is closed; stderr:\n%s", p.name, code, p.stderr())
	}
}

func zero(id string) string {
	return fmt.Sprintf(`{"req_id":%q,"total_chunks":0,"chunks":[],"last":true}`+"\n", id)
}

func TestHeadOfEachOutput(t *testing.T) {
	t.Parallel()
	r := piped(t, "pd-recv", "--listen", "tcp://127.0.0.1:*", "--buffer-size", "10KiB", "--chunk-size", "1KiB")
	s := feed(t, "pd-send", "--to", r.head().str("endpoint"), "--timeout", "10s")
	s.write(batch("A", 8, 0, 4))
	r.endsQuietly(func(i int) { s.write(batch(fmt.Sprint("more", i), 1, 0, 1)) })
	s.result("A", "failed")
	s.ends(1)

	proxy := piped(t, "pd-proxy", "--json", "--listen", "tcp://127.0.0.1:*")
	one := piped(t, "pd-send", "--to", nobody, "--proxy", listening(proxy.program))
	one.write(zero("A"))
	if id := one.head().str("req_id"); id != "A" {
		t.Errorf("the first request is %q", id)
	}
	if id := proxy.head().str("req_id"); id != "A" {
		t.Errorf("the first request is %q", id)
	}
	one.endsQuietly(func(i int) { one.stdin.WriteString(zero(fmt.Sprint("B", i))) }) // perhaps before its proxy has heard of one
	two := feed(t, "pd-send", "--to", nobody, "--proxy", listening(proxy.program))
	proxy.endsQuietly(func(i int) { two.write(zero(fmt.Sprint("C", i))) })
	two.kill(syscall.SIGKILL)

	trace := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(trace, []byte(output(t, 0, "gentrace", "--requests", "300")), 0o600); err != nil {
		t.Fatal(err)
	}
	m := piped(t, "pd-send", "manifest", trace)
	if id := m.head().str("req_id"); id == "" {
		t.Error("the first line of a manifest has no req_id")
	}
	m.endsQuietly()
}

// Nobody reads at all: the pipe is closed before the first line.
func TestNobodyReadsStdout(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	lmcache(t, r).alloc("A", 8, true, keys("A", 0, 8)...)
	for _, args := range [][]string{
		{"pd-recv", "stat", r.endpoint}, {"pd-recv", "--help"}, {"pd-recv", "take", r.endpoint, "A"},
		{"pd-send", "--version"}, {"pd-proxy", "--completion", "zsh"},
	} {
		rd, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		rd.Close()
		p := &onPipe{fed: &fed{program: startWith(t, with{stdout: w}, args[0], args[1:]...)}}
		w.Close()
		p.endsQuietly()
	}
}

func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	r := receive(t, 10)
	lmcache(t, r).alloc("A", 8, true, keys("A", 0, 8)...)
	_, to := proxied(t)
	for _, args := range [][]string{
		{"pd-recv", "stat", r.endpoint}, {"pd-recv", "take", r.endpoint, "A"}, {"pd-recv", "--listen", "tcp://127.0.0.1:*"},
		{"pd-recv", "--help"}, {"pd-send", "--version"}, {"pd-top", "--completion", "bash"},
		{"pd-send", "--to", r.endpoint, "--proxy", to},
	} {
		s := feedWith(t, with{stdout: full}, args[0], args[1:]...)
		s.write(zero("Z"))
		s.stdin.Close()
		if code := s.exits(); code != 1 || strings.Count(s.stderr(), "no space left on device") != 1 {
			t.Errorf("%q ends with %d; stderr:\n%s", args, code, s.stderr())
		}
	}
	p := startWith(t, with{stdout: full}, "pd-proxy", "--listen", "tcp://127.0.0.1:*")
	s := feed(t, "pd-send", "--to", nobody, "--proxy", listening(p))
	s.write(zero("Z"))
	s.ends(0)
	if code := p.exits(); code != 1 || !strings.Contains(p.stderr(), "no space left on device") {
		t.Errorf("pd-proxy ends with %d; stderr:\n%s", code, p.stderr())
	}
	if r.take("A") == "" { // the take that failed gave it back
		t.Error("A has no bytes")
	}
}
