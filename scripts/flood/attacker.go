package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// kind is one way to do harm. Its send does it once; what it needs for longer it
// keeps in the attacker.
type kind struct {
	name     string
	engine   string  // only where this one is offered
	keysOnly bool    // nothing but CURVE stops it: only when it is named
	weight   float64 // how many small messages one of it stands for, by what it has of bytes, frames and connections; 0: 1
	send     func(*attacker) error
}

// share is the part of the rate that a kind has, beside others.
func (k *kind) share() float64 {
	if k.weight == 0 {
		return 1
	}
	return 1 / k.weight
}

// attacker is a peer of one kind, or many of it.
type attacker struct {
	*flood
	*tally
	rng  *rand.Rand
	n    int    // messages so far
	to   string // where it is connected
	conn *conn
	held []net.Conn // kept open, oldest first
}

// run sends so many messages at a rate, those that a pause kept back at once.
func (a *attacker) run(ctx context.Context, count int, rate float64) {
	defer a.close()
	began := time.Now()
	for a.n < count {
		due := began.Add(time.Duration(float64(a.n) / rate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		if ctx.Err() != nil {
			return
		}
		a.n++
		if err := a.send(a); err != nil {
			a.cut.Add(1)
			a.hangUp()
		}
		a.tally.sent.Add(1)
	}
}

func (a *attacker) close() {
	a.hangUp()
	for _, c := range a.held {
		c.Close()
	}
}

func (a *attacker) hangUp() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// hold keeps a connection, and ends the oldest of more than most.
func (a *attacker) hold(c net.Conn, most int) {
	if a.held = append(a.held, c); len(a.held) > most {
		a.held[0].Close()
		a.held = a.held[1:]
	}
}

// as is the connection of a ZeroMQ peer, made where there is none.
func (a *attacker) as(endpoint, socket, identity string, reads bool) (*conn, error) {
	if a.conn != nil {
		return a.conn, nil
	}
	var err error
	a.conn, err = handshake(endpoint, socket, identity, reads, &a.answers)
	return a.conn, err
}

// noise is so many random bytes.
func (a *attacker) noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(a.rng.Uint32())
	}
	return b
}

// fresh is a name that nobody had before.
func (a *attacker) fresh() string { return fmt.Sprintf("%s-%d", a.name, a.n) }

// theirs is a request of one of the good ones.
func (a *attacker) theirs() string { return a.admitted.some(a.rng.IntN(goodWindow)) }

// talk sends frames to the receiver as a DEALER that reads its answers.
func (a *attacker) talk(frames ...[]byte) error {
	c, err := a.as(a.recv.endpoint, "DEALER", "", true)
	if err != nil {
		return err
	}
	return c.send(frames...)
}

// ask sends a payload so that it is answered, every other one in one frame.
func (a *attacker) ask(payload []byte) error {
	if a.n%2 == 0 {
		return a.talk(append(wire.AppendMark(nil, uint64(a.n)), payload...))
	}
	return a.talk(binary.BigEndian.AppendUint64(nil, uint64(a.n)), nil, payload)
}

// mute is ask of a peer that never reads.
func (a *attacker) mute(payload []byte) error {
	c, err := a.as(a.recv.endpoint, "DEALER", "", false)
	if err != nil {
		return err
	}
	return c.send(binary.BigEndian.AppendUint64(nil, uint64(a.n)), nil, payload)
}

// push sends frames to the proxy.
func (a *attacker) push(frames ...[]byte) error {
	c, err := a.as(a.proxy.endpoint, "PUSH", "", false)
	if err != nil {
		return err
	}
	return c.send(frames...)
}

// once opens a connection, says something and leaves.
func (a *attacker) once(endpoint string, said []byte) error {
	c, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(said)
	return err
}

// stays is once, but the connection stays open, one of so many.
func (a *attacker) stays(endpoint string, said []byte, most int) error {
	c, err := dial(endpoint)
	if err != nil {
		return err
	}
	a.hold(c, most)
	_, err = c.Write(said)
	return err
}
