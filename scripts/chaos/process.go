package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// process is one life of a program. All it prints is kept in files, and each
// line of stdout is told as it is read.
type process struct {
	name  string // of the life: "recv0.3"
	cmd   *exec.Cmd
	stdin *os.File // our end of its pipe

	unread  atomic.Int64 // unix nanoseconds until which its stdout is not read
	up      atomic.Bool  // it can be reached
	doomed  atomic.Bool  // we have sent it SIGKILL
	asked   atomic.Bool  // we have sent it SIGTERM
	stopped atomic.Int32 // how many hold it stopped

	done chan struct{} // closed at its end, when all it printed is read
	mu   sync.Mutex
	err  error // how it ended
}

// start runs one of the built programs; it dies with us.
func start(dir, name, program string, line func([]byte), args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.cmd.Dir = dir
	out, err := os.Create(filepath.Join(dir, name+".out"))
	if err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(dir, name+".err"))
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	p.cmd.Stderr = stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p.cmd.Stdin, p.stdin = theirs, ours
	fmt.Fprintln(stderr, p.cmd.Args)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.follow(stdout, out, line)
	return p, nil
}

func (p *process) follow(stdout io.Reader, out *os.File, line func([]byte)) {
	for r := bufio.NewReader(stdout); ; {
		text, err := r.ReadBytes('\n')
		if err == nil && len(text) > 0 {
			line(text)
		}
		out.Write(text)
		if err != nil {
			break
		}
		for !p.doomed.Load() {
			rest := time.Until(time.Unix(0, p.unread.Load()))
			if rest <= 0 {
				break
			}
			time.Sleep(min(rest, 20*time.Millisecond))
		}
	}
	out.Close()
	err := p.cmd.Wait()
	p.stdin.Close()
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	close(p.done)
}

// kill ends it at once, whatever state it is in.
func (p *process) kill() {
	p.doomed.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
}

// terminate asks it to end.
func (p *process) terminate() {
	p.asked.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
}

// stop holds it for a while.
func (p *process) stop(long time.Duration) {
	p.stopped.Add(1)
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	select {
	case <-time.After(long):
	case <-p.done:
	}
	if p.stopped.Add(-1) == 0 {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// harmless sends it signals that must mean nothing to it.
func (p *process) harmless(long time.Duration) {
	for end := time.Now().Add(long); time.Now().Before(end) && !p.ended(); time.Sleep(time.Millisecond) {
		for _, sig := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD} {
			_ = p.cmd.Process.Signal(sig)
		}
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// endsWithin waits for its end.
func (p *process) endsWithin(d time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(d):
		return false
	}
}

// code is its exit code, as a shell says it.
func (p *process) code() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var exit *exec.ExitError
	switch {
	case p.err == nil:
		return 0
	case !errors.As(p.err, &exit):
		return -1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
