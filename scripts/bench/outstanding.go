package main

import (
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	outstandingSlots  = 64
	outstandingChunks = 8 // a request, in two batches
)

// outstanding measures requests per second through a small buffer, by how many
// a sender keeps outstanding. 8 fill the buffer exactly and are the reference:
// with more, the rest waits. The client plays the decoder too and releases
// each request when it is ready.
func (b *bench) outstanding() error {
	recv, endpoint, err := b.receiver(outstandingSlots, chunkSize, "--admit-timeout", "1h")
	if err != nil {
		return err
	}
	defer recv.stop()
	others := []int{1, 64, 1000}
	rows := make([]*row, len(others))
	for i, n := range others {
		rows[i] = b.table.row(perSecond, limit{}, "two-batch requests on %d slots, %d outstanding : 8", outstandingSlots, n)
		if n == 1000 {
			rows[i].limit = atLeast(0.8)
		}
	}
	for range pick(b, 11, 1) {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		eight, err := b.twoBatches(endpoint, 8)
		if err != nil {
			return err
		}
		for i, n := range others {
			got, err := b.twoBatches(endpoint, n)
			if err != nil {
				return err
			}
			rows[i].add(got, eight)
		}
	}
	for _, r := range rows {
		b.say("%v", r)
	}
	return untilIdle(endpoint)
}

// twoBatches is requests per second with n outstanding.
func (b *bench) twoBatches(endpoint string, n int) (float64, error) {
	l := load{endpoint, 1, n, nil, false, func(*client) (*flow, error) {
		const id, half = "bench-" + marker, outstandingChunks / 2
		return &flow{steps: []step{
			same(allocRequest(id, 0, half, outstandingChunks, 0)),
			same(allocRequest(id, half, half, outstandingChunks, 0)),
			same(&wire.ReleaseRequest{ReqID: id}),
		}}, nil
	}}
	r, err := l.run(b.ctx, pick(b, 300*time.Millisecond, 50*time.Millisecond))
	if err != nil {
		return 0, err
	}
	return r.requests, nil
}
