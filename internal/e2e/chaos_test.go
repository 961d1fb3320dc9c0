package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

// A receiver is killed while two senders are in full run: each ends within its
// time-out and says of every request how it ended.
func TestReceiverDiesUnderLoad(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	trace := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(trace, []byte(output(t, 0, "gentrace", "--requests", "200")), 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := output(t, 0, "pd-send", "manifest", "--chunk-size", "16KiB", "--interleave", "16", trace)
	r := receiveChunks(t, 128, 16<<10, "--sink")
	proxy, to := proxied(t)
	var senders []*program
	halves := halves(t, manifest)
	for _, half := range halves {
		senders = append(senders, start(t, strings.NewReader(half), "pd-send", "--to", r.endpoint, "--proxy", to, "--timeout", timeout.String()))
	}
	r.until("ten requests to be ready", func() bool { return strings.Count(strings.Join(r.out, "\n"), `"event":"ready"`) >= 10 })
	r.kill(syscall.SIGKILL)
	killed := time.Now()
	ready := 0
	for i, s := range senders {
		if code := s.exits(); code != 1 || time.Since(killed) > 2*timeout+soon {
			t.Errorf("a sender ends with %d, %v after its receiver", code, time.Since(killed))
		}
		ended := map[string]int{}
		for _, l := range s.lines() {
			ended[l.str("req_id")]++
			if l.str("status") == "ready" {
				ready++
			} else if l.str("error") == "" {
				t.Errorf("it does not say why: %v", l)
			}
		}
		for id := range totals(t, halves[i]) {
			if ended[id] != 1 {
				t.Errorf("of request %s there are %d lines", id, ended[id])
			}
		}
	}
	proxy.until("all that is ready to reach the proxy", func() bool {
		return strings.Count(strings.Join(proxy.out, "\n"), `"status":"ready"`) == ready
	})
}

// TestChaos lets everything happen at once: requests that share chunks, whose
// lines come interleaved, late or never, cancels at any moment, senders that
// are stopped for longer than their lease and killed, and signals that mean
// nothing. At the end every request of a sender that lived has ended once and
// every slot is free.
func TestChaos(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func chaos(t *testing.T, rnd *rand.Rand) {
	r := receive(t, 32, "--lease", "300ms", "--legacy-lease", "300ms", "--admit-timeout", "2s", "--ready-ttl", "5s", "--overtake", "2")
	proxy, to := proxied(t)
	const turns = 400
	type live struct {
		*fed
		open map[string]int // requests not finished: chunks sent
		all  []string
		next int
		name string
	}
	fresh := 0
	begin := func() *live {
		fresh++
		return &live{
			fed:  send(t, r, "--proxy", to, "--staging-size", "8KiB", "--batch", "3", "--timeout", "10s"),
			open: map[string]int{}, name: fmt.Sprint("s", fresh),
		}
	}
	total := func(id string) int { return 1 + len(id)*7%12 }
	keysOf := func(id string, first, n int) (list []string) {
		for i := first; i < first+n; i++ {
			if i < 2 {
				list = append(list, fmt.Sprint("common-", len(id)%3, "-", i))
			} else {
				list = append(list, fmt.Sprint(id, "-", i))
			}
		}
		return list
	}
	decoded := decode(t, r, func(id string) string { return pattern(chunkSize, keysOf(id, 0, total(id))...) })
	advance := func(s *live, id string, n int) {
		first := s.open[id]
		n = min(n, total(id)-first)
		s.write(batchOf(id, total(id), first+n == total(id), keysOf(id, first, n)))
		if s.open[id] += n; s.open[id] == total(id) {
			delete(s.open, id)
		}
	}
	anyOf := func(s *live) string {
		for id := range s.open {
			return id
		}
		return ""
	}
	senders := []*live{begin(), begin(), begin()}
	for range turns {
		at := rnd.IntN(len(senders))
		s := senders[at]
		switch n := rnd.IntN(100); {
		case n < 40 || len(s.open) == 0:
			s.next++
			id := s.name + strings.Repeat("x", rnd.IntN(9)) + fmt.Sprint(s.next)
			s.all = append(s.all, id)
			advance(s, id, 1+rnd.IntN(6))
		case n < 85:
			advance(s, anyOf(s), 1+rnd.IntN(6))
		case n < 92:
			id := anyOf(s)
			delete(s.open, id)
			s.write(cancelLine(id))
		case n < 94:
			s.kill(syscall.SIGSTOP)
			stood, long := time.Now(), time.Duration(rnd.IntN(600))*time.Millisecond
			eventually(t, "a while to pass", func() bool { return time.Since(stood) > long })
			s.kill(syscall.SIGCONT)
		case n < 95:
			s.kill(syscall.SIGKILL)
			senders[at] = begin()
		default:
			for _, sig := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD, syscall.SIGCONT} {
				s.kill(sig)
				r.kill(sig)
				proxy.kill(sig)
			}
		}
	}
	ready := map[string]bool{}
	for _, s := range senders {
		for id := range s.open {
			if rnd.IntN(2) == 0 {
				advance(s, id, 12)
			}
		}
		s.stdin.Close()
		if code := s.exits(); code != 0 && code != 1 {
			t.Errorf("a sender ends with %d", code)
		}
		ended := map[string]int{}
		for _, l := range s.lines() {
			ended[l.str("req_id")]++
			if l.str("status") == "ready" {
				ready[l.str("req_id")] = true
			}
		}
		for _, id := range s.all {
			if ended[id] != 1 {
				t.Errorf("of request %s there are %d lines", id, ended[id])
			}
		}
	}
	s := r.empty()
	c := s.Counters
	if c["admitted"] == 0 || c["ready"] == 0 || c["released"]+c["cancelled"]+c["rolled_back"]+c["expired"]+c["expired_unread"] < c["admitted"] {
		t.Errorf("counters: %v", c)
	}
	for id := range ready {
		proxy.event("req_id", id, "status", "ready")
		if n := len(proxy.lines("req_id", id)); n != 1 {
			t.Errorf("the proxy told %d times of %s", n, id)
		}
	}
	if n := decoded(); n < c["ready"]/2 {
		t.Errorf("%d of %d ready requests were read", n, c["ready"])
	}
	t.Logf("%d ready of the senders that lived; counters %v", len(ready), c)
}

// decode takes each request that becomes ready, compares its bytes with what
// they should be, and releases it. What it returns ends it and says how many
// that were.
func decode(t *testing.T, r *receiver, want func(reqID string) string) (stop func() int) {
	t.Helper()
	conn, err := client.Dial(r.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	read, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		for at := 0; ; {
			var ids []string
			r.within(patience, func() bool {
				for ; at < len(r.out); at++ {
					if l := parse(r.out[at]); l.str("event") == "ready" {
						ids = append(ids, l.str("req_id"))
					}
				}
				return len(ids) > 0 || ctx.Err() != nil
			})
			for _, id := range ids {
				same, err := readOne(ctx, conn, id, want(id))
				for try := 1; err != nil && try < 3 && ctx.Err() == nil; try++ { // the machine may be slow
					same, err = readOne(ctx, conn, id, want(id))
				}
				switch {
				case err == nil && !same:
					t.Errorf("the bytes of %s are not its own", id)
				case err == nil:
					read++
				case ctx.Err() == nil:
					t.Logf("%s is not read: %v", id, err)
				}
			}
			if ctx.Err() != nil {
				return
			}
		}
	}()
	stop = func() int {
		cancel()
		r.mu.Lock()
		r.news.Broadcast()
		r.mu.Unlock()
		<-done
		return read
	}
	t.Cleanup(func() { stop() })
	return stop
}

// readOne reports an error of a request that is gone by now.
func readOne(ctx context.Context, conn *client.Conn, id, want string) (same bool, err error) {
	take, err := conn.Take(ctx, id)
	if err != nil {
		return false, err
	}
	at := rdma.Attachment{ReceiverID: take.ReceiverID, Token: take.Token, SlotSize: take.SlotSize, Slots: int(take.SlotCount)}
	for _, region := range take.Regions {
		at.Regions = append(at.Regions, rdma.Region{ID: int(region.ID), Desc: region.Desc})
	}
	memory, err := shm.OpenReader(ctx, at)
	if err != nil {
		return false, err
	}
	defer memory.Close()
	var got strings.Builder
	for _, c := range take.Chunks {
		slot, err := memory.Slot(int(c.Region), int(c.Slot))
		if err != nil {
			return false, err
		}
		got.Write(slot[:c.Length])
	}
	return got.String() == want, conn.Release(ctx, id)
}
