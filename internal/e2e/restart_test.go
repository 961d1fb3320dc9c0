package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

// A receiver is killed and started again on the same port with fewer slots while
// a sender stays up: what it had of the old one fails within seconds and says why,
// what is read from then on goes through, and no slot of the old one is used.
func TestReceiverIsStartedAgain(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		old := receive(t, 12, "--engine", engine, "--admit-timeout", "10m")
		s := send(t, old, "--engine", engine)
		s.write(batch("high", 4, 0, 4), batch("half", 8, 0, 6)) // has slots that there will not be
		s.result("high", "ready")
		old.settles("what can be is written", func(s snapshot) bool { return s.Slots.Written == 10 })
		s.write(batch("waits", 8, 0, 4))
		old.happens("queued", "waits")
		old.kill(syscall.SIGKILL)
		old.exits()
		killed := time.Now()
		s.write(batch("half", 8, 6, 2)) // of a request that has no receiver any more
		for _, id := range []string{"half", "waits"} {
			l := s.result(id, "failed") // while its stdin is open
			if took := time.Since(killed); took > soon {
				t.Errorf("%s failed %v after its receiver", id, took)
			}
			if !strings.Contains(l.str("error"), old.endpoint) || l.str("code") != "unreachable" {
				t.Errorf("%s ends as %v", id, l)
			}
		}
		checkFresh(t, s, again(t, old, 4, chunkSize, "--engine", engine))
	})
}

// The same in the middle of a write.
func TestReceiverIsStartedAgainInAWrite(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		old, mem := receiveWhole(t, "--engine", engine)
		s, src := send(t, old, "--engine", engine), newSource(t)
		half := stopInWrite(t, s, src, mem)
		old.kill(syscall.SIGKILL)
		old.exits()
		r := again(t, old, 1, wholeChunk, "--engine", engine) // it is there before the sender knows
		s.kill(syscall.SIGCONT)
		went := time.Now()
		if l := s.result(half.reqID, "failed"); l.str("error") == "" || time.Since(went) > soon {
			t.Errorf("%v later %s ends as %v", time.Since(went), half.reqID, l)
		}
		s.write(src.line("new", 1, true, tries-1))
		s.result("new", "ready")
		if r.take("new") != string(src.image(tries-1)) {
			t.Error("the bytes of a request after the restart are not its own")
		}
		r.empty()
		s.ends(1)
	})
}

// The same while requests come one after the other: each that is ready, at
// whichever, has its own bytes there.
func TestReceiverIsStartedAgainUnderLoad(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		const requests, some, lives = 60, 15, 4
		r := receive(t, 16, "--engine", engine, "--admit-timeout", "10m")
		s := send(t, r, "--engine", engine)
		reads := func() (stop func() int) {
			return decode(t, r, func(id string) string { return pattern(chunkSize, keys(id, 0, 4)...) })
		}
		read, stop := 0, reads()
		life := func(no int, dies bool) {
			var ids []string
			for i := range requests {
				ids = append(ids, fmt.Sprintf("R%d-%d", no, i))
				s.write(batch(ids[i], 4, 0, 2), batch(ids[i], 4, 2, 2))
			}
			if dies {
				r.until("some requests to be ready", func() bool {
					return strings.Count(strings.Join(r.out, "\n"), `"event":"ready"`) >= some
				})
				r.kill(syscall.SIGKILL)
				r.exits()
				read += stop()
				r = again(t, r, 12-2*no, chunkSize, "--engine", engine, "--admit-timeout", "10m")
				stop = reads()
			}
			for _, id := range ids {
				if l := s.event("req_id", id); l.str("status") != "ready" && (!dies || l.str("error") == "") {
					t.Errorf("%s ends as %v", id, l)
				}
			}
		}
		for no := range lives {
			life(no, no < lives-1)
		}
		c := r.empty().Counters
		read += stop()
		if c["stale_writes"]+c["bad_frames"] > 0 || read < requests+some {
			t.Errorf("%d requests were read; counters: %v", read, c)
		}
		t.Logf("%d requests were read; counters: %v", read, c)
		s.stdin.Close()
		s.exits()
	})
}

// again starts a receiver on the port of one that has ended, with so many slots
// of that size, bytes.
func again(t *testing.T, old *receiver, slots, size int, flags ...string) *receiver {
	t.Helper()
	args := append([]string{"--listen", old.endpoint, "--chunk-size", fmt.Sprint(size), "--buffer-size", fmt.Sprint(slots * size)}, flags...)
	r := &receiver{program: start(t, nil, "pd-recv", args...)}
	r.endpoint = r.event("event", "listening").str("endpoint")
	return r
}

// checkFresh checks that a sender that has outlived its receiver serves the next
// one, which has 4 slots and nothing yet, and that nothing of the old one gets
// there. It ends the sender.
func checkFresh(t *testing.T, s *fed, r *receiver) {
	t.Helper()
	page := os.Getpagesize() // a slot has pages of its own
	mem := spy(t, r, 4*page)
	s.write(batch("new", 3, 0, 3))
	s.result("new", "ready")
	s.write(batch("too many", 5, 0, 5))
	if l := s.result("too many", "failed"); l.str("code") != "too_large" || !strings.Contains(l.str("error"), "buffer holds 4") {
		t.Errorf("more than it holds ends as %v", l)
	}
	used := 0
	for slot := range 4 {
		if strings.Trim(string(mem[slot*page:][:chunkSize]), "\x00") != "" {
			used++
		}
	}
	if used != 3 {
		t.Errorf("%d slots were written, 3 are the sender's", used)
	}
	if r.take("new") != pattern(chunkSize, keys("new", 0, 3)...) {
		t.Error("the bytes of a request after the restart are not its own")
	}
	s.write(batch("whole", 4, 0, 4))
	s.result("whole", "ready")
	if r.take("whole") != pattern(chunkSize, keys("whole", 0, 4)...) {
		t.Error("the bytes of the next request are not its own")
	}
	if c := r.empty().Counters; c["stale_writes"]+c["bad_frames"]+c["rejected"] != 1 || c["admitted"] != 2 {
		t.Errorf("counters: %v", c)
	}
	s.ends(1)
}

// decode takes each request that becomes ready, compares its bytes with what
// they should be, and releases it. What it returns ends it and says how many
// that were.
func decode(t *testing.T, r *receiver, want func(reqID string) string) (stop func() int) {
	t.Helper()
	conn, err := client.Dial(r.endpoint, nil)
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
