package receiver

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// notifyQueue is how many FailNotifs wait for a proxy that is away. What comes
// on top is dropped, and said.
const notifyQueue = 16_384

// notifyIdle is how often it is seen whether the proxy refuses us.
const notifyIdle = time.Second

// notifyRetry is how long one wait for a connection that takes a message lasts.
const notifyRetry = 100 * time.Millisecond

// notifyWaits is after how long a message that no connection takes is told of.
const notifyWaits = 2 * time.Second

// notifier tells the proxy which requests expired. Its goroutine owns the
// socket.
type notifier struct {
	queue    chan []byte
	warn     func(kind, text string)
	told     string // what was warned of last, while it is so
	endpoint string
	line     *sock.Redialed
	poller   *sock.Poller
	done     chan struct{}
	closing  atomic.Int64 // unix nanoseconds at which to give up; 0: not closing
}

func newNotifier(ctx *sock.Context, endpoint string, warn func(kind, text string)) (*notifier, error) {
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, err
	}
	line, err := ctx.Redial(zmq4.PUSH, endpoint, sock.Options{Meant: "a pd-proxy's --listen", Prepare: func(s *zmq4.Socket) error {
		// Only a live connection takes a message: without one it would wait in
		// ZeroMQ, unseen.
		return s.SetImmediate(true)
	}}, poller)
	if err != nil {
		poller.Close()
		return nil, err
	}
	n := &notifier{
		queue:    make(chan []byte, notifyQueue),
		warn:     warn,
		endpoint: endpoint,
		line:     line,
		poller:   poller,
		done:     make(chan struct{}),
	}
	go n.work()
	return n, nil
}

// fail queues a FailNotif.
func (n *notifier) fail(reqID, reason string) {
	select {
	case n.queue <- wire.Append(nil, &wire.FailNotif{ReqID: reqID, Reason: reason}):
	default:
		n.warn("proxy", fmt.Sprintf("proxy does not take notifications: that request %q expired is not told", reqID))
	}
}

func (n *notifier) work() {
	defer close(n.done)
	defer n.poller.Close()
	defer n.line.Close()
	lost := 0
	ticker := time.NewTicker(notifyIdle)
	defer ticker.Stop()
	for open := true; open; {
		select {
		case <-ticker.C:
			n.tend()
		case msg, more := <-n.queue:
			if open = more; more && !n.send(msg) {
				lost++
			}
		}
	}
	if lost > 0 {
		n.warn("proxy", fmt.Sprintf("%d notifications were not delivered to the proxy at %s", lost, n.endpoint))
	}
}

// tend sees whether the proxy refuses us, and tries again then.
func (n *notifier) tend() {
	if n.line.Tend() {
		n.tell(n.line.Why())
	}
}

// tell says, once, why the proxy is not told.
func (n *notifier) tell(why error) {
	if text := fmt.Sprintf("the proxy is not told what expires: %v", why); text != n.told {
		n.told = text
		n.warn("proxy", text)
	}
}

// send tries until a connection takes the message or time is up at the end.
func (n *notifier) send(msg []byte) bool {
	for since := time.Now(); ; {
		end := n.closing.Load()
		if end != 0 && time.Now().UnixNano() >= end {
			return false
		}
		if sock.Send(n.line.Socket, msg) == nil {
			n.told = ""
			return true
		}
		n.tend()
		if time.Since(since) > notifyWaits {
			n.tell(cmp.Or(n.line.Why(), fmt.Errorf("nobody takes it at %s: is pd-proxy running there?", n.endpoint)))
		}
		if err := n.poller.Watch(n.line.Socket, zmq4.POLLOUT); err != nil {
			return false
		}
		if _, err := n.poller.Wait(notifyRetry); err != nil {
			return false
		}
	}
}

// close delivers what is queued, for at most d, and ends the goroutine.
func (n *notifier) close(d time.Duration) {
	n.closing.Store(time.Now().Add(d).UnixNano())
	close(n.queue)
	<-n.done
}
