package main

import (
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var pieces = []int{64 * kib, 256 * kib, mib, 4 * mib, 8 * mib}

// data compares shm's writes, from one and from two processes into the
// buffer of a third, with a copy inside one process. All memory is there
// before, and larger than the caches.
func (b *bench) data() error {
	local, err := b.worker("copier")
	if err != nil {
		return err
	}
	defer local.stop()
	walk := coldWalk
	if b.quick {
		walk = quickWalk
	}
	b.table.note("data: buffers of %s at each side, walked from end to end.", humanize.IBytes(uint64(walk)))
	for _, piece := range pieces {
		if err := b.writes(local, walk, piece); err != nil {
			return err
		}
	}
	return nil
}

// coldWalk is how much memory is walked from end to end at each side: more than
// the last-level caches of large machines, of which a small virtual one may
// have the use.
const (
	coldWalk  = 1024 * mib
	quickWalk = 16 * mib
)

// localCopy is in MB/s.
func localCopy(local *worker, walk, piece int) (float64, error) {
	var s span
	err := local.ask(copyOrder{walk, piece}, &s)
	return speed(walk, s), err
}

func speed(bytes int, s span) float64 {
	return float64(bytes) / 1e6 / time.Duration(s.End-s.Start).Seconds()
}

// writes fills one table row each for one and two writers.
func (b *bench) writes(local *worker, walk, piece int) error {
	slots := walk / piece
	id := fmt.Sprintf("bench-%d-%d", os.Getpid(), piece)
	target, err := engines.Open(engines.Config{ReceiverID: id, Slots: slots, SlotSize: int64(piece), Engines: []string{shm.Name}})
	if err != nil {
		return err
	}
	defer target.Close()
	var senders []*sender
	defer func() {
		for _, s := range senders {
			s.stop()
		}
	}()
	// The first two share the work of a pair; the last writes all alone.
	for i, part := range [][2]int{{0, slots / 2}, {slots / 2, slots - slots/2}, {0, slots}} {
		token, err := target.Grant(rdma.Writer(i+1), shm.Name)
		if err != nil {
			return err
		}
		s, err := b.sender(writeOrder{
			Engine: shm.Name, Piece: piece, First: part[0], Count: part[1],
			Attachment: &rdma.Attachment{
				ReceiverID: id, Token: token, Regions: target.Regions(shm.Name), SlotSize: int64(piece), Slots: slots,
			},
		})
		if err != nil {
			return err
		}
		senders = append(senders, s)
	}
	for i := range slots {
		if !stamped(target.Slot(i), i) {
			return fmt.Errorf("slot %d does not hold what was written", i)
		}
	}
	size := humanize.IBytes(uint64(piece))
	one := b.table.row(megabytes, limit{}, "shm writes, %s, 1 sender", size)
	two := b.table.row(megabytes, limit{}, "shm writes, %s, 2 senders", size)
	if piece == mib || piece == 4*mib {
		one.limit, two.limit = atLeast(0.85), atLeast(1.2)
	}
	for range pick(b, 15, 1) {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		ref, err := localCopy(local, walk, piece)
		if err != nil {
			return err
		}
		alone, err := together(walk, senders[2])
		if err != nil {
			return err
		}
		pair, err := together(walk, senders[0], senders[1])
		if err != nil {
			return err
		}
		one.add(alone, ref)
		two.add(pair, ref)
	}
	b.say("%v", one)
	b.say("%v", two)
	return nil
}

// sender is a writer process with its part of the slots.
type sender struct {
	*worker
	order writeOrder
}

// sender starts one and has it attach and write its part once.
func (b *bench) sender(order writeOrder) (*sender, error) {
	proc, err := b.worker("writer")
	if err != nil {
		return nil, err
	}
	if err := proc.ask(order, new(span)); err != nil {
		proc.stop()
		return nil, err
	}
	order.Attachment = nil
	return &sender{proc, order}, nil
}

// together has the senders write at the same time; MB/s of all.
func together(bytes int, senders ...*sender) (float64, error) {
	for _, s := range senders {
		if err := s.tell(s.order); err != nil {
			return 0, err
		}
	}
	var all span
	for i, s := range senders {
		var one span
		if err := s.hear(&one); err != nil {
			return 0, err
		}
		if i == 0 {
			all = one
		}
		all.Start, all.End = min(all.Start, one.Start), max(all.End, one.End)
	}
	return speed(bytes, all), nil
}
