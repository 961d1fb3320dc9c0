// Package peertest is a raw peer of a receiver for tests and benchmarks: a
// DEALER that sends what it is told, well formed or not, as LMCache's sender
// does it or as ours does. It knows nothing of admission and checks nothing.
// Start at Dial; Call is one round trip.
//
// A Peer belongs to one goroutine.
package peertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// Timeout is how long Call waits for its answer.
const Timeout = 60 * time.Second

// Options of a Peer. The zero value is a peer like pd-send's.
type Options struct {
	Keys     *sock.Keys
	Identity string // ROUTER identity; empty: ZeroMQ makes one up
	Legacy   bool   // frames ["", payload] as LMCache, instead of [correlation, "", payload]
	Queue    int    // messages ZeroMQ keeps, each way; 0: 1,000
	Buffer   int    // bytes the kernel keeps unread; 0: the system's default
}

// Peer is one connection to a receiver.
type Peer struct {
	ctx    *sock.Context
	socket *zmq4.Socket
	poller *sock.Poller
	legacy bool
	last   uint64            // correlation
	early  map[uint64][]byte // answers that came while Call waited for another
	frames [3][]byte
	corr   [8]byte
	buf    []byte
}

// Dial connects. It does not wait for the receiver.
func Dial(endpoint string, o Options) (*Peer, error) {
	ctx, err := sock.NewContext(o.Keys)
	if err != nil {
		return nil, err
	}
	if o.Queue == 0 {
		o.Queue = 1000
	}
	socket, err := ctx.Dial(zmq4.DEALER, endpoint, sock.Options{
		MaxFrame: wire.MaxResponse, SendQueue: o.Queue, RecvQueue: o.Queue,
		Prepare: func(s *zmq4.Socket) error {
			if o.Identity != "" {
				if err := s.SetIdentity(o.Identity); err != nil {
					return err
				}
			}
			if o.Buffer != 0 {
				return s.SetRcvbuf(o.Buffer)
			}
			return nil
		},
	})
	if err != nil {
		ctx.Close()
		return nil, err
	}
	p := &Peer{ctx: ctx, socket: socket, legacy: o.Legacy, early: make(map[uint64][]byte)}
	if p.poller, err = sock.NewPoller(); err == nil {
		err = p.poller.Watch(socket, zmq4.POLLIN)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close ends the connection. What is unsent has a second to go.
func (p *Peer) Close() {
	if p.poller != nil {
		p.poller.Close()
	}
	p.socket.Close()
	p.ctx.Close()
}

// Kill ends the connection at once, as when a process dies.
func (p *Peer) Kill() {
	_ = p.socket.SetLinger(0)
	p.Close()
}

// Send writes a message and returns the correlation that its answer will have:
// 0 for a legacy peer.
func (p *Peer) Send(m wire.Message) (uint64, error) {
	p.buf = wire.Append(p.buf[:0], m)
	return p.SendPayload(p.buf)
}

// SendPayload is Send for bytes that need not be a message.
func (p *Peer) SendPayload(payload []byte) (uint64, error) {
	if p.legacy {
		return 0, p.SendFrames(nil, payload)
	}
	p.last++
	binary.BigEndian.PutUint64(p.corr[:], p.last)
	return p.last, p.SendFrames(p.corr[:], nil, payload)
}

// SendFrames writes frames as they are, waiting for room.
func (p *Peer) SendFrames(frames ...[]byte) error {
	for i, f := range frames {
		flag := zmq4.Flag(0)
		if i < len(frames)-1 {
			flag = zmq4.SNDMORE
		}
		for {
			_, err := p.socket.SendBytes(f, flag)
			if err == nil {
				break
			}
			if zmq4.AsErrno(err) != zmq4.Errno(syscall.EINTR) {
				return err
			}
		}
	}
	return nil
}

// ErrTimeout says that nothing came in time.
var ErrTimeout = errors.New("nothing came in time")

// RecvFrames reads the frames of one message.
func (p *Peer) RecvFrames(timeout time.Duration) ([][]byte, error) {
	frames, err := sock.Recv(p.socket, 64)
	for deadline := time.Now().Add(timeout); errors.Is(err, sock.ErrAgain); {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, ErrTimeout
		}
		if _, err := p.poller.Wait(left); err != nil {
			return nil, err
		}
		frames, err = sock.Recv(p.socket, 64)
	}
	return frames, err
}

// RecvPayload reads an answer and the correlation it came with.
func (p *Peer) RecvPayload(timeout time.Duration) (uint64, []byte, error) {
	frames, err := p.RecvFrames(timeout)
	if err != nil {
		return 0, nil, err
	}
	switch {
	case len(frames) == 2 && len(frames[0]) == 0:
		return 0, frames[1], nil
	case len(frames) == 3 && len(frames[0]) == 8 && len(frames[1]) == 0:
		return binary.BigEndian.Uint64(frames[0]), frames[2], nil
	}
	return 0, nil, fmt.Errorf("answer has frames %q", frames)
}

// Recv reads an answer and decodes it.
func (p *Peer) Recv(timeout time.Duration) (uint64, wire.Message, error) {
	corr, payload, err := p.RecvPayload(timeout)
	if err != nil {
		return 0, nil, err
	}
	m, err := wire.Decode(payload)
	return corr, m, err
}

// Wait is the answer with this correlation; others that come first are kept.
func (p *Peer) Wait(corr uint64, timeout time.Duration) (wire.Message, error) {
	for deadline := time.Now().Add(timeout); ; {
		if payload, ok := p.early[corr]; ok {
			delete(p.early, corr)
			return wire.Decode(payload)
		}
		got, payload, err := p.RecvPayload(time.Until(deadline))
		if err != nil {
			return nil, err
		}
		p.early[got] = payload
	}
}

// Call is one round trip.
func (p *Peer) Call(m wire.Message) (wire.Message, error) {
	corr, err := p.Send(m)
	if err != nil {
		return nil, err
	}
	return p.Wait(corr, Timeout)
}

// Attach introduces the peer as a sender that can write by the engines.
func (p *Peer) Attach(name string, engines ...string) (*wire.AttachResponse, error) {
	m, err := p.Call(&wire.AttachRequest{Name: name, Version: wire.ProtocolVersion, Engines: engines})
	if err != nil {
		return nil, err
	}
	resp, ok := m.(*wire.AttachResponse)
	if !ok {
		return nil, fmt.Errorf("answer to AttachRequest is %T", m)
	}
	if resp.Code != "" {
		return resp, fmt.Errorf("attach refused: %s: %s", resp.Code, resp.Error)
	}
	return resp, nil
}

// Alloc is a batch of opaque chunks of size bytes each, as pd-send asks for it.
func Alloc(reqID string, total int64, last bool, size int64, keys ...string) *wire.AllocRequest {
	return &wire.AllocRequest{
		Keys: keys, Fmt: wire.I(wire.FmtBinary), Shape: []wire.Int{wire.I(size)}, Dtype: "uint8",
		LastChunkToks: wire.I(size), ReqID: reqID, IsLastBatch: last, TotalChunks: wire.I(total),
	}
}
