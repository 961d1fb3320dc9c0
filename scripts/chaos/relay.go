package main

import (
	"errors"
	"net"
	"sync"
	"time"
)

// relay stands between one program and another, and can cut them off: each
// connection ends and no new one comes about, or nothing goes through and
// nobody is told.
type relay struct {
	listener net.Listener
	to       string

	mu     sync.Mutex
	news   *sync.Cond
	conns  map[net.Conn]struct{}
	cuts   int // holding it cut
	stalls int // holding it silent
	closed bool
}

func newRelay(to string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, to: to, conns: map[net.Conn]struct{}{}}
	r.news = sync.NewCond(&r.mu)
	go r.accept()
	return r, nil
}

func (r *relay) endpoint() string { return "tcp://" + r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.join(near)
	}
}

// join passes bytes both ways until one side ends.
func (r *relay) join(near net.Conn) {
	defer near.Close()
	if !r.passes() {
		return
	}
	far, err := net.Dial("tcp", r.to)
	if err != nil {
		reset(near)
		return
	}
	defer far.Close()
	if !r.keep(near, far) {
		return
	}
	defer r.forget(near, far)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			r.copy(way[1], way[0])
			near.Close()
			far.Close()
		})
	}
	both.Wait()
}

func (r *relay) copy(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !r.passes() {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passes waits out a silence. It reports false when the relay is cut or closed.
func (r *relay) passes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.stalls > 0 && r.cuts == 0 && !r.closed {
		r.news.Wait()
	}
	return r.cuts == 0 && !r.closed
}

func (r *relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cuts > 0 || r.closed {
		return false
	}
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
	return true
}

func (r *relay) forget(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}

// reset has the other end see that the connection broke, not that it ended.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

func (r *relay) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	r.news.Broadcast()
	if r.cuts > 0 || r.closed {
		for c := range r.conns {
			reset(c)
		}
	}
}

// cut breaks every connection and refuses others for a while.
func (r *relay) cut(long time.Duration) {
	r.change(func() { r.cuts++ })
	time.Sleep(long)
	r.change(func() { r.cuts-- })
}

// silence lets nothing through for a while; then all of it comes.
func (r *relay) silence(long time.Duration) {
	r.change(func() { r.stalls++ })
	time.Sleep(long)
	r.change(func() { r.stalls-- })
}

func (r *relay) close() error {
	r.change(func() { r.closed = true })
	if err := r.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
