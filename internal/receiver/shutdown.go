package receiver

import (
	"errors"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
)

// lastAnswers is for how long connections stay open after those who wait were
// answered: when one ends, a peer that has ZMQ_IMMEDIATE on, as pd-send has,
// loses what its own thread has not read yet.
const lastAnswers = 500 * time.Millisecond

// shutdown answers everybody who waits, and those whose messages have come, and
// closes all. Each of its four waits for others has a quarter of the time at most.
func (r *Receiver) shutdown() error {
	quarter := r.cfg.ShutdownTimeout / 4
	waited := r.core.Snapshot(time.Since(r.started)).Totals.Queue > 0
	r.step(reservation.Shutdown{})
	_, err := r.receive(sock.Recv)
	r.emit()
	for now, end := time.Now(), time.Now().Add(quarter); len(r.out.turn) > 0 && now.Before(end); now = time.Now() {
		r.out.flush(now)
		r.cfg.Asks.Answer(now, r.snapshot)
		time.Sleep(r.out.wait(now, retryMax))
	}
	if waited {
		time.Sleep(min(quarter, lastAnswers))
	}
	return errors.Join(err, r.close(quarter))
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
