package sender

import (
	"container/list"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// receiver is what the core knows of one receiver: the session and the messages
// that wait to be sent or answered.
type receiver struct {
	index    int
	endpoint string
	session  *session           // nil: none is open
	asking   bool               // for a session
	refused  bool               // what was asked for last
	leaving  bool               // the session is about to be lost: nothing is begun in it
	queue    [kinds]list.List   // flights to be sent
	flights  map[uint64]*flight // sent and not answered
	order    list.List          // the same, oldest first
	out      [kinds]int         // how many they are
	bytes    int64              // written and committed here
	heard    time.Duration      // when anything last came from it before the session; 0: never
}

// kind is what a message is for. A kind that is earlier goes first.
type kind uint8

const (
	cancel kind = iota
	commit
	nextBatch  // of an admitted request
	firstBatch // waits for admission, perhaps for long
	kinds
)

// maxOut is how many messages of a kind are out at once. A receiver keeps a
// backlog of 1,024 answers for a sender; with the heartbeat ours never fill it.
// A batch of an admitted request has a number of its own, so that none ever
// waits for another request's admission.
var maxOut = [kinds]int{cancel: 64, commit: 128, nextBatch: 256, firstBatch: 512}

// flight is one message, from when it is to be sent until it is answered.
type flight struct {
	id    uint64
	kind  kind
	req   *request
	batch *batch        // nil for a cancel
	since time.Duration // when it was sent; before, when it began to wait
	place *list.Element // in order once it is sent, before in its queue
}

// wanted says whether the message is still to be sent: a cancel always, all
// others while the request lives.
func (f *flight) wanted() bool { return f.kind == cancel || f.req.stage != ended }

// words is why a receiver refuses, as it says it, and which it is where that
// decides where the request may go instead.
func (r *receiver) words(code wire.Code, reason string) string {
	if code == wire.CodeShuttingDown {
		return r.endpoint + ": " + reason
	}
	return reason
}

// enqueue puts f behind the others of its kind.
func (r *receiver) enqueue(f *flight) { f.place = r.queue[f.kind].PushBack(f) }

// head is the oldest unsent flight of a kind, nil when there is none.
func (r *receiver) head(k kind) *flight {
	for e := r.queue[k].Front(); e != nil; e = r.queue[k].Front() {
		if f := e.Value.(*flight); f.wanted() {
			return f
		}
		r.queue[k].Remove(e)
	}
	return nil
}

// launch notes that f, the head of its queue, is out.
func (r *receiver) launch(f *flight, now time.Duration) {
	r.queue[f.kind].Remove(f.place)
	f.since = now
	f.place = r.order.PushBack(f)
	r.flights[f.id] = f
	r.out[f.kind]++
}

// land notes that f is answered or given up.
func (r *receiver) land(f *flight) {
	r.order.Remove(f.place)
	delete(r.flights, f.id)
	r.out[f.kind]--
}

// oldest is the flight that has been out longest, nil when none is.
func (r *receiver) oldest() *flight {
	if e := r.order.Front(); e != nil {
		return e.Value.(*flight)
	}
	return nil
}

// reset forgets everything of the last session: what was sent, and what was to
// be sent because of it. It returns how many cancels that were. First batches
// that were never sent stay, their wait beginning anew.
func (r *receiver) reset(now time.Duration) (cancels int) {
	cancels = r.queue[cancel].Len() + r.out[cancel]
	for k := range firstBatch {
		r.queue[k].Init()
	}
	for e := r.queue[firstBatch].Front(); e != nil; e = e.Next() {
		e.Value.(*flight).since = now
	}
	r.session, r.asking, r.leaving = nil, false, false
	r.out = [kinds]int{}
	clear(r.flights)
	r.order.Init()
	return cancels
}

// message is what f says, in the session s.
func (f *flight) message(s *session) wire.Message {
	switch f.kind {
	case cancel:
		return &wire.CancelNotif{ReqID: f.req.id, Keys: []string{}}
	case commit:
		return f.batch.commit(s.epoch)
	default:
		return f.batch.alloc(s.epoch)
	}
}
