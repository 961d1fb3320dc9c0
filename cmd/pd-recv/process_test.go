package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

// program is a pd-recv in a process of its own.
type program struct {
	*exec.Cmd
	t      *testing.T
	stdout io.ReadCloser
	stderr bytes.Buffer
}

func run(t *testing.T, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, Cmd: &exec.Cmd{Path: self, Args: append([]string{"pd-recv"}, args...)}}
	p.Stderr = &p.stderr
	if p.stdout, err = p.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ends waits for the program's end.
func (p *program) ends(code int) {
	p.t.Helper()
	late := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	defer late.Stop()
	_ = p.Wait()
	if got := p.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d; stderr: %s", got, code, &p.stderr)
	}
}

// startServe runs pd-recv serve and returns its endpoint.
func startServe(t *testing.T, args ...string) (*program, string) {
	t.Helper()
	p, first := serveAndSay(t, append([]string{"--monitor", "none"}, args...)...)
	return p, first.Endpoint
}

// serveAndSay runs pd-recv serve and returns its first line.
func serveAndSay(t *testing.T, args ...string) (*program, listening) {
	t.Helper()
	p := run(t, append([]string{"serve", "--listen", "tcp://127.0.0.1:*"}, args...)...)
	out := bufio.NewReader(p.stdout)
	line, err := out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("no first line: %v; stderr: %s", err, &p.stderr)
	}
	var first listening
	if err := json.Unmarshal(line, &first); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	return p, first
}

func ask(t *testing.T, endpoint string) (*client.Conn, context.Context) {
	t.Helper()
	c, err := client.Dial(endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() { cancel(); c.Close() })
	return c, ctx
}

// state is a request's, or "".
func state(t *testing.T, c *client.Conn, ctx context.Context, reqID string) string {
	t.Helper()
	s, err := c.Stat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Requests, func(r wire.SnapshotRequest) bool { return r.ReqID == reqID })
	if i < 0 {
		return ""
	}
	return s.Requests[i].State
}

// F10: a receiver that was stopped handles what has come before it expires
// anything; what is truly silent still expires.
func TestStoppedAndContinued(t *testing.T) {
	t.Parallel()
	r, endpoint := startServe(t, "--buffer-size", "4KiB", "--chunk-size", "1KiB", "--lease", "3s")
	p, err := peertest.Dial(endpoint, peertest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	hello, err := p.Attach("sender", "shm")
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.Call(peertest.Alloc("A", 2, true, 1024, "1", "2"))
	slots, ok := m.(*wire.AllocResponse)
	if !ok || slots.Code != "" {
		t.Fatalf("answer %+v, %v", m, err)
	}
	r.signal(syscall.SIGSTOP)
	done, err := p.Send(&wire.CommitRequest{
		ReqID: "A", Slots: slots.RemoteIndexes, Lengths: []int64{1024, 1024}, CRCs: []uint32{0, 0}, Epoch: hello.Epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	silent, err := p.Send(peertest.Alloc("B", 2, false, 1024, "3"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // longer than the lease
	r.signal(syscall.SIGCONT)
	m, err = p.Wait(done, patience)
	if resp, ok := m.(*wire.CommitResponse); !ok || !resp.Ready {
		t.Fatalf("answer to the commit: %+v, %v", m, err)
	}
	if m, err = p.Wait(silent, patience); err != nil {
		t.Fatal(err)
	}
	c, ctx := ask(t, endpoint)
	for state(t, c, ctx, "B") != "" {
		if ctx.Err() != nil {
			t.Fatalf("B does not expire; it was answered %+v", m)
		}
	}
	if got := state(t, c, ctx, "A"); got != "ready" {
		t.Errorf("A is %q, want ready", got)
	}
	r.signal(syscall.SIGTERM)
	r.ends(0)
}

// A take whose reader pauses lasts longer than its lease.
func TestTakeOutlastsALease(t *testing.T) {
	t.Parallel()
	const size = 1 << 20 // more than a pipe holds
	r, endpoint := startServe(t, "--buffer-size", "1MiB", "--chunk-size", "1MiB", "--lease", "2s")
	data := string(bytes.Repeat([]byte("0123456789abcdef"), size/16))
	if err := send(endpoint, "A", []string{data}, 0); err != nil {
		t.Fatal(err)
	}
	c, ctx := ask(t, endpoint)
	taker := run(t, "take", endpoint, "A")
	if _, err := taker.stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // longer than the lease
	if _, err := c.Take(ctx, "A"); err == nil {
		t.Error("A could be taken twice")
	}
	got, err := io.ReadAll(taker.stdout)
	if err != nil || string(got) != data[1:] {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
	taker.ends(0)
	if got := state(t, c, ctx, "A"); got != "" {
		t.Errorf("A is %q, want released", got)
	}
	r.signal(syscall.SIGINT)
	r.ends(0)
}

// A signal ends a take that is blocked by its reader; the request is ready.
func TestTakeInterrupted(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	_, endpoint := startServe(t, "--buffer-size", "1MiB", "--chunk-size", "1MiB")
	if err := send(endpoint, "A", []string{string(make([]byte, size))}, 0); err != nil {
		t.Fatal(err)
	}
	taker := run(t, "take", endpoint, "A")
	if _, err := taker.stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	taker.signal(syscall.SIGTERM)
	taker.ends(143)
	c, ctx := ask(t, endpoint)
	if _, err := c.Take(ctx, "A"); err != nil {
		t.Errorf("A cannot be taken: %v", err)
	}
}

// A second signal ends it at once, whatever it waits for.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	r, endpoint := startServe(t, "--buffer-size", "4KiB", "--chunk-size", "1KiB", "--legacy-lease", "50ms",
		"--proxy", "tcp://127.0.0.1:1", "--shutdown-timeout", "1m")
	p, err := peertest.Dial(endpoint, peertest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if _, err := p.Call(peertest.Alloc("A", 1, false, 1024, "1")); err != nil {
		t.Fatal(err)
	}
	c, ctx := ask(t, endpoint)
	for state(t, c, ctx, "A") != "" && ctx.Err() == nil { // until there is something to tell the proxy
	}
	began := time.Now()
	r.signal(syscall.SIGTERM)
	if _, err := p.RecvFrames(100 * time.Millisecond); err == nil {
		t.Error("an answer to nothing")
	}
	r.signal(syscall.SIGTERM)
	r.ends(143)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// A state is printed whole, however large it is.
func TestStatPrintsAll(t *testing.T) {
	t.Parallel()
	_, endpoint := startServe(t, "--buffer-size", "4KiB", "--chunk-size", "1KiB")
	p, err := peertest.Dial(endpoint, peertest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	const requests = 9000 // each stands in the list of requests and in the queue
	var last uint64
	for i := range requests {
		id := fmt.Sprintf("%0*d", wire.MaxReqID, i)
		if last, err = p.Send(peertest.Alloc(id, 4, false, 1024, id)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Call(&wire.Heartbeat{}); err != nil { // all have been handled
		t.Fatal(err, last)
	}
	stat := run(t, "stat", endpoint)
	got, err := io.ReadAll(stat.stdout)
	if err != nil {
		t.Fatal(err)
	}
	stat.ends(0)
	var snapshot wire.Snapshot
	if err := json.Unmarshal(got, &snapshot); err != nil || len(got) < 9<<20 || len(snapshot.Requests) != requests {
		t.Errorf("%d bytes with %d requests, %v: %.80s", len(got), len(snapshot.Requests), err, got)
	}
}

// lateWriter takes its time for what was said before the end.
type lateWriter struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (w *lateWriter) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("in use")) {
		time.Sleep(200 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got.Write(b)
}

func (w *lateWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.ToLower(w.got.String())
}

// Whatever was said before it could not start is on stderr.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, flags := range [][]string{
		{"--monitor", "tcp://" + taken.Addr().String()},
		{"--metrics", taken.Addr().String(), "--monitor", "none"},
		{"--listen", "tcp://" + taken.Addr().String(), "--monitor", "none"},
	} {
		var stderr lateWriter
		args := append([]string{"pd-recv"}, append(flags, "--fabric-addr", "127.0.0.1", "--buffer-size", "5220", "--chunk-size", "1KiB")...)
		if code := cli.Run(app(), args, io.Discard, &stderr); code != 1 {
			t.Errorf("%v: exit code %d", flags, code)
		}
		for _, want := range []string{"--fabric flags say nothing", "fill no slot", "this buffer of 5.1 kib takes 20 kib of memory", "address already in use"} {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%v: no %q in stderr %q", flags, want, &stderr)
			}
		}
	}
}
