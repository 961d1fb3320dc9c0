package receiver

import (
	"sync"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/rdma"
)

// revoker has the engine give slots new memory, which takes milliseconds, away
// from the loop. Its queue holds no more than there are slots: one that is
// under revocation is in no other.
type revoker struct {
	queue   *mailbox[reservation.Revocation]
	results *mailbox[reservation.Event]
	once    sync.Once // for stop
	stop    chan struct{}
	done    chan struct{}
}

func newRevoker(target rdma.Target, wake func()) *revoker {
	v := &revoker{
		queue:   newMailbox[reservation.Revocation](),
		results: newMailbox[reservation.Event](),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	go v.work(target, wake)
	return v
}

func (v *revoker) work(target rdma.Target, wake func()) {
	defer close(v.done)
	for {
		select {
		case <-v.stop:
			return
		case <-v.queue.some:
		}
		for _, rev := range v.queue.take() {
			v.results.put(revoke(target, rev))
			wake()
			select {
			case <-v.stop:
				return
			default:
			}
		}
	}
}

func revoke(target rdma.Target, rev reservation.Revocation) reservation.Event {
	region, err := target.Revoke(rev.Slots)
	if err != nil {
		return reservation.RevokeFailed{ID: rev.ID}
	}
	return reservation.Revoked{ID: rev.ID, Region: region}
}

// close ends the worker; at most one revocation is finished first.
func (v *revoker) close() {
	v.once.Do(func() { close(v.stop) })
	<-v.done
}
