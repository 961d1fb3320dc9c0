package main

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	waitingSenders = 10
	bystanderSlots = 8192 // all of them the bystander's
)

// crowd is a receiver whose whole buffer one sender, the bystander, has
// reserved, and at which n requests of others wait.
type crowd struct {
	n         int
	recv      *process
	endpoint  string
	waiters   []*client
	bystander *client
	epoch     uint64
	next      int // key of the bystander's request
}

// waiting measures what requests that merely wait cost: a bystander's round
// trip, compared with that at a receiver where none waits, and the receiver's
// CPU time.
func (b *bench) waiting() error {
	var crowds []*crowd
	for _, n := range pick(b, []int{0, 100, 1000, 5000}, []int{0, 100}) {
		c, err := b.gather(n)
		if c != nil {
			defer c.stop()
		}
		if err != nil {
			return err
		}
		crowds = append(crowds, c)
		b.say("%d requests wait", n)
	}
	if err := b.roundTrips(crowds, "batch within its reservation", (*crowd).batch); err != nil {
		return err
	}
	if err := b.roundTrips(crowds, "heartbeat", (*crowd).heartbeat); err != nil {
		return err
	}
	return b.idleCPU(crowds)
}

// gather returns what there is of the crowd also when it fails.
func (b *bench) gather(n int) (*crowd, error) {
	recv, endpoint, err := b.receiver(bystanderSlots, chunkSize, "--admit-timeout", "1h", "--lease", "1h")
	if err != nil {
		return nil, err
	}
	c := &crowd{n: n, recv: recv, endpoint: endpoint}
	if c.bystander, err = dial(endpoint); err != nil {
		return c, err
	}
	if c.epoch, err = c.bystander.attach("bystander"); err != nil {
		return c, err
	}
	if err := c.bystander.alloc(allocRequest("bystander", 0, 0, bystanderSlots, c.epoch)); err != nil {
		return c, err
	}
	for i := range waitingSenders {
		w, err := dial(endpoint)
		if err != nil {
			return c, err
		}
		c.waiters = append(c.waiters, w)
		for j := range n / waitingSenders {
			req := allocRequest(fmt.Sprintf("waiter-%d-%d", i, j), 0, 4, 8, 0)
			if err := w.send(correlation(j, 0), wire.Append(nil, req)); err != nil {
				return c, err
			}
		}
	}
	return c, until(endpoint, fmt.Sprintf("%d in the queue", n), func(s *wire.Snapshot) bool { return s.Totals.Queue == n })
}

func (c *crowd) stop() {
	for _, w := range c.waiters {
		w.close()
	}
	if c.bystander != nil {
		c.bystander.close()
	}
	c.recv.stop()
}

// batch asks for one more chunk of the bystander's request.
func (c *crowd) batch() error {
	c.next++
	return c.bystander.alloc(allocRequest("bystander", c.next-1, 1, bystanderSlots, c.epoch))
}

func (c *crowd) heartbeat() error {
	_, err := c.bystander.call(&wire.Heartbeat{Epoch: c.epoch})
	return err
}

// roundTrips takes the crowds in turn, a median of some round trips each time.
// The first crowd is the reference.
func (b *bench) roundTrips(crowds []*crowd, name string, trip func(*crowd) error) error {
	rows := make([]*row, len(crowds))
	for i, c := range crowds[1:] {
		rows[i+1] = b.table.row(microseconds, limit{}, "bystander's %s, %d wait : none", name, c.n)
		if c.n == 5000 {
			rows[i+1].limit = atMost(1.5)
		}
	}
	for range pick(b, 15, 1) {
		var none float64
		for i, c := range crowds {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			m, err := medianTrip(pick(b, 200, 10), func() error { return trip(c) })
			switch {
			case err != nil:
				return err
			case i == 0:
				none = m
			default:
				rows[i].add(m, none)
			}
		}
	}
	for _, r := range rows[1:] {
		b.say("%v", r)
	}
	return nil
}

// medianTrip is in microseconds.
func medianTrip(n int, trip func() error) (float64, error) {
	took := make([]float64, n)
	for i := range took {
		start := time.Now()
		if err := trip(); err != nil {
			return 0, err
		}
		took[i] = float64(time.Since(start).Nanoseconds()) / 1e3
	}
	return median(took), nil
}

// idleCPU watches all receivers over the same time, in which nothing comes.
func (b *bench) idleCPU(crowds []*crowd) error {
	d := pick(b, 10*time.Second, 200*time.Millisecond)
	spent, err := b.idle(crowds, d)
	if err != nil {
		return err
	}
	for i, c := range crowds {
		row := b.table.row(ofACore, limit{}, "CPU over %v, %d wait : a core", d, c.n)
		if c.n == 5000 {
			row.limit = atMost(0.01)
		}
		row.add(spent[i], 1)
		b.say("%v", row)
	}
	return nil
}

// idle is what each receiver takes of a core while nothing is asked of it for d.
func (b *bench) idle(crowds []*crowd, d time.Duration) ([]float64, error) {
	spent := make([]time.Duration, len(crowds))
	for i, c := range crowds {
		now, err := c.recv.cpu()
		if err != nil {
			return nil, err
		}
		spent[i] = -now
	}
	select {
	case <-b.ctx.Done():
		return nil, b.ctx.Err()
	case <-time.After(d):
	}
	shares := make([]float64, len(crowds))
	for i, c := range crowds {
		now, err := c.recv.cpu()
		if err != nil {
			return nil, err
		}
		shares[i] = (spent[i] + now).Seconds() / d.Seconds()
	}
	return shares, nil
}
