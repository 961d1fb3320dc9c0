package sock

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// Poller is how a loop waits: for its sockets, for time to pass, and for other
// goroutines to wake it. Wake is for anyone; all else is for the goroutine that
// owns the sockets.
//
// It waits as Go's own sockets do, and not in zmq_poll: a goroutine in a call
// of C's keeps a processor from all others until the runtime has noticed that
// it sleeps, and looking for such calls costs the runtime more than most loops
// do.
type Poller struct {
	watched []watched
	epoll   *os.File // of the sockets' descriptors
	raw     syscall.RawConn
	until   time.Time // the deadline of epoll; zero: none
	woken   atomic.Bool
}

// watched is one socket. Its descriptor says only that something may have
// changed; what, the socket says.
type watched struct {
	socket *zmq4.Socket
	fd     int
	events zmq4.State
}

// NewPoller makes one without sockets. It fails when there are no file
// descriptors left.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // os takes it for what it is not, otherwise
	}
	if err != nil {
		return nil, fmt.Errorf("cannot wait for sockets: %w", err)
	}
	p := &Poller{epoll: os.NewFile(uintptr(fd), "epoll")}
	if p.raw, err = p.epoll.SyscallConn(); err == nil {
		err = p.epoll.SetReadDeadline(time.Time{}) // it can have one
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("cannot wait for sockets: %w", err)
	}
	return p, nil
}

// Watch makes Wait return when s has some of these events: zmq4.POLLIN,
// zmq4.POLLOUT, or 0 for none. For a socket that is watched already it changes
// them.
func (p *Poller) Watch(s *zmq4.Socket, events zmq4.State) error {
	if i := p.index(s); i >= 0 {
		p.watched[i].events = events
		return nil
	}
	fd, err := s.GetFd()
	if err == nil {
		err = p.control(unix.EPOLL_CTL_ADD, fd)
	}
	if err != nil {
		return fmt.Errorf("cannot wait for a socket: %w", err)
	}
	p.watched = append(p.watched, watched{s, fd, events})
	return nil
}

// Forget must come before the socket is closed: ZeroMQ uses the descriptor for a
// while longer.
func (p *Poller) Forget(s *zmq4.Socket) {
	if i := p.index(s); i >= 0 {
		_ = p.control(unix.EPOLL_CTL_DEL, p.watched[i].fd) // cannot fail for one that is there
		p.watched = slices.Delete(p.watched, i, i+1)
	}
}

func (p *Poller) index(s *zmq4.Socket) int {
	return slices.IndexFunc(p.watched, func(w watched) bool { return w.socket == s })
}

func (p *Poller) control(op, fd int) (err error) {
	return errors.Join(p.raw.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), op, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	}), err)
}

// Wake makes the present or the next Wait return; what was done before it is
// then seen. It never blocks, and does nothing after Close.
func (p *Poller) Wake() {
	if !p.woken.Swap(true) {
		_ = p.epoll.SetReadDeadline(time.Unix(1, 0)) // over
	}
}

// Wait returns when a socket has what it is watched for, which it reports, when
// somebody has called Wake, and after d; a negative d never passes.
func (p *Poller) Wait(d time.Duration) (ready bool, err error) {
	var end time.Time
	if d >= 0 {
		end = time.Now().Add(d)
	}
	for {
		if ready, err = p.look(); ready || err != nil {
			p.woken.Swap(false) // not Store: what was done before a Wake is then seen
			return ready, err
		}
		now := time.Now()
		if d >= 0 && !now.Before(end) {
			return false, nil
		}
		if err := p.arm(now, end); err != nil {
			return false, err
		}
		if p.woken.Swap(false) {
			return false, nil
		}
		if err := p.sleep(); err != nil {
			return false, err
		}
	}
}

// look asks the sockets. Asking is also what makes them notice what has come,
// and their descriptors tell of what comes later.
func (p *Poller) look() (ready bool, err error) {
	for _, w := range p.watched {
		var has zmq4.State
		err := uninterrupted(func() (err error) { has, err = w.socket.GetEvents(); return err })
		if err != nil {
			return false, fmt.Errorf("cannot wait for a socket: %w", err)
		}
		ready = ready || has&w.events != 0
	}
	return ready, nil
}

// arm sees to it that sleep ends at end at the latest. An earlier deadline that
// is still to come stays: to set one costs more than to look once too often.
func (p *Poller) arm(now, end time.Time) error {
	if p.until.Equal(end) || !p.until.IsZero() && (end.IsZero() || p.until.Before(end)) && p.until.After(now) {
		return nil
	}
	p.until = end
	return p.epoll.SetReadDeadline(end)
}

// sleep returns when a descriptor tells of something, at the deadline, and
// sometimes for nothing.
func (p *Poller) sleep() error {
	var events [1]unix.EpollEvent
	var fault error
	err := p.raw.Read(func(epoll uintptr) (done bool) {
		n, err := unix.EpollWait(int(epoll), events[:], 0)
		if err != nil && err != unix.EINTR {
			fault = err
		}
		return n > 0 || err != nil
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.until = time.Unix(1, 0) // if not by itself, somebody has made it so
		return nil
	}
	return errors.Join(err, fault)
}

// Close makes it useless. The sockets are not closed.
func (p *Poller) Close() { _ = p.epoll.Close() }
