package main

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

// The source design's example: requests of 10 chunks of 16 MiB, a buffer that
// holds one of each sender.
const (
	headlineChunks = 10
	headlineChunk  = 16 * mib
	warmChunks     = 2
)

// headline times transfers from admitted to ready, each alone and then all at
// once, with every sender on a link of its own. With reserve, all that fit the
// buffer go at once; with serial one waits for the other.
func (l *lab) headline(b *bed) error {
	decode, links, err := b.star(4, l.mbits)
	if err != nil {
		return err
	}
	for _, n := range []int{2, 4} {
		for _, mode := range []string{"reserve", "serial"} {
			if err := l.measure(func() (row, error) { return l.race(decode, links[:n], mode) }); err != nil {
				return fmt.Errorf("%s, %d senders: %w", mode, n, err)
			}
		}
	}
	return nil
}

func seconds(d time.Duration) string        { return fmt.Sprintf("%.2f s", d.Seconds()) }
func ratio(ours, ref time.Duration) float64 { return ours.Seconds() / ref.Seconds() }

// race compares all transfers at once with each alone.
func (l *lab) race(decode *host, links []*link, mode string) (row, error) {
	alone, together, err := l.transfers(decode, links, mode)
	if err != nil {
		return row{}, err
	}
	var sum, longest time.Duration
	for _, d := range alone {
		sum += d
		longest = max(longest, d)
	}
	r := row{ours: seconds(together), most: 1.15}
	if mode == "serial" {
		r.name = fmt.Sprintf("%d senders at once, `serial` : the sum of each alone", len(links))
		r.ref, r.ratio, r.least = seconds(sum), ratio(together, sum), 0.9
	} else {
		r.name = fmt.Sprintf("%d senders at once, `%s` : the longest alone", len(links), mode)
		r.ref, r.ratio = seconds(longest), ratio(together, longest)
	}
	return r, nil
}

// transfers has a sender at each link, warms it by a request of its own, and
// times a request of each alone, and then of all at once.
func (l *lab) transfers(decode *host, links []*link, mode string) (alone []time.Duration, together time.Duration, err error) {
	recv, err := decode.receive(len(links)*headlineChunks, headlineChunk, "--admission", mode)
	if err != nil {
		return nil, 0, err
	}
	var senders []*sender
	for i, link := range links {
		s, err := link.from.send("--to", link.receiver())
		if err != nil {
			return nil, 0, err
		}
		senders = append(senders, s)
		if _, err := l.timed(recv, []*sender{s}, []*manifest.Batch{request(fmt.Sprintf("warm%d", i), warmChunks, headlineChunk)}); err != nil {
			return nil, 0, err
		}
		if err := s.usesOFI(); err != nil {
			return nil, 0, err
		}
	}
	var all []*manifest.Batch
	for i := range senders {
		took, err := l.timed(recv, senders[i:i+1], []*manifest.Batch{request(fmt.Sprintf("alone%d", i), headlineChunks, headlineChunk)})
		if err != nil {
			return nil, 0, err
		}
		alone = append(alone, took)
		all = append(all, request(fmt.Sprintf("%c", 'A'+i), headlineChunks, headlineChunk))
	}
	if together, err = l.timed(recv, senders, all); err != nil {
		return nil, 0, err
	}
	for _, s := range senders {
		if err := s.finish(); err != nil {
			return nil, 0, err
		}
	}
	return alone, together, recv.retire()
}

// timed has each sender send its request, all at once, and returns the time
// from the first that is admitted to the last that is ready, by the events of
// the receiver. Then it compares the bytes.
func (l *lab) timed(recv *receiver, senders []*sender, requests []*manifest.Batch) (time.Duration, error) {
	for i, s := range senders {
		if err := s.give(requests[i]); err != nil {
			return 0, err
		}
	}
	var first, last time.Time
	for i, s := range senders {
		id := requests[i].ReqID
		if err := s.ready(id); err != nil {
			return 0, err
		}
		admitted, err := recv.happened("admitted", id)
		if err != nil {
			return 0, err
		}
		ready, err := recv.happened("ready", id)
		if err != nil {
			return 0, err
		}
		if first.IsZero() || admitted.Time.Before(first) {
			first = admitted.Time
		}
		if ready.Time.After(last) {
			last = ready.Time
		}
	}
	return last.Sub(first), recv.check(requests...)
}
