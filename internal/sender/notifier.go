package sender

import (
	"container/list"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// maxFails is how many FailNotifs wait for a proxy that is away. What comes on
// top counts as undelivered. ProxyNotifs are bounded by the live requests.
const maxFails = 65_536

// tendEvery is how often it is seen whether the proxy refuses us.
const tendEvery = time.Second

// errWithdrawn is what came of a ProxyNotif that was taken back in time.
var errWithdrawn = errors.New("withdrawn")

// notifier tells the proxy. Its goroutine owns the PUSH socket and keeps the
// notices that no live connection has taken yet, each for its time: ZeroMQ
// would keep them unseen.
type notifier struct {
	endpoint string
	timeout  time.Duration // 0: none
	clock    *clock
	emit     func(noticed)
	line     *sock.Redialed
	poller   *sock.Poller
	in       *mailbox[any]
	spare    []any
	queue    list.List                // *notice, in order, which is the order in which they are due
	ready    map[string]*list.Element // the ProxyNotifs among them, by req_id

	closing     bool
	until       time.Duration // when to give up at the end; 0: when the notices do
	undelivered atomic.Int64
	done        chan struct{} // closed when the goroutine has ended
}

type notice struct {
	reqID   string
	ready   bool // a ProxyNotif: what becomes of it is told
	payload []byte
	due     time.Duration
}

// Orders to a notifier.
type (
	orderNotify   struct{ reqID string }
	orderWithdraw struct{ reqID string }
	orderFail     struct{ reqID, reason string }
	// orderEnd has the notifier end when its queue is empty, or when until has
	// come; 0 is never.
	orderEnd struct{ until time.Duration }
)

// newNotifier connects and starts the goroutine, which ends after an orderEnd.
func newNotifier(ctx *sock.Context, endpoint string, timeout time.Duration, clock *clock, emit func(noticed)) (*notifier, error) {
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, err
	}
	line, err := ctx.Redial(zmq4.PUSH, endpoint, sock.Options{Meant: "a pd-proxy's --listen", Prepare: func(s *zmq4.Socket) error {
		return errors.Join(s.SetImmediate(true), s.SetReconnectIvl(redialMin), s.SetReconnectIvlMax(redialMax))
	}}, poller)
	if err != nil {
		poller.Close()
		return nil, err
	}
	n := &notifier{
		endpoint: endpoint,
		timeout:  timeout,
		clock:    clock,
		emit:     emit,
		line:     line,
		poller:   poller,
		in:       &mailbox[any]{wake: poller.Wake},
		ready:    make(map[string]*list.Element),
		done:     make(chan struct{}),
	}
	go n.run()
	return n, nil
}

func (n *notifier) run() {
	defer close(n.done)
	defer n.poller.Close()
	defer n.line.Close()
	for {
		n.wait()
		n.spare = n.in.take(n.spare)
		for _, ev := range n.spare {
			n.handle(ev)
		}
		n.flush()
		n.expire()
		if n.closing && (n.queue.Len() == 0 || n.until > 0 && n.clock.now() >= n.until) {
			n.undelivered.Add(int64(n.queue.Len()))
			return
		}
	}
}

// wait returns when there is something to do. An error of the poll shows in
// what is then not delivered.
func (n *notifier) wait() {
	n.line.Tend()
	wait := tendEvery
	events := zmq4.State(0)
	if e := n.queue.Front(); e != nil {
		events = zmq4.POLLOUT
		wait = tickEvery
		for _, due := range []time.Duration{e.Value.(*notice).due, n.until} {
			if due > 0 {
				wait = min(wait, max(0, due-n.clock.now()))
			}
		}
	}
	_ = n.poller.Watch(n.line.Socket, events)
	_, _ = n.poller.Wait(wait)
}

func (n *notifier) handle(ev any) {
	switch ev := ev.(type) {
	case orderNotify:
		n.ready[ev.reqID] = n.add(&notice{reqID: ev.reqID, ready: true, payload: wire.Append(nil, &wire.ProxyNotif{ReqID: ev.reqID})})
	case orderFail:
		if n.queue.Len()-len(n.ready) >= maxFails {
			n.undelivered.Add(1)
			return
		}
		n.add(&notice{reqID: ev.reqID, payload: wire.Append(nil, &wire.FailNotif{ReqID: ev.reqID, Reason: ev.reason})})
	case orderWithdraw:
		if e := n.ready[ev.reqID]; e != nil {
			n.remove(e, errWithdrawn)
		}
	case orderEnd:
		n.closing, n.until = true, ev.until
	}
}

func (n *notifier) add(m *notice) *list.Element {
	if n.timeout > 0 {
		m.due = n.clock.now() + n.timeout
	}
	return n.queue.PushBack(m)
}

// remove ends a notice: err is nil when it is delivered.
func (n *notifier) remove(e *list.Element, err error) {
	m := n.queue.Remove(e).(*notice)
	if m.ready {
		delete(n.ready, m.reqID)
		n.emit(noticed{m.reqID, err})
	}
}

// flush gives the proxy's connection what it takes.
func (n *notifier) flush() {
	for e := n.queue.Front(); e != nil; e = n.queue.Front() {
		if err := sock.Send(n.line.Socket, e.Value.(*notice).payload); err != nil {
			return // no room, or no connection
		}
		n.remove(e, nil)
	}
}

// expire gives up what no connection took in time.
func (n *notifier) expire() {
	now := n.clock.now()
	for e := n.queue.Front(); e != nil && n.timeout > 0 && e.Value.(*notice).due <= now; e = n.queue.Front() {
		n.undelivered.Add(1)
		err := fmt.Errorf("proxy %s took no notification within %v: is pd-proxy running there?", n.endpoint, n.timeout)
		if why := n.line.Why(); why != nil {
			err = fmt.Errorf("the proxy took no notification within %v: %w", n.timeout, why)
		}
		n.remove(e, err)
	}
}
