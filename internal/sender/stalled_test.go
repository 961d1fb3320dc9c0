package sender

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// A receiver that hangs holds up no other one. In these tests the first of two
// hangs, with more asked of it than there is staging for.

// hanging starts two receivers and a Run that sends to both. The first is
// written through the first of the remotes.
func hanging(t *testing.T, slots int, remotes ...rdma.Remote) (*sending, *pipe, []*fakeReceiver) {
	t.Helper()
	return hangingWith(t, Config{Staging: int64(slots) * fakeSlot}, remotes...)
}

func hangingWith(t *testing.T, cfg Config, remotes ...rdma.Remote) (*sending, *pipe, []*fakeReceiver) {
	t.Helper()
	var fakes []*fakeReceiver
	byID := map[string]rdma.Remote{}
	for _, r := range remotes {
		f := startFake(t)
		fakes = append(fakes, f)
		byID[f.endpoint] = r
		cfg.Receivers = append(cfg.Receivers, f.endpoint)
	}
	cfg.attach = func(ctx context.Context, _ string, at rdma.Attachment) (rdma.Remote, error) {
		if r := byID[at.ReceiverID]; r != nil {
			return r, nil
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	in := newPipe(t)
	cfg.Stdin = in.r
	return send(t, cfg), in, fakes
}

// lineTo is a line with all of a request for the n-th receiver.
func lineTo(n int, id string, chunks int) string {
	return strings.Replace(manifestLine(id, chunks, 0, chunks-1, 100), `"last"`, fmt.Sprintf(`"to":%d,"last"`, n), 1)
}

func TestReceiverThatHangsInWrites(t *testing.T) {
	for name, tt := range map[string]struct {
		before int // chunks that are written before it hangs
		holds  int // staging slots then, at most
	}{
		"from the first on":  {0, 4},
		"while it was alone": {30, 6}, // it has borrowed
	} {
		t.Run(name, func(t *testing.T) {
			first, second := newFakeRemote(), newFakeRemote()
			first.holdAfter(tt.before)
			s, in, _ := hanging(t, 8, first, second)
			for i := range 10 {
				in.write(lineTo(0, fmt.Sprint("A", i), 8))
			}
			first.waitWrites(t, tt.before+4)
			for i := range 20 {
				id := fmt.Sprint("B", i)
				in.write(lineTo(1, id, 8))
				wantResult(t, s.result(id), Ready, "")
			}
			if n := first.begun() - tt.before; n > tt.holds {
				t.Errorf("it holds %d staging slots, %d at most are its", n, tt.holds)
			}
			first.setHold(false)
			in.close()
			if sum := s.wait(); sum.Ready != 30 {
				t.Errorf("%+v", sum)
			}
		})
	}
}

func TestReceiverThatHangsInAttach(t *testing.T) {
	second := newFakeRemote()
	s, in, fakes := hanging(t, 8, nil, second)
	in.write(lineTo(0, "A", 8))
	fakes[0].wait("AttachRequest", 1, is[*wire.AttachRequest])
	for i := range 20 {
		id := fmt.Sprint("B", i)
		in.write(lineTo(1, id, 8))
		wantResult(t, s.result(id), Ready, "")
	}
	in.write(cancelLine("A"))
	wantResult(t, s.result("A"), Cancelled, "")
	in.close()
	s.wait()
}

// slowWire is memory behind a network that takes its time for each write, one after
// another.
type slowWire struct {
	*fakeRemote
	busy sync.Mutex
	each time.Duration
}

func (w *slowWire) Write(context.Context, []rdma.Op) error {
	w.busy.Lock()
	defer w.busy.Unlock()
	time.Sleep(w.each)
	return nil
}

// The other receivers keep their rate.
func TestRateBesideAReceiverThatHangs(t *testing.T) {
	const requests, each, tries = 25, time.Millisecond, 5
	measure := func(t *testing.T, s *sending, in *pipe, to int) time.Duration {
		start := time.Now()
		for i := range requests {
			in.write(lineTo(to, fmt.Sprint("B", i), 8))
		}
		for i := range requests {
			wantResult(t, s.result(fmt.Sprint("B", i)), Ready, "")
		}
		return time.Since(start)
	}
	alone := func(t *testing.T) time.Duration {
		s, in, _ := hanging(t, 8, &slowWire{newFakeRemote(), sync.Mutex{}, each})
		defer s.wait()
		defer in.close()
		return measure(t, s, in, 0)
	}
	beside := func(t *testing.T) time.Duration {
		first := newFakeRemote()
		first.setHold(true)
		s, in, _ := hanging(t, 8, first, &slowWire{newFakeRemote(), sync.Mutex{}, each})
		defer s.wait()
		defer in.close()
		defer first.setHold(false)
		for i := range 10 {
			in.write(lineTo(0, fmt.Sprint("A", i), 8))
		}
		first.waitWrites(t, 4)
		return measure(t, s, in, 1)
	}
	var best float64
	for range tries { // the machine may be busy
		a, b := alone(t), beside(t)
		t.Logf("%d chunks: %v alone, %v beside one that hangs", requests*8, a, b)
		if best = max(best, float64(a)/float64(b)); best >= 0.8 {
			return
		}
	}
	t.Errorf("beside a receiver that hangs the rate is %.2f of alone", best)
}
