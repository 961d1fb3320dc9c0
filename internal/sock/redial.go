package sock

import (
	"time"

	"github.com/pebbe/zmq4"
)

// redialEvery is how often a peer that refuses us is asked again: its allow file
// may have changed, or another program may have come.
const redialEvery = time.Second

// Redialed is a connecting socket that is made anew where ZeroMQ would give up
// for good: when its peer refuses it. It belongs to one goroutine, which calls
// Tend often.
type Redialed struct {
	Socket *zmq4.Socket // another after a Tend that says so

	poller     *Poller // of who waits for it
	dial       func() (*zmq4.Socket, *Connection, error)
	connection *Connection
	refused    bool
	dialed     time.Time
}

// Redial is a Dial that does not give up. If the poller watches the socket, it
// forgets it when that is closed.
func (c *Context) Redial(t zmq4.Type, endpoint string, o Options, poller *Poller) (*Redialed, error) {
	r := &Redialed{poller: poller, dial: func() (*zmq4.Socket, *Connection, error) { return c.DialFollowed(t, endpoint, o) }}
	return r, r.anew()
}

// anew leaves things as they are where it fails.
func (r *Redialed) anew() error {
	r.dialed = time.Now()
	s, h, err := r.dial()
	if err != nil {
		return err
	}
	if r.Socket != nil {
		r.Close()
	}
	r.Socket, r.connection, r.refused = s, h, false
	return nil
}

// Tend dials anew if that is due. It reports whether it has.
func (r *Redialed) Tend() (anew bool) {
	r.refused = r.connection.Read() || r.refused
	if !r.refused || time.Since(r.dialed) < redialEvery {
		return false
	}
	why := r.connection.why
	if err := r.anew(); err != nil {
		r.connection.why = err
		return false
	}
	r.connection.why = why // until it is known better
	return true
}

// Why is as of Handshakes.
func (r *Redialed) Why() error { return r.connection.why }

// Close ends it.
func (r *Redialed) Close() {
	r.poller.Forget(r.Socket)
	r.Socket.Close()
	r.connection.Close()
}
