package receiver

import (
	"errors"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
)

// What a peer that does not read its answers can make us keep, above the
// sendQueue messages in ZeroMQ.
const (
	maxBacklog      = 1024    // answers
	maxBacklogBytes = 4 << 20 // bytes

	// maxBacklogs is for all peers together, bytes, answerCost for each answer
	// included: that is what a small one takes beside its bytes. A backlog may be
	// as large as what is left of it: a few that are slow have what they may
	// have, and however many there are, there is room for who gets slow next.
	maxBacklogs = 16 << 20
	answerCost  = 256
)

const (
	retryMin   = time.Millisecond      // between two tries of the backlogs, at first
	retryMax   = 50 * time.Millisecond // and when nobody reads
	retryPeers = 64                    // peers tried in one turn
	retrySends = 1024                  // answers sent in one turn

	patience      = 2 * time.Millisecond // how long a full backlog may stand still
	patienceSleep = 200 * time.Microsecond
)

// outbox sends answers without ever blocking on a peer. Those for a slow peer
// wait in its backlog, in order.
type outbox struct {
	peers   peers
	scratch [][]byte
	slow    map[string]*backlog
	turn    []*backlog // the same, in the order of trying
	cost    int        // of all of them, of maxBacklogs
	retry   time.Duration
	next    time.Time // of the next try
	pause   func(time.Duration)

	undeliverable int64 // answers whose peer was gone, or that a full backlog did not take
}

// peers is what answers go to.
type peers interface {
	send(frames ...[]byte) error // as sock.Send
	look()                       // whether those who had no room have some now
}

// largeAnswer is from how many bytes on an answer is counted until ZeroMQ has
// passed it on: its own limit for a peer, sendQueue, is of messages. All below
// make no more than 2 MiB, those counted maxUnsent, or one.
const (
	largeAnswer = 8 << 10
	maxUnsent   = 1 << 20
)

// router is the peers of a ROUTER.
type router struct {
	*zmq4.Socket
	large map[string]*sock.Unsent // by peer, where there is some
	most  int                     // of these, until those without are looked for
}

func newRouter(s *zmq4.Socket) *router {
	return &router{Socket: s, large: make(map[string]*sock.Unsent)}
}

func (r *router) send(frames ...[]byte) error {
	n := size(frames)
	if n < largeAnswer {
		return sock.Send(r.Socket, frames...)
	}
	peer := string(frames[0])
	u := r.large[peer]
	if u == nil {
		r.forget()
		u = sock.NewUnsent()
		r.large[peer] = u
	}
	if has := u.Bytes(); has > 0 && has+n > maxUnsent {
		return sock.ErrAgain
	}
	return sock.SendCounted(r.Socket, u, frames...)
}

// forget lets go of those whose large answers are gone, now and then.
func (r *router) forget() {
	if len(r.large) < r.most {
		return
	}
	for peer, u := range r.large {
		if u.Bytes() == 0 {
			u.Close()
			delete(r.large, peer)
		}
	}
	r.most = max(64, 2*len(r.large))
}

// look asks for the events: ZeroMQ looks for news of its pipes only now and then
// while sending.
func (r *router) look() { _, _ = r.GetEvents() }

// backlog is what one slow peer has not taken yet.
type backlog struct {
	sender  string
	answers [][][]byte // whole messages
	bytes   int
	stuck   bool // it was full, and nothing has gone since
}

func (b *backlog) cost() int { return b.bytes + len(b.answers)*answerCost }

func newOutbox(peers peers) *outbox {
	return &outbox{peers: peers, slow: make(map[string]*backlog), pause: time.Sleep}
}

// send hands an answer to the peer or to its backlog; payload is copied. It
// reports false when the backlog is over its limit and does not move: what was
// in it is lost then, but for the newest answer, and the sender must end.
func (o *outbox) send(env *envelope, payload []byte) bool {
	if len(o.slow) > 0 {
		if b := o.slow[env.sender]; b != nil {
			return o.append(b, env, payload)
		}
	}
	err := o.try(env.frames, payload)
	if errors.Is(err, sock.ErrAgain) {
		b := &backlog{sender: env.sender}
		o.slow[env.sender] = b
		o.turn = append(o.turn, b)
		o.retry, o.next = retryMin, time.Now().Add(retryMin)
		return o.append(b, env, payload)
	}
	if err != nil {
		o.undeliverable++
	}
	return true
}

func (o *outbox) try(frames [][]byte, payload []byte) error {
	o.scratch = append(append(o.scratch[:0], frames...), payload)
	return o.peers.send(o.scratch...)
}

func (o *outbox) append(b *backlog, env *envelope, payload []byte) bool {
	room := o.makeRoom(b, size(env.frames)+len(payload))
	if o.slow[b.sender] != b { // it caught up while we made room
		return o.send(env, payload)
	}
	if !room {
		o.undeliverable += int64(len(b.answers))
		o.empty(b)
		b.stuck = true
	}
	answer := make([][]byte, 0, len(env.frames)+1)
	answer = append(answer, env.frames...)
	answer = append(answer, append([]byte(nil), payload...))
	b.answers = append(b.answers, answer)
	o.add(b, size(answer), 1)
	return room
}

// makeRoom lets a peer that does read catch up: one event can bring it more
// answers than the backlog holds. One that did not move is not waited for again:
// everybody else waits, too.
func (o *outbox) makeRoom(b *backlog, more int) bool {
	for still := time.Duration(0); o.full(b, more); {
		if o.drain(b, retrySends) > 0 {
			still = 0
			continue
		}
		if b.stuck || still >= patience {
			return false
		}
		o.pause(patienceSleep)
		still += patienceSleep
	}
	return true
}

// full says whether a backlog cannot take an answer of so many bytes more. The
// first it takes in any case.
func (o *outbox) full(b *backlog, more int) bool {
	return len(b.answers) >= maxBacklog ||
		len(b.answers) > 0 && (b.bytes+more > maxBacklogBytes || b.cost()+more+answerCost > maxBacklogs-o.cost)
}

// add counts answers that a backlog has more, or less.
func (o *outbox) add(b *backlog, bytes, answers int) {
	b.bytes += bytes
	o.cost += bytes + answers*answerCost
}

func (o *outbox) empty(b *backlog) {
	o.add(b, -b.bytes, -len(b.answers))
	b.answers = nil
}

// drain sends up to limit answers of a backlog and reports how many went.
func (o *outbox) drain(b *backlog, limit int) int {
	o.peers.look()
	sent := 0
	for sent < limit && len(b.answers) > 0 {
		answer := b.answers[0]
		last := len(answer) - 1
		err := o.try(answer[:last], answer[last])
		if errors.Is(err, sock.ErrAgain) {
			return sent
		}
		if err != nil {
			o.undeliverable += int64(len(b.answers))
			o.drop(b)
			return sent
		}
		b.answers[0] = nil
		b.answers = b.answers[1:]
		o.add(b, -size(answer), -1)
		b.stuck = false
		sent++
	}
	if len(b.answers) == 0 {
		o.drop(b)
	}
	return sent
}

func (o *outbox) drop(b *backlog) {
	o.empty(b)
	delete(o.slow, b.sender)
	for i := range o.turn {
		if o.turn[i] == b {
			o.turn = append(o.turn[:i], o.turn[i+1:]...)
			return
		}
	}
}

// flush tries the backlogs again, a bounded number of peers and answers, when
// it is time to.
func (o *outbox) flush(now time.Time) {
	if len(o.turn) == 0 || now.Before(o.next) {
		return
	}
	sent := 0
	for peers := min(len(o.turn), retryPeers); peers > 0 && sent < retrySends && len(o.turn) > 0; peers-- {
		b := o.turn[0]
		o.turn = append(o.turn[1:], b)
		sent += o.drain(b, retrySends-sent)
	}
	if sent > 0 {
		o.retry = retryMin
	} else {
		o.retry = min(2*o.retry, retryMax)
	}
	o.next = now.Add(o.retry)
}

// wait is how long the loop may sleep before it must flush.
func (o *outbox) wait(now time.Time, idle time.Duration) time.Duration {
	if len(o.turn) == 0 {
		return idle
	}
	return min(idle, max(o.next.Sub(now), 0))
}

func size(answer [][]byte) int {
	n := 0
	for _, f := range answer {
		n += len(f)
	}
	return n
}
