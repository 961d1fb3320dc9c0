package receiver

import (
	"errors"
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
)

// lastAnswers is for how long connections stay open after those who wait were
// answered: when one ends, a peer that has ZMQ_IMMEDIATE on, as pd-send has,
// loses what its own thread has not read yet.
const lastAnswers = 500 * time.Millisecond

// Of the time there is, drainShare is for what is admitted and ready, and each
// of the four waits for others behind that has waitShare at most.
const (
	drainShare = 0.4
	waitShare  = 0.125
)

// shutdown answers everybody who waits, lets what is admitted be written and what
// is ready be taken for a while, and closes all.
func (r *Receiver) shutdown() error {
	began := time.Now()
	part := func(share float64) time.Duration { return time.Duration(float64(r.cfg.ShutdownTimeout) * share) }
	each := part(waitShare)
	waited := r.core.Snapshot(began.Sub(r.started)).Totals.Queue > 0
	r.step(reservation.Shutdown{})
	err := r.drain(part(drainShare))
	r.emit()
	for now, end := time.Now(), time.Now().Add(each); len(r.out.turn) > 0 && now.Before(end); now = time.Now() {
		r.out.flush(now)
		time.Sleep(r.out.wait(now, retryMax))
	}
	if waited {
		time.Sleep(min(each, lastAnswers-time.Since(began)))
	}
	return errors.Join(err, r.close(each))
}

// drain serves on until no request lives any more, for so long at most. New ones
// are refused meanwhile.
func (r *Receiver) drain(limit time.Duration) error {
	end := time.Now().Add(limit)
	_, err := r.receive(sock.Recv) // what has come is answered in any case
	if live := r.core.Live(); live > 0 {
		r.cfg.Warn("stopping", fmt.Sprintf("stopping: waiting for up to %v until the last %d requests are written and taken; new ones are refused", limit, live))
	}
	for busy := false; err == nil && r.core.Live() > 0 && time.Now().Before(end); {
		busy, err = r.turn(busy)
	}
	return err
}

// close ends the helpers, the sockets and the buffer. The proxy and the peers
// have the given time each to take what is unsent. The buffer comes last: a
// sender whose data connection ends takes us for dead, and has to have our last
// answers by then.
func (r *Receiver) close(each time.Duration) error {
	r.revoker.close()
	if r.notify != nil {
		r.notify.close(each)
	}
	r.closeSockets(each)
	return r.target.Close()
}

func (r *Receiver) closeSockets(linger time.Duration) {
	if r.socket != nil {
		_ = r.socket.SetLinger(linger)
		r.socket.Close()
	}
	if r.waker != nil {
		r.waker.Close()
	}
	_ = r.ctx.Close()
}
