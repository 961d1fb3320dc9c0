package main

import (
	"errors"
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
	serialPort     = "7610"
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
		err := l.measure(func() ([]row, error) {
			defer b.killAll() // what is left after an error
			return l.race(decode, links[:n])
		})
		if err != nil {
			return fmt.Errorf("%d senders: %w", n, err)
		}
	}
	return nil
}

func seconds(d time.Duration) string        { return fmt.Sprintf("%.2f s", d.Seconds()) }
func ratio(ours, ref time.Duration) float64 { return ours.Seconds() / ref.Seconds() }

// race has a sender at each link and two receivers on the decode host, one for
// each mode. Every sender is warmed at both, by a request of its own.
func (l *lab) race(decode *host, links []*link) ([]row, error) {
	slots := len(links) * headlineChunks
	reserve, err := decode.receive(slots, headlineChunk, "--admission", "reserve")
	if err != nil {
		return nil, err
	}
	serial, err := decode.receiveAt(serialPort, slots, headlineChunk, "--admission", "serial")
	if err != nil {
		return nil, err
	}
	var senders []*sender
	for i, link := range links {
		s, err := link.from.send("--to", link.to(recvPort), "--to", link.to(serialPort), "--staging-size", "128MiB")
		if err != nil {
			return nil, err
		}
		senders = append(senders, s)
		for to, recv := range []*receiver{reserve, serial} {
			if _, err := l.timed(recv, senders[i:], requests("warm", i, to, warmChunks)); err != nil {
				return nil, err
			}
		}
		if err := s.usesOFI(); err != nil {
			return nil, err
		}
	}
	var longest, sum time.Duration
	for i := range senders {
		alone, err := l.timed(reserve, senders[i:i+1], requests("alone", i, 0, headlineChunks))
		if err != nil {
			return nil, err
		}
		longest, sum = max(longest, alone), sum+alone
	}
	var all [2][]*manifest.Batch
	for to := range all {
		for i := range senders {
			all[to] = append(all[to], requests(fmt.Sprintf("all%d-", to), i, to, headlineChunks)...)
		}
	}
	atOnce, err := l.timed(reserve, senders, all[0])
	if err != nil {
		return nil, err
	}
	inTurn, err := l.timed(serial, senders, all[1])
	if err != nil {
		return nil, err
	}
	for _, s := range senders {
		if err := s.finish(); err != nil {
			return nil, err
		}
	}
	return []row{
		{
			name: fmt.Sprintf("%d senders, `reserve` : the longest transfer alone", len(links)),
			ours: seconds(atOnce), ref: seconds(longest), ratio: ratio(atOnce, longest), most: 1.15,
		},
		{
			name: fmt.Sprintf("%d senders, `serial` : the sum of the transfers alone", len(links)),
			ours: seconds(inTurn), ref: seconds(sum), ratio: ratio(inTurn, sum), least: 0.9, most: 1.15,
		},
	}, errors.Join(reserve.retire(), serial.retire())
}

// requests is one request of sender i to the receiver at a position.
func requests(kind string, i, to, chunks int) []*manifest.Batch {
	r := request(fmt.Sprintf("%s%d-%d", kind, i, to), chunks, headlineChunk)
	r.To = to
	return []*manifest.Batch{r}
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
