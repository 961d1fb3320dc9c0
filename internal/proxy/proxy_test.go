package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"go.uber.org/goleak"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a Run in the background.
type running struct {
	endpoint string
	cancel   context.CancelFunc
	told     chan Outcome
	warned   chan string
	noted    chan string
	done     chan struct{}
	summary  Summary // these two when done is closed
	err      error
}

func start(t *testing.T, cfg Config) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{cancel: cancel, told: make(chan Outcome, 100_000), warned: make(chan string, 1000), noted: make(chan string, 1000), done: make(chan struct{})}
	listening := make(chan string, 1)
	cfg.Listen = "tcp://127.0.0.1:*"
	cfg.Expect = max(cfg.Expect, 1)
	cfg.Listening = func(endpoint string) { listening <- endpoint }
	cfg.Tell = func(o Outcome) { r.told <- o }
	cfg.Warn = func(_, text string) {
		select {
		case r.warned <- text:
		default: // more than anybody looks at
		}
	}
	cfg.Note = func(text string) { r.noted <- text }
	go func() {
		defer close(r.done)
		r.summary, r.err = Run(ctx, cfg)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	select {
	case r.endpoint = <-listening:
	case <-r.done:
		t.Fatal(r.err)
	}
	return r
}

func (r *running) wait(t *testing.T) (Summary, error) {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		t.Fatal("Run does not end")
	}
	return r.summary, r.err
}

func (r *running) next(t *testing.T) Outcome {
	t.Helper()
	select {
	case o := <-r.told:
		return o
	case <-time.After(patience):
		t.Fatal("nothing is told")
	}
	panic("unreachable")
}

// push sends each message, given as frames, over one connection, and returns
// when ZeroMQ has handed all to the kernel.
func push(t *testing.T, endpoint string, messages ...[][]byte) {
	t.Helper()
	if err := tryPush(endpoint, messages); err != nil {
		t.Error(err)
	}
}

func tryPush(endpoint string, messages [][][]byte) error {
	zctx, err := sock.NewContext(nil)
	if err != nil {
		return err
	}
	s, err := zctx.Dial(zmq4.PUSH, endpoint, sock.Options{Linger: patience})
	if err != nil {
		return err
	}
	poller, err := sock.NewPoller()
	if err != nil {
		return err
	}
	defer poller.Close()
	if err := poller.Watch(s, zmq4.POLLOUT); err != nil {
		return err
	}
	for _, frames := range messages {
		if _, err := poller.Wait(patience); err != nil {
			return err
		}
		if err := sock.Send(s, frames...); err != nil {
			return err
		}
	}
	s.Close()
	return zctx.Close()
}

func ready(id string) [][]byte {
	return [][]byte{wire.Append(nil, &wire.ProxyNotif{ReqID: id})}
}

func failed(id, reason string) [][]byte {
	return [][]byte{wire.Append(nil, &wire.FailNotif{ReqID: id, Reason: reason})}
}

func TestOutcome(t *testing.T) {
	r := start(t, Config{Expect: 2, Count: 2})
	push(t, r.endpoint, ready("A"), ready("B"), failed("A", "no room"), ready("B"))
	a, b := r.next(t), r.next(t)
	for _, o := range []Outcome{a, b} {
		if age := time.Since(o.Time); age < 0 || age > patience || o.Time.Location() != time.UTC {
			t.Errorf("time is %v", o.Time)
		}
	}
	if a.Took <= 0 || a.Took > patience || b.Took <= 0 {
		t.Errorf("took %v and %v", a.Took, b.Took)
	}
	a.Time, b.Time, a.Took, b.Took = time.Time{}, time.Time{}, 0, 0
	if want := (Outcome{ReqID: "A", Status: Failed, Notifs: 2, Reason: "no room"}); a != want {
		t.Errorf("told %+v, want %+v", a, want)
	}
	if want := (Outcome{ReqID: "B", Status: Ready, Notifs: 2}); b != want {
		t.Errorf("told %+v, want %+v", b, want)
	}
	if s, err := r.wait(t); err != nil || s.Ready != 1 || s.Failed != 1 {
		t.Errorf("%v, %v", s, err)
	}
}

// snapshot is what a monitor is answered.
func (r *running) snapshot(t *testing.T, asks *monitor.Asks) *wire.ProxySnapshot {
	t.Helper()
	got := make(chan wire.Message, 1)
	asks.Add(func(m wire.Message) { got <- m })
	select {
	case m := <-got:
		return m.(*wire.ProxySnapshot)
	case <-time.After(patience):
		t.Fatal("nobody answers")
	case <-r.done:
		t.Fatal("Run has ended without an answer")
	}
	panic("unreachable")
}

// Whoever asks is answered while it reads what has arrived, too, and that the
// loop was woken ends no reading.
func TestAnswersWhileDraining(t *testing.T) {
	asks := monitor.NewAsks(nil)
	r := start(t, Config{Asks: asks, quiet: 3 * time.Second, drain: 2 * patience})
	r.cancel()
	for range 20 {
		r.snapshot(t, asks)
	}
	push(t, r.endpoint, ready("A"))
	if s, err := r.wait(t); err != nil || s.Ready != 1 {
		t.Errorf("%v: %v", s, err)
	}
}

// A monitor sees who waits, oldest first, and that they wait no more.
func TestSnapshot(t *testing.T) {
	asks := monitor.NewAsks(nil)
	r := start(t, Config{Expect: 2, Count: 2, Asks: asks, ID: "P", Epoch: 7})
	until := func(pending int) *wire.ProxySnapshot {
		t.Helper()
		for end := time.Now().Add(patience); ; {
			if s := r.snapshot(t, asks); s.Pending == pending {
				return s
			}
			if time.Now().After(end) {
				t.Fatalf("never %d pending", pending)
			}
		}
	}
	if s := until(0); s.Kind != wire.KindProxy || s.ID != "P" || s.Epoch != 7 || s.Endpoint != r.endpoint || s.Expect != 2 || s.UptimeS <= 0 || s.Waiting == nil {
		t.Errorf("%+v", s)
	}
	push(t, r.endpoint, ready("A"), ready("B"), ready("C"), ready("B"), [][]byte{nil, nil, nil})
	s := until(2)
	if len(s.Waiting) != 2 || s.Waiting[0].ReqID != "A" || s.Waiting[1].ReqID != "C" || s.Waiting[0].AgeMS < s.Waiting[1].AgeMS || s.Waiting[0].Notifs != 1 {
		t.Errorf("waiting: %+v", s.Waiting)
	}
	if r := s.Counters.Ready; r != 1 {
		t.Errorf("%d ready", r)
	}
	push(t, r.endpoint, failed("A", "no room"))
	if sum, err := r.wait(t); err != nil || sum.Ready != 1 || sum.Failed != 1 || sum.BadFrames != 1 || sum.Pending != 1 {
		t.Errorf("%v, %v", sum, err)
	}
}

func TestSnapshotIsCut(t *testing.T) {
	c := &collector{tally: NewTally(2)}
	for i := range wire.MaxSnapshotList + 10 {
		c.tally.Ready(noon, fmt.Sprint(i))
	}
	s := c.snapshot().(*wire.ProxySnapshot)
	if len(s.Waiting) != wire.MaxSnapshotList || s.Pending != wire.MaxSnapshotList+10 || s.Waiting[0].ReqID != "0" {
		t.Errorf("%d listed, %d pending", len(s.Waiting), s.Pending)
	}
}

// F8: whatever arrives, every good request is served, and the bad ones counted.
func TestBadFrames(t *testing.T) {
	r := start(t, Config{})
	seven := slices.Repeat([][]byte{[]byte("x")}, 7)
	good := ready("G")[0]
	bad := []struct {
		frames [][]byte
		want   string // what is said
	}{
		{[][]byte{{}}, "0 bytes"},
		{[][]byte{[]byte("x")}, "1 bytes"},
		{seven, "too many frames"},
		{[][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}, "18 bytes"},
		{[][]byte{[]byte(strings.Repeat("\xc1\x07\xff", 341))}, "1023 bytes"},
		{[][]byte{{0x05}}, "1 bytes"},
		{[][]byte{[]byte("\x82\xa4type\xa8Surprise\xa6req_id\xa1A")}, "Surprise"},
		{[][]byte{good, {}}, "message of 2 frames"},
		{[][]byte{{}, {}}, "0 bytes"},
		{ready(""), "req_id is empty"},
		{failed("", "why"), "req_id is empty"},
		{[][]byte{wire.Append(nil, &wire.CancelNotif{ReqID: "A"})}, "CancelNotif is no notification"},
		{[][]byte{wire.Append(nil, &wire.StatRequest{})}, "StatRequest is no notification"},
	}
	for i, tc := range bad {
		id := fmt.Sprintf("good-%d", i)
		push(t, r.endpoint, tc.frames, ready(id))
		if o := r.next(t); o.ReqID != id || o.Status != Ready {
			t.Errorf("after bad frame %d: told %+v", i, o)
		}
		if text := <-r.warned; !strings.Contains(text, tc.want) {
			t.Errorf("bad frame %d: said %q, want %q", i, text, tc.want)
		}
	}
	r.cancel()
	if s, err := r.wait(t); err != nil || s.BadFrames != int64(len(bad)) || s.Ready != int64(len(bad)) {
		t.Errorf("%v, %v; want %d of each", s, err, len(bad))
	}
}

// A delimiter in front of the notification does no harm.
func TestEmptyFrameInFront(t *testing.T) {
	r := start(t, Config{Count: 2})
	push(t, r.endpoint, append([][]byte{{}}, ready("A")...), append([][]byte{{}}, failed("B", "")...))
	if a, b := r.next(t), r.next(t); a.ReqID != "A" || b.ReqID != "B" {
		t.Errorf("told %+v, %+v", a, b)
	}
}

// All that has arrived is told before it ends: one connection's notifications
// lie in ZeroMQ's queue and in the kernel when Run is told to stop.
func TestDrains(t *testing.T) {
	for _, count := range []int{0, 1} { // ends when cancelled, or by itself
		t.Run(fmt.Sprint("count ", count), func(t *testing.T) {
			t.Parallel()
			const n = 5000
			var messages [][][]byte
			for i := range n {
				messages = append(messages, ready(fmt.Sprint("r", i)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			told := 0
			s, err := Run(ctx, Config{
				Listen: "tcp://127.0.0.1:*", Expect: 1, Count: count, quiet: 3 * time.Second, drain: patience,
				Listening: func(endpoint string) { // and nothing is read before it returns
					push(t, endpoint, messages...)
					if count == 0 {
						cancel()
					}
				},
				Tell: func(Outcome) { told++ },
			})
			if err != nil || s.Ready != n || told != n {
				t.Errorf("%v, told %d, want %d: %v", s, told, n, err)
			}
		})
	}
}

// A program that was stopped until its time to drain was over has not read
// meanwhile: what has arrived is told all the same.
func TestDrainsAfterAStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Run(ctx, Config{
		Listen: "tcp://127.0.0.1:*", Expect: 1, quiet: patience, drain: time.Nanosecond,
		Listening: func(endpoint string) { push(t, endpoint, ready("A")); cancel() },
		Tell:      func(Outcome) {},
	})
	if err != nil || s.Ready != 1 {
		t.Errorf("%v, want 1 ready: %v", s, err)
	}
}

func TestTimeout(t *testing.T) {
	begin := time.Now()
	r := start(t, Config{Count: 2, Timeout: 100 * time.Millisecond})
	if _, err := r.wait(t); !errors.Is(err, ErrTimeout) || time.Since(begin) < 100*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	r = start(t, Config{Count: 1, Timeout: patience})
	push(t, r.endpoint, ready("A"))
	if s, err := r.wait(t); err != nil || s.Ready != 1 {
		t.Errorf("%v, %v", s, err)
	}
}

// F40: many senders at once, all notifications twice, and signals that
// interrupt every system call: each id once.
func TestManySenders(t *testing.T) {
	const senders, each = 8, 1000
	stop := make(chan struct{})
	defer close(stop)
	go interrupt(stop)
	r := start(t, Config{Count: senders * each})
	var wg sync.WaitGroup
	for range 2 {
		for s := range senders {
			wg.Go(func() {
				var messages [][][]byte
				for i := range each {
					messages = append(messages, ready(fmt.Sprintf("%d-%d", s, i)))
				}
				push(t, r.endpoint, messages...)
			})
		}
	}
	seen := map[string]bool{}
	for range senders * each {
		o := r.next(t)
		if seen[o.ReqID] {
			t.Fatalf("%s is told twice", o.ReqID)
		}
		seen[o.ReqID] = true
	}
	wg.Wait()
	if s, err := r.wait(t); err != nil || s.Ready != senders*each {
		t.Errorf("%v, %v", s, err)
	}
}

// interrupt sends this process signals that it ignores, as fast as it can.
func interrupt(stop <-chan struct{}) {
	for {
		for _, s := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD, syscall.SIGCONT} {
			_ = syscall.Kill(os.Getpid(), s)
		}
		select {
		case <-stop:
			return
		default:
			runtime.Gosched()
		}
	}
}

func TestWarnings(t *testing.T) {
	r := start(t, Config{})
	push(t, r.endpoint, ready("A"), failed("A", "expired"))
	r.next(t)
	if text := <-r.warned; text != "A failed after it was told as ready: expired" {
		t.Error(text)
	}
}

func TestPortTaken(t *testing.T) {
	r := start(t, Config{})
	const tries, limit = 5, time.Second
	var took time.Duration
	for range tries { // a busy machine may be slow now and then
		begin := time.Now()
		_, err := Run(t.Context(), Config{Listen: r.endpoint, Expect: 1})
		if err == nil || !strings.Contains(err.Error(), r.endpoint) {
			t.Fatalf("error %v, want one that names %s", err, r.endpoint)
		}
		if took = time.Since(begin); took <= limit {
			return
		}
	}
	t.Errorf("took %v, want %v", took, limit)
}
