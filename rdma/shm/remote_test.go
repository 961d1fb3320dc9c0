package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

// fakeTarget listens in a target's place and lets serve answer.
func fakeTarget(t *testing.T, serve func(*net.UnixConn)) rdma.Attachment {
	t.Helper()
	leavesNothing(t)
	l := testkit.Must[*net.UnixListener](t)(net.ListenUnix("unix", address(t.Name())))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return rdma.Attachment{ReceiverID: t.Name(), Token: make([]byte, 41), Regions: []rdma.Region{{}}, SlotSize: 4096, Slots: 2}
}

// A target that says what it should not is refused, and nothing of it is kept.
func TestBadTarget(t *testing.T) {
	sealed := memfd(t, 8192)
	defer unix.Close(sealed)
	small := memfd(t, 4096)
	defer unix.Close(small)
	open := testkit.Must[int](t)(unix.MemfdCreate("x", unix.MFD_CLOEXEC))
	defer unix.Close(open)
	if err := unix.Ftruncate(open, 8192); err != nil {
		t.Fatal(err)
	}
	raw := func(b ...byte) func(*net.UnixConn) { return func(c *net.UnixConn) { c.Write(b) } }
	give := func(a answer) func(*net.UnixConn) {
		return func(c *net.UnixConn) {
			c.Read(make([]byte, 49))
			sendAnswer(c, answer{status: welcome, fd: -1})
			c.Read(make([]byte, askLen))
			sendAnswer(c, a)
			c.Read(make([]byte, 1)) // until the initiator closes
		}
	}
	all := appendSpans(nil, []buffer.Span{{First: 0, N: 2}})
	for _, tt := range []struct {
		name  string
		serve func(*net.UnixConn)
		err   string
	}{
		{"refuses", func(c *net.UnixConn) { sendAnswer(c, answer{status: refused, text: []byte("not you"), fd: sealed}) }, "not you"},
		{"of another user", func(c *net.UnixConn) {
			sendAnswer(c, answer{status: otherUser, text: []byte("you are user 7"), fd: sealed})
		}, "you are user 7: " + rdma.ErrUnreachable.Error()},
		{"region for a welcome", func(c *net.UnixConn) { sendAnswer(c, answer{status: region, fd: sealed}) }, "attach"},
		{"no descriptor", give(answer{status: region, text: all, fd: -1}), "no region in the receiver's answer"},
		{"not sealed", give(answer{status: region, text: all, fd: open}), "not sealed against shrinking"},
		{"too small", give(answer{status: region, text: all, fd: small}), "region of 4096 bytes, expected 8192"},
		{"not a memory file", give(answer{status: region, text: all, fd: int(os.Stdin.Fd())}), "region 0: region of"},
		{"slots beyond", give(answer{status: region, text: appendSpans(nil, []buffer.Span{{First: 1, N: 2}}), fd: sealed}), "2 slots from 1 on, in a buffer of 2"},
		{"half a list", give(answer{status: region, text: all[1:], fd: sealed}), "list of slots of 7 bytes"},
		{"long answer", raw(append([]byte{byte(welcome), 0, 0, 0, 0}, binary.LittleEndian.AppendUint32(nil, maxText+1)...)...), "receiver \"TestBadTarget"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := fakeTarget(t, tt.serve)
			limit := patience
			if tt.name == "long answer" {
				limit = 50 * time.Millisecond // it would be tried again and again
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			r, err := Attach(ctx, at)
			if err == nil {
				r.Close()
			}
			testkit.WantError(t, err, tt.err)
		})
	}
}

// Attach to a target that accepts and says nothing ends with its context.
func TestSilentTarget(t *testing.T) {
	at := fakeTarget(t, func(c *net.UnixConn) { c.Read(make([]byte, 49)); c.Read(make([]byte, 1)) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Attach(ctx, at)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = OpenReader(ctx, at)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
}

// A target that drops the connection is tried again.
func TestBusyTarget(t *testing.T) {
	tries := 0
	at := fakeTarget(t, func(c *net.UnixConn) {
		if tries++; tries < 4 {
			return
		}
		c.Read(make([]byte, 49))
		sendAnswer(c, answer{status: welcome, fd: -1})
		c.Read(make([]byte, 1))
	})
	at.Regions = nil
	testkit.Must[rdma.Remote](t)(Attach(t.Context(), at)).Close()
}

// Whatever bytes come, reading an answer ends, with no descriptor kept.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, false)
	f.Add([]byte{3, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}, true)
	f.Add([]byte{3, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1}, true)
	l := buffer.Layout{Slots: 2, SlotSize: 4096, Stride: 4096}
	f.Fuzz(func(t *testing.T, b []byte, withFD bool) {
		if len(b) > 100_000 {
			t.Skip("more than the socket holds")
		}
		before := holdings(t)
		a, z := socketPair(t)
		if withFD && len(b) > 0 {
			fd := memfd(t, 4096)
			z.WriteMsgUnix(b, unix.UnixRights(fd, fd), nil)
			unix.Close(fd)
		} else {
			z.Write(b)
		}
		z.Close()
		got, err := readAnswer(a)
		a.Close()
		if err != nil && got.fd >= 0 {
			t.Errorf("error %v, and descriptor %d is kept", err, got.fd)
		}
		if err == nil {
			if spans, err := parseSpans(got.text, l); err == nil && len(appendSpans(nil, spans)) != len(got.text) {
				t.Errorf("list %x reads as %v", got.text, spans)
			}
		}
		discard(got)
		if after := holdings(t); after != before {
			t.Errorf("before: %s, after: %s", before, after)
		}
	})
}

func socketPair(t *testing.T) (a, z *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		return testkit.Must[net.Conn](t)(net.FileConn(f)).(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}
