package receiver

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// maxWriters bounds the senders that are attached or connected at one time: each
// costs the engine a token before it has sent anything.
const maxWriters = 4096

// writers keeps the grants of the attached senders.
type writers struct {
	target   rdma.Target
	last     rdma.Writer
	bySender map[string]grant
	sender   map[rdma.Writer]string   // of each of those
	leaving  map[rdma.Writer]struct{} // withdrawn, and still connected
	gone     *mailbox[rdma.Writer]    // whose connection has ended
}

type grant struct {
	writer rdma.Writer
	engine string
	token  []byte
}

func newWriters(target rdma.Target) *writers {
	return &writers{
		target:   target,
		bySender: make(map[string]grant),
		sender:   make(map[rdma.Writer]string),
		leaving:  make(map[rdma.Writer]struct{}),
		gone:     newMailbox[rdma.Writer](),
	}
}

// watch forwards the ends of connections to the loop until the target closes.
func (w *writers) watch(wake func()) {
	for writer := range w.target.Gone() {
		w.gone.put(writer)
		wake()
	}
}

// left takes out those whose connection has ended.
func (w *writers) left() []rdma.Writer {
	gone := w.gone.take()
	for _, writer := range gone {
		delete(w.leaving, writer)
	}
	return gone
}

// grant is the access of a sender that can write by the engines named: what it
// has, or a new one under the best of ours. A sender that asks again keeps its
// data connection, and so its grant, unless it does not name its engine any
// more.
func (w *writers) grant(sender string, engines []string) (grant, error) {
	if g, ok := w.bySender[sender]; ok && slices.Contains(engines, g.engine) {
		return g, nil
	}
	if len(w.bySender)+len(w.leaving) >= maxWriters {
		return grant{}, fmt.Errorf("%d senders are attached or still connected, the most there can be: try again later", maxWriters)
	}
	w.last++
	g := grant{writer: w.last, engine: w.best(engines)}
	var err error
	if g.token, err = w.target.Grant(g.writer, g.engine); err != nil {
		return grant{}, fmt.Errorf("no access by %s: %w", g.engine, err)
	}
	w.bySender[sender] = g
	w.sender[g.writer] = sender
	return g, nil
}

// best is the first engine of ours that is among those named, "" if none is.
func (w *writers) best(engines []string) string {
	for _, ours := range w.target.Engines() {
		if slices.Contains(engines, ours) {
			return ours
		}
	}
	return ""
}

// withdraw takes a grant back. It reports whether its connection is still open:
// then its end will come on gone.
func (w *writers) withdraw(writer rdma.Writer) (connected bool) {
	sender := w.sender[writer]
	delete(w.sender, writer)
	if w.bySender[sender].writer == writer { // not superseded
		delete(w.bySender, sender)
	}
	if connected = w.target.Withdraw(writer); connected {
		w.leaving[writer] = struct{}{}
	}
	return connected
}

// attach answers a sender that introduces itself.
func (r *Receiver) attach(env *envelope, req *wire.AttachRequest) {
	resp := &wire.AttachResponse{Version: wire.ProtocolVersion, Epoch: r.cfg.Reservation.Epoch}
	if r.ended {
		resp.Error, resp.Code = "the receiver has stopped", wire.CodeShuttingDown
	} else if resp.Error = r.mismatch(req); resp.Error != "" {
		resp.Code = wire.CodeBadRequest
		r.step(reservation.Heard{Sender: env.sender})
	} else if g, err := r.writers.grant(env.sender, req.Engines); err != nil {
		resp.Error, resp.Code = err.Error(), wire.CodeInternal
	} else {
		r.step(reservation.Attach{Sender: env.sender, Name: req.Name, Engine: g.engine, Writer: uint64(g.writer)})
		r.welcome(resp, g)
	}
	r.buf = wire.Append(r.buf[:0], resp)
	r.deliver(env, r.buf)
}

// hostOrder is this host's byte order.
var hostOrder = func() string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return wire.LittleEndian
	}
	return wire.BigEndian
}()

// mismatch says why a sender and this receiver cannot work together, naming
// both sides' values.
func (r *Receiver) mismatch(req *wire.AttachRequest) string {
	slot := r.cfg.Reservation.SlotBytes
	switch order := req.ByteOrder; {
	case req.Version != wire.ProtocolVersion:
		return fmt.Sprintf("sender speaks protocol version %d, receiver %d: run the same version of pd-tools on both", req.Version, wire.ProtocolVersion)
	case req.SlotSize != 0 && req.SlotSize != slot:
		return fmt.Sprintf("sender's slots are %d bytes, receiver's %d: give all receivers of a sender one --chunk-size, and start a sender anew when it changes", req.SlotSize, slot)
	case order != "" && order != wire.LittleEndian && order != wire.BigEndian:
		return fmt.Sprintf("sender's byte order is %q, which is unknown, receiver's %s", order, hostOrder)
	case order != "" && order != hostOrder:
		return fmt.Sprintf("sender's byte order is %s, receiver's %s: chunks are not converted, use hosts of one kind", order, hostOrder)
	case r.writers.best(req.Engines) == "":
		return fmt.Sprintf("sender writes with %s, receiver with %s",
			cmp.Or(strings.Join(req.Engines, ", "), "no engine"), strings.Join(r.target.Engines(), ", "))
	}
	return ""
}

func (r *Receiver) welcome(resp *wire.AttachResponse, g grant) {
	resp.Engine = g.engine
	resp.Token = g.token
	for _, region := range r.target.Regions(g.engine) {
		resp.Regions = append(resp.Regions, wire.Region{ID: int64(region.ID), Desc: region.Desc})
	}
	resp.SlotSize = r.cfg.Reservation.SlotBytes
	resp.SlotCount = int64(r.cfg.Reservation.Slots)
	resp.LeaseMS = r.cfg.Reservation.Lease.Milliseconds()
	resp.ReceiverID = r.cfg.ID
	resp.MaxMessage = wire.MaxMessage
	resp.OneFrame = true
	resp.MaxKeys = wire.MaxKeys
}
