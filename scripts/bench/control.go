package main

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// controlSlots is enough for the heaviest load: 16 clients with 32 requests of
// 32 chunks each, and as much again.
const controlSlots = 2 * 16 * 32 * 32

// controlLoads are the shapes of load, and the floor at 1 key.
var controlLoads = []struct {
	name            string
	clients, window int
	floor           limit
}{
	{"1 client in lockstep", 1, 1, atLeast(0.9)},
	{"1 client, 64 in flight", 1, 64, atLeast(0.4)},
	{"16 clients, 32 in flight", 16, 32, atLeast(0.4)},
}

// control compares messages per second with a bare echo of the same sizes.
// Each request is allocated and released again, by the same connection: two
// messages. Its sender never attached, so a request is ready when allocated.
func (b *bench) control() error {
	recv, ours, err := b.receiver(controlSlots, chunkSize)
	if err != nil {
		return err
	}
	defer recv.stop()
	ref, echo, err := b.role("echo")
	if err != nil {
		return err
	}
	defer ref.stop()
	b.table.note("control: messages per second; the reference is a bare ROUTER and DEALER with messages of the same sizes.")
	for _, l := range controlLoads {
		for _, keys := range []int{1, 8, 32} {
			row := b.table.row(perSecond, limit{}, "control: %s, %d keys", l.name, keys)
			if keys == 1 {
				row.limit = l.floor
			}
			err := b.compare(row, ours, echo, l.clients, l.window, allocRelease(keys))
			if err != nil {
				return err
			}
		}
	}
	for _, l := range controlLoads {
		row := b.table.row(perSecond, limit{}, "control: %s, 8 keys, attached, with commit", l.name)
		if err := b.compare(row, ours, echo, l.clients, l.window, allocCommitRelease(8)); err != nil {
			return err
		}
	}
	return untilIdle(ours)
}

// maker makes the steps of one client. With a receiver, c is connected to it;
// for an echo c is nil.
type maker func(c *client) ([]step, error)

// compare loads both servers in turn and adds a round's figures to the row.
func (b *bench) compare(row *row, ours, echo string, clients, window int, make maker) error {
	d := pick(b, 100*time.Millisecond, 50*time.Millisecond)
	atOurs := load{ours, clients, window, nil, false, func(c *client) (*flow, error) {
		steps, err := make(c)
		return &flow{steps: steps}, err
	}}
	first, err := atOurs.run(b.ctx, d/2)
	if err != nil {
		return err
	}
	atEcho := load{echo, clients, window, nil, false, func(*client) (*flow, error) {
		steps, err := make(nil)
		return &flow{steps, first.answers}, err
	}}
	return b.inRounds(row, pick(b, 31, 1), func() (*rate, error) { return atOurs.run(b.ctx, d) },
		func() (*rate, error) { return atEcho.run(b.ctx, d) })
}

func allocRelease(keys int) maker {
	return func(*client) ([]step, error) {
		return []step{
			same(allocRequest("bench-"+marker, 0, keys, keys, 0)),
			same(&wire.ReleaseRequest{ReqID: "bench-" + marker}),
		}, nil
	}
}

// same makes the step whose message differs only by the request's number.
func same(m wire.Message) step {
	t := newTemplate(m)
	return func(n uint32, _ []byte) ([]byte, error) { return t.number(n), nil }
}

// allocCommitRelease is what an attached sender and a decoder do.
func allocCommitRelease(keys int) maker {
	return func(c *client) ([]step, error) {
		epoch := uint64(1) << 60 // as long as a real one
		if c != nil {
			var err error
			if epoch, err = c.attach("bench"); err != nil {
				return nil, err
			}
		}
		return []step{
			same(allocRequest("bench-"+marker, 0, keys, keys, epoch)),
			commit(keys, epoch, c == nil),
			same(&wire.ReleaseRequest{ReqID: "bench-" + marker}),
		}, nil
	}
}

// commit is the step after an allocation. To compare, the client of an echo
// decodes an answer too.
func commit(keys int, epoch uint64, echo bool) step {
	req := wire.CommitRequest{Lengths: make([]int64, keys), CRCs: make([]uint32, keys), Epoch: epoch}
	for i := range keys {
		req.Lengths[i], req.CRCs[i] = chunkSize, 0x12345678
	}
	granted := wire.AllocResponse{RemoteIndexes: make([]int64, keys), Epoch: epoch}
	for i := range keys {
		granted.RemoteIndexes[i] = controlSlots/2 + int64(i)
	}
	sample := wire.Append(nil, &granted)
	var buf []byte
	return func(n uint32, answer []byte) ([]byte, error) {
		if echo {
			answer = sample
		}
		m, err := wire.Decode(answer)
		if err != nil {
			return nil, err
		}
		req.ReqID = fmt.Sprintf("bench-%08x", n)
		req.Slots = m.(*wire.AllocResponse).RemoteIndexes
		buf = wire.Append(buf[:0], &req)
		return buf, nil
	}
}
