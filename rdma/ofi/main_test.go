//go:build !noofi

package ofi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

// soon is for what must happen and takes milliseconds, or a second on a busy
// machine.
const soon = 60 * time.Second

// loopback is the fabric of all tests.
var loopback = rdma.Fabric{Addr: "127.0.0.1"}

// A test that needs a second process starts this program anew with role set.
const roleVar = "PD_OFI_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		roles[role]()
		return
	}
	os.Exit(m.Run())
}

// target is a buffer that is served.
type target struct {
	t   testing.TB
	buf *buffer.Buffer
	*server
	gone chan rdma.Writer
}

func serve(t testing.TB, slots int, size int64) *target {
	t.Helper()
	return serveOver(t, loopback, slots, size)
}

func serveOver(t testing.TB, f rdma.Fabric, slots int, size int64) *target {
	t.Helper()
	buf, err := buffer.New(slots, size)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan rdma.Writer, 1000)
	s, err := Serve(buf, t.Name(), f, func(w rdma.Writer) { gone <- w })
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{t, buf, s.(*server), gone}
	t.Cleanup(func() {
		if err := tg.Close(); err != nil {
			t.Error(err)
		}
		if err := buf.Close(); err != nil {
			t.Error(err)
		}
	})
	return tg
}

// attachment is what writer w needs. staging is not Go's memory.
func (tg *target) attachment(w rdma.Writer, staging []byte) rdma.Attachment {
	tg.t.Helper()
	token, err := tg.Grant(w)
	if err != nil {
		tg.t.Fatal(err)
	}
	return rdma.Attachment{
		ReceiverID: tg.t.Name(), Token: token, Regions: []rdma.Region{{ID: 0, Desc: tg.Desc()}},
		SlotSize: tg.buf.SlotSize(), Slots: tg.buf.Slots(), Staging: staging, Fabric: tg.fabric,
	}
}

// writer is an initiator in this process.
type writer struct {
	t testing.TB
	*remote
	staging []byte
}

func (tg *target) attach(w rdma.Writer) *writer {
	tg.t.Helper()
	staging := mmap(tg.t, 4*int(tg.buf.SlotSize()))
	r, err := Attach(context.Background(), tg.attachment(w, staging))
	if err != nil {
		tg.t.Fatal(err)
	}
	tg.t.Cleanup(func() { r.Close() })
	return &writer{tg.t, r.(*remote), staging}
}

func (tg *target) open(w rdma.Writer, slot int) []byte {
	tg.t.Helper()
	a, err := tg.Open(w, slot)
	if err != nil {
		tg.t.Fatal(err)
	}
	return a
}

// put writes n bytes b to the slot.
func (w *writer) put(slot int, access []byte, b byte, n int) error {
	local := w.staging[:n]
	copy(local, bytes.Repeat([]byte{b}, n))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return w.Write(ctx, []rdma.Op{{Local: local, Slot: slot, Access: access}})
}

// ended waits for the end of a remote and says why.
func (w *writer) ended() error {
	w.t.Helper()
	select {
	case <-w.Done():
	case <-time.After(soon):
		w.t.Fatal("the remote does not end")
	}
	return w.Cause()
}

// left waits until the target knows that w is gone.
func (tg *target) left(w rdma.Writer) {
	tg.t.Helper()
	select {
	case got := <-tg.gone:
		if got != w {
			tg.t.Fatalf("writer %d is gone and not %d", got, w)
		}
	case <-time.After(soon):
		tg.t.Fatalf("writer %d is not gone", w)
	}
}

// all says whether every byte of mem is b.
func all(mem []byte, b byte) bool { return len(bytes.Trim(mem, string([]byte{b}))) == 0 }

func mmap(t testing.TB, n int) []byte {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// process is this program in another role. It is told and says lines of JSON.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	in  *json.Encoder
	out *bufio.Reader
}

func start(t testing.TB, role string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{t, cmd, json.NewEncoder(in), bufio.NewReader(out)}
}

func (p *process) tell(v any) {
	p.t.Helper()
	if err := p.in.Encode(v); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) hear(v any) {
	p.t.Helper()
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		p.t.Fatalf("%v in %q", err, line)
	}
}

func (p *process) signal(s unix.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	if s == unix.SIGSTOP {
		// It is stopped when its parent is told so.
		var status unix.WaitStatus
		if _, err := unix.Wait4(p.cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			p.t.Fatalf("wait for the stop: %v, status %v", err, status)
		}
	}
}

// until waits for ok, looking again and again: for memory that is written by
// others there is no event.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, soon)
		}
	}
}

// order tells a process in role "writer" what to write, again and again.
type order struct {
	At     rdma.Attachment // without staging
	Writes []put
}

type put struct {
	Slot   int
	Access []byte
	Byte   byte
}

var roles = map[string]func(){"writer": writerRole, "target": targetRole}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// writerRole attaches, says so, is told what to write, and says how each went.
func writerRole() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var at rdma.Attachment
	fail(in.Decode(&at))
	staging, err := unix.Mmap(-1, 0, int(at.SlotSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	fail(err)
	at.Staging = staging
	r, err := Attach(context.Background(), at)
	fail(err)
	fail(out.Encode("attached"))
	var p put
	for in.Decode(&p) == nil {
		copy(staging, bytes.Repeat([]byte{p.Byte}, len(staging)))
		text := ""
		if err := r.Write(context.Background(), []rdma.Op{{Local: staging, Slot: p.Slot, Access: p.Access}}); err != nil {
			text = err.Error()
		}
		fail(out.Encode(text))
	}
	fail(r.Close())
}

// targetRole serves a buffer of one slot of 64 MiB to one writer.
func targetRole() {
	buf, err := buffer.New(1, 64<<20)
	fail(err)
	s, err := Serve(buf, "target", loopback, func(rdma.Writer) {})
	fail(err)
	token, err := s.Grant(1)
	fail(err)
	out := json.NewEncoder(os.Stdout)
	fail(out.Encode(rdma.Attachment{Token: token, Regions: []rdma.Region{{Desc: s.Desc()}}, SlotSize: 64 << 20, Slots: 1, Fabric: loopback}))
	var a []byte
	for a == nil {
		a, _ = s.Open(1, 0)
	}
	fail(out.Encode(a))
	select {}
}
