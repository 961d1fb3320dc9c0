//go:build !noofi

package ofi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

func TestWrite(t *testing.T) {
	tg := serve(t, 4, 100_000)
	w := tg.attach(1)
	for _, n := range []int{1, 7, 4096, 99_999, 100_000} {
		a := tg.open(1, 2)
		if err := w.put(2, a, byte(n), n); err != nil {
			t.Fatal(err)
		}
		if mem := tg.buf.Slot(2); !all(mem[:n], byte(n)) {
			t.Errorf("%d bytes did not arrive", n)
		}
	}
	for _, i := range []int{0, 1, 3} {
		if !all(tg.buf.Slot(i), 0) {
			t.Errorf("slot %d was written", i)
		}
	}
}

// A write that is done is there, whatever the provider makes of it.
func TestProviders(t *testing.T) {
	for _, name := range []string{"net", "net;ofi_rxm", "sockets", "udp;ofi_rxd"} {
		t.Run(name, func(t *testing.T) {
			e, err := openEndpoint(name, "127.0.0.1")
			if err != nil && strings.Contains(err.Error(), "has no provider") {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			e.close()
			tg := serveOver(t, rdma.Fabric{Addr: "127.0.0.1", Provider: name}, 1, 100_000)
			w := tg.attach(1)
			for i := range 20 {
				if err := w.put(0, tg.open(1, 0), byte(i+1), 100_000); err != nil {
					t.Fatal(err)
				}
				if !all(tg.buf.Slot(0), byte(i+1)) {
					t.Fatalf("write %d is not there when it is done", i)
				}
			}
		})
	}
}

// More writes than the window has room for, from many sides.
func TestManyWrites(t *testing.T) {
	const slots, size = 64, 10_000
	tg := serve(t, slots, size)
	staging := mmap(t, slots*size)
	r, err := Attach(context.Background(), tg.attachment(1, staging))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all sync.WaitGroup
	for i := range slots {
		local := staging[i*size : (i+1)*size]
		copy(local, bytes.Repeat([]byte{byte(i + 1)}, size))
		op := rdma.Op{Local: local, Slot: i, Access: tg.open(1, i)}
		all.Go(func() {
			for range 10 {
				if err := r.Write(context.Background(), []rdma.Op{op}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i := range slots {
		if !bytes.Equal(tg.buf.Slot(i), staging[i*size:(i+1)*size]) {
			t.Errorf("slot %d has not what was written", i)
		}
	}
}

// What a peer may not write it does not write; it loses its own connection and
// nobody else's.
func TestForeignWrites(t *testing.T) {
	const size = 8192
	for name, attack := range map[string]func(tg *target, own, other access) write{
		"behind the slot":        func(_ *target, own, _ access) write { return write{access: access{own.key, own.addr + size - 8}} },
		"far behind the slot":    func(_ *target, own, _ access) write { return write{access: access{own.key, own.addr + 1<<40}} },
		"before the slot":        func(_ *target, own, _ access) write { return write{access: access{own.key, own.addr - 8}} },
		"another writer's key":   func(_ *target, _, other access) write { return write{access: other} },
		"a key nobody has":       func(_ *target, own, _ access) write { return write{access: access{own.key + 1, own.addr}} },
		"a key that is shut":     func(tg *target, own, _ access) write { tg.Shut(0); return write{access: own} },
		"a key that was revoked": func(tg *target, own, _ access) write { tg.Shut(0); tg.revoke(0); return write{access: own} },
		"a slot opened to another": func(tg *target, own, _ access) write {
			tg.open(2, 0)
			return write{access: own}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tg := serve(t, 3, size)
			bad, good := tg.attach(1), tg.attach(2)
			own, _ := parseAccess(tg.open(1, 0))
			others := tg.open(2, 1)
			other, _ := parseAccess(others)
			if err := good.put(1, others, 'g', size); err != nil {
				t.Fatal(err)
			}
			w := attack(tg, own, other)
			w.local = bad.staging[:16]
			copy(w.local, "0123456789abcdef")
			ctx, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			if err := bad.write(ctx, []write{w}); !errors.Is(err, rdma.ErrGone) {
				t.Errorf("error %v", err)
			}
			if cause := bad.ended(); !errors.Is(cause, rdma.ErrGone) || errors.Is(cause, rdma.ErrEnded) {
				t.Errorf("it ended for %v", cause)
			}
			tg.left(1)
			for i, b := range []byte{0, 'g', 0} {
				if _, mem := tg.buf.Where(i); !all(mem, b) {
					t.Errorf("slot %d was written", i)
				}
			}
			if err := good.put(1, others, 'G', size); err != nil {
				t.Errorf("the other writer suffers: %v", err)
			}
			again := tg.attach(3)
			if err := again.put(0, tg.open(3, 0), 'a', size); err != nil || !all(tg.buf.Slot(0), 'a') {
				t.Errorf("the next writer suffers: %v", err)
			}
		})
	}
}

func (tg *target) revoke(slot int) {
	tg.t.Helper()
	if _, err := tg.buf.Revoke([]int{slot}, 1<<60); err != nil {
		tg.t.Fatal(err)
	}
	tg.Leave(slot)
}

// A writer whose slot was revoked goes on in the old memory, and keeps its
// connection for the other slots that it has. There is an end to how many it
// keeps so.
func TestRevokedWriterGoesOn(t *testing.T) {
	const size = 8192
	tg := serve(t, 2, size)
	w, next := tg.attach(1), tg.attach(2)
	other := tg.open(1, 1)
	var first, last []byte
	for range maxLeft + 1 {
		last = tg.open(1, 0)
		if first == nil {
			first = last
		}
		_, old := tg.buf.Where(0)
		tg.revoke(0)
		if err := w.put(0, last, 'w', size); err != nil {
			t.Fatal(err)
		}
		if !all(old, 'w') {
			t.Fatal("the writer did not go on in the old memory")
		}
	}
	if err := next.put(0, tg.open(2, 0), 'n', size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.put(0, last, 'x', size), w.put(1, other, 'o', size)); err != nil {
		t.Errorf("the writer suffers: %v", err)
	}
	if !all(tg.buf.Slot(0), 'n') || !all(tg.buf.Slot(1), 'o') {
		t.Error("the writer wrote into what is not its own")
	}
	if err := w.put(0, first, 'x', size); !errors.Is(err, rdma.ErrGone) {
		t.Errorf("one key too many is good: %v", err)
	}
}

// half starts a process that writes slot 0 of 64 MiB and stops it when a part
// has landed.
func half(t *testing.T, tg *target, w rdma.Writer) *process {
	t.Helper()
	const tries = 20
	p := start(t, "writer")
	p.tell(tg.attachment(w, nil))
	var said string
	p.hear(&said)
	a := tg.open(w, 0)
	_, mem := tg.buf.Where(0)
	last := len(mem) - 1
	for i := range tries {
		b := byte(i + 1)
		p.tell(put{0, a, b})
		until(t, "the write begins", func() bool { return load(mem, len(mem)/8) == b })
		p.signal(unix.SIGSTOP)
		// What its socket had taken may still be landing.
		until(t, "what was sent has landed", func() bool { return tg.resting(mem) })
		if load(mem, last) != b {
			return p
		}
		p.signal(unix.SIGCONT) // it was too fast
		p.hear(&said)
	}
	t.Fatalf("the writer was never stopped in the middle of a write, in %d tries", tries)
	return nil
}

// resting says whether nothing lands in mem any more: nothing has for a while.
func (tg *target) resting(mem []byte) bool {
	before := bytes.Clone(mem)
	time.Sleep(50 * time.Millisecond)
	return bytes.Equal(before, mem)
}

//go:noinline
func load(mem []byte, i int) byte { return mem[i] }

// Closing a key does not stop a write that has begun: it goes on into the old
// memory, and the slot's next owner has another.
func TestLateWriter(t *testing.T) {
	tg := serve(t, 1, 64<<20)
	late := half(t, tg, 1)
	_, old := tg.buf.Where(0)
	tg.revoke(0)
	next := tg.attach(2)
	if err := next.put(0, tg.open(2, 0), 'n', 64<<20); err != nil {
		t.Fatal(err)
	}
	late.signal(unix.SIGCONT)
	var said string
	late.hear(&said) // done, or refused: it may say either
	if load(old, len(old)-1) == 0 {
		t.Log("the late write did not go on into the old memory:", said)
	}
	if !all(tg.buf.Slot(0), 'n') {
		t.Error("the late writer wrote over the next one's bytes")
	}
}

// A writer that is withdrawn in the middle of a write writes no more: not what
// it had sent, and not what it sends when it goes on.
func TestWithdrawnWriter(t *testing.T) {
	tg := serve(t, 1, 64<<20)
	late := half(t, tg, 1)
	if !tg.Withdraw(1) {
		t.Fatal("it is not connected")
	}
	tg.left(1)
	mem := tg.buf.Slot(0)
	copy(mem, bytes.Repeat([]byte{'n'}, len(mem)))
	late.signal(unix.SIGCONT)
	var said string
	late.hear(&said)
	if !strings.Contains(said, rdma.ErrEnded.Error()) {
		t.Errorf("the late writer is told %q", said)
	}
	if !all(mem, 'n') {
		t.Error("the withdrawn writer still wrote")
	}
}

// Writers that are killed in the middle of a write, one after the other, leave
// nothing behind, and the next is served.
func TestKilledWriters(t *testing.T) {
	const deaths = 5 // internal/e2e has fifty
	tg := serve(t, 2, 64<<20)
	files := 0
	for i := range deaths {
		w := rdma.Writer(i + 1)
		p := start(t, "writer")
		p.tell(tg.attachment(w, nil))
		var said string
		p.hear(&said)
		p.tell(put{0, tg.open(w, 0), byte(i + 1)})
		_, mem := tg.buf.Where(0)
		until(t, "the write begins", func() bool { return load(mem, 1<<20) == byte(i+1) })
		p.signal(unix.SIGKILL)
		tg.left(w)
		_ = p.cmd.Wait()
		if i == 0 {
			files = openFiles(t)
		}
	}
	if now := openFiles(t); now > files {
		t.Errorf("%d files are open after the first death, %d after %d", files, now, deaths)
	}
	w := tg.attach(1000)
	if err := w.put(0, tg.open(1000, 0), 'n', 64<<20); err != nil || !all(tg.buf.Slot(0), 'n') {
		t.Errorf("the next writer suffers: %v", err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// attachToProcess attaches to a target in a process of its own; op fills its slot.
func attachToProcess(t *testing.T) (p *process, r rdma.Remote, op rdma.Op) {
	t.Helper()
	p = start(t, "target")
	var at rdma.Attachment
	p.hear(&at)
	at.Staging = mmap(t, 64<<20)
	r, err := Attach(context.Background(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	op.Local = at.Staging
	p.hear(&op.Access)
	return p, r, op
}

// A target that dies in the middle of a write is known at once.
func TestKilledTarget(t *testing.T) {
	p, r, op := attachToProcess(t)
	failed := make(chan error)
	go func() {
		for {
			if err := r.Write(context.Background(), []rdma.Op{op}); err != nil {
				failed <- err
				return
			}
		}
	}()
	p.signal(unix.SIGKILL)
	began := time.Now()
	select {
	case err := <-failed:
		if !errors.Is(err, rdma.ErrGone) || errors.Is(err, rdma.ErrEnded) {
			t.Errorf("error %v", err)
		}
	case <-time.After(soon):
		t.Fatal("the writer waits for a dead target")
	}
	if d := time.Since(began); d > soon/4 {
		t.Errorf("the death was known after %v", d)
	}
	<-r.Done()
	if !errors.Is(r.Cause(), rdma.ErrGone) {
		t.Errorf("cause %v", r.Cause())
	}
}

// A target that is stopped holds a write up, and the end of its context ends it:
// then the memory is not read any more.
func TestStoppedTarget(t *testing.T) {
	p, r, op := attachToProcess(t)
	p.signal(unix.SIGSTOP)
	ctx, cancel := context.WithCancelCause(context.Background())
	failed := make(chan error)
	go func() { failed <- r.Write(ctx, []rdma.Op{op}) }()
	until(t, "the write is posted", func() bool {
		r := r.(*remote)
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.calls) > 0
	})
	cancel(errors.New("time is up"))
	err := <-failed
	if !errors.Is(err, rdma.ErrGone) || !strings.Contains(err.Error(), "time is up") {
		t.Errorf("error %v", err)
	}
	<-r.Done()
	if err := r.Write(context.Background(), []rdma.Op{op}); !errors.Is(err, rdma.ErrGone) {
		t.Errorf("a write after the end: %v", err)
	}
}

func TestWithdraw(t *testing.T) {
	tg := serve(t, 1, 4096)
	if tg.Withdraw(7) {
		t.Error("a writer that was never granted is connected")
	}
	token := tg.attachment(1, mmap(t, 4096))
	if tg.Withdraw(1) {
		t.Error("a writer that never connected is connected")
	}
	if _, err := Attach(context.Background(), token); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("with a withdrawn token: %v", err)
	}
	w := tg.attach(2)
	if !tg.Withdraw(2) {
		t.Error("a connected writer is not connected")
	}
	if cause := w.ended(); !errors.Is(cause, rdma.ErrEnded) || !errors.Is(cause, rdma.ErrGone) {
		t.Errorf("cause %v", cause)
	}
	tg.left(2)
	if _, err := tg.Open(2, 0); err == nil {
		t.Error("a slot was opened to a writer that is gone")
	}
}

// Until the end of a writer has been told, a slot that cannot be opened to it is
// no failure of the engine.
func TestOpenWhileGoing(t *testing.T) {
	buf, err := buffer.New(1, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	var s rdma.Server
	answered := make(chan error)
	s, err = Serve(buf, t.Name(), loopback, func(w rdma.Writer) {
		_, err := s.Open(w, 0)
		answered <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tg := &target{t: t, buf: buf, server: s.(*server)}
	w := tg.attach(1)
	tg.open(1, 0)
	w.Close()
	if err := <-answered; !errors.Is(err, rdma.ErrGone) {
		t.Errorf("error %v", err)
	}
}

func TestClose(t *testing.T) {
	tg := serve(t, 1, 4096)
	w := tg.attach(1)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.ended() != nil {
		t.Errorf("cause %v", w.Cause())
	}
	tg.left(1)
	if err := w.put(0, make([]byte, accessLen), 1, 1); !errors.Is(err, errRemoteClosed) {
		t.Errorf("a write after Close: %v", err)
	}
}

func TestBadOps(t *testing.T) {
	tg := serve(t, 2, 4096)
	w := tg.attach(1)
	a := tg.open(1, 0)
	for name, tt := range map[string]struct {
		op   rdma.Op
		want string
	}{
		"nothing":         {rdma.Op{Access: a}, "nothing to write"},
		"too much":        {rdma.Op{Local: w.staging[:4097], Access: a}, "slots hold 4096"},
		"no such slot":    {rdma.Op{Local: w.staging[:1], Slot: 2, Access: a}, "2 slots"},
		"negative slot":   {rdma.Op{Local: w.staging[:1], Slot: -1, Access: a}, "2 slots"},
		"not registered":  {rdma.Op{Local: make([]byte, 1), Access: a}, "not in the staging memory"},
		"one good, a bad": {rdma.Op{Local: w.staging[:1], Slot: 1, Access: a[1:]}, "access has 15 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := w.Write(context.Background(), []rdma.Op{{Local: w.staging[4096:8192], Slot: 0, Access: a}, tt.op})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
		})
	}
	if !all(tg.buf.Slot(0), 0) {
		t.Error("something was written")
	}
	if err := w.put(0, a, 'x', 4096); err != nil {
		t.Errorf("a bad operation ended the remote: %v", err)
	}
}

// Who is given no access has no connection any more at the target, whether or
// not it has heard: the write says so, and the remote ends.
func TestNoAccess(t *testing.T) {
	tg := serve(t, 1, 4096)
	w := tg.attach(1)
	if err := w.put(0, nil, 'x', 4096); !errors.Is(err, rdma.ErrGone) {
		t.Errorf("error %v", err)
	}
	if cause := w.ended(); !errors.Is(cause, rdma.ErrGone) {
		t.Errorf("cause %v", cause)
	}
	if !all(tg.buf.Slot(0), 0) {
		t.Error("something was written")
	}
}

// A write of nothing, and one whose context is over, post nothing and so end
// nothing.
func TestNothingPosted(t *testing.T) {
	tg := serve(t, 1, 4096)
	w := tg.attach(1)
	a := tg.open(1, 0)
	if err := w.Write(context.Background(), nil); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("too late"))
	if err := w.Write(ctx, []rdma.Op{{Local: w.staging[:1], Access: a}}); err == nil || !strings.Contains(err.Error(), "too late") {
		t.Errorf("error %v", err)
	}
	if err := w.put(0, a, 'x', 4096); err != nil {
		t.Errorf("the remote has ended: %v", err)
	}
}

// A grant may be withdrawn while its writer attaches.
func TestWithdrawnWhileAttaching(t *testing.T) {
	tg := serve(t, 1, 4096)
	at := tg.attachment(1, mmap(t, 4096))
	l := listen(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	at.Regions = []rdma.Region{{Desc: descriptor{DefaultProvider, "127.0.0.1", port}.bytes()}}
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = sendLine(c, message{Ended: true}, soon)
			_, _ = c.Read(make([]byte, 100))
			c.Close()
		}
	}()
	if _, err := Attach(context.Background(), at); !errors.Is(err, rdma.ErrEnded) {
		t.Errorf("error %v", err)
	}
}

// The address "all" is none that a writer could be told to write to.
func TestServeEverywhere(t *testing.T) {
	tg := serveOver(t, rdma.Fabric{Addr: "0.0.0.0"}, 1, 4096)
	at := tg.attachment(1, mmap(t, 4096))
	at.Host, at.Fabric = "127.0.0.1", loopback
	r, err := Attach(context.Background(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	name, err := tg.peers[1].endpoint.name()
	if err != nil {
		t.Fatal(err)
	}
	if ip := net.IP(name[4:8]); !ip.Equal(net.IPv4(127, 0, 0, 1)) { // in a struct sockaddr_in
		t.Errorf("the writer is sent to %v", ip)
	}
}

func TestAttachFails(t *testing.T) {
	tg := serve(t, 1, 4096)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	_, port, _ := net.SplitHostPort(closed.Addr().String())
	good := func() rdma.Attachment { return tg.attachment(1, mmap(t, 4096)) }
	for name, tt := range map[string]struct {
		change func(*rdma.Attachment)
		want   string
	}{
		"nobody there": {func(a *rdma.Attachment) {
			a.Regions = []rdma.Region{{Desc: descriptor{DefaultProvider, "127.0.0.1", port}.bytes()}}
		}, "connection refused"},
		"no descriptor":       {func(a *rdma.Attachment) { a.Regions = nil }, "does not describe"},
		"another descriptor":  {func(a *rdma.Attachment) { a.Regions = []rdma.Region{{Desc: []byte("?")}} }, "does not describe"},
		"another provider":    {func(a *rdma.Attachment) { a.Fabric.Provider = "verbs;ofi_rxm" }, `"verbs;ofi_rxm", the receiver takes "tcp;ofi_rxm"`},
		"the provider shm":    {func(a *rdma.Attachment) { a.Fabric.Provider = "shm" }, "--engine shm"},
		"an address of names": {func(a *rdma.Attachment) { a.Fabric.Addr = "localhost" }, `"localhost" is no address`},
		"not our address":     {func(a *rdma.Attachment) { a.Fabric.Addr = "192.0.2.1" }, "192.0.2.1"},
		"a short token":       {func(a *rdma.Attachment) { a.Token = a.Token[1:] }, "token"},
		"another token":       {func(a *rdma.Attachment) { a.Token[len(a.Token)-1]++ }, "token is not good"},
		"no staging memory":   {func(a *rdma.Attachment) { a.Staging = nil }, "staging"},
	} {
		t.Run(name, func(t *testing.T) {
			at := good()
			tt.change(&at)
			_, err := Attach(context.Background(), at)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
			if errors.Is(err, rdma.ErrEnded) != (name == "another token") {
				t.Errorf("over? %v", err)
			}
			if errors.Is(err, rdma.ErrUnreachable) != (name == "nobody there" || name == "not our address") {
				t.Errorf("unreachable? %v", err)
			}
		})
	}
	tg.attach(2)
}

// impostor listens where at sends a writer, and is no target.
func impostor(t *testing.T) (l net.Listener, at rdma.Attachment) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	at = serve(t, 1, 4096).attachment(1, mmap(t, 4096))
	at.Regions = []rdma.Region{{Desc: descriptor{DefaultProvider, "127.0.0.1", port}.bytes()}}
	return l, at
}

// One that answers and never says anything holds nobody up for longer than his
// context lasts.
func TestAttachEndsWithItsContext(t *testing.T) {
	l, at := impostor(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
		}
		cancel(errors.New("enough"))
		<-ctx.Done()
		_, _ = c.Read(make([]byte, 1))
	}()
	if _, err := Attach(ctx, at); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("error %v", err)
	}
}

// A target that goes away before it has let the writer in is gone, not broken.
func TestAttachToOneThatDies(t *testing.T) {
	l, at := impostor(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1)) // the rest is left: its end is a reset
			c.Close()
		}
	}()
	if _, err := Attach(context.Background(), at); !errors.Is(err, rdma.ErrGone) || errors.Is(err, rdma.ErrEnded) {
		t.Errorf("error %v", err)
	}
}

func TestServeFails(t *testing.T) {
	tg := serve(t, 1, 4096)
	for name, tt := range map[string]struct {
		fabric rdma.Fabric
		want   string
	}{
		"no such provider":  {rdma.Fabric{Provider: "carrier-pigeon"}, "take one of"},
		"the provider shm":  {rdma.Fabric{Provider: "shm"}, "--engine shm"},
		"shm in capitals":   {rdma.Fabric{Provider: "SHM"}, "--engine shm"},
		"shm among others":  {rdma.Fabric{Provider: "tcp;shm"}, "--engine shm"},
		"a taken port":      {rdma.Fabric{Addr: "127.0.0.1", Service: tg.desc.Port}, tg.desc.Port},
		"another's address": {rdma.Fabric{Addr: "192.0.2.1"}, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Serve(tg.buf, "x", tt.fabric, func(rdma.Writer) {})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
			if name == "no such provider" && strings.Contains(err.Error(), "shm") {
				t.Errorf("a provider that is refused is proposed: %v", err)
			}
		})
	}
}

// An idle endpoint sleeps: a target with writers that write nothing takes next
// to no time of a processor.
func TestIdle(t *testing.T) {
	tg := serve(t, 1, 4096)
	for i := range 4 {
		tg.attach(rdma.Writer(i + 1))
	}
	runtime.GC()
	var before, after unix.Rusage
	const span = time.Second
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	time.Sleep(span)
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	used := time.Duration(after.Utime.Nano()-before.Utime.Nano()) + time.Duration(after.Stime.Nano()-before.Stime.Nano())
	// Eight endpoints here, and the race detector.
	if used > span/25 {
		t.Errorf("4 pairs that do nothing took %v of a processor in %v", used, span)
	}
	t.Log(used)
}

func BenchmarkRegister(b *testing.B) {
	for _, size := range []int64{1 << 20, 16 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tg := serve(b, 8, size)
			tg.attach(1)
			for i := 0; b.Loop(); i++ {
				tg.open(1, i%8)
				tg.Shut(i % 8)
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			slots := (1 << 30) / size
			tg := serve(b, slots, int64(size))
			const workers = 32
			staging := mmap(b, workers*size)
			r, err := Attach(context.Background(), tg.attachment(1, staging))
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			accesses := make([][]byte, slots)
			for i := range accesses {
				accesses[i] = tg.open(1, i)
			}
			b.SetBytes(int64(size))
			var all sync.WaitGroup
			next := make(chan int, workers)
			for i := range workers {
				all.Go(func() {
					for slot := range next {
						op := rdma.Op{Local: staging[i*size : (i+1)*size], Slot: slot, Access: accesses[slot]}
						if err := r.Write(context.Background(), []rdma.Op{op}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for i := 0; b.Loop(); i++ {
				next <- i % slots
			}
			close(next)
			all.Wait()
		})
	}
}

// Drivers that libfabric brings along install handlers of their own, which end
// a process by exit(1) where Go would be told.
func TestSignalsStayOurs(t *testing.T) {
	tg := serve(t, 1, 4096)
	tg.attach(1)
	for _, s := range []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, s)
		if err := unix.Kill(os.Getpid(), s.(unix.Signal)); err != nil {
			t.Fatal(err)
		}
		<-heard
		signal.Reset(s)
	}
	var nobody *target
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_ = nobody.buf // SIGSEGV, which is Go's to turn into a panic
}
