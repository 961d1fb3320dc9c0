package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/built"
	"github.com/pd-tools/pd-tools/internal/usage"
	"github.com/pd-tools/pd-tools/wire"
)

// terminal is a pd-top on a terminal of its own.
type terminal struct {
	*exec.Cmd
	t      *testing.T
	ptmx   *os.File
	tty    *os.File
	before *unix.Termios

	mu   sync.Mutex
	out  bytes.Buffer
	news chan struct{}
}

// open starts it. env is added to ours, in which a UTF-8 locale and a terminal
// with colours are told of.
func open(t *testing.T, name string, size pty.Winsize, env []string, args ...string) *terminal {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	p := &terminal{t: t, ptmx: ptmx, tty: tty, news: make(chan struct{}, 1)}
	t.Cleanup(func() { tty.Close(); ptmx.Close() })
	p.resize(size)
	p.before = p.settings()
	p.Cmd = command(t, "", args...)
	p.Args[0] = name
	p.Stdin, p.Stdout, p.Stderr = tty, tty, tty
	p.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color", "NO_COLOR="), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	return p
}

func (p *terminal) start() *terminal {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.Process.Kill() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := p.ptmx.Read(buf)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
			select {
			case p.news <- struct{}{}:
			default:
			}
		}
	}()
	return p
}

func (p *terminal) resize(size pty.Winsize) {
	p.t.Helper()
	if err := pty.Setsize(p.ptmx, &size); err != nil {
		p.t.Fatal(err)
	}
}

func (p *terminal) settings() *unix.Termios {
	p.t.Helper()
	settings, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return settings
}

// text is what it has written so far.
func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// shows waits until what it wrote after the first from bytes has a text.
func (p *terminal) shows(from int, want string) {
	p.t.Helper()
	end := time.After(patience)
	for !strings.Contains(p.text()[from:], want) {
		select {
		case <-p.news:
		case <-end:
			p.t.Fatalf("no %q in %q", want, p.text()[from:])
		}
	}
}

func (p *terminal) types(keys string) {
	p.t.Helper()
	if _, err := p.ptmx.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// ends waits for its end, and for all that it wrote.
func (p *terminal) ends(code int) {
	p.t.Helper()
	late := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	defer late.Stop()
	_ = p.Wait()
	if got := p.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d: %q", got, code, p.text())
	}
	if _, err := p.tty.WriteString("THE END"); err != nil {
		p.t.Fatal(err)
	}
	p.shows(0, "THE END")
	if after := p.settings(); !reflect.DeepEqual(after, p.before) {
		p.t.Errorf("the terminal is left as %+v, it was %+v", after, p.before)
	}
	text := p.text()
	for on, off := range map[string]string{"\x1b[?1049h": "\x1b[?1049l", "\x1b[?25l": "\x1b[?25h", "\x1b[?2004h": "\x1b[?2004l"} {
		if strings.LastIndex(text, on) > strings.LastIndex(text, off) {
			p.t.Errorf("%q is left on", on)
		}
	}
}

var size = pty.Winsize{Cols: 100, Rows: 30}

// F64: whatever ends it, the terminal is as it was.
func TestTerminalIsRestored(t *testing.T) {
	t.Parallel()
	endpoint := publish(t, receiver(3))
	signal := func(s syscall.Signal) func(*terminal) {
		return func(p *terminal) { _ = p.Process.Signal(s) }
	}
	for name, c := range map[string]struct {
		program string
		end     func(*terminal)
		code    int
		says    string
	}{
		"TERM":  {"pd-top", signal(syscall.SIGTERM), 143, "terminated"},
		"INT":   {"pd-top", signal(syscall.SIGINT), 130, "interrupted"},
		"HUP":   {"pd-top", signal(syscall.SIGHUP), 129, "hung up"},
		"q":     {"pd-top", func(p *terminal) { p.types("q") }, 0, ""},
		"^C":    {"pd-top", func(p *terminal) { p.types("\x03") }, 130, "interrupted"},
		"panic": {"pd-top-panics", func(*terminal) {}, 1, "forced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t, c.program, size, nil, "-d", "250ms", endpoint).start()
			p.shows(0, "req-00002")
			c.end(p)
			p.ends(c.code)
			if _, left, _ := strings.Cut(p.text(), "\x1b[?1049l"); !strings.Contains(left, c.says) {
				t.Errorf("it says %q", left)
			}
		})
	}
}

// F66: no size, however odd, and no change of it is too much.
func TestSizes(t *testing.T) {
	t.Parallel()
	endpoint := publish(t, receiver(300))
	sizes := []pty.Winsize{{}, {Cols: 1, Rows: 1}, {Cols: 20, Rows: 5}, {Cols: 500, Rows: 200}, size}
	for _, s := range sizes {
		t.Run(fmt.Sprintf("%dx%d", s.Cols, s.Rows), func(t *testing.T) {
			t.Parallel()
			p := open(t, "pd-top", s, nil, "-d", "250ms", endpoint).start()
			p.shows(0, "\x1b[?1049h")
			p.types("jG/9\r\r?")
			from := len(p.text())
			for i := range 100 { // for five seconds what a user does who drags the window's edge
				p.resize(sizes[i%len(sizes)])
				time.Sleep(50 * time.Millisecond)
			}
			p.types("\x1b")
			p.shows(from, "req-00299")
			p.types("q")
			p.ends(0)
		})
	}
}

// F73: a screen on which nothing happens costs next to nothing, and it never
// flickers.
func TestIdle(t *testing.T) {
	t.Parallel()
	const measured = 5 * time.Second
	p := open(t, "pd-top", size, nil, publish(t, receiver(0))).start()
	p.shows(0, "LIVE")
	from := len(p.text())
	time.Sleep(measured)
	written := p.text()[from:]
	t.Logf("%d bytes a second", len(written)/int(measured/time.Second))
	if len(written) == 0 || len(written) > 2048*int(measured/time.Second) {
		t.Errorf("%d bytes in %v", len(written), measured)
	}
	if strings.Contains(written, "\x1b[2J") || strings.Contains(written, "\x1b[J") {
		t.Errorf("the screen is cleared: %q", written)
	}
	p.types("q")
	p.ends(0)
}

// What the environment says of the terminal.
func TestLooks(t *testing.T) {
	t.Parallel()
	endpoint := publish(t, receiver(3))
	colored := regexp.MustCompile(`\x1b\[[0-9;]*m`).MatchString
	ascii := func(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r > '~' }) }
	for name, c := range map[string]struct {
		env  []string
		args []string
		is   func(string) bool
	}{
		"colour":       {nil, nil, func(s string) bool { return colored(s) && !ascii(s) }},
		"NO_COLOR":     {[]string{"NO_COLOR=1"}, nil, func(s string) bool { return !colored(s) }},
		"always":       {[]string{"NO_COLOR=1"}, []string{"--color", "always"}, func(s string) bool { return colored(s) }},
		"never":        {nil, []string{"--color", "never"}, func(s string) bool { return !colored(s) }},
		"no UTF-8":     {[]string{"LC_ALL=C"}, nil, ascii},
		"--ascii":      {nil, []string{"--ascii"}, ascii},
		"TERM=dumb":    {[]string{"TERM=dumb"}, nil, func(s string) bool { return !strings.Contains(s, "\x1b") }},
		"-b":           {nil, []string{"-b"}, func(s string) bool { return !strings.Contains(s, "\x1b") }},
		"a screen, -n": {nil, []string{"-d", "250ms"}, func(s string) bool { return strings.Contains(s, "\x1b[?1049l") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t, "pd-top", size, c.env, append(append([]string{"-n", "3"}, c.args...), endpoint)...).start()
			p.ends(0)
			if text := strings.TrimSuffix(p.text(), "THE END"); !strings.Contains(text, "req-00002") || !c.is(text) {
				t.Errorf("it wrote %q", text)
			}
		})
	}
}

// A screen without a keyboard, and with one that is not stdin.
func TestStdinIsNoTerminal(t *testing.T) {
	t.Parallel()
	endpoint := publish(t, receiver(3))
	t.Run("terminal", func(t *testing.T) {
		t.Parallel()
		p := open(t, "pd-top", size, nil, endpoint)
		p.Stdin = nil // the null device
		p.start()
		p.shows(0, "req-00002")
		p.types("q")
		p.ends(0)
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		p := open(t, "pd-top", size, nil, endpoint)
		p.Stdin = nil
		p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		p.start()
		p.shows(0, "req-00002")
		_ = p.Process.Signal(syscall.SIGTERM)
		p.ends(143)
	})
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		p := open(t, "pd-top", size, nil, endpoint)
		p.Args = []string{"bash", "-c", `exec -a pd-top "$0" "$@" <&-`, p.Path, endpoint}
		p.Path = "/bin/bash"
		p.start()
		p.shows(0, "req-00002")
		p.types("q")
		p.ends(0)
	})
}

// F40: signals that mean nothing change nothing.
func TestSignalStorm(t *testing.T) {
	t.Parallel()
	p := open(t, "pd-top", size, nil, "-d", "250ms", publish(t, receiver(3))).start()
	p.shows(0, "req-00002")
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		for _, s := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD, syscall.SIGCONT} {
			_ = p.Process.Signal(s)
		}
		time.Sleep(100 * time.Microsecond)
	}
	from := len(p.text())
	p.shows(from, "LIVE")
	p.types("q")
	p.ends(0)
}

// 5,000 live requests that move cost little.
func TestManyRequests(t *testing.T) {
	const measured = 6 * time.Second
	build, n := receiver(5000), 0
	p := open(t, "pd-top", size, nil, publish(t, func() wire.Message {
		s := build().(*wire.Snapshot)
		n++
		s.Requests = append([]wire.SnapshotRequest(nil), s.Requests...)
		for i := range s.Requests {
			s.Requests[i].Written, s.Requests[i].AgeMS = n%8, int64(1000*n+i)
		}
		return s
	})).start()
	p.shows(0, "LIVE")
	began := p.cpu()
	time.Sleep(measured)
	share := float64(p.cpu()-began) / float64(measured)
	memory := p.rss()
	t.Logf("5,000 requests: %.1f%% of a core, %d MiB", 100*share, memory>>20)
	if share > 0.05 && !built.Race {
		t.Errorf("%.1f%% of a core", 100*share)
	}
	if memory > 100<<20 && !built.Race {
		t.Errorf("%d bytes of memory", memory)
	}
	p.types("q")
	p.ends(0)
}

// cpu is what the process has used so far.
func (p *terminal) cpu() time.Duration { return p.uses().CPU }

// rss is what the process has in memory, bytes.
func (p *terminal) rss() int { return int(p.uses().Resident()) }

func (p *terminal) uses() usage.Usage {
	p.t.Helper()
	u, err := usage.Of(p.Process.Pid)
	if err != nil {
		p.t.Fatal(err)
	}
	return u
}
