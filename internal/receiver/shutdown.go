package receiver

import (
	"errors"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
)

// shutdown answers everybody who waits, and those whose messages have come, and
// closes all. Each of its three waits for others has a quarter of the time.
func (r *Receiver) shutdown() error {
	quarter := r.cfg.ShutdownTimeout / 4
	r.step(reservation.Shutdown{})
	_, err := r.receive(sock.Recv)
	r.emit()
	for now, end := time.Now(), time.Now().Add(quarter); len(r.out.turn) > 0 && now.Before(end); now = time.Now() {
		r.out.flush(now)
		time.Sleep(r.out.wait(now, retryMax))
	}
	return errors.Join(err, r.close(quarter))
}

// close ends the helpers, the buffer and the sockets. The proxy and the peers
// have the given time each to take what is unsent.
func (r *Receiver) close(each time.Duration) error {
	r.revoker.close()
	if r.notify != nil {
		r.notify.close(each)
	}
	err := r.target.Close()
	r.closeSockets(each)
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
