package sock

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/pebbe/zmq4"
)

// connectionEvents are what a connecting socket can tell of its connection.
const connectionEvents = zmq4.EVENT_HANDSHAKE_SUCCEEDED | zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL |
	zmq4.EVENT_HANDSHAKE_FAILED_AUTH | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CONNECT_RETRIED

// Monitor returns a socket that tells what becomes of the connection of s, to
// be read with RecvEvent, and without delay: ZeroMQ waits for its reader. It
// belongs to the goroutine that owns s and is to be closed after it.
func (c *Context) Monitor(s *zmq4.Socket) (*zmq4.Socket, error) {
	endpoint := fmt.Sprintf("inproc://monitor-%d", wakers.Add(1))
	if err := uninterrupted(func() error { return s.Monitor(endpoint, connectionEvents) }); err != nil {
		return nil, err
	}
	pair, err := c.open(zmq4.PAIR, Options{Linger: -1}, false)
	if err != nil {
		return nil, err
	}
	if err := connect(pair, endpoint); err != nil {
		pair.Close()
		return nil, err
	}
	return pair, nil
}

// RecvEvent reads what has happened to a connection without blocking: ErrAgain
// when that is nothing.
func RecvEvent(s *zmq4.Socket) (zmq4.Event, error) {
	frames, err := Recv(s, 2)
	if err != nil {
		return 0, err
	}
	if len(frames[0]) < 2 {
		return 0, errors.New("ZeroMQ's event has no number")
	}
	return zmq4.Event(binary.NativeEndian.Uint16(frames[0])), nil
}
