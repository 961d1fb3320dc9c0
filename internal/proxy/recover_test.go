package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

const askEvery = 50 * time.Millisecond

// fakeReceiver answers ReadyRequests as it is told to.
type fakeReceiver struct {
	endpoint string
	mu       sync.Mutex
	say      func(*wire.ReadyRequest) wire.Message // nil: nothing
	asked    int
}

func receiver(t *testing.T, say func(*wire.ReadyRequest) wire.Message) *fakeReceiver {
	t.Helper()
	f := &fakeReceiver{say: say}
	zctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	router, endpoint, err := zctx.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.endpoint = endpoint
	stop, done := make(chan struct{}), make(chan struct{})
	poller := testkit.Poller(t, router, zmq4.POLLIN)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				router.Close()
				_ = zctx.Close()
				return
			default:
			}
			_, _ = poller.Wait(10 * time.Millisecond)
			if frames, err := sock.Recv(router, 4); err == nil {
				f.answer(router, frames)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
	return f
}

func (f *fakeReceiver) answer(router *zmq4.Socket, frames [][]byte) {
	m, err := wire.Decode(frames[3])
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.say != nil {
		_ = sock.Send(router, frames[0], frames[1], frames[2], wire.Append(nil, f.say(m.(*wire.ReadyRequest))))
	}
}

func (f *fakeReceiver) now(say func(*wire.ReadyRequest) wire.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.say = say
}

// waitAsked waits until it has been asked so often.
func (f *fakeReceiver) waitAsked(n int) {
	for asked := 0; asked < n; {
		f.mu.Lock()
		asked = f.asked
		f.mu.Unlock()
		time.Sleep(askEvery / 10)
	}
}

// life is a receiver in which these became ready, in order, two to a page.
func life(epoch uint64, ids ...string) func(*wire.ReadyRequest) wire.Message {
	return func(q *wire.ReadyRequest) wire.Message {
		resp := &wire.ReadyResponse{Epoch: epoch}
		for i, id := range ids {
			seq := uint64(i) + 1
			if q.Epoch == epoch && seq <= q.After {
				continue
			}
			if resp.More = len(resp.Entries) == 2; resp.More {
				break
			}
			resp.Entries = append(resp.Entries, wire.ReadyEntry{Seq: seq, ReqID: id})
		}
		return resp
	}
}

// tells checks that just these are told next, in any order.
func (r *running) tells(t *testing.T, ids ...string) {
	t.Helper()
	var got []string
	for range ids {
		o := r.next(t)
		if o.Status != Ready {
			t.Errorf("told %+v", o)
		}
		got = append(got, o.ReqID)
	}
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("told %q, want %q", got, ids)
	}
}

// says waits for a note with each of these texts.
func (r *running) says(t *testing.T, words ...string) {
	t.Helper()
	for {
		select {
		case text := <-r.noted:
			missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
			if !missing {
				return
			}
		case <-time.After(patience):
			t.Fatalf("no note says %q", words)
		}
	}
}

// What is ready is told page by page, once, whatever else tells of it.
func TestRecover(t *testing.T) {
	t.Parallel()
	f := receiver(t, life(7, "A", "B", "C", "D", "E"))
	r := start(t, Config{Recover: []string{f.endpoint}, askEvery: askEvery})
	r.tells(t, "A", "B", "C", "D", "E")
	push(t, r.endpoint, ready("C"), ready("F"))
	r.tells(t, "F")
	f.now(life(7, "A", "B", "C", "D", "E", "F", "G"))
	r.tells(t, "G")
	r.cancel()
	if s, err := r.wait(t); err != nil || s.Ready != 7 || s.Recovered != 6 || s.Duplicates != 1 {
		t.Errorf("%v, %v", s, err)
	}
}

// A receiver that does not answer is asked until it does, and that is said once;
// one that was started anew tells all that it has.
func TestRecoverWaits(t *testing.T) {
	t.Parallel()
	f := receiver(t, nil)
	r := start(t, Config{Recover: []string{f.endpoint}, askEvery: askEvery})
	r.says(t, f.endpoint, "is pd-recv running there?", "asking again")
	f.waitAsked(4)
	if n := len(r.noted); n > 0 {
		t.Errorf("%d more notes, the first: %s", n, <-r.noted)
	}
	f.now(life(1<<60, "A", "B"))
	r.says(t, f.endpoint, "answers")
	r.tells(t, "A", "B")
	f.now(life(1<<60+1, "B", "C"))
	r.says(t, f.endpoint, "started anew")
	r.tells(t, "C")
}

// One that is too old to know the question, and one that makes no sense.
func TestRecoverFrom(t *testing.T) {
	t.Parallel()
	old := receiver(t, func(*wire.ReadyRequest) wire.Message {
		return &wire.AllocResponse{RemoteIndexes: []int64{-1}, Code: wire.CodeBadRequest, Error: `type: unknown message "ReadyRequest"`}
	})
	mad := receiver(t, func(*wire.ReadyRequest) wire.Message {
		return &wire.ReadyResponse{Epoch: 7, Entries: []wire.ReadyEntry{{Seq: 5, ReqID: "A"}, {Seq: 5, ReqID: "B"}}, More: true}
	})
	for _, tc := range []struct {
		f    *fakeReceiver
		want string
	}{{old, "unknown message"}, {mad, "number 5 behind number 5"}} {
		r := start(t, Config{Recover: []string{tc.f.endpoint}, askEvery: askEvery})
		r.says(t, tc.f.endpoint, tc.want)
		push(t, r.endpoint, ready("N"))
		r.tells(t, "N")
	}
}

// Of two ranks each has its receiver: what one said before it was started anew
// does not count any more.
func TestRecoverRanks(t *testing.T) {
	t.Parallel()
	f, g := receiver(t, life(1, "A", "B", "C", "D")), receiver(t, life(9))
	r := start(t, Config{Expect: 2, Recover: []string{f.endpoint, g.endpoint}, askEvery: askEvery})
	f.waitAsked(3) // two pages, and the one after
	push(t, r.endpoint, failed("D", "no room"))
	if o := r.next(t); o.ReqID != "D" || o.Status != Failed {
		t.Errorf("told %+v", o)
	}
	f.now(life(2, "B", "C"))
	r.says(t, f.endpoint, "started anew")
	g.now(life(9, "A", "B", "D"))
	r.tells(t, "B")
	push(t, r.endpoint, ready("C"))
	push(t, r.endpoint, ready("A"), ready("A")) // a rank more than expected, so that it ends
	r.tells(t, "A")
	push(t, r.endpoint, ready("C"))
	r.tells(t, "C")
}

// -n and --timeout end it while receivers are silent, and at once.
func TestRecoverEnds(t *testing.T) {
	t.Parallel()
	silent := receiver(t, nil)
	f := receiver(t, life(1, "A", "B", "C"))
	began := time.Now()
	r := start(t, Config{Count: 2, Recover: []string{silent.endpoint, f.endpoint}})
	if s, err := r.wait(t); err != nil || s.Ready < 2 {
		t.Errorf("%v, %v", s, err)
	}
	r = start(t, Config{Timeout: 100 * time.Millisecond, Recover: []string{silent.endpoint}})
	if _, err := r.wait(t); err != ErrTimeout {
		t.Errorf("ends with %v", err)
	}
	if took := time.Since(began); took >= defaultAskEvery {
		t.Errorf("it took %v", took)
	}
}

// A receiver that has very much is heard a page at a time; notifications come
// through meanwhile.
func TestRecoverMuch(t *testing.T) {
	t.Parallel()
	f := receiver(t, func(q *wire.ReadyRequest) wire.Message {
		resp := &wire.ReadyResponse{Epoch: 1, More: true}
		for i := range uint64(wire.MaxReadyList) {
			resp.Entries = append(resp.Entries, wire.ReadyEntry{Seq: q.After + i + 1, ReqID: fmt.Sprint(q.After + i + 1)})
		}
		return resp
	})
	r := start(t, Config{Expect: 2, Recover: []string{f.endpoint}, askEvery: time.Second})
	push(t, r.endpoint, ready("N"), ready("N"))
	r.tells(t, "N")
	r.cancel()
	if s, err := r.wait(t); err != nil || s.Pending > maxPending {
		t.Errorf("%v, %v", s, err)
	}
}
