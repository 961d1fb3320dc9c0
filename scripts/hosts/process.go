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
	"syscall"
	"time"
)

const (
	patience   = 30 * time.Second // with anything that must happen
	stopWithin = 10 * time.Second // a program must end when told
)

// process is a program that runs on a host. What it prints is kept.
type process struct {
	name  string // for people: "pd-send on prefill1"
	host  *host
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu     sync.Mutex
	news   chan struct{} // closed, and another one made, when anything below changes
	out    [][]byte      // lines of stdout
	stderr bytes.Buffer
	err    error // how it ended

	done chan struct{} // closed at its end
}

// start runs one of the built programs; it dies with us.
func (h *host) start(program string, args ...string) (*process, error) {
	if !strings.ContainsRune(program, '/') {
		program = filepath.Join(h.bed.bin, program)
	}
	p := &process{
		name: filepath.Base(program) + " on " + h.name, host: h, news: make(chan struct{}), done: make(chan struct{}),
		cmd: exec.Command("ip", append([]string{"netns", "exec", h.ns, program}, args...)...),
	}
	// A group of its own, so that Ctrl-C reaches us and not the programs.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.cmd.Stderr = p
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	h.running = append(h.running, p)
	go p.follow(stdout)
	return p, nil
}

func (p *process) follow(stdout io.Reader) {
	for r := bufio.NewReader(stdout); ; {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			p.change(func() { p.out = append(p.out, line) })
		}
		if err != nil {
			break
		}
	}
	err := p.cmd.Wait()
	p.change(func() { p.err = err; close(p.done) })
}

// Write takes what the program says on stderr.
func (p *process) Write(b []byte) (int, error) {
	p.change(func() { p.stderr.Write(b) })
	return len(b), nil
}

func (p *process) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.news)
	p.news = make(chan struct{})
}

// until waits until enough is true, which is called with p.mu held. It fails
// when the program ends before.
func (p *process) until(within time.Duration, what string, enough func() bool) error {
	timeout := time.After(within)
	for {
		p.mu.Lock()
		ended := p.hasEnded() // all it printed is there then
		done, news := enough(), p.news
		p.mu.Unlock()
		switch {
		case done:
			return nil
		case ended:
			return p.failure("ended without " + what)
		}
		select {
		case <-news:
		case <-timeout:
			return p.failure(fmt.Sprintf("%s did not come within %v", what, within))
		case <-p.host.bed.ctx.Done():
			return p.host.bed.ctx.Err()
		}
	}
}

// failure is an error with what the program said last.
func (p *process) failure(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := strings.TrimSpace(p.stderr.String())
	if p.err != nil {
		what += " (" + p.err.Error() + ")"
	}
	return fmt.Errorf("%s: %s; it said: %s", p.name, what, said[max(0, len(said)-2000):])
}

// says waits for words on stderr.
func (p *process) says(words string) error {
	return p.until(patience, fmt.Sprintf("%q on stderr", words), func() bool {
		return bytes.Contains(p.stderr.Bytes(), []byte(words))
	})
}

// find waits for the first line of stdout that is wanted.
func find[T any](p *process, within time.Duration, what string, wanted func(T) bool) (T, error) {
	var found T
	seen := 0
	err := p.until(within, what, func() bool {
		for ; seen < len(p.out); seen++ {
			var line T
			if json.Unmarshal(p.out[seen], &line) == nil && wanted(line) {
				found = line
				return true
			}
		}
		return false
	})
	return found, err
}

// all are the lines of stdout so far.
func all[T any](p *process) []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []T
	for _, text := range p.out {
		var line T
		if json.Unmarshal(text, &line) == nil {
			lines = append(lines, line)
		}
	}
	return lines
}

// wait is for the end of a program that ends by itself.
func (p *process) wait(within time.Duration) error {
	if err := p.until(within, "its end", p.hasEnded); err != nil {
		return err
	}
	if p.err != nil {
		return p.failure("failed")
	}
	return nil
}

func (p *process) signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// stop ends the program as a user would.
func (p *process) stop() error {
	p.stdin.Close()
	if err := p.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return p.wait(stopWithin)
}

// kill ends the program at once, whatever state it is in.
func (p *process) kill() {
	p.stdin.Close()
	_ = p.signal(syscall.SIGKILL) // it may have ended
	<-p.done
}

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// output runs a program to its end and returns its stdout.
func (h *host) output(stdin []byte, program string, args ...string) ([]byte, error) {
	p, err := h.start(program, args...)
	if err != nil {
		return nil, err
	}
	if _, err := p.stdin.Write(stdin); err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	p.stdin.Close()
	if err := p.wait(patience); err != nil {
		p.kill()
		return nil, err
	}
	return bytes.Join(p.out, nil), nil
}

// pipe gives what p prints to another program as it comes, until p has ended,
// and waits for both.
func (p *process) pipe(to *process) error {
	for given := 0; ; {
		err := p.until(patience, "its end", func() bool { return len(p.out) > given || p.hasEnded() })
		if err != nil {
			return err
		}
		p.mu.Lock()
		news := p.out[given:]
		p.mu.Unlock()
		if len(news) == 0 {
			break
		}
		if _, err := to.stdin.Write(bytes.Join(news, nil)); err != nil {
			return fmt.Errorf("%s: %w", to.name, err)
		}
		given += len(news)
	}
	to.stdin.Close()
	return errors.Join(p.wait(patience), to.wait(patience))
}
