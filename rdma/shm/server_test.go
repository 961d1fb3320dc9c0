package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
)

func TestWriteEverySlot(t *testing.T) {
	for _, size := range []int64{1, 4096, 5000, 64<<10 + 3, 1 << 20, 3<<20 + 17} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const slots = 9
			target := newTarget(t, slots, size)
			var wg sync.WaitGroup
			for w := range 2 { // two senders, every other slot each
				r := attach(t, target, rdma.Writer(w))
				wg.Go(func() {
					var ops []rdma.Op
					for s := w; s < slots; s += 2 {
						ops = append(ops, rdma.Op{Local: pattern(int(size), uint64(s)), Slot: s})
					}
					if err := r.Write(context.Background(), ops); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for s := range slots {
				if !bytes.Equal(target.Slot(s), pattern(int(size), uint64(s))) {
					t.Errorf("slot %d has other bytes than were written", s)
				}
			}
		})
	}
}

// A shorter write leaves the rest of its slot as it is.
func TestWriteShort(t *testing.T) {
	target := newTarget(t, 2, 40_000)
	r := attach(t, target, 1)
	write(t, r, 0, 0, bytes.Repeat([]byte{1}, 40_000))
	write(t, r, 0, 0, bytes.Repeat([]byte{2}, 20_000))
	want := append(bytes.Repeat([]byte{2}, 20_000), bytes.Repeat([]byte{1}, 20_000)...)
	if !bytes.Equal(target.Slot(0), want) || !bytes.Equal(target.Slot(1), make([]byte, 40_000)) {
		t.Error("a short write changed more than it wrote")
	}
}

// F17: what lies outside is refused with a reason before anything is written.
func TestWriteOutOfBounds(t *testing.T) {
	target := newTarget(t, 10, 5000)
	r := attach(t, target, 1)
	good := rdma.Op{Local: []byte("good"), Slot: 0}
	for _, tt := range []struct {
		op  rdma.Op
		err string
	}{
		{rdma.Op{Local: []byte("x"), Slot: 10}, "slot 10 of a buffer of 10 slots"},
		{rdma.Op{Local: []byte("x"), Slot: -1}, "slot -1 of a buffer of 10 slots"},
		{rdma.Op{Local: []byte("x"), Slot: math.MaxInt}, fmt.Sprintf("slot %d of a buffer", math.MaxInt)},
		{rdma.Op{Local: make([]byte, 5001), Slot: 9}, "write of 5001 bytes to slot 9: slots hold 5000"},
		{rdma.Op{Slot: 3}, "write of 0 bytes to slot 3"},
		{rdma.Op{Local: []byte("x"), Slot: 3, Region: 1}, "write to slot 3 in region 1: the region is not known here"},
		{rdma.Op{Local: []byte("x"), Slot: 3, Region: -1}, "region -1"},
	} {
		err := r.Write(t.Context(), []rdma.Op{good, tt.op})
		testkit.WantError(t, err, tt.err)
		if errors.Is(err, rdma.ErrUnknownRegion) != (tt.op.Region != 0) {
			t.Errorf("%v: is ErrUnknownRegion? %v", err, errors.Is(err, rdma.ErrUnknownRegion))
		}
	}
	for s := range 10 {
		if !bytes.Equal(target.Slot(s), make([]byte, 5000)) {
			t.Errorf("slot %d was written", s)
		}
	}
	write(t, r, 0, 0, []byte("alive"))
}

func TestWriteCancelled(t *testing.T) {
	target := newTarget(t, 1, 100)
	r := attach(t, target, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("request A was cancelled")
	cancel(why)
	if err := r.Write(ctx, []rdma.Op{{Local: []byte("x")}}); !errors.Is(err, why) {
		t.Errorf("error %v, want the cause", err)
	}
}

func TestAttachRefused(t *testing.T) {
	target := newTarget(t, 1, 100)
	at := attachment(t, target, 1)
	try := func(at rdma.Attachment) error {
		r, err := Attach(t.Context(), at)
		if err == nil {
			r.Close()
		}
		return err
	}
	for i := range at.Token {
		wrong := at
		wrong.Token = slices.Clone(at.Token)
		wrong.Token[i] ^= 1
		err := try(wrong)
		testkit.WantError(t, err, "the token is not good")
		if !errors.Is(err, rdma.ErrEnded) {
			t.Errorf("%v: does not say that the grant is over", err)
		}
	}
	short := at
	short.Token = at.Token[1:]
	testkit.WantError(t, try(short), "token of 40 bytes, the receiver's have 41")

	elsewhere := at
	elsewhere.ReceiverID = "nobody"
	err := try(elsewhere)
	testkit.WantError(t, err, `no receiver with the id "nobody" runs on this host`)
	if !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("%v is not ErrUnreachable", err)
	}

	another := at
	another.SlotSize = 1 << 20
	testkit.WantError(t, try(another), "region of 4096 bytes, expected 1048576")

	at = attachment(t, target, 2) // of the last attempt the token was used up
	at.Regions = []rdma.Region{{ID: 1}}
	testkit.WantError(t, try(at), "the receiver has no region 1")
	at = attachment(t, target, 3)
	at.Regions = []rdma.Region{{ID: -1}}
	testkit.WantError(t, try(at), "region -1")

	at = attachment(t, target, 4)
	r := attach(t, target, 4)
	testkit.WantError(t, try(at), "the token is in use")
	if again := attachment(t, target, 4); !bytes.Equal(again.Token, at.Token) {
		t.Error("Grant asked again gives another token")
	}
	r.Close()
	testkit.Eventually(t, patience, "the token of a writer that ended is not good", func() bool {
		err := try(at)
		return err != nil && strings.Contains(err.Error(), "the token is not good")
	})
}

func TestTargetTwice(t *testing.T) {
	newTarget(t, 1, 1)
	_, err := openTarget(t.Name(), 1, 1)
	testkit.WantError(t, err, fmt.Sprintf("a receiver with the id %q runs on this host already", t.Name()))
}

func TestRevoke(t *testing.T) {
	const size = 20_000
	target := newTarget(t, 6, size)
	r := attach(t, target, 1)
	for s := range 6 {
		write(t, r, 0, s, pattern(size, uint64(s)))
	}
	region := testkit.Must[int](t)(target.Revoke([]int{4, 1, 2}))
	if region != 1 || len(target.Regions()) != 2 || target.Regions()[1].ID != 1 {
		t.Fatalf("slots moved to region %d of %v", region, target.Regions())
	}
	write(t, r, 0, 1, pattern(size, 7)) // late
	testkit.WantError(t, r.Write(t.Context(), []rdma.Op{{Local: []byte("x"), Region: 1, Slot: 1}}), "region 1")
	for _, s := range []int{1, 2, 4} {
		if !bytes.Equal(target.Slot(s), make([]byte, size)) {
			t.Errorf("revoked slot %d is not zero, or shows a late write", s)
		}
	}
	if err := r.Update(target.Regions()); err != nil {
		t.Fatal(err)
	}
	write(t, r, 1, 1, pattern(size, 8))
	if !bytes.Equal(target.Slot(1), pattern(size, 8)) {
		t.Error("the slot does not show what was written to its new region")
	}
	for _, s := range []int{0, 3, 5} {
		if !bytes.Equal(target.Slot(s), pattern(size, uint64(s))) {
			t.Errorf("slot %d, not revoked, has other bytes", s)
		}
	}
	late := attach(t, target, 2) // one that comes later knows both regions
	write(t, late, 0, 0, pattern(size, 9))
	write(t, late, 1, 2, pattern(size, 10))
	if !bytes.Equal(target.Slot(0), pattern(size, 9)) || !bytes.Equal(target.Slot(2), pattern(size, 10)) {
		t.Error("a later writer's bytes did not arrive")
	}
}

// A region where slots live in more runs than its list holds is written all the
// same.
func TestRevokeEveryOtherSlot(t *testing.T) {
	const slots = 2*maxSpans + 10
	target := newTarget(t, slots, 100)
	var odd []int
	for i := 1; i < slots; i += 2 {
		odd = append(odd, i)
	}
	region := testkit.Must[int](t)(target.Revoke(odd))
	r := attach(t, target, 1)
	write(t, r, region, slots-1, pattern(100, 1))
	write(t, r, 0, slots-2, pattern(100, 2))
	if !bytes.Equal(target.Slot(slots-1), pattern(100, 1)) || !bytes.Equal(target.Slot(slots-2), pattern(100, 2)) {
		t.Error("the last slots have other bytes")
	}
}

// Writers, regions and slots may be asked for while slots move.
func TestRevokeWhileWriting(t *testing.T) {
	const slots, size = 8, 200_000
	target := newTarget(t, slots, size)
	var wg sync.WaitGroup
	for w := range 2 {
		r := attach(t, target, rdma.Writer(w))
		wg.Go(func() { // slots 0 and 1, which stay
			for i := range uint64(200) {
				b := pattern(size, i)
				if err := r.Write(context.Background(), []rdma.Op{{Local: b, Slot: w}}); err != nil {
					t.Error(err)
				}
				if !bytes.Equal(target.Slot(w), b) {
					t.Errorf("slot %d has other bytes", w)
				}
			}
		})
	}
	for i := range 40 {
		region := testkit.Must[int](t)(target.Revoke([]int{2 + i%3, 5, 7}))
		r := testkit.Must[rdma.Remote](t)(Attach(t.Context(), attachment(t, target, rdma.Writer(100+i))))
		write(t, r, region, 5, pattern(size, uint64(i)))
		if !bytes.Equal(target.Slot(5), pattern(size, uint64(i))) {
			t.Error("slot 5 has other bytes")
		}
		r.Close()
	}
	wg.Wait()
}

func TestReader(t *testing.T) {
	const size = 100_000
	target := newTarget(t, 3, size)
	r := attach(t, target, 1)
	region := testkit.Must[int](t)(target.Revoke([]int{2}))
	if err := r.Update(target.Regions()); err != nil {
		t.Fatal(err)
	}
	write(t, r, 0, 0, pattern(size, 1))
	write(t, r, region, 2, pattern(size, 2))

	at := attachment(t, target, 1)
	at.Token = testkit.Must[[]byte](t)(target.GrantRead())
	reader := testkit.Must[*Reader](t)(OpenReader(t.Context(), at))
	slot0, slot2 := testkit.Must[[]byte](t)(reader.Slot(0, 0)), testkit.Must[[]byte](t)(reader.Slot(region, 2))
	if !bytes.Equal(slot0, pattern(size, 1)) || !bytes.Equal(slot2, pattern(size, 2)) {
		t.Error("the reader sees other bytes")
	}
	_, err := reader.Slot(0, 3)
	testkit.WantError(t, err, "slot 3 of a buffer of 3 slots")
	_, err = reader.Slot(5, 0)
	testkit.WantError(t, err, "slot 0 in region 5: the region is not known here")
	_, err = OpenReader(t.Context(), at)
	testkit.WantError(t, err, "the token is not good") // one connection only

	target.Close() // and the reader still has the memory
	if !bytes.Equal(slot2, pattern(size, 2)) {
		t.Error("the bytes went with the receiver")
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}

// What a reader gets cannot be mapped for writing, and its token attaches no
// writer.
func TestReaderCannotWrite(t *testing.T) {
	target := newTarget(t, 1, 100)
	at := attachment(t, target, 1)
	at.Token = testkit.Must[[]byte](t)(target.GrantRead())
	_, err := Attach(t.Context(), at)
	testkit.WantError(t, err, "region 0: map 4096 bytes: permission denied")
}

// Closing either side ends the other's writes with an error, under way or not.
func TestCloseWhileWriting(t *testing.T) {
	for _, side := range []string{"remote", "target"} {
		t.Run(side, func(t *testing.T) {
			target := newTarget(t, 1, 8<<20)
			r := attach(t, target, 1)
			began, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				b := make([]byte, 8<<20)
				for i := 0; ; i++ {
					if err := r.Write(context.Background(), []rdma.Op{{Local: b}}); err != nil {
						ended <- err
						return
					}
					if i == 0 {
						close(began)
					}
				}
			}()
			receive(t, "writes go on", began)
			if err := r.Cause(); err != nil {
				t.Errorf("the cause is %v before the end", err)
			}
			want := errRemoteClosed
			if side == "target" {
				target.Close()
				receive(t, "the remote is done", r.Done())
				want = errTargetGone
				if err := r.Cause(); !errors.Is(err, rdma.ErrGone) {
					t.Errorf("the cause is %v, want ErrGone", err)
				}
			} else {
				r.Close()
				receive(t, "the writer is gone", target.gone)
				receive(t, "the remote is done", r.Done())
				if err := r.Cause(); err != nil {
					t.Errorf("the cause is %v after Close", err)
				}
			}
			if err := receive(t, "writes end", ended); !errors.Is(err, want) {
				t.Errorf("writes ended with %v, want %v", err, want)
			}
			if err := r.Update([]rdma.Region{{ID: 1}}); err == nil {
				t.Error("Update works after the end")
			}
		})
	}
}

func TestUseAfterClose(t *testing.T) {
	target := newTarget(t, 1, 100)
	target.Close()
	_, err := target.Grant(1)
	testkit.WantError(t, err, "closed")
	_, err = target.GrantRead()
	testkit.WantError(t, err, "closed")
}

// connect opens a connection that has not said anything.
func connect(t *testing.T, target *testTarget) *net.UnixConn {
	t.Helper()
	c := testkit.Must[*net.UnixConn](t)(net.DialUnix("unix", nil, address(target.id)))
	t.Cleanup(func() { c.Close() })
	return c
}

func TestHostileConnections(t *testing.T) {
	target := newTarget(t, 2, 1000)
	serves := func(w rdma.Writer) {
		t.Helper()
		r := attach(t, target, w)
		write(t, r, 0, 0, pattern(1000, uint64(w)))
		if !bytes.Equal(target.Slot(0), pattern(1000, uint64(w))) {
			t.Error("bytes did not arrive")
		}
	}
	// Garbage is refused with a reason, or at least let go.
	c := connect(t, target)
	c.Write(bytes.Repeat([]byte{0xff}, len(magic)+41))
	a := testkit.Must[answer](t)(readAnswer(c))
	if a.status != refused || !strings.Contains(string(a.text), "another version of pd-tools") {
		t.Errorf("garbage was answered %d %q", a.status, a.text)
	}
	io.Copy(io.Discard, c) // until it is let go
	c = connect(t, target)
	c.Write(make([]byte, 1<<16))
	io.Copy(io.Discard, c)
	serves(1)

	// Descriptors sent along are not kept.
	before := holdings(t)
	for range 50 {
		c, fd := connect(t, target), memfd(t, 4096)
		c.WriteMsgUnix([]byte("x"), unix.UnixRights(fd), nil)
		unix.Close(fd)
		c.Close()
	}
	testkit.Eventually(t, patience, "no descriptor of a stranger is kept", func() bool { return holdings(t) == before })
	serves(2)
}

// A writer that asks and does not read, or sends garbage, blocks nobody and is
// not gone before its connection is: it may have the memory.
func TestHostileWriter(t *testing.T) {
	target := newTarget(t, 1, 1000)
	c := testkit.Must[*net.UnixConn](t)(dial(t.Context(), attachment(t, target, 1)))
	defer c.Close()
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		for {
			if _, err := c.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	receive(t, "the flood ends", flooded)
	r := attach(t, target, 2)
	write(t, r, 0, 0, []byte("served"))
	r.Close()
	if w := receive(t, "the other writer is gone", target.gone); w != 2 {
		t.Errorf("writer %d is gone, whose connection is open", w)
	}
	if !target.Withdraw(1) {
		t.Error("the hostile writer does not count as connected")
	}
	c.Close()
	if w := receive(t, "the hostile writer is gone", target.gone); w != 1 {
		t.Errorf("writer %d is gone", w)
	}
}

// as runs f on a thread of its own whose user is uid.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	done := make(chan struct{})
	var errno syscall.Errno
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _, errno = syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		if errno == 0 {
			f()
		}
	}()
	<-done
	if errno != 0 {
		t.Skipf("cannot be user %d: %v", uid, errno)
	}
}

func TestOtherUser(t *testing.T) {
	target := newTarget(t, 1, 1000)
	at := attachment(t, target, 1)
	as(t, 65534, func() { // a good token does not help
		c, err := net.DialUnix("unix", nil, address(t.Name()))
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		c.Write(append([]byte(magic), at.Token...))
		a, err := readAnswer(c)
		if err != nil || a.status != otherUser || !strings.Contains(string(a.text), "the other end belongs to user 65534") {
			t.Errorf("another user was answered %d %q, %v", a.status, a.text, err)
		}
	})
	at.ReceiverID = "another user's"
	var squatter *net.UnixListener
	var err error
	as(t, 65534, func() { squatter, err = net.ListenUnix("unix", address(at.ReceiverID)) })
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	_, err = Attach(t.Context(), at)
	testkit.WantError(t, err, "the other end belongs to user 65534")
	if !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("%v is not ErrUnreachable", err)
	}
	at.ReceiverID = t.Name()
	testkit.Must[rdma.Remote](t)(Attach(t.Context(), at)).Close() // the token was not used up
}
