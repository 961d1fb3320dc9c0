package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	killedSenders = 10 // internal/e2e kills many more, on one host
	killedChunks  = 4
	killedChunk   = 16 * mib
)

// killed kills senders in mid-write, one after the other. Each time all that
// the sender had comes back at once, and the receiver serves the next one.
func (l *lab) killed(b *bed) error {
	decode, links, err := b.star(1, l.mbits)
	if err != nil {
		return err
	}
	recv, err := decode.receive(killedChunks, killedChunk)
	if err != nil {
		return err
	}
	start := time.Now()
	var back []time.Duration
	for i := range killedSenders {
		took, err := l.killOne(recv, links[0], fmt.Sprintf("killed%d", i))
		if err != nil {
			return fmt.Errorf("sender %d: %w", i+1, err)
		}
		back = append(back, took)
	}
	l.say("%d senders were killed in mid-write in %s; their slots were back %v after the kill, at most %v",
		killedSenders, seconds(time.Since(start)), median(back).Round(time.Millisecond), slices.Max(back).Round(time.Millisecond))
	last, err := links[0].from.send("--to", links[0].receiver())
	if err != nil {
		return err
	}
	if err := transfer(last, recv, request("last", killedChunks, killedChunk)); err != nil {
		return err
	}
	if err := last.finish(); err != nil {
		return err
	}
	return recv.retire()
}

// killOne kills a sender when the first bytes of its request have landed, and
// returns how long the receiver took to notice.
func (l *lab) killOne(recv *receiver, link *link, id string) (time.Duration, error) {
	s, err := link.from.send("--to", link.receiver())
	if err != nil {
		return 0, err
	}
	chunk, err := recv.watch(id+"-0", killedChunk)
	if err != nil {
		return 0, err
	}
	defer chunk.close()
	if err := s.give(request(id, killedChunks, killedChunk)); err != nil {
		return 0, err
	}
	if err := chunk.begins(); err != nil {
		return 0, err
	}
	at := time.Now()
	s.kill()
	e, err := recv.happened("expired", id)
	if err != nil {
		return 0, err
	}
	if e.Reason == "" {
		return 0, errors.New("its request expired without a reason")
	}
	return e.Time.Sub(at), nil
}
