package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

const patience = 20 * time.Second // for what takes milliseconds

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// leavesNothing fails the test if, when it is over and all it cleaned up, the
// process has more of our files, sockets or mappings than before.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := holdings(t)
	t.Cleanup(func() {
		testkit.Eventually(t, patience, "files, sockets and mappings as before", func() bool { return holdings(t) == before })
		if after := holdings(t); after != before {
			t.Errorf("before: %s, after: %s", before, after)
		}
	})
}

func holdings(t *testing.T) string {
	t.Helper()
	memfds, sockets := 0, 0
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		switch link, _ := os.Readlink("/proc/self/fd/" + fd.Name()); {
		case strings.Contains(link, "memfd:"):
			memfds++
		case strings.HasPrefix(link, "socket:"):
			sockets++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d memfds, %d sockets, %d mappings", memfds, sockets, strings.Count(string(maps), "memfd:"))
}

func receive[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not so after %v: %s", patience, what)
	}
	return v
}

// testTarget is a buffer and its server, as rdma/engines puts them together.
type testTarget struct {
	*Server
	id   string
	gone chan rdma.Writer
}

func openTarget(id string, slots int, size int64) (*testTarget, error) {
	b, err := buffer.New(slots, size)
	if err != nil {
		return nil, err
	}
	t := &testTarget{id: id, gone: make(chan rdma.Writer, 1000)}
	if t.Server, err = Serve(b, id, func(w rdma.Writer) { t.gone <- w }); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return t, nil
}

func (t *testTarget) Regions() []rdma.Region {
	regions := make([]rdma.Region, t.buffer.Regions())
	for i := range regions {
		regions[i].ID = i
	}
	return regions
}

func (t *testTarget) Slot(i int) []byte { return t.buffer.Slot(i) }

// Revoke counts all writers as of tick 1.
func (t *testTarget) Revoke(slots []int) (int, error) { return t.buffer.Revoke(slots, 1) }

func (t *testTarget) Close() error { return errors.Join(t.Server.Close(), t.buffer.Close()) }

// attachment is what a receiver would tell a sender that attaches as w.
func (t *testTarget) attachment(w rdma.Writer) (rdma.Attachment, error) {
	token, err := t.Grant(w)
	return rdma.Attachment{
		ReceiverID: t.id,
		Token:      token,
		Regions:    t.Regions(),
		SlotSize:   t.buffer.SlotSize(),
		Slots:      t.buffer.Slots(),
	}, err
}

func newTarget(t *testing.T, slots int, size int64) *testTarget {
	t.Helper()
	leavesNothing(t)
	target := testkit.Must[*testTarget](t)(openTarget(t.Name(), slots, size))
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	})
	return target
}

func attachment(t *testing.T, target *testTarget, w rdma.Writer) rdma.Attachment {
	t.Helper()
	return testkit.Must[rdma.Attachment](t)(target.attachment(w))
}

func attach(t *testing.T, target *testTarget, w rdma.Writer) *remote {
	t.Helper()
	r := testkit.Must[rdma.Remote](t)(Attach(t.Context(), attachment(t, target, w))).(*remote)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func write(t *testing.T, r rdma.Remote, region, slot int, b []byte) {
	t.Helper()
	if err := r.Write(context.Background(), []rdma.Op{{Local: b, Region: region, Slot: slot}}); err != nil {
		t.Fatal(err)
	}
}

// memfd is a sealed memory file of size bytes, as a buffer's regions are.
func memfd(t *testing.T, size int64) int {
	t.Helper()
	b := testkit.Must[*buffer.Buffer](t)(buffer.New(1, size))
	defer b.Close()
	return testkit.Must[int](t)(unix.FcntlInt(uintptr(b.FD(0)), unix.F_DUPFD_CLOEXEC, 0))
}
