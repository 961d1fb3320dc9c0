//go:build !noofi

package ofi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/door"
)

var (
	errRemoteClosed = errors.New("the connection to the receiver is closed")
	errTargetGone   = fmt.Errorf("the receiver is gone: %w", rdma.ErrGone)
	errEnded        = fmt.Errorf("%w: %w", rdma.ErrEnded, rdma.ErrGone)
	// errNotOpened: a target that gives a writer no access has seen its connection
	// end, or another writer take the slot; this end may not have heard yet.
	errNotOpened = fmt.Errorf("the receiver has not opened the slot to this sender: %w", rdma.ErrGone)
)

// remote is the initiator's side.
type remote struct {
	at       rdma.Attachment
	endpoint *endpoint
	source   *region
	pinned   runtime.Pinner // staging, if it is Go's
	conn     net.Conn
	heard    chan error    // why the control connection has ended
	dying    chan struct{} // closed when the end has begun
	done     chan struct{} // closed when nothing is written or read any more

	mu     sync.Mutex
	cause  error // why it is dying
	closed bool  // by Close
	last   uint64
	calls  map[uint64]*call // of each write that is not over
}

// call is one Write: so many writes are not over.
type call struct {
	left int
	err  error
	over chan struct{}
}

// Attach connects to a target and writes a few bytes that mean nothing: so it is
// known that the fabric leads there, and the first chunk does not wait for its
// connection.
func Attach(ctx context.Context, at rdma.Attachment) (_ rdma.Remote, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("no way to it within %v", openTimeout))
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}()
	var desc descriptor
	if len(at.Regions) == 0 || json.Unmarshal(at.Regions[0].Desc, &desc) != nil {
		return nil, errors.New("the receiver does not describe its memory in a way that this version knows")
	}
	at.Fabric.Provider = cmp.Or(at.Fabric.Provider, DefaultProvider)
	if err := checkProvider(at.Fabric.Provider); err != nil {
		return nil, err
	}
	if at.Fabric.Provider != desc.Provider {
		return nil, fmt.Errorf("this sender writes over %q, the receiver takes %q: give both the same --fabric", at.Fabric.Provider, desc.Provider)
	}
	conn, err := dial(ctx, at, desc)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r, probe, err := open(conn, at)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if err := r.write(ctx, []write{{local: at.Staging[:min(len(at.Staging), 8)], access: probe}}); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: the endpoint made for it at %s cannot be written: %w", rdma.ErrUnreachable, host(conn.RemoteAddr()), err), r.Close())
	}
	return r, nil
}

func dial(ctx context.Context, at rdma.Attachment, desc descriptor) (net.Conn, error) {
	var d net.Dialer
	if at.Fabric.Addr != "" {
		ip := net.ParseIP(at.Fabric.Addr)
		if ip == nil {
			return nil, fmt.Errorf("%q is no address of this host", at.Fabric.Addr)
		}
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	addr := net.JoinHostPort(cmp.Or(desc.Host, at.Host), desc.Port)
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rdma.ErrUnreachable, err)
	}
	return conn, nil
}

// open shows the token and makes this side's endpoint for the one it is told.
func open(conn net.Conn, at rdma.Attachment) (_ *remote, probe access, err error) {
	hello, err := door.Hello(magic, at.Token)
	if err != nil {
		return nil, probe, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, probe, err
	}
	in := newLines(conn)
	m, err := in.next()
	switch {
	case err != nil:
		return nil, probe, fmt.Errorf("%w: no welcome from %s: %w", rdma.ErrGone, conn.RemoteAddr(), err)
	case len(at.Staging) == 0:
		return nil, probe, errors.New("no staging memory to write from")
	case m.Error != "" && m.Ended:
		return nil, probe, fmt.Errorf("the receiver refuses: %s: %w", m.Error, errEnded)
	case m.Error != "":
		return nil, probe, fmt.Errorf("the receiver refuses: %s", m.Error)
	case m.Ended:
		return nil, probe, errEnded
	}
	if probe, err = parseAccess(m.Probe); err != nil {
		return nil, probe, err
	}
	r := &remote{
		at: at, conn: conn,
		heard: make(chan error, 1), dying: make(chan struct{}), done: make(chan struct{}),
		calls: make(map[uint64]*call),
	}
	if err := r.openEndpoint(m.Endpoint); err != nil {
		return nil, probe, err
	}
	go r.listen(in)
	go r.live()
	return r, probe, nil
}

// openEndpoint makes this side's endpoint, to write to the one named.
func (r *remote) openEndpoint(peer []byte) error {
	e, err := openEndpoint(r.at.Fabric.Provider, host(r.conn.LocalAddr()))
	if err != nil {
		return err
	}
	r.pinned.Pin(unsafe.SliceData(r.at.Staging))
	if r.source, err = e.source(r.at.Staging); err != nil {
		e.close()
	} else if err = e.peer(peer); err != nil {
		e.close(r.source)
	}
	if err != nil {
		r.pinned.Unpin()
		return err
	}
	r.endpoint = e
	return nil
}

// listen waits for the end of the control connection.
func (r *remote) listen(in lines) {
	err := errTargetGone
	if m, got := in.next(); got == nil && m.Ended {
		err = errEnded
	}
	r.heard <- err
	r.die(err)
}

// live is the life of the endpoint: it runs until the end has begun, and when
// it is closed nothing is written any more and staging memory is free.
func (r *remote) live() {
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := r.endpoint.run(r.over); err != nil {
			r.die(fmt.Errorf("%w: %w", rdma.ErrGone, err))
		}
	}()
	<-r.dying
	r.endpoint.stop()
	<-ran
	r.endpoint.close(r.source)
	r.pinned.Unpin()

	r.mu.Lock()
	for id, c := range r.calls {
		delete(r.calls, id)
		c.end(r.cause)
	}
	r.mu.Unlock()
	r.conn.Close() // after the endpoint: its end says that no write can come any more
	close(r.done)
}

// die begins the end. The first cause counts.
func (r *remote) die(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause == nil {
		r.cause = cause
		close(r.dying)
	}
}

// over takes the end of a write.
func (r *remote) over(id uint64, err error) {
	if err != nil {
		go r.broken(err)
		return // its call ends with the rest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.calls[id]; c != nil {
		delete(r.calls, id)
		c.end(nil)
	}
}

// broken takes the failure of a write, after which the fabric's connection is
// no good. The target may be about to say why.
func (r *remote) broken(err error) {
	select {
	case why := <-r.heard:
		r.die(why)
	case <-time.After(byeWait):
		r.die(fmt.Errorf("%w: %w", rdma.ErrGone, err))
	case <-r.dying:
	}
}

// end counts one write less; r.mu is held.
func (c *call) end(err error) {
	c.left--
	c.err = cmp.Or(c.err, err)
	if c.left == 0 {
		close(c.over)
	}
}

// Write implements rdma.Remote.
func (r *remote) Write(ctx context.Context, ops []rdma.Op) error {
	if len(ops) == 0 {
		return nil
	}
	list := make([]write, 0, len(ops))
	for _, op := range ops {
		a, err := r.check(op)
		if errors.Is(err, errNotOpened) {
			go r.broken(err)
		}
		if err != nil {
			return fmt.Errorf("write of %d bytes to slot %d: %w", len(op.Local), op.Slot, err)
		}
		for from := 0; from < len(op.Local); from += maxPiece {
			to := min(from+maxPiece, len(op.Local))
			list = append(list, write{local: op.Local[from:to], access: access{a.key, a.addr + uint64(from)}})
		}
	}
	if err := r.write(ctx, list); err != nil {
		return fmt.Errorf("write to slot %d: %w", ops[0].Slot, err)
	}
	return nil
}

func (r *remote) check(op rdma.Op) (access, error) {
	switch n := int64(len(op.Local)); {
	case n == 0:
		return access{}, errors.New("nothing to write")
	case n > r.at.SlotSize:
		return access{}, fmt.Errorf("slots hold %d bytes", r.at.SlotSize)
	case op.Slot < 0 || op.Slot >= r.at.Slots:
		return access{}, fmt.Errorf("there are %d slots, numbered from 0", r.at.Slots)
	case !within(op.Local, r.at.Staging):
		return access{}, errors.New("the bytes are not in the staging memory, and so not registered")
	}
	if len(op.Access) == 0 {
		return access{}, errNotOpened
	}
	return parseAccess(op.Access)
}

func within(part, whole []byte) bool {
	from, base := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return from >= base && from+uintptr(len(part)) <= base+uintptr(len(whole))
}

// write posts the writes and waits until they are over.
func (r *remote) write(ctx context.Context, list []write) error {
	if ctx.Err() != nil { // nothing is posted that would have to be called back
		return context.Cause(ctx)
	}
	c := &call{left: len(list), over: make(chan struct{})}
	r.mu.Lock()
	if r.cause != nil {
		defer r.mu.Unlock()
		return r.cause
	}
	for i := range list {
		r.last++
		list[i].id = r.last
		r.calls[r.last] = c
		if err := r.endpoint.post(list[i]); err != nil { // no memory
			delete(r.calls, r.last)
			c.end(err)
		}
	}
	r.mu.Unlock()
	select {
	case <-c.over:
	case <-ctx.Done():
		r.die(fmt.Errorf("%w: %w", rdma.ErrGone, context.Cause(ctx)))
		<-c.over
	}
	return c.err
}

// Update implements rdma.Remote: an access says all about a slot.
func (r *remote) Update([]rdma.Region) error { return nil }

// Done implements rdma.Remote.
func (r *remote) Done() <-chan struct{} { return r.done }

// Cause implements rdma.Remote.
func (r *remote) Cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
		if r.closed {
			return nil
		}
		return r.cause
	default:
		return nil
	}
}

// Close implements rdma.Remote.
func (r *remote) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.die(errRemoteClosed)
	<-r.done
	return nil
}
