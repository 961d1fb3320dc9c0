package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// What a peer of ZeroMQ says first: its protocol is spoken here by hand, so that
// each byte of it can be wrong, and a connection costs no thread.
const greetingLen = 64

func greeting(mechanism string) []byte {
	b := make([]byte, greetingLen)
	copy(b, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00")
	copy(b[12:32], mechanism)
	return b
}

// Flags of a frame.
const (
	frameMore    = 1
	frameLong    = 2
	frameCommand = 4
)

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		b = append(b, flags, byte(len(body)))
	} else {
		b = binary.BigEndian.AppendUint64(append(b, flags|frameLong), uint64(len(body)))
	}
	return append(b, body...)
}

func appendMessage(b []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = frameMore
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// ready is the command that says what socket a peer is, and who.
func ready(socket, identity string) []byte {
	b := []byte("\x05READY")
	for _, p := range [][2]string{{"Socket-Type", socket}, {"Identity", identity}} {
		b = append(append(b, byte(len(p[0]))), p[0]...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p[1]))), p[1]...)
	}
	return appendFrame(nil, frameCommand, b)
}

// conn is one connection of a peer that means no good.
type conn struct {
	net.Conn
	answers *atomic.Int64 // whole messages that have come
}

// dialTime bounds a connection's beginning and each write.
const dialTime = 5 * time.Second

// dial connects to tcp://HOST:PORT or HOST:PORT, or to an abstract unix socket
// @NAME.
func dial(endpoint string) (net.Conn, error) {
	network, addr := "tcp", strings.TrimPrefix(endpoint, "tcp://")
	if strings.HasPrefix(addr, "@") {
		network = "unix"
	}
	c, err := net.DialTimeout(network, addr, dialTime)
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // thousands of ends leave no port behind
	}
	return c, c.SetWriteDeadline(time.Now().Add(dialTime))
}

// handshake connects as a ZeroMQ socket; what comes back is counted, or not read.
func handshake(endpoint, socket, identity string, reads bool, answers *atomic.Int64) (*conn, error) {
	raw, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, answers: answers}
	if !reads {
		if t, ok := raw.(*net.TCPConn); ok {
			_ = t.SetReadBuffer(4096)
		}
	}
	if _, err := c.Write(append(greeting("NULL"), ready(socket, identity)...)); err != nil {
		c.Close()
		return nil, err
	}
	if reads {
		go c.read()
	}
	return c, nil
}

// send writes a message.
func (c *conn) send(frames ...[]byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(dialTime)); err != nil {
		return err
	}
	_, err := c.Write(appendMessage(nil, frames...))
	return err
}

// read counts messages until the connection ends.
func (c *conn) read() {
	r := bufio.NewReaderSize(c, 16<<10)
	if _, err := r.Discard(greetingLen); err != nil {
		return
	}
	for {
		flags, err := r.ReadByte()
		if err != nil {
			return
		}
		size := make([]byte, 8)
		if flags&frameLong != 0 {
			_, err = io.ReadFull(r, size)
		} else {
			size[7], err = r.ReadByte()
		}
		if err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint64(size))); err != nil {
			return
		}
		if flags&(frameMore|frameCommand) == 0 {
			c.answers.Add(1)
		}
	}
}
