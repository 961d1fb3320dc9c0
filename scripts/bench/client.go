package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/wire"
)

// patience is how long a client waits for one answer.
const patience = 30 * time.Second

// client is one DEALER. It belongs to one goroutine.
type client struct {
	socket   *zmq4.Socket
	oneFrame bool // it talks as pd-send does to a receiver that takes that
	out      []byte
}

func dial(endpoint string) (*client, error) { return dialWith(nil, endpoint) }

// dialWith uses the keys, if there are any.
func dialWith(k *keyPairs, endpoint string) (*client, error) {
	s, err := zmq4.NewSocket(zmq4.DEALER)
	if err != nil {
		return nil, err
	}
	if k != nil {
		if err := s.ClientAuthCurve(k.server, k.public, k.secret); err != nil {
			s.Close()
			return nil, err
		}
	}
	for _, err := range []error{
		s.SetLinger(0), s.SetRcvtimeo(patience), s.SetSndhwm(0), s.SetRcvhwm(0), s.Connect(endpoint),
	} {
		if err != nil {
			s.Close()
			return nil, err
		}
	}
	return &client{socket: s}, nil
}

func (c *client) close() { c.socket.Close() }

func (c *client) send(correlation, payload []byte) error {
	if c.oneFrame {
		c.out = append(wire.AppendMark(c.out[:0], binary.BigEndian.Uint64(correlation)), payload...)
		_, err := c.socket.SendBytes(c.out, 0)
		return err
	}
	if _, err := c.socket.SendBytes(correlation, zmq4.SNDMORE); err != nil {
		return err
	}
	if _, err := c.socket.SendBytes(nil, zmq4.SNDMORE); err != nil {
		return err
	}
	_, err := c.socket.SendBytes(payload, 0)
	return err
}

// receive waits for the next answer.
func (c *client) receive() (correlation, payload []byte, err error) {
	frames, err := c.socket.RecvMessageBytes(0)
	if err != nil {
		return nil, nil, fmt.Errorf("no answer: %w", err)
	}
	if c.oneFrame && len(frames) == 1 {
		if mark, payload := wire.CutMark(frames[0]); mark != nil {
			return mark[wire.MarkLen-correlationLen:], payload, nil
		}
	}
	if len(frames) != 3 || len(frames[0]) != correlationLen {
		return nil, nil, fmt.Errorf("answer has %d frames", len(frames))
	}
	return frames[0], frames[2], nil
}

// call sends one message and waits for its answer; nothing else is in flight.
func (c *client) call(m wire.Message) (wire.Message, error) {
	if err := c.send(correlation(0, 0), wire.Append(nil, m)); err != nil {
		return nil, err
	}
	_, payload, err := c.receive()
	if err != nil {
		return nil, err
	}
	return wire.Decode(payload)
}

// attach makes c an attached sender and returns the receiver's epoch.
func (c *client) attach(name string) (epoch uint64, err error) {
	m, err := c.call(&wire.AttachRequest{Name: name, Version: wire.ProtocolVersion, Engines: []string{"shm"}})
	if err != nil {
		return 0, err
	}
	answer, ok := m.(*wire.AttachResponse)
	if !ok || answer.Code != "" {
		return 0, fmt.Errorf("cannot attach: %+v", m)
	}
	return answer.Epoch, nil
}

// alloc asks for a batch and fails unless it is granted.
func (c *client) alloc(req *wire.AllocRequest) error {
	m, err := c.call(req)
	if err != nil {
		return err
	}
	if answer, ok := m.(*wire.AllocResponse); !ok || answer.Code != "" {
		return fmt.Errorf("batch of %q refused: %+v", req.ReqID, m)
	}
	return nil
}

// stat asks a receiver for its Snapshot.
func stat(endpoint string) (*wire.Snapshot, error) {
	c, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer c.close()
	m, err := c.call(&wire.StatRequest{})
	if err != nil {
		return nil, err
	}
	snapshot, ok := m.(*wire.Snapshot)
	if !ok {
		return nil, fmt.Errorf("answer to StatRequest is %T", m)
	}
	return snapshot, nil
}

// until asks for Snapshots until one is as wanted.
func until(endpoint, what string, wanted func(*wire.Snapshot) bool) error {
	for deadline := time.Now().Add(patience); ; {
		s, err := stat(endpoint)
		if err != nil {
			return err
		}
		if wanted(s) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not %s after %v: slots %+v, totals %+v, counters %+v", what, patience, s.Slots, s.Totals, s.Counters)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// untilIdle is until all requests have ended and all slots are free.
func untilIdle(endpoint string) error {
	return until(endpoint, "idle", func(s *wire.Snapshot) bool {
		return s.Slots.Free == s.Slots.Total && s.Totals.Requests == 0
	})
}
