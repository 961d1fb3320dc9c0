package shm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
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
		eventually(t, "files, sockets and mappings as before", func() bool { return holdings(t) == before })
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

// needFiles skips a test that opens more files than the system lets it.
func needFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < n {
		t.Skipf("needs %d files open, the limit is %d", n, limit.Cur)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %v: %s", patience, what)
		}
	}
}

// must returns v and ends the test on an error.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wantError fails the test unless err says all of the words.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
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

func newTarget(t *testing.T, slots int, size int64) *Target {
	t.Helper()
	leavesNothing(t)
	target := must[rdma.Target](t)(NewTarget(t.Name(), slots, size)).(*Target)
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	})
	return target
}

// attachment is what a receiver would tell a sender that attaches as w.
func attachment(t *testing.T, target *Target, w rdma.Writer) rdma.Attachment {
	t.Helper()
	return rdma.Attachment{
		ReceiverID: t.Name(),
		Token:      must[[]byte](t)(target.Grant(w, Name)),
		Regions:    target.Regions(Name),
		SlotSize:   target.mem.size,
		Slots:      target.mem.slots,
	}
}

func attach(t *testing.T, target *Target, w rdma.Writer) *remote {
	t.Helper()
	r := must[rdma.Remote](t)(Attach(t.Context(), attachment(t, target, w))).(*remote)
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
