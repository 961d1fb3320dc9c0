package shm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

// writePiece is the bytes written between two looks at whether to go on.
const writePiece = 1 << 20

var (
	errTargetGone   = fmt.Errorf("the receiver is gone: %w", rdma.ErrGone)
	errRemoteClosed = errors.New("the connection to the receiver is closed")
)

// remote is the initiator's side.
type remote struct {
	layout  buffer.Layout
	conn    *net.UnixConn
	answers chan answer   // from listen to fetch
	done    chan struct{} // closed when the conn has ended
	quit    chan struct{} // closed by Close

	asking sync.Mutex // held by the one Update at a time

	mu      sync.Mutex
	closed  bool
	using   sync.WaitGroup   // of the mappings: writes and prefaults
	regions map[int]*mapping // never changed, only replaced
}

// mapping is a region, mapped until Close.
type mapping struct {
	base    []byte
	present []atomic.Bool // slots that are prefaulted here
}

// Attach connects to a target on this host and maps its regions. They are
// prefaulted behind the scenes, or slot by slot as writes come first.
func Attach(ctx context.Context, at rdma.Attachment) (rdma.Remote, error) {
	l, err := buffer.NewLayout(at.Slots, at.SlotSize)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	r := &remote{
		layout:  l,
		conn:    conn,
		answers: make(chan answer),
		done:    make(chan struct{}),
		quit:    make(chan struct{}),
	}
	go r.listen()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = r.Update(at.Regions)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach: %w", err), r.Close())
	}
	return r, nil
}

// listen passes answers on until the connection ends.
func (r *remote) listen() {
	defer close(r.done)
	for {
		a, err := readAnswer(r.conn)
		if err != nil {
			return
		}
		select {
		case r.answers <- a:
		case <-r.quit:
			discard(a)
			return
		}
	}
}

// Done implements rdma.Remote.
func (r *remote) Done() <-chan struct{} { return r.done }

// Cause implements rdma.Remote.
func (r *remote) Cause() error {
	select {
	case <-r.quit: // both are closed then
		return nil
	default:
	}
	select {
	case <-r.done:
		return errTargetGone
	default:
		return nil
	}
}

// Update implements rdma.Remote. It takes at most ioTimeout.
func (r *remote) Update(regions []rdma.Region) error {
	r.asking.Lock()
	defer r.asking.Unlock()
	timeout := time.NewTimer(ioTimeout)
	defer timeout.Stop()
	for _, reg := range regions {
		if r.known()[reg.ID] != nil {
			continue
		}
		a, err := r.fetch(reg.ID, timeout.C)
		if err != nil {
			return fmt.Errorf("get region %d: %w", reg.ID, err)
		}
		base, living, err := mapAnswer(a, r.layout, false)
		if err != nil {
			return err
		}
		if err := r.learn(reg.ID, &mapping{base, make([]atomic.Bool, r.layout.Slots)}, living); err != nil {
			return errors.Join(err, buffer.Unmap(base))
		}
	}
	return nil
}

// fetch asks for a region. The answers to earlier questions that were given up
// may come first.
func (r *remote) fetch(id int, timeout <-chan time.Time) (answer, error) {
	if err := ask(r.conn, id); errors.Is(err, syscall.EPIPE) {
		return answer{}, errTargetGone
	} else if err != nil {
		return answer{}, err
	}
	for {
		select {
		case a := <-r.answers:
			if a.region == id {
				return a, nil
			}
			discard(a)
		case <-timeout:
			return answer{}, fmt.Errorf("no answer in %v: %w", ioTimeout, os.ErrDeadlineExceeded)
		case <-r.done:
			return answer{}, errTargetGone
		}
	}
}

// learn adds a mapping, which Close then unmaps, and prefaults the slots that
// live there.
func (r *remote) learn(id int, m *mapping, living []buffer.Span) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errRemoteClosed
	}
	regions := maps.Clone(r.regions)
	if regions == nil {
		regions = make(map[int]*mapping)
	}
	regions[id] = m
	r.regions = regions
	r.using.Go(func() { r.prefault(m, living) })
	return nil
}

func (r *remote) known() map[int]*mapping {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.regions
}

// prefault makes the slots present, unless the remote ends first. What cannot
// be is left to the write that needs it.
func (r *remote) prefault(m *mapping, living []buffer.Span) {
	for _, s := range living {
		for i := s.First; i < s.First+s.N; i++ {
			if r.alive(context.Background()) != nil || r.present(m, i) != nil {
				return
			}
		}
	}
}

// present prefaults a slot where that has not been done.
func (r *remote) present(m *mapping, slot int) error {
	if m.present[slot].Load() {
		return nil
	}
	if err := buffer.Prefault(r.layout.Pages(m.base, buffer.Span{First: slot, N: 1})); err != nil {
		return err
	}
	m.present[slot].Store(true)
	return nil
}

// alive says why a write should not go on.
func (r *remote) alive(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-r.quit:
		return errRemoteClosed
	case <-r.done:
		return errTargetGone
	default:
		return nil
	}
}

// Write implements rdma.Remote. A write is complete when it is copied.
func (r *remote) Write(ctx context.Context, ops []rdma.Op) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return errRemoteClosed
	}
	r.using.Add(1)
	regions := r.regions
	r.mu.Unlock()
	defer r.using.Done()

	for _, op := range ops {
		if err := r.checkOp(regions, op); err != nil {
			return err
		}
	}
	for _, op := range ops {
		if err := r.put(ctx, regions[op.Region], op); err != nil {
			return fmt.Errorf("write %d bytes to slot %d in region %d: %w", len(op.Local), op.Slot, op.Region, err)
		}
	}
	return r.alive(context.Background()) // done when the target is gone is not done
}

func (r *remote) checkOp(regions map[int]*mapping, op rdma.Op) error {
	switch n := int64(len(op.Local)); {
	case n == 0:
		return fmt.Errorf("write of 0 bytes to slot %d", op.Slot)
	case n > r.layout.SlotSize:
		return fmt.Errorf("write of %d bytes to slot %d: slots hold %d", n, op.Slot, r.layout.SlotSize)
	case regions[op.Region] == nil:
		return fmt.Errorf("write to slot %d in region %d: %w", op.Slot, op.Region, rdma.ErrUnknownRegion)
	}
	if err := r.layout.Check(op.Slot); err != nil {
		return fmt.Errorf("write of %d bytes: %w", len(op.Local), err)
	}
	return nil
}

// put does one write, piece by piece.
func (r *remote) put(ctx context.Context, m *mapping, op rdma.Op) error {
	if err := r.present(m, op.Slot); err != nil {
		return err
	}
	dst, src := r.layout.Cut(m.base, op.Slot), op.Local
	for len(src) > 0 {
		if err := r.alive(ctx); err != nil {
			return err
		}
		n := min(len(src), writePiece)
		if err := store(dst[:n], src[:n]); err != nil {
			return err
		}
		dst, src = dst[n:], src[n:]
	}
	return nil
}

// Close implements rdma.Remote. The target takes the end of the connection to
// mean that no write can come any more, so the memory goes first.
func (r *remote) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.quit)
	r.mu.Unlock()

	r.using.Wait()
	var errs []error
	for _, m := range r.regions {
		errs = append(errs, buffer.Unmap(m.base))
	}
	r.conn.Close()
	<-r.done
	return errors.Join(errs...)
}
