package receiver

import (
	"errors"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
)

// shutdown answers everybody who waits, and those whose messages have come, and
// closes all.
func (r *Receiver) shutdown() error {
	deadline := time.Now().Add(r.cfg.ShutdownTimeout)
	r.step(reservation.Shutdown{})
	_, err := r.receive(turnMessages)
	r.emit()
	for len(r.out.turn) > 0 && time.Now().Before(deadline.Add(-r.cfg.ShutdownTimeout/2)) {
		r.out.flush(time.Now())
		time.Sleep(min(r.out.wait(idleTick), time.Until(deadline)))
	}
	return errors.Join(err, r.close(time.Until(deadline)))
}

// close ends the helpers, the sockets and the buffer. What is still unsent has
// at most d to go.
func (r *Receiver) close(d time.Duration) error {
	d = max(d, 0)
	r.revoker.close()
	if r.notify != nil {
		r.notify.close(d / 2)
	}
	err := r.cfg.Target.Close()
	r.closeSockets(d / 2)
	return err
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
