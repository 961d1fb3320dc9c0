package shm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
)

// roleEnv makes the test binary play another process instead of testing. It
// reads commands, JSON values, from stdin, and answers each with a line.
const roleEnv = "PD_SHM_TEST_ROLE"

func play(role string) int {
	in := json.NewDecoder(os.Stdin)
	var err error
	switch role {
	case "writer":
		err = playWriter(in)
	case "target":
		err = playTarget(in)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// process is another process, played by the test binary.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(tb testing.TB, role string) *process {
	tb.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *process) tell(tb testing.TB, v any) {
	tb.Helper()
	if err := json.NewEncoder(p.in).Encode(v); err != nil {
		tb.Fatal(err)
	}
}

// hear returns the process's next line.
func (p *process) hear(tb testing.TB) string {
	tb.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		tb.Fatalf("the other process said %q, then %v", line, err)
	}
	return line[:len(line)-1]
}

func (p *process) ask(tb testing.TB, v any, want string) {
	tb.Helper()
	p.tell(tb, v)
	if got := p.hear(tb); got != want {
		tb.Fatalf("the other process answered %q, want %q", got, want)
	}
}

// writeCommand has a writer write Size bytes made from Seed, and stop itself
// when Pieces of them have landed, unless that is 0.
type writeCommand struct {
	Region, Slot, Size int
	Seed               uint64
	Pieces             int
}

func playWriter(in *json.Decoder) error {
	var at rdma.Attachment
	if err := in.Decode(&at); err != nil {
		return err
	}
	r, err := Attach(context.Background(), at)
	if err != nil {
		return err
	}
	fmt.Println("attached")
	for {
		var c writeCommand
		if err := in.Decode(&c); err != nil {
			return nil
		}
		ctx := &stoppingContext{Context: context.Background(), after: c.Pieces}
		fmt.Println(r.Write(ctx, []rdma.Op{{Local: pattern(c.Size, c.Seed), Region: c.Region, Slot: c.Slot}}))
	}
}

// stoppingContext stops the process, as a SIGSTOP from outside would, when a
// write looks at it after so many pieces.
type stoppingContext struct {
	context.Context
	looks, after int
}

func (c *stoppingContext) Err() error {
	if c.looks++; c.after > 0 && c.looks == c.after+1 {
		runtime.LockOSThread() // sent to the thread, the signal stops it here
		unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
		runtime.UnlockOSThread()
	}
	return c.Context.Err()
}

func playTarget(in *json.Decoder) error {
	target, err := openTarget("another process", 4, 1<<20)
	if err != nil {
		return err
	}
	token, err := target.Grant(1)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(token); err != nil {
		return err
	}
	in.Decode(new(int)) // until stdin ends
	return nil
}

// The fence: a writer that is stopped in the middle of a chunk, loses its slot
// and goes on later, writes where nobody reads; the next owner's bytes stay.
func TestFence(t *testing.T) {
	const size = 64 << 20
	target := newTarget(t, 2, size)
	p := start(t, "writer")
	p.ask(t, attachment(t, target, 1), "attached")
	p.tell(t, writeCommand{Slot: 1, Size: size, Seed: 1, Pieces: 20})
	var ws unix.WaitStatus
	if _, err := unix.Wait4(p.cmd.Process.Pid, &ws, unix.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("the writer did not stop: %v %v", ws, err)
	}
	late, landed := pattern(size, 1), 20*writePiece
	if got := target.Slot(1); !bytes.Equal(got[:landed], late[:landed]) || !bytes.Equal(got[landed:], make([]byte, size-landed)) {
		t.Fatalf("the writer was to stop with %d of %d bytes written", landed, size)
	}

	_, old := target.buffer.Where(1)
	region := testkit.Must[int](t)(target.Revoke([]int{1}))
	next := attach(t, target, 2)
	write(t, next, region, 1, pattern(size, 2))
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := p.hear(t); got != "<nil>" {
		t.Errorf("the late write ended with %q", got)
	}
	if !bytes.Equal(target.Slot(1), pattern(size, 2)) {
		t.Error("the late writer wrote over the next owner's bytes")
	}
	if !bytes.Equal(old[landed:], late[landed:]) {
		t.Error("the late writer's bytes are not in the old memory")
	}
	p.kill()
	receive(t, "the late writer is gone", target.gone)
}

// The end of a writer is known within a second, and what it has written stays.
func TestWriterKilled(t *testing.T) {
	const tries, limit = 5, time.Second
	target := newTarget(t, 1, 1000)
	var took time.Duration
	for w := range rdma.Writer(tries) { // a busy machine may be late now and then
		p := start(t, "writer")
		p.ask(t, attachment(t, target, w), "attached")
		p.ask(t, writeCommand{Size: 1000, Seed: uint64(w)}, "<nil>")
		at := time.Now()
		p.kill()
		if got := receive(t, "the killed writer is gone", target.gone); got != w {
			t.Fatalf("writer %d is gone, want %d", got, w)
		}
		took = time.Since(at)
		if !bytes.Equal(target.Slot(0), pattern(1000, uint64(w))) {
			t.Error("what it had written went with it")
		}
		if took <= limit {
			return
		}
	}
	t.Errorf("the end was known after %v, want %v", took, limit)
}

func TestTargetKilled(t *testing.T) {
	leavesNothing(t)
	p := start(t, "target")
	at := rdma.Attachment{ReceiverID: "another process", Regions: []rdma.Region{{}}, SlotSize: 1 << 20, Slots: 4}
	if err := json.Unmarshal([]byte(p.hear(t)), &at.Token); err != nil {
		t.Fatal(err)
	}
	r := testkit.Must[rdma.Remote](t)(Attach(t.Context(), at))
	write(t, r, 0, 3, pattern(1<<20, 1))
	p.kill()
	receive(t, "the remote is done", r.Done())
	err := r.Write(t.Context(), []rdma.Op{{Local: []byte("x")}})
	testkit.WantError(t, err, "the receiver is gone")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	_, err = Attach(t.Context(), at)
	testkit.WantError(t, err, "no receiver with the id")
}
