package main

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pd-tools/pd-tools/internal/usage"
)

const (
	startWithin = 30 * time.Second // a program's first line must come
	stopWithin  = 10 * time.Second // a program must end when told
)

// process is a program of ours or this binary in a role.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   string // file that its stdout goes to
	err   *bytes.Buffer
	done  chan error // its end
}

// start runs a program with its stdout in a file, as the issue asks for
// events.
func (b *bench) start(name string, args ...string) (*process, error) {
	out, err := os.CreateTemp(b.dir, filepath.Base(name)+"-*.out")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(name, args...), out: out.Name(), err: new(bytes.Buffer), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = out, p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w: build it first (make build) or name its directory with -bin", name, err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, nil
}

func (b *bench) program(name string, args ...string) (*process, error) {
	return b.start(filepath.Join(b.bin, name), args...)
}

// server starts a program or role whose first line names its endpoint.
func (b *bench) server(name string, args ...string) (*process, string, error) {
	p, err := b.start(name, args...)
	if err != nil {
		return nil, "", err
	}
	line, err := p.firstLine()
	if err != nil {
		p.stop()
		return nil, "", err
	}
	var first struct {
		Endpoint string `json:"endpoint"`
	}
	if err := json.Unmarshal(line, &first); err != nil || first.Endpoint == "" {
		p.stop()
		return nil, "", fmt.Errorf("%s: first line names no endpoint: %.200q", name, line)
	}
	return p, first.Endpoint, nil
}

// receiver starts pd-recv with slots of chunkSize bytes, on a free port.
func (b *bench) receiver(slots, chunkSize int, args ...string) (*process, string, error) {
	return b.server(filepath.Join(b.bin, "pd-recv"), append([]string{
		"--listen", "tcp://127.0.0.1:*", "--monitor", "tcp://127.0.0.1:*",
		"--buffer-size", strconv.Itoa(slots * chunkSize), "--chunk-size", strconv.Itoa(chunkSize),
	}, args...)...)
}

func (b *bench) role(name string) (*process, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	return b.server(self, roleArg, name)
}

func (p *process) firstLine() ([]byte, error) {
	for deadline := time.Now().Add(startWithin); time.Now().Before(deadline); {
		text, err := os.ReadFile(p.out)
		if err != nil {
			return nil, err
		}
		if line, _, found := bytes.Cut(text, []byte("\n")); found {
			return line, nil
		}
		select {
		case err := <-p.done:
			p.done <- err
			return nil, p.failure(err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("%s said nothing for %v", p.cmd.Path, startWithin)
}

func (p *process) failure(err error) error {
	if err == nil {
		err = errors.New("ended")
	}
	return fmt.Errorf("%s: %w: %s", p.cmd.Path, err, strings.TrimSpace(p.err.String()))
}

// wait is until the program has ended, and its failure.
func (p *process) wait(within time.Duration) error {
	select {
	case err := <-p.done:
		p.done <- err
		if err != nil {
			return p.failure(err)
		}
		return nil
	case <-time.After(within):
		return fmt.Errorf("%s did not end within %v", p.cmd.Path, within)
	}
}

// stop ends the program, by force if need be.
func (p *process) stop() {
	p.stdin.Close()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.wait(stopWithin); err != nil {
		p.cmd.Process.Kill()
		p.wait(stopWithin)
	}
}

// cpu is the user and system time of the process so far.
func (p *process) cpu() (time.Duration, error) {
	u, err := usage.Of(p.cmd.Process.Pid)
	return u.CPU, err
}

// worker is a role, or a program like one, that is told by lines what to do and
// answers in lines.
type worker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	err   bytes.Buffer // what it says beside; told when it fails
}

func (b *bench) worker(role string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startWorker(self, roleArg, role)
}

func startWorker(name string, args ...string) (w *worker, err error) {
	w = &worker{cmd: exec.Command(name, args...)}
	w.cmd.Stderr = &w.err
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.lines = bufio.NewScanner(out)
	w.lines.Buffer(nil, maxOrder)
	return w, w.cmd.Start()
}

// tell sends an order.
func (w *worker) tell(order any) error {
	line, err := json.Marshal(order)
	if err != nil {
		return err
	}
	return w.say(string(line))
}

func (w *worker) say(line string) error {
	_, err := io.WriteString(w.stdin, line+"\n")
	return err
}

// hear waits for the answer to an order.
func (w *worker) hear(answer any) error {
	if !w.lines.Scan() {
		w.cmd.Process.Kill() // if it has not ended
		w.cmd.Wait()
		return fmt.Errorf("%s ended before it answered: %s", strings.Join(w.cmd.Args, " "), strings.TrimSpace(w.err.String()))
	}
	return json.Unmarshal(w.lines.Bytes(), answer)
}

func (w *worker) ask(order, answer any) error {
	if err := w.tell(order); err != nil {
		return err
	}
	return w.hear(answer)
}

// stop ends the worker; it has no work under way.
func (w *worker) stop() {
	w.stdin.Close()
	w.cmd.Wait()
}
