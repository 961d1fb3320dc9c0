package sock

import (
	"fmt"
	"sync/atomic"

	"github.com/pebbe/zmq4"
)

// wakers numbers the inproc endpoints of this process.
var wakers atomic.Uint64

// wakeQueue is never full: few wake-ups are unread at a time. But ZeroMQ learns
// what has been read only once in a millisecond, and in a smaller queue finds no
// room although there is.
const wakeQueue = 1 << 20

// Waker lets other goroutines wake a loop that polls sockets. The loop adds
// Socket to its poller and calls Drain when it wakes, before it looks at what
// the others left for it. Wake is for anyone; Socket, Drain and Close are the
// loop's own.
type Waker struct {
	pull    *zmq4.Socket
	pending atomic.Bool   // a wake-up is on its way
	kick    chan struct{} // to the goroutine that owns the sending end
	stop    chan struct{}
	done    chan struct{} // closed when that goroutine has ended
}

// NewWaker makes a waker and starts the goroutine that owns its sending end.
func (c *Context) NewWaker() (*Waker, error) {
	endpoint := fmt.Sprintf("inproc://waker-%d", wakers.Add(1))
	pull, err := c.open(zmq4.PULL, Options{RecvQueue: wakeQueue}, false)
	if err != nil {
		return nil, err
	}
	if err := uninterrupted(func() error { return pull.Bind(endpoint) }); err != nil {
		pull.Close()
		return nil, err
	}
	push, err := c.open(zmq4.PUSH, Options{SendQueue: wakeQueue, Linger: -1}, false)
	if err != nil {
		pull.Close()
		return nil, err
	}
	if err := connect(push, endpoint); err != nil {
		push.Close()
		pull.Close()
		return nil, err
	}
	w := &Waker{
		pull: pull,
		kick: make(chan struct{}, 1),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	go w.forward(push)
	return w, nil
}

func (w *Waker) forward(push *zmq4.Socket) {
	defer close(w.done)
	defer push.Close()
	for {
		select {
		case <-w.kick:
			_ = Send(push, nil) // finds room, see wakeQueue
		case <-w.stop:
			return
		}
	}
}

// Wake makes the loop's next or present wait return. It never blocks, costs
// little when a wake-up is already on its way, and does nothing after Close.
func (w *Waker) Wake() {
	if w.pending.Swap(true) {
		return
	}
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Socket is what the loop polls for zmq4.POLLIN.
func (w *Waker) Socket() *zmq4.Socket { return w.pull }

// Drain takes the wake-ups that have come. What another goroutine left before
// its Wake is visible after Drain.
func (w *Waker) Drain() {
	// Only behind the last read: a wake-up that was read with pending set again
	// would leave it set for good.
	defer w.pending.Store(false)
	for {
		if _, err := Recv(w.pull, 1); err != nil {
			return
		}
	}
}

// Close ends the goroutine and closes both sockets.
func (w *Waker) Close() {
	close(w.stop)
	<-w.done
	w.pull.Close()
}
