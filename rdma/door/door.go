// Package door lets those in who show a token: it is the listener of a write
// engine's target, with its tokens, its strangers and the end of each
// connection. It knows nothing of what is said after the hello. Start reading at
// Config; token.go says what a token is.
package door

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
)

// Timeout bounds the reading of a hello and the writing of a refusal.
const Timeout = 5 * time.Second

// Limits of a door.
const (
	maxStrangers = 64          // connections that have not shown a token; one more ends the oldest
	maxReaders   = 1024        // read tokens not used yet, and readers that are served
	readTokenTTL = time.Minute // how long a read token waits to be used
	acceptPause  = 50 * time.Millisecond
)

// Config is what an engine makes of a door. The functions are called from
// several goroutines.
type Config struct {
	Listener net.Listener // the door's from now on
	Magic    string       // what a hello begins with

	// Check says why a connection is refused before its hello is read. Nil:
	// none is.
	Check func(net.Conn) error
	// Refuse tells a connection why, in the engine's words. It has a deadline.
	Refuse func(net.Conn, error)
	// Serve serves a writer's connection, which has no deadline, until it ends;
	// it must return when the connection is closed. From then on w cannot write.
	Serve func(c net.Conn, w rdma.Writer)
	// ServeReader serves a reader's connection. Nil where GrantRead is not used.
	ServeReader func(net.Conn)
	// Gone is told each writer that Serve has served.
	Gone func(rdma.Writer)
}

// Door is a listener and the grants with which one may enter, each once.
type Door struct {
	cfg  Config
	quit chan struct{} // closed by Close
	work sync.WaitGroup

	mu                      sync.Mutex // never held over a system call
	closed                  bool
	writers                 map[rdma.Writer]*writer // who may enter or is inside
	readers                 map[uint64]*reader
	firstReader, lastReader uint64
	conns                   map[net.Conn]struct{} // all that are open
	strangers               []net.Conn            // those of them that have not shown a token, oldest first
}

type writer struct {
	secret secret
	conn   net.Conn // nil before it has entered
}

type reader struct {
	secret  secret
	until   time.Time // it must have entered
	entered bool
}

// ErrToken refuses a token that was withdrawn, or used, or never was.
var ErrToken = errors.New("the token is not good, or not any more: ask for another")

var errClosed = errors.New("the receiver's memory is closed")

// New opens a door.
func New(cfg Config) *Door {
	d := &Door{
		cfg:     cfg,
		quit:    make(chan struct{}),
		writers: make(map[rdma.Writer]*writer),
		readers: make(map[uint64]*reader),
		conns:   make(map[net.Conn]struct{}),
	}
	d.work.Go(d.accept)
	return d
}

// Grant makes the token with which w may enter once. Asked again for the same w
// it gives the same one, until w is gone or withdrawn.
func (d *Door) Grant(w rdma.Writer) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	g := d.writers[w]
	if g == nil {
		g = &writer{secret: newSecret()}
		d.writers[w] = g
	}
	return g.secret.token(writing, uint64(w)), nil
}

// GrantRead makes a token with which one reader may enter once. It is forgotten,
// unused, after a minute.
func (d *Door) GrantRead() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	now := time.Now()
	d.forgetReaders(now)
	if len(d.readers) >= maxReaders {
		return nil, fmt.Errorf("%d readers are let in already: try again", len(d.readers))
	}
	d.lastReader++
	r := &reader{secret: newSecret(), until: now.Add(readTokenTTL)}
	d.readers[d.lastReader] = r
	return r.secret.token(reading, d.lastReader), nil
}

// forgetReaders drops tokens nobody has used: those past their time, and the
// oldest where there are too many, so that whoever takes without mapping keeps
// nobody else from reading. d.mu is held.
func (d *Door) forgetReaders(now time.Time) {
	for ; d.firstReader <= d.lastReader; d.firstReader++ {
		r := d.readers[d.firstReader]
		if r == nil || r.entered {
			continue
		}
		if len(d.readers) < maxReaders && now.Before(r.until) {
			return
		}
		delete(d.readers, d.firstReader)
	}
}

// Withdraw forgets w's token. It reports whether w has entered and is not gone;
// if not, it never will.
func (d *Door) Withdraw(w rdma.Writer) (connected bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.writers[w]
	if g == nil || g.conn != nil {
		return g != nil
	}
	delete(d.writers, w)
	return false
}

// Conn is the connection of a writer that has entered and is not gone, whether
// or not Serve has begun; else nil.
func (d *Door) Conn(w rdma.Writer) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.writers[w]; g != nil {
		return g.conn
	}
	return nil
}

// Close ends the listener and all connections and waits until all writers that
// were inside are gone.
func (d *Door) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	conns := d.conns
	d.conns = nil
	d.mu.Unlock()

	close(d.quit)
	err := d.cfg.Listener.Close()
	for c := range conns {
		c.Close()
	}
	d.work.Wait()
	return err
}

func (d *Door) accept() {
	for {
		c, err := d.cfg.Listener.Accept()
		switch {
		case err == nil:
			d.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default: // no descriptors left, as a rule
			select {
			case <-time.After(acceptPause):
			case <-d.quit:
				return
			}
		}
	}
}

// admit serves a new connection. One stranger too many ends the one that has
// been silent longest.
func (d *Door) admit(c net.Conn) {
	d.mu.Lock()
	var oldest net.Conn
	if !d.closed {
		d.conns[c] = struct{}{}
		d.strangers = append(d.strangers, c)
		if len(d.strangers) > maxStrangers {
			oldest = d.strangers[0]
			d.strangers = slices.Delete(d.strangers, 0, 1)
		}
		d.work.Go(func() { d.serve(c) })
	} else {
		oldest = c
	}
	d.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
}

// serve answers one connection until it ends.
func (d *Door) serve(c net.Conn) {
	defer d.forget(c)
	k, number, err := d.greet(c)
	switch {
	case err != nil:
		if c.SetDeadline(time.Now().Add(Timeout)) == nil {
			d.cfg.Refuse(c, err)
		}
	case k == reading:
		d.cfg.ServeReader(c)
		d.mu.Lock()
		delete(d.readers, number)
		d.mu.Unlock()
	default:
		w := rdma.Writer(number)
		d.cfg.Serve(c, w)
		c.Close()
		d.mu.Lock()
		delete(d.writers, w)
		d.mu.Unlock()
		d.cfg.Gone(w)
	}
}

// greet reads the hello of a new connection and finds its grant.
func (d *Door) greet(c net.Conn) (kind, uint64, error) {
	if d.cfg.Check != nil {
		if err := d.cfg.Check(c); err != nil {
			return 0, 0, err
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(Timeout)); err != nil {
		return 0, 0, err
	}
	hello := make([]byte, len(d.cfg.Magic)+tokenLen)
	if _, err := io.ReadFull(c, hello); err != nil {
		return 0, 0, fmt.Errorf("no hello: %w", err)
	}
	if string(hello[:len(d.cfg.Magic)]) != d.cfg.Magic {
		return 0, 0, fmt.Errorf("hello is not %q: another version of pd-tools?", d.cfg.Magic)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return 0, 0, err
	}
	k, number, secret := splitToken(hello[len(d.cfg.Magic):])
	return k, number, d.enter(c, k, number, secret)
}

// enter uses a token up.
func (d *Door) enter(c net.Conn, k kind, number uint64, secret []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	i := slices.Index(d.strangers, c)
	switch w, r := d.writers[rdma.Writer(number)], d.readers[number]; {
	case i < 0:
		return errors.New("more connections than the receiver takes at once")
	case k == writing && w != nil && w.secret.equal(secret):
		if w.conn != nil {
			return errors.New("the token is in use: attach anew for another")
		}
		w.conn = c
	case k == reading && r != nil && r.secret.equal(secret) && !r.entered && time.Now().Before(r.until):
		r.entered = true
	default:
		return ErrToken
	}
	d.strangers = slices.Delete(d.strangers, i, i+1)
	return nil
}

func (d *Door) forget(c net.Conn) {
	c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
	if i := slices.Index(d.strangers, c); i >= 0 {
		d.strangers = slices.Delete(d.strangers, i, i+1)
	}
}
