//go:build !noofi

package ofi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
	"github.com/pd-tools/pd-tools/rdma/door"
)

// sendTimeout bounds the few bytes that the target says on a control connection.
const sendTimeout = door.Timeout

// maxLeft is how many regions of memory that slots have left stay open to a writer:
// more than it has writes under way.
const maxLeft = 4 * Window

// server is the receiver's side.
type server struct {
	buf    *buffer.Buffer
	fabric rdma.Fabric
	door   *door.Door
	desc   descriptor
	probe  []byte // a page that anybody may write

	mu     sync.Mutex // held while memory is registered, which is a table entry or a system call
	peers  map[rdma.Writer]*peer
	holder map[int]*peer // of each open slot: who may write it
}

// peer is one connected writer.
type peer struct {
	endpoint *endpoint
	probe    *region
	open     map[int]*region // by slot
	left     []*region       // of memory that slots have left, oldest first
	ended    bool            // its endpoint is shut, and this is being told
}

// Serve lets initiators across hosts write into buf. It opens an endpoint and
// registers the whole buffer once, so that what cannot work is known at the start.
func Serve(buf *buffer.Buffer, _ string, f rdma.Fabric, gone func(rdma.Writer)) (rdma.Server, error) {
	f.Provider = cmp.Or(f.Provider, DefaultProvider)
	if err := checkProvider(f.Provider); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(f.Addr, cmp.Or(f.Service, "0")))
	if err != nil {
		return nil, fmt.Errorf("listen for writers: %w", err)
	}
	s := &server{
		buf: buf, fabric: f,
		desc:   descriptor{Provider: f.Provider},
		peers:  make(map[rdma.Writer]*peer),
		holder: make(map[int]*peer),
	}
	if ip := net.ParseIP(host(l.Addr())); ip == nil || !ip.IsUnspecified() {
		s.desc.Host = host(l.Addr())
	}
	if _, s.desc.Port, err = net.SplitHostPort(l.Addr().String()); err == nil {
		err = s.rehearse()
	}
	if err == nil {
		s.probe, err = unix.Mmap(-1, 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	s.door = door.New(door.Config{
		Listener: l,
		Magic:    magic,
		Refuse: func(c net.Conn, err error) {
			_ = sendLine(c, message{Error: err.Error(), Ended: errors.Is(err, door.ErrToken)}, sendTimeout)
		},
		Serve: s.serve,
		Gone:  gone,
	})
	return s, nil
}

// rehearse does once what it takes to let writers write all slots.
func (s *server) rehearse() error {
	e, err := openEndpoint(s.fabric.Provider, s.desc.Host)
	if err != nil {
		return err
	}
	regions := make([]*region, 0, s.buf.Slots())
	defer func() { e.close(regions...) }()
	for i := range s.buf.Slots() {
		r, err := e.register(s.buf.Slot(i))
		if err != nil {
			return fmt.Errorf("slot %d of %d: %w: is the limit of locked memory (ulimit -l) as large as the buffer?", i, s.buf.Slots(), err)
		}
		regions = append(regions, r)
	}
	return nil
}

// String says by which provider and where.
func (s *server) String() string {
	return fmt.Sprintf("%s (%s) on port %s", Name, s.desc.Provider, s.desc.Port)
}

// Desc implements rdma.Server.
func (s *server) Desc() []byte { return s.desc.bytes() }

// Grant implements rdma.Server.
func (s *server) Grant(w rdma.Writer) ([]byte, error) { return s.door.Grant(w) }

// Withdraw implements rdma.Server: a writer that is connected is sent away.
func (s *server) Withdraw(w rdma.Writer) (connected bool) {
	if !s.door.Withdraw(w) {
		return false
	}
	if c := s.door.Conn(w); c != nil {
		_ = sendLine(c, message{Ended: true}, sendTimeout) // a few bytes: they fit, or it is gone
		c.Close()
	}
	return true
}

// serve gives a writer its endpoint and keeps it until the connection ends.
func (s *server) serve(c net.Conn, w rdma.Writer) {
	p, welcome, err := s.welcome(c)
	if err != nil {
		_ = sendLine(c, message{Error: err.Error()}, sendTimeout)
		return
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := p.endpoint.run(func(uint64, error) {}); err != nil { // it writes nothing itself
			c.Close()
		}
	}()
	s.mu.Lock()
	s.peers[w] = p
	s.mu.Unlock()

	if sendLine(c, welcome, sendTimeout) == nil {
		_, _ = io.Copy(io.Discard, c)
	}

	p.endpoint.stop()
	<-ran
	p.endpoint.shut()
	s.mu.Lock() // only now: before, a write may begin that Shut has to keep away
	p.ended = true
	for slot := range p.open {
		delete(s.holder, slot)
	}
	s.mu.Unlock()
	p.endpoint.close(slices.AppendSeq(append(p.left, p.probe), maps.Values(p.open))...)
}

func (s *server) forget(w rdma.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, w)
}

// welcome makes the endpoint at the address at which the writer has reached us.
func (s *server) welcome(c net.Conn) (*peer, message, error) {
	e, err := openEndpoint(s.fabric.Provider, host(c.LocalAddr()))
	if err != nil {
		return nil, message{}, err
	}
	probe, err := e.register(s.probe)
	if err != nil {
		e.close()
		return nil, message{}, err
	}
	name, err := e.name()
	if err != nil {
		e.close(probe)
		return nil, message{}, err
	}
	return &peer{endpoint: e, probe: probe, open: make(map[int]*region)}, message{Probe: probe.access().bytes(), Endpoint: name}, nil
}

// Open implements rdma.Server.
func (s *server) Open(w rdma.Writer, slot int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[w]
	switch {
	case p == nil:
		return nil, errors.New("its sender has no data connection: it connects before it asks for slots")
	case p.ended:
		return nil, rdma.ErrGone
	}
	s.shut(slot)
	r, err := p.endpoint.register(s.buf.Slot(slot))
	if err != nil {
		return nil, err
	}
	p.open[slot] = r
	s.holder[slot] = p
	return r.access().bytes(), nil
}

// Shut implements rdma.Server.
func (s *server) Shut(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut(slot)
}

func (s *server) shut(slot int) {
	if p := s.holder[slot]; p != nil {
		p.open[slot].close()
		delete(p.open, slot)
		delete(s.holder, slot)
	}
}

// Leave implements rdma.Server. An honest writer whose request is rolled back has
// writes under way that know nothing of it yet. Refused they would cost it its
// connection, and all its other requests with it; so the key of the old memory
// goes on being good. One that gets rolled back again and again must not have all
// the memory it left: only so many keys stay.
func (s *server) Leave(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.holder[slot]
	if p == nil {
		return
	}
	p.left = append(p.left, p.open[slot])
	delete(p.open, slot)
	delete(s.holder, slot)
	if len(p.left) > maxLeft {
		p.left[0].close()
		p.left = slices.Delete(p.left, 0, 1)
	}
}

// Close implements rdma.Server. Every endpoint is closed when it returns.
func (s *server) Close() error {
	err := s.door.Close()
	return errors.Join(err, unix.Munmap(s.probe))
}
