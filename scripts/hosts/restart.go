package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// restart kills a receiver in mid-transfer and starts it again on the same
// port with fewer slots, while a sender stays up. What it had read fails with a
// reason, what it reads afterwards goes through.
func (l *lab) restart(b *bed) error {
	const large, small = 32, 8 // slots
	decode, links, err := b.star(1, l.mbits)
	if err != nil {
		return err
	}
	recv, err := decode.receive(large, mib)
	if err != nil {
		return err
	}
	send, err := links[0].from.send("--to", links[0].receiver())
	if err != nil {
		return err
	}
	if err := transfer(send, recv, request("warm", 4, mib)); err != nil {
		return err
	}
	// The first fills the buffer and is in mid-transfer when the receiver
	// dies, the others wait there.
	old := []string{"old1", "old2", "old3"}
	for _, id := range old {
		if err := send.give(request(id, large, mib)); err != nil {
			return err
		}
	}
	if _, err := recv.happened("admitted", "old1"); err != nil {
		return err
	}
	if _, err := recv.happened("queued", "old3"); err != nil {
		return err
	}
	recv.kill()
	killed := time.Now()
	if recv, err = decode.receive(small, mib); err != nil {
		return err
	}
	for _, id := range old {
		r, err := send.failed(id, patience)
		if err != nil {
			return err
		}
		l.say("killed in mid-transfer: %s failed: %s %s", id, r.Code, r.Error)
	}
	l.say("all had failed %s after the kill", seconds(time.Since(killed)))
	for i := range 4 {
		if err := transfer(send, recv, request(fmt.Sprintf("new%d", i), small, mib)); err != nil {
			return err
		}
	}
	if err := send.give(request("big", large, mib)); err != nil {
		return err
	}
	r, err := send.failed("big", patience)
	if err != nil {
		return err
	}
	if r.Code != "too_large" || !strings.Contains(r.Error, fmt.Sprint(small)) {
		return send.failure(fmt.Sprintf("a request of %d chunks to a buffer of %d failed with code %q: %s", large, small, r.Code, r.Error))
	}
	send.stdin.Close()
	if err := send.wait(patience); err == nil {
		return errors.New("pd-send ended with 0 though requests have failed")
	}
	return recv.retire()
}
