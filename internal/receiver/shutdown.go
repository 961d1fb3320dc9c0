package receiver

import (
	"cmp"
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
// of the four waits for others behind that has waitShare at most: of
// waitsUnlimited where the stop has no limit. The rest is for what has no limit of
// its own on a machine that is busy.
const (
	drainShare     = 0.4
	waitShare      = 0.1
	waitsUnlimited = time.Minute
)

// shutdown answers everybody who waits, lets what is admitted be written and what
// is ready be taken for a while, ends what is left, and closes all.
func (r *Receiver) shutdown() error {
	began := time.Now()
	limit := r.cfg.ShutdownTimeout
	each := part(cmp.Or(limit, waitsUnlimited), waitShare)
	waited := r.core.Snapshot(began.Sub(r.started)).Totals.Queue > 0
	r.step(reservation.Shutdown{})
	err := r.drain(part(limit, drainShare))
	left := r.core.Live() > 0
	r.endAll()
	for now, end := time.Now(), time.Now().Add(each); len(r.out.turn) > 0 && now.Before(end); now = time.Now() {
		r.out.flush(now)
		time.Sleep(r.out.wait(now, retryMax))
	}
	switch {
	case left:
		r.revoker.close()
		err = errors.Join(err, r.target.Close(), r.lastWords(min(each, lastAnswers)))
	case waited:
		time.Sleep(min(each, lastAnswers-time.Since(began)))
	}
	return errors.Join(err, r.close(each))
}

// endAll ends every request that is left, and has it told.
func (r *Receiver) endAll() {
	r.step(reservation.Close{})
	r.ended = true
	r.emit()
}

func part(of time.Duration, share float64) time.Duration {
	return time.Duration(float64(of) * share)
}

// drain serves on until no request lives any more, for so long at most, or
// without limit where that is 0. New ones are refused meanwhile.
func (r *Receiver) drain(limit time.Duration) error {
	end, long := time.Now().Add(limit), fmt.Sprintf("up to %v", limit)
	if limit == 0 {
		long = "as long as it takes"
	}
	_, err := r.receive(sock.Recv) // what has come is answered in any case
	if live := r.core.Live(); live > 0 {
		r.cfg.Warn("stopping", fmt.Sprintf("stopping: waiting for %s until the last %d requests are written and taken; new ones are refused", long, live))
	}
	for busy := false; err == nil && r.core.Live() > 0 && (limit == 0 || time.Now().Before(end)); {
		busy, err = r.turn(busy)
	}
	return err
}

// lastWords answers for a while those who ask what became of what they were
// writing: the end of their data connection has made them.
func (r *Receiver) lastWords(long time.Duration) error {
	for end := time.Now().Add(long); ; {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if _, err := r.poller.Wait(left); err != nil {
			return fmt.Errorf("cannot wait for messages: %w", err)
		}
		if _, err := r.receive(sock.Recv); err != nil {
			return err
		}
		r.out.flush(r.now)
		r.cfg.Asks.Answer(r.now, r.snapshot)
	}
}

// close ends the helpers, the sockets and the buffer. The proxy and the peers
// have the given time each to take what is unsent. The buffer comes last, if it is
// still there: a sender whose data connection ends takes us for dead, and has to
// have our last answers by then.
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
	if r.poller != nil {
		r.poller.Close()
	}
	_ = r.ctx.Close()
}
