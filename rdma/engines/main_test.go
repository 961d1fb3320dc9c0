package engines

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

const patience = 20 * time.Second // for what takes milliseconds

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer is a second engine, whose connections the test decides.
type fakeServer struct {
	gone func(rdma.Writer)

	mu     sync.Mutex
	inside map[rdma.Writer]bool // whether it has connected
	opened map[int]rdma.Writer  // slots that are open, and to whom
	closed bool
}

func (f *fakeServer) Desc() []byte { return []byte("fake region") }

func (f *fakeServer) Grant(w rdma.Writer) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("the fake engine is closed")
	}
	f.inside[w] = f.inside[w]
	return fmt.Appendf(nil, "writer %d", w), nil
}

func (f *fakeServer) connect(w rdma.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside[w] = true
}

func (f *fakeServer) disconnect(w rdma.Writer) {
	f.mu.Lock()
	delete(f.inside, w)
	f.mu.Unlock()
	f.gone(w)
}

func (f *fakeServer) Withdraw(w rdma.Writer) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.inside[w] {
		delete(f.inside, w)
	}
	return f.inside[w]
}

func (f *fakeServer) Open(w rdma.Writer, slot int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.inside[w] {
		return nil, errors.New("not connected")
	}
	f.opened[slot] = w
	return fmt.Appendf(nil, "writer %d slot %d", w, slot), nil
}

func (f *fakeServer) Shut(slot int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.opened, slot)
}

func (f *fakeServer) Leave(slot int) { f.Shut(slot) }

func (f *fakeServer) openTo(slot int) (w rdma.Writer, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, open = f.opened[slot]
	return w, open
}

func (f *fakeServer) Close() error {
	f.mu.Lock()
	f.closed = true
	inside := f.inside
	f.inside = nil
	f.mu.Unlock()
	for w, connected := range inside {
		if connected {
			f.gone(w)
		}
	}
	return nil
}

// withFake adds the fake engine to the table for a test. The server is there
// when a target was opened; serveErr fails that.
func withFake(t *testing.T, serveErr error) *fakeServer {
	t.Helper()
	fake := &fakeServer{inside: make(map[rdma.Writer]bool), opened: make(map[int]rdma.Writer)}
	table := engines
	engines = append(slices.Clip(engines), engine{
		name: "fake",
		serve: func(_ *buffer.Buffer, _ string, _ rdma.Fabric, gone func(rdma.Writer)) (rdma.Server, error) {
			fake.gone = gone
			return fake, serveErr
		},
	})
	t.Cleanup(func() { engines = table })
	return fake
}

func open(t *testing.T, slots int, size int64, names ...string) *target {
	t.Helper()
	leavesNothing(t)
	opened := testkit.Must[rdma.Target](t)(Open(Config{ReceiverID: t.Name(), Slots: slots, SlotSize: size, Engines: names})).(*target)
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	return opened
}

// attach connects w under shm.
func attach(t *testing.T, target *target, w rdma.Writer) rdma.Remote {
	t.Helper()
	r := testkit.Must[rdma.Remote](t)(Attach(t.Context(), "shm", rdma.Attachment{
		ReceiverID: t.Name(), Token: testkit.Must[[]byte](t)(target.Grant(w, "shm")), Regions: target.Regions("shm"),
		SlotSize: target.buffer.SlotSize(), Slots: target.buffer.Slots(),
	}))
	t.Cleanup(func() { r.Close() })
	return r
}

// leavesNothing fails the test if, when it is over and all it cleaned up, the
// process has more of our files than before.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := memfds(t)
	t.Cleanup(func() {
		if after := memfds(t); after != before {
			t.Errorf("%d memory files before, %d after", before, after)
		}
	})
}

func memfds(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if link, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(link, "memfd:") {
			n++
		}
	}
	return n
}

// used is the memory that a region takes, in bytes.
func used(t *testing.T, target *target, region int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(target.buffer.FD(region), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func wantGone(t *testing.T, target rdma.Target, want rdma.Writer) {
	t.Helper()
	select {
	case w := <-target.Gone():
		if w != want {
			t.Fatalf("writer %d is gone, want %d", w, want)
		}
	case <-time.After(patience):
		t.Fatalf("writer %d is not gone after %v", want, patience)
	}
}
