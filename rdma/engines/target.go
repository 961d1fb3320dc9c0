package engines

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

// Config is what a receiver decides about its target.
type Config struct {
	ReceiverID string // initiators and decoders on this host find the target by it
	Slots      int
	SlotSize   int64    // bytes; a slot takes whole pages
	Engines    []string // offered to initiators, best first
	Fabric     rdma.Fabric
}

// target is one buffer and a server for each engine offered. It knows which
// writers there are, and so when the memory taken from some is safe to use
// again.
type target struct {
	buffer  *buffer.Buffer
	local   *shm.Server
	names   []string               // of the engines offered
	offered map[string]rdma.Server // by name
	servers []rdma.Server          // all
	gone    chan rdma.Writer
	wake    chan struct{} // holds a value while ended may have some
	quit    chan struct{} // closed by Close
	work    sync.WaitGroup

	mu      sync.Mutex // never held over a call of a server or the buffer
	closed  bool
	tick    uint64                 // grants made so far
	writers map[rdma.Writer]writer // who may write or come to write
	ended   []rdma.Writer          // to be told on gone
}

type writer struct {
	engine string
	tick   uint64
}

var errClosed = errors.New("the receiver's memory is closed")

// Open makes a receiver's buffer, prefaulted, and lets initiators write into it
// under the engines named. A gigabyte takes a second or more.
func Open(cfg Config) (rdma.Target, error) {
	if len(cfg.Engines) == 0 {
		return nil, errors.New("no engine to offer")
	}
	rows := make([]engine, len(cfg.Engines))
	for i, name := range cfg.Engines {
		row, err := find(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(cfg.Engines[:i], name) {
			return nil, fmt.Errorf("engine %q is offered twice", name)
		}
		rows[i] = row
	}
	b, err := buffer.New(cfg.Slots, cfg.SlotSize)
	if err != nil {
		return nil, err
	}
	t := &target{
		buffer:  b,
		names:   slices.Clone(cfg.Engines),
		offered: make(map[string]rdma.Server),
		gone:    make(chan rdma.Writer),
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		writers: make(map[rdma.Writer]writer),
	}
	if err := t.serve(cfg, rows); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// serve starts the servers.
func (t *target) serve(cfg Config, rows []engine) (err error) {
	t.work.Go(t.tell)
	if t.local, err = shm.Serve(t.buffer, cfg.ReceiverID, t.end); err != nil {
		return err
	}
	t.servers = append(t.servers, t.local)
	for _, row := range rows {
		if row.serve == nil {
			t.offered[row.name] = t.local
			continue
		}
		s, err := row.serve(t.buffer, cfg.ReceiverID, cfg.Fabric, t.end)
		if err != nil {
			return fmt.Errorf("engine %s: %w", row.name, err)
		}
		t.servers = append(t.servers, s)
		t.offered[row.name] = s
	}
	return nil
}

// String says how the buffer is written, for people: of each engine offered its
// name, or more if it can tell.
func (t *target) String() string {
	words := slices.Clone(t.names)
	for i, name := range words {
		if s, ok := t.offered[name].(fmt.Stringer); ok {
			words[i] = s.String()
		}
	}
	return strings.Join(words, ", ")
}

// Engines implements rdma.Target.
func (t *target) Engines() []string { return slices.Clone(t.names) }

// Regions implements rdma.Target.
func (t *target) Regions(engine string) []rdma.Region {
	s := t.offered[engine]
	if s == nil {
		return nil
	}
	regions := make([]rdma.Region, t.buffer.Regions())
	for i := range regions {
		regions[i].ID = i
	}
	regions[0].Desc = s.Desc()
	return regions
}

// Slot implements rdma.Target.
func (t *target) Slot(slot int) []byte { return t.buffer.Slot(slot) }

// Gone implements rdma.Target.
func (t *target) Gone() <-chan rdma.Writer { return t.gone }

// Grant implements rdma.Target.
func (t *target) Grant(w rdma.Writer, engine string) ([]byte, error) {
	s := t.offered[engine]
	if s == nil {
		return nil, fmt.Errorf("engine %q is not offered, but %q", engine, t.names)
	}
	t.mu.Lock()
	switch g, ok := t.writers[w]; {
	case t.closed:
		t.mu.Unlock()
		return nil, errClosed
	case !ok: // before its token is good, so that no place it comes to know of is safe too early
		t.tick++
		t.writers[w] = writer{engine, t.tick}
	case g.engine != engine:
		t.mu.Unlock()
		return nil, fmt.Errorf("writer %d has a grant under %s already", w, g.engine)
	}
	t.mu.Unlock()
	token, err := s.Grant(w)
	if err != nil {
		t.drop(w)
	}
	return token, err
}

// GrantRead implements rdma.Target.
func (t *target) GrantRead() ([]byte, error) { return t.local.GrantRead() }

// Withdraw implements rdma.Target.
func (t *target) Withdraw(w rdma.Writer) (connected bool) {
	s := t.server(w)
	if s == nil {
		return false
	}
	if s.Withdraw(w) {
		return true
	}
	t.drop(w)
	return false
}

// drop forgets a writer that has never connected.
func (t *target) drop(w rdma.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.writers, w)
	if !t.closed {
		t.work.Go(t.settle)
	}
}

// server is the one that w was granted access by, nil if it has no grant.
func (t *target) server(w rdma.Writer) rdma.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offered[t.writers[w].engine]
}

// Open implements rdma.Target.
func (t *target) Open(w rdma.Writer, slot int) ([]byte, error) {
	t.Shut(slot) // to the one before, whose engine may be another
	s := t.server(w)
	if s == nil {
		return nil, fmt.Errorf("open slot %d to writer %d: %w, or it never had a grant", slot, w, rdma.ErrGone)
	}
	access, err := s.Open(w, slot)
	if err != nil {
		return nil, fmt.Errorf("open slot %d to writer %d: %w", slot, w, err)
	}
	return access, nil
}

// Shut implements rdma.Target.
func (t *target) Shut(slot int) {
	for _, s := range t.servers {
		s.Shut(slot)
	}
}

// Revoke implements rdma.Target.
func (t *target) Revoke(slots []int) (int, error) {
	t.mu.Lock()
	tick := t.tick
	t.mu.Unlock()
	region, err := t.buffer.Revoke(slots, tick)
	if err != nil {
		return 0, fmt.Errorf("revoke %d slots: %w", len(slots), err)
	}
	for _, s := range t.servers {
		for _, slot := range slots {
			s.Leave(slot)
		}
	}
	if t.oldest() > tick { // all have ended meanwhile
		t.settle()
	}
	return region, nil
}

// oldest is the tick of the oldest writer left, or that of the next to come.
func (t *target) oldest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.tick + 1
	for _, w := range t.writers {
		oldest = min(oldest, w.tick)
	}
	return oldest
}

// settle gives old places back after a writer has ended.
func (t *target) settle() { t.buffer.Settle(t.oldest()) }

// end forgets a writer whose connection has ended and has it told.
func (t *target) end(w rdma.Writer) {
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

// tell passes the writers that have ended on to whoever reads Gone, however
// slowly.
func (t *target) tell() {
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

// Close implements rdma.Target. The memory goes last: until all servers are
// closed, writes may land.
func (t *target) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.mu.Unlock()

	close(t.quit)
	var errs []error
	for _, s := range t.servers {
		errs = append(errs, s.Close())
	}
	t.work.Wait()
	close(t.gone)
	return errors.Join(append(errs, t.buffer.Close())...)
}
