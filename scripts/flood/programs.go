package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pd-tools/pd-tools/internal/usage"
)

const (
	patience   = 60 * time.Second // with what must happen
	stopWithin = 15 * time.Second
)

// program is one of the real ones.
type program struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan []byte // of stdout, where somebody wants them
	done  chan struct{}

	mu     sync.Mutex
	stderr bytes.Buffer // the first of it
	err    error        // how it ended
}

// start runs a program; it dies with us. Each line of its stdout is given to
// line.
func start(bin, name string, line func([]byte), args ...string) (*program, error) {
	p := &program{name: name, cmd: exec.Command(filepath.Join(bin, name), args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = p
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w: build it first (make build) or name its directory with -bin", name, err)
	}
	go func() {
		defer close(p.done)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			line(s.Bytes())
		}
		_, _ = io.Copy(io.Discard, out)
		err := p.cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
	}()
	return p, nil
}

// Write takes stderr.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stderr.Len() < 64<<10 {
		p.stderr.Write(b)
	}
	return len(b), nil
}

func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// alive is nil while the program runs.
func (p *program) alive() error {
	select {
	case <-p.done:
		return p.failure(errors.New("ended"))
	default:
		return nil
	}
}

func (p *program) failure(err error) error {
	said := p.said()
	return fmt.Errorf("%s: %w; stderr ends in: %s", p.name, err, said[max(0, len(said)-2000):])
}

// ends waits for a clean end.
func (p *program) ends(within time.Duration) error {
	select {
	case <-p.done:
		if p.err != nil {
			return p.failure(p.err)
		}
		return nil
	case <-time.After(within):
		return p.failure(fmt.Errorf("did not end within %v", within))
	}
}

// stop ends it by signal.
func (p *program) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	err := p.ends(stopWithin)
	if err != nil {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return err
}

// memory is what it has of its own, bytes: not the buffer, which is as large as it
// was told to be, and resident once it has been written.
func (p *program) memory() (int64, error) {
	u, err := usage.Of(p.cmd.Process.Pid)
	return u.Own(), err
}

// cpu is the time that a program has run, on the processors; 0 when it has ended.
func (p *program) cpu() time.Duration {
	u, _ := usage.Of(p.cmd.Process.Pid)
	return u.CPU
}

// good is a pd-send with so many requests under way.
type good struct {
	*program
	number int
	ready  atomic.Int64
	next   int
	place  chan struct{} // has room for those under way
	quit   chan struct{}

	mu     sync.Mutex
	failed []string // lines of requests that were not ready
}

// Of each good sender.
const (
	goodWindow = 32 // requests under way
	goodChunks = 4  // of a request
)

func (f *flood) startGood(number int) (*good, error) {
	g := &good{number: number, place: make(chan struct{}, goodWindow), quit: make(chan struct{})}
	var err error
	g.program, err = start(f.bin, "pd-send", g.line, "--to", f.recv.endpoint, "--proxy", f.proxy.endpoint, "--name", fmt.Sprint("good", number))
	if err != nil {
		return nil, err
	}
	go g.feed()
	return g, nil
}

func (g *good) line(b []byte) {
	var l struct{ Status string }
	if err := json.Unmarshal(b, &l); err == nil && l.Status == "ready" {
		g.ready.Add(1)
	} else {
		g.mu.Lock()
		g.failed = append(g.failed, string(b))
		g.mu.Unlock()
	}
	<-g.place
}

// feed keeps as many requests under way as may be, until quit.
func (g *good) feed() {
	defer g.stdin.Close()
	for {
		select {
		case <-g.quit:
			return
		case <-g.done:
			return
		case g.place <- struct{}{}:
		}
		g.next++
		id := fmt.Sprintf("good%d-%d", g.number, g.next)
		var chunks []string
		for i := range goodChunks {
			chunks = append(chunks, fmt.Sprintf(`{"key":"%s-%d","length":%d}`, id, i, slotBytes))
		}
		if _, err := fmt.Fprintf(g.stdin, `{"req_id":%q,"total_chunks":%d,"chunks":[%s],"last":true}`+"\n",
			id, goodChunks, strings.Join(chunks, ",")); err != nil {
			return
		}
	}
}

// finish lets end what is under way, and says what failed.
func (g *good) finish() (failed []string, err error) {
	close(g.quit)
	err = g.ends(patience)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.failed) > 0 {
		err = nil // the exit code says no more
	}
	return g.failed, err
}
