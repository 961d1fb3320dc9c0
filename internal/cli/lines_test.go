package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const patience = 30 * time.Second // for what takes milliseconds

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func failTest(t *testing.T) func(error) { return func(err error) { t.Error(err) } }

// pipe is a real one, with the kernel's buffer, closed at the end.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

type record struct {
	N       int    `json:"n,omitempty"`
	Event   string `json:"event,omitempty"`
	Dropped int    `json:"dropped,omitempty"`
	Pad     string `json:"pad,omitempty"`
}

// A reader that pauses never blocks the caller; afterwards it finds all that
// was kept, in order, and in the place of what was not a line that counts it.
func TestPausedReader(t *testing.T) {
	r, w := pipe(t)
	const limit, lines = 100_000, 10_000
	l := newLines(w, failTest(t), limit, NewLines(io.Discard, nil).dropped)
	pad := strings.Repeat("x", 100)
	for n := 1; n <= lines; n++ { // the caller: nobody reads
		l.JSON(record{N: n, Pad: pad})
	}
	l.mu.Lock()
	queued := cap(l.queue)
	l.mu.Unlock()
	if queued > 2*limit {
		t.Errorf("queue has grown to %d bytes, limit is %d", queued, limit)
	}

	// The reader wakes up. There may be two gaps: one before the writing
	// goroutine first ran, and one after the pipe was full.
	dec := json.NewDecoder(bufio.NewReader(r))
	var at, kept int
	for at < lines {
		var rec record
		if err := dec.Decode(&rec); err != nil {
			t.Fatal(err)
		}
		if rec.Event == "dropped" && rec.Dropped > 0 {
			at += rec.Dropped
		} else if at, kept = at+1, kept+1; rec.N != at {
			t.Fatalf("line %+v, want number %d", rec, at)
		}
	}
	if at != lines || kept < limit/200 || kept == lines {
		t.Errorf("%d lines and %d dropped, want %d together, some of each", kept, at-kept, lines)
	}

	// From then on it goes on as if nothing had been.
	l.JSON(record{N: 77})
	var rec record
	if err := dec.Decode(&rec); err != nil || rec.N != 77 {
		t.Errorf("after the pause: %+v, %v", rec, err)
	}
	if err := l.Close(patient(t)); err != nil {
		t.Error(err)
	}
}

// Close gives up on a reader that stays away.
func TestCloseHasADeadline(t *testing.T) {
	_, w := pipe(t)
	l := NewLines(w, func(error) {})
	l.Raw(bytes.Repeat([]byte("0123456\n"), 1<<17)) // more than any pipe holds
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := l.Close(ctx); err == nil {
		t.Error("Close says that all is written")
	}
}

func TestCloseFlushes(t *testing.T) {
	var out bytes.Buffer
	l := NewLines(&out, failTest(t))
	const goroutines, each = 8, 200
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				l.Text(fmt.Sprintf("%d-%d", g, i))
			}
		})
	}
	wg.Wait()
	if err := l.Close(patient(t)); err != nil {
		t.Fatal(err)
	}
	l.Text("too late")
	next := map[string]int{}
	for line := range strings.Lines(out.String()) {
		var g string
		var i int
		if g, _, _ = strings.Cut(line, "-"); next[g] < 0 {
			t.Fatal(line)
		}
		if _, err := fmt.Sscanf(line, g+"-%d\n", &i); err != nil || i != next[g] {
			t.Fatalf("line %q, want number %d of this goroutine", line, next[g])
		}
		next[g]++
	}
	for g, n := range next {
		if n != each {
			t.Errorf("goroutine %s: %d lines, want %d", g, n, each)
		}
	}
	if len(next) != goroutines {
		t.Errorf("lines of %d goroutines, want %d", len(next), goroutines)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// Each line is out within 10 ms, though more keep coming. The clock stands
// while anything runs: only waits count, not how busy the machine is.
func TestEachLineAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lines, limit = 50, 10 * time.Millisecond
		out := 0
		l := NewLines(writerFunc(func(b []byte) (int, error) {
			for line := range strings.Lines(string(b)) {
				queued, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(line))
				if took := time.Since(queued); err != nil || took > limit {
					t.Errorf("line %q took %v: %v", line, took, err)
				}
				out++
			}
			return len(b), nil
		}), failTest(t))
		for range lines {
			l.Text(time.Now().Format(time.RFC3339Nano))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(limit)
		synctest.Wait()
		if out != lines {
			t.Errorf("%d lines are out, want %d", out, lines)
		}
		if err := l.Close(patient(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestWriteErrorIsToldOnce(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	failed := make(chan error, 10)
	l := NewLines(full, func(err error) { failed <- err })
	l.Text("x")
	err = <-failed
	if !strings.Contains(err.Error(), "cannot write output") || !strings.Contains(err.Error(), "no space") {
		t.Error(err)
	}
	for range 1000 {
		l.Text("x")
	}
	if err := l.Close(patient(t)); err != nil || len(failed) > 0 || len(l.queue) > 0 {
		t.Errorf("close: %v; %d more errors, %d bytes queued", err, len(failed), len(l.queue))
	}
}

// asProgram makes the test binary one of the programs below.
const asProgram = "PD_CLI_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "lines":
		writeForEver()
	case "signals":
		os.Exit(waitForSignal())
	case "app":
		os.Exit(Main(testApp(&config{})))
	}
	os.Exit(m.Run())
}

func writeForEver() {
	l := NewLines(os.Stdout, func(err error) { fmt.Fprintln(os.Stderr, err); os.Exit(3) })
	for n := 0; ; n++ {
		l.JSON(record{N: n})
		time.Sleep(100 * time.Microsecond)
	}
}

// A closed stdout ends a program quietly, as by SIGPIPE.
func TestClosedStdout(t *testing.T) {
	cmd := exec.CommandContext(patient(t), os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=lines")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	stdout.Close()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.String() != "signal: broken pipe" || stderr.Len() > 0 {
		t.Errorf("ended with %v, stderr %q; want SIGPIPE and silence", err, stderr.String())
	}
}

func TestJSONIsSafeForATerminalAndExact(t *testing.T) {
	var out bytes.Buffer
	l := NewLines(&out, failTest(t))
	nasty := "a<b>&\x1b]0;x\x07\n\t\u009b31m\x7f\u202e\u200d\u00a0日本\U000e0001😀"
	l.JSON(map[string]string{"id": nasty})
	if err := l.Close(patient(t)); err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"a<b>&\u001b]0;x\u0007\n\t\u009b31m\u007f\u202e\u200d\u00a0日本\udb40\udc01😀"}` + "\n"
	if out.String() != want {
		t.Errorf("got  %s\nwant %s", out.String(), want)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["id"] != nasty {
		t.Errorf("reads back as %q, %v", back["id"], err)
	}
}

func TestTextLinesTellDropsToTheCaller(t *testing.T) {
	r, w := pipe(t)
	told := make(chan uint64, 1)
	l := NewTextLines(w, failTest(t), func(n uint64) string { told <- n; return "" })
	l.limit = 10
	l.Text("0123456789 too long")
	if n := <-told; n != 1 {
		t.Errorf("told of %d drops, want 1", n)
	}
	l.Text("short")
	if line, err := bufio.NewReader(r).ReadString('\n'); line != "short\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := l.Close(patient(t)); err != nil {
		t.Error(err)
	}
}

// Write is whole whatever the reader does, and ends with ctx where it does nothing.
func TestWrite(t *testing.T) {
	r, w := pipe(t)
	all := bytes.Repeat([]byte("0123456789abcdef"), 3*maxQueued/16)
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r)
		got <- b
	}()
	if err := Write(patient(t), w, all); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if b := <-got; !bytes.Equal(b, all) {
		t.Errorf("of %d bytes %d came", len(all), len(b))
	}
	_, w = pipe(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := Write(ctx, w, all); err == nil || err.Error() != "enough" {
		t.Errorf("a write that nobody reads: %v", err)
	}
	w.Close()
	if err := Write(patient(t), w, all); err == nil || !strings.Contains(err.Error(), "cannot write output") {
		t.Errorf("a write to a closed file: %v", err)
	}
}
