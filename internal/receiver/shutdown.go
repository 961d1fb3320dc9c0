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
