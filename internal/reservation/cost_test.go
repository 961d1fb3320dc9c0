package reservation

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/wire"
)

// TestCost: work per message grows at most logarithmically with the number of
// waiters and requests (§5.8). Ten thousand times as many may cost thirty times
// as much (a larger memory is a slower one); what is linear would cost ten
// thousand times as much.
func TestCost(t *testing.T) {
	const few, many, most = 10, 100_000, 30
	for _, c := range costs {
		t.Run(c.name, func(t *testing.T) {
			small, large := c.measure(few), c.measure(many)
			t.Logf("%v with %d waiting, %v with %d", small, few, large, many)
			if large > most*max(small, time.Microsecond) {
				t.Errorf("%v with %d waiting, %v with %d", small, few, large, many)
			}
		})
	}
}

// TestCostOfBatches: any number of retries may wait with their request, bounded
// by --queue-bytes only; what answering them costs is shared out among them.
func TestCostOfBatches(t *testing.T) {
	perBatch := func(waiting int) time.Duration {
		best := time.Hour
		for range 3 {
			c := newCrowd(1, 0, 0, 1)
			for range waiting {
				c.alloc("r", 1, false)
			}
			var fx *Effects
			took := spent(func() { fx = c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1}) })
			best = min(best, took/time.Duration(waiting))
			if len(fx.Answers) != waiting+1 {
				t.Fatalf("%d answers, want %d", len(fx.Answers), waiting+1)
			}
		}
		return best
	}
	small, large := perBatch(1_000), perBatch(100_000)
	t.Logf("%v each of 1,000 batches, %v each of 100,000", small, large)
	if large > 10*max(small, 100*time.Nanosecond) {
		t.Errorf("%v each of 1,000 batches, %v each of 100,000", small, large)
	}
}

// BenchmarkStep is the cost of one round of messages while so many wait.
func BenchmarkStep(b *testing.B) {
	for _, c := range costs {
		for _, waiting := range []int{10, 1_000, 100_000} {
			b.Run(fmt.Sprintf("%s/waiting=%d", c.name, waiting), func(b *testing.B) {
				round := c.setUp(waiting)
				b.ReportAllocs()
				for b.Loop() {
					round()
				}
			})
		}
	}
}

type cost struct {
	name  string
	setUp func(waiting int) (round func())
}

// measure is the cheapest of several runs, so that whatever else the computer
// does counts little.
func (c *cost) measure(waiting int) time.Duration {
	round := c.setUp(waiting)
	best := time.Hour
	for range 10 {
		const rounds = 100
		took := spent(func() {
			for range rounds {
				round()
			}
		})
		best = min(best, took/rounds)
	}
	return best
}

// spent is the processor's time that f takes: on a busy machine a run that is
// long is interrupted more often than a short one.
func spent(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	clock := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			panic(err)
		}
		return time.Duration(ts.Nano())
	}
	began := clock()
	f()
	return clock() - began
}

// crowd is a machine with a full buffer and senders that wait.
type crowd struct {
	m    *Machine
	now  Time
	next int
}

func newCrowd(slots, overtake, waiting, total int) *crowd {
	c := newSharers(slots, overtake, 0)
	for range waiting {
		c.wait(total)
	}
	return c
}

// newSharers is one of senders that have shares, where nobody waits yet.
func newSharers(slots, overtake, share int) *crowd {
	c := &crowd{m: New(Config{
		Slots: slots, SlotBytes: chunkSize, Epoch: testEpoch, Overtake: overtake, SenderShare: share, Memory: time.Second,
		AdmitTimeout: time.Hour, Lease: time.Hour, LegacyLease: time.Hour, ReadyTTL: time.Hour,
	})}
	c.step(Attach{Sender: "s", Name: "s", Writer: 1})
	c.alloc("holder", slots, false)
	return c
}

func (c *crowd) step(ev Event) *Effects {
	c.now += time.Microsecond
	return c.m.Step(c.now, ev)
}

func (c *crowd) alloc(id string, total int, last bool) { c.allocBy("s", id, total, last) }

func (c *crowd) allocBy(sender, id string, total int, last bool) {
	q := &wire.AllocRequest{
		Keys: []string{id}, Fmt: wire.I(wire.FmtBinary), Shape: []wire.Int{wire.I(chunkSize)}, Dtype: "uint8",
		LastChunkToks: wire.I(chunkSize), ReqID: id, TotalChunks: wire.I(int64(total)), IsLastBatch: last,
	}
	c.step(Alloc{Sender: sender, Req: q, Size: 100, Tag: id})
}

// wait lets one more come, which has to wait.
func (c *crowd) wait(total int) string {
	c.next++
	id := fmt.Sprint("r", c.next)
	c.alloc(id, total, true)
	return id
}

func (c *crowd) commit(id string) {
	r := c.m.live[id]
	if r.chunks[0].slot == noSlot {
		panic(id + " is not admitted")
	}
	c.step(Commit{Sender: "s", Tag: id, Req: &wire.CommitRequest{
		ReqID: id, Slots: []int64{int64(r.chunks[0].slot)}, Lengths: []int64{chunkSize}, CRCs: []uint32{1}, Epoch: testEpoch,
	}})
}

var costs = []cost{
	{"heartbeat and tick", func(waiting int) func() {
		c := newCrowd(4, 0, waiting, 4)
		return func() {
			c.step(Heartbeat{Sender: "s", Epoch: testEpoch, Tag: 1})
			c.step(Tick{})
		}
	}},
	{"a batch of an admitted request", func(waiting int) func() {
		c := newCrowd(4, 0, waiting, 4)
		return func() { c.alloc("holder", 4, false) }
	}},
	{"one comes and is cancelled", func(waiting int) func() {
		c := newCrowd(4, 0, waiting, 4)
		return func() {
			id := c.wait(4)
			c.step(Cancel{Sender: "s", ReqID: id, Tag: id})
			c.step(Tick{})
		}
	}},
	{"the head leaves and one comes", func(waiting int) func() {
		c := newCrowd(4, 0, waiting, 4)
		head := 0
		return func() {
			head++
			c.step(Cancel{Sender: "s", ReqID: fmt.Sprint("r", head), Tag: head})
			c.wait(4)
			c.step(Tick{})
		}
	}},
	{"ready, taken, released, the next admitted", func(waiting int) func() {
		c := newCrowd(1, 0, waiting, 1)
		c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1})
		head := 0
		return func() {
			head++
			id := fmt.Sprint("r", head)
			c.commit(id)
			c.step(Take{Conn: "d", ReqID: id, Tag: id})
			c.wait(1)
			c.step(Release{Conn: "d", ReqID: id, Tag: id})
			c.step(Tick{})
		}
	}},
	{"one becomes ready among many, is told of and released", func(ready int) func() {
		c := newCrowd(ready+1, 0, 0, 1)
		c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1})
		for range ready {
			c.commit(c.wait(1))
		}
		seq := uint64(ready)
		return func() {
			id := c.wait(1)
			c.commit(id)
			c.step(ListReady{Conn: "p", Req: &wire.ReadyRequest{Epoch: testEpoch, After: seq}, Tag: 1})
			seq++
			c.step(Release{Conn: "d", ReqID: id, Tag: id})
			c.step(Tick{})
		}
	}},
	{"a fence is put up and lifted among many", func(fences int) func() {
		c := newCrowd(fences+1, 0, 0, 1)
		c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1})
		fence := func() uint64 {
			id := c.wait(1)
			return c.step(Malformed{Sender: "s", ReqID: id, Tag: id}).Revocations[0].ID
		}
		for range fences {
			fence()
		}
		return func() {
			c.step(Revoked{ID: fence(), Region: 1})
			c.step(Tick{})
		}
	}},
	{"one behind all overtakes", func(waiting int) func() {
		c := newCrowd(4, 1<<30, waiting, 4)
		c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1}) // r1 has three of the four now
		c.alloc("other", 1, false)
		return func() {
			id := c.wait(1)
			c.step(Cancel{Sender: "s", ReqID: "other", Tag: 1})
			c.step(Cancel{Sender: "s", ReqID: id, Tag: id})
			c.step(Tick{})
		}
	}},
	{"one that its share holds back comes and is cancelled", func(waiting int) func() {
		c := newSharers(4, 0, 4)
		for range waiting {
			c.wait(1)
		}
		return func() {
			id := c.wait(1)
			c.step(Cancel{Sender: "s", ReqID: id, Tag: id})
			c.step(Tick{})
		}
	}},
	{"ready, released, the next of its sender let in among others", func(waiting int) func() {
		c := newSharers(2, 1<<30, 2)
		c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1})
		c.alloc("keeper", 1, false)
		c.alloc("r0", 1, true)
		for i := range waiting {
			c.allocBy(fmt.Sprint("t", i), fmt.Sprint("t", i), 2, true)
			c.wait(1)
		}
		head := 0
		return func() {
			id := fmt.Sprint("r", head)
			head++
			c.commit(id)
			c.step(Release{Conn: "d", ReqID: id, Tag: id})
			c.wait(1)
			c.step(Tick{})
		}
	}},
}
