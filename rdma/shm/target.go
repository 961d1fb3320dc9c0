// Package shm is the write engine for one host: memory shared between
// processes of one user. The target keeps the slots in sealed memory files and
// passes their descriptors over an abstract unix socket to whoever shows a
// token it granted; the initiator maps them and copies. The end of that
// connection tells each side of the other's. Nothing is left in the file
// system. It knows nothing of requests or of the wire.
//
// An initiator can write any slot: it is trusted as the same user. Slots take
// whole pages.
//
// Start reading at memory, how slots are kept and taken away; target.go is the
// receiver's side, remote.go the initiator's, reader.go that of a local
// decoder, proto.go what they say to each other, copy.go the copy itself.
package shm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
)

// Name is the engine's name.
const Name = "shm"

// Limits of the target's socket.
const (
	maxStrangers = 64          // connections that have not shown a token; one more ends the oldest
	maxReaders   = 1024        // read tokens not used yet, and readers that fetch their regions
	readTokenTTL = time.Minute // how long a read token waits to be used
	acceptPause  = 50 * time.Millisecond
)

// Target is the receiver's side.
type Target struct {
	mem      *memory
	listener *net.UnixListener
	gone     chan rdma.Writer
	wake     chan struct{} // holds a value while ended may have some
	quit     chan struct{} // closed by Close
	work     sync.WaitGroup

	mu                      sync.Mutex // never held over a system call
	closed                  bool
	tick                    uint64                  // grants made so far
	writers                 map[rdma.Writer]*writer // who may write or come to write
	readers                 map[uint64]*reader      // who may come to read, or fetches its regions
	firstReader, lastReader uint64
	conns                   map[*net.UnixConn]struct{} // all that are open
	strangers               []*net.UnixConn            // those of them that have not shown a token, oldest first
	ended                   []rdma.Writer              // to be told on gone
}

type writer struct {
	secret    secret
	tick      uint64
	connected bool
}

type reader struct {
	secret    secret
	until     time.Time // it must have connected
	connected bool
}

// address is the abstract socket of a receiver. A hash, since ids are any text.
func address(receiverID string) *net.UnixAddr {
	sum := sha256.Sum256([]byte(receiverID))
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@pd-tools/shm/%x", sum[:16])}
}

// NewTarget makes a buffer of slots of slotSize bytes, each of which takes whole
// pages, and prefaults it: a gigabyte takes a second or more.
func NewTarget(receiverID string, slots int, slotSize int64) (rdma.Target, error) {
	l, err := newLayout(slots, slotSize)
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", address(receiverID))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("a receiver with the id %q runs on this host already", receiverID)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for writers: %w", err)
	}
	mem, err := newMemory(l)
	if err != nil {
		listener.Close()
		return nil, err
	}
	t := &Target{
		mem:      mem,
		listener: listener,
		gone:     make(chan rdma.Writer),
		wake:     make(chan struct{}, 1),
		quit:     make(chan struct{}),
		writers:  make(map[rdma.Writer]*writer),
		readers:  make(map[uint64]*reader),
		conns:    make(map[*net.UnixConn]struct{}),
	}
	t.work.Go(t.accept)
	t.work.Go(t.tell)
	return t, nil
}

// Engines implements rdma.Target.
func (t *Target) Engines() []string { return []string{Name} }

// Regions implements rdma.Target. There is nothing to describe: what a region is
// made of comes over the socket.
func (t *Target) Regions(string) []rdma.Region {
	regions := make([]rdma.Region, len(t.mem.now.Load().fds))
	for i := range regions {
		regions[i].ID = i
	}
	return regions
}

// Slot implements rdma.Target.
func (t *Target) Slot(slot int) []byte { return t.mem.slot(t.mem.base, slot) }

// Gone implements rdma.Target.
func (t *Target) Gone() <-chan rdma.Writer { return t.gone }

// Grant implements rdma.Target.
func (t *Target) Grant(w rdma.Writer, _ string) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	g := t.writers[w]
	if g == nil {
		t.tick++
		g = &writer{secret: newSecret(), tick: t.tick}
		t.writers[w] = g
	}
	return g.secret.token(writing, uint64(w)), nil
}

// GrantRead implements rdma.Target.
func (t *Target) GrantRead() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	now := time.Now()
	t.forgetReaders(now)
	if len(t.readers) >= maxReaders {
		return nil, fmt.Errorf("%d readers fetch their regions already: try again", len(t.readers))
	}
	t.lastReader++
	r := &reader{secret: newSecret(), until: now.Add(readTokenTTL)}
	t.readers[t.lastReader] = r
	return r.secret.token(reading, t.lastReader), nil
}

// forgetReaders drops tokens nobody has used: those past their time, and the
// oldest where there are too many, so that whoever takes without mapping keeps
// nobody else from reading. t.mu is held.
func (t *Target) forgetReaders(now time.Time) {
	for ; t.firstReader <= t.lastReader; t.firstReader++ {
		r := t.readers[t.firstReader]
		if r == nil || r.connected {
			continue
		}
		if len(t.readers) < maxReaders && now.Before(r.until) {
			return
		}
		delete(t.readers, t.firstReader)
	}
}

// Withdraw implements rdma.Target.
func (t *Target) Withdraw(w rdma.Writer) (connected bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.writers[w]
	if g == nil || g.connected || t.closed {
		return g != nil && g.connected
	}
	delete(t.writers, w)
	t.work.Go(t.settle)
	return false
}

// Open implements rdma.Target: a writer has all memory once it is connected.
func (t *Target) Open(rdma.Writer, int) ([]byte, error) { return nil, nil }

// Shut implements rdma.Target: there is nothing to take away but by Revoke.
func (t *Target) Shut(int) {}

// Revoke implements rdma.Target.
func (t *Target) Revoke(slots []int) (int, error) {
	t.mu.Lock()
	tick := t.tick
	t.mu.Unlock()
	region, err := t.mem.revoke(slots, tick)
	if err != nil {
		return 0, fmt.Errorf("revoke %d slots: %w", len(slots), err)
	}
	if t.oldest() > tick { // all have ended meanwhile
		t.settle()
	}
	return region, nil
}

// oldest is the tick of the oldest writer left, or that of the next to come.
func (t *Target) oldest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.tick + 1
	for _, g := range t.writers {
		oldest = min(oldest, g.tick)
	}
	return oldest
}

// settle gives old places back after a writer has ended. What cannot be given
// back now is tried again with the next.
func (t *Target) settle() { _ = t.mem.settle(t.oldest()) }

// Close implements rdma.Target.
func (t *Target) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	conns := t.conns
	t.conns = nil
	t.mu.Unlock()

	close(t.quit)
	err := t.listener.Close()
	for c := range conns {
		c.Close()
	}
	t.work.Wait()
	close(t.gone)
	return errors.Join(err, t.mem.close())
}

// tell passes the writers that have ended on to whoever reads Gone, however
// slowly.
func (t *Target) tell() {
	for {
		select {
		case <-t.wake:
		case <-t.quit:
			return
		}
		t.mu.Lock()
		ended := t.ended
		t.ended = nil
		t.mu.Unlock()
		for _, w := range ended {
			select {
			case t.gone <- w:
			case <-t.quit:
				return
			}
		}
	}
}

func (t *Target) accept() {
	for {
		c, err := t.listener.AcceptUnix()
		switch {
		case err == nil:
			t.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default: // no descriptors left, as a rule
			select {
			case <-time.After(acceptPause):
			case <-t.quit:
				return
			}
		}
	}
}

// admit serves a new connection. One stranger too many ends the one that has
// been silent longest.
func (t *Target) admit(c *net.UnixConn) {
	t.mu.Lock()
	var oldest *net.UnixConn
	if !t.closed {
		t.conns[c] = struct{}{}
		t.strangers = append(t.strangers, c)
		if len(t.strangers) > maxStrangers {
			oldest = t.strangers[0]
			t.strangers = slices.Delete(t.strangers, 0, 1)
		}
		t.work.Go(func() { t.serve(c) })
	} else {
		oldest = c
	}
	t.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
}

// serve answers one connection until it ends.
func (t *Target) serve(c *net.UnixConn) {
	defer t.forget(c)
	k, number, err := t.greet(c)
	if err != nil {
		_ = sendAnswer(c, answer{status: refused, text: []byte(err.Error()), fd: -1})
		return
	}
	if k == reading {
		t.serveReader(c, number)
		return
	}
	// From here on the other end may have our memory. It is gone when the socket
	// says so and not before: whatever else goes wrong, wait for that.
	if t.talk(c, false) != nil {
		_, _ = io.Copy(io.Discard, c)
	}
	t.end(rdma.Writer(number))
}

// serveReader has no end to wait for: a reader that has its regions needs us no
// more.
func (t *Target) serveReader(c *net.UnixConn, number uint64) {
	defer time.AfterFunc(ioTimeout, func() { c.Close() }).Stop()
	_ = t.talk(c, true)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.readers, number)
}

// greet reads the hello of a new connection and finds its grant.
func (t *Target) greet(c *net.UnixConn) (kind, uint64, error) {
	if err := sameUser(c); err != nil {
		return 0, 0, err
	}
	if err := c.SetReadDeadline(time.Now().Add(ioTimeout)); err != nil {
		return 0, 0, err
	}
	hello := make([]byte, helloLen)
	if _, err := io.ReadFull(c, hello); err != nil {
		return 0, 0, fmt.Errorf("no hello: %w", err)
	}
	if string(hello[:len(magic)]) != magic {
		return 0, 0, fmt.Errorf("hello is not %q: another version of pd-tools?", magic)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return 0, 0, err
	}
	k, number, secret := splitToken(hello[len(magic):])
	return k, number, t.enter(c, k, number, secret)
}

// enter uses a token up. From then on a writer is connected.
func (t *Target) enter(c *net.UnixConn, k kind, number uint64, secret []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errClosed
	}
	i := slices.Index(t.strangers, c)
	switch w, r := t.writers[rdma.Writer(number)], t.readers[number]; {
	case i < 0:
		return errors.New("more connections than the receiver takes at once")
	case k == writing && w != nil && w.secret.equal(secret):
		if w.connected {
			return errors.New("the token is in use: attach anew for another")
		}
		w.connected = true
	case k == reading && r != nil && r.secret.equal(secret) && !r.connected && time.Now().Before(r.until):
		r.connected = true
	default:
		return errors.New("the token is not good, or not any more: ask for another")
	}
	t.strangers = slices.Delete(t.strangers, i, i+1)
	return nil
}

// talk answers requests for regions until the other end closes, which is no
// error. Waiting for that end has no deadline; Close ends it.
func (t *Target) talk(c *net.UnixConn, readOnly bool) error {
	if err := sendAnswer(c, answer{status: welcome, fd: -1}); err != nil {
		return err
	}
	ask := make([]byte, askLen)
	for {
		if _, err := io.ReadFull(c, ask); err != nil {
			return nil // the end, which may be a reset
		}
		if err := t.sendRegion(c, int(binary.LittleEndian.Uint32(ask)), readOnly); err != nil {
			return err
		}
	}
}

func (t *Target) sendRegion(c *net.UnixConn, id int, readOnly bool) error {
	now := t.mem.now.Load()
	if id >= len(now.fds) {
		return sendAnswer(c, answer{status: noRegion, region: id, fd: -1})
	}
	fd := now.fds[id]
	if readOnly {
		ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ro)
		fd = ro
	}
	return sendAnswer(c, answer{status: region, region: id, text: appendSpans(nil, now.living(int32(id))), fd: fd})
}

// end forgets a writer whose connection has ended and has it told.
func (t *Target) end(w rdma.Writer) {
	t.mu.Lock()
	delete(t.writers, w)
	t.ended = append(t.ended, w)
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	t.settle()
}

func (t *Target) forget(c *net.UnixConn) {
	c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	if i := slices.Index(t.strangers, c); i >= 0 {
		t.strangers = slices.Delete(t.strangers, i, i+1)
	}
}
