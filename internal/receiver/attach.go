package receiver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// maxWriters bounds the senders that are attached at one time: each costs the
// engine a token before it has sent anything.
const maxWriters = 4096

// writers keeps the grants of the attached senders.
type writers struct {
	target   rdma.Target
	last     rdma.Writer
	bySender map[string]grant
	sender   map[rdma.Writer]string
	gone     *mailbox[rdma.Writer] // whose connection has ended
}

type grant struct {
	writer rdma.Writer
	token  []byte
}

func newWriters(target rdma.Target) *writers {
	return &writers{
		target:   target,
		bySender: make(map[string]grant),
		sender:   make(map[rdma.Writer]string),
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

// grant is the access of a sender: the one it has, or a new one. A sender that
// asks again keeps its data connection, and so its grant.
func (w *writers) grant(sender string) (grant, error) {
	if g, ok := w.bySender[sender]; ok {
		return g, nil
	}
	if len(w.bySender) >= maxWriters {
		return grant{}, fmt.Errorf("%d senders are attached, the most there can be", maxWriters)
	}
	w.last++
	token, err := w.target.Grant(w.last, w.target.Engines()[0])
	if err != nil {
		return grant{}, err
	}
	g := grant{writer: w.last, token: token}
	w.bySender[sender] = g
	w.sender[g.writer] = sender
	return g, nil
}

// withdraw takes a grant back. It reports whether its connection is still open:
// then its end will come on gone.
func (w *writers) withdraw(writer rdma.Writer) (connected bool) {
	delete(w.bySender, w.sender[writer])
	delete(w.sender, writer)
	return w.target.Withdraw(writer)
}

// attach answers a sender that introduces itself.
func (r *Receiver) attach(env *envelope, req *wire.AttachRequest) {
	resp := &wire.AttachResponse{Version: wire.ProtocolVersion, Epoch: r.cfg.Reservation.Epoch}
	if resp.Error = r.mismatch(req); resp.Error != "" {
		resp.Code = wire.CodeBadRequest
		r.step(reservation.Heard{Sender: env.sender})
	} else if g, err := r.writers.grant(env.sender); err != nil {
		resp.Error, resp.Code = err.Error(), wire.CodeInternal
	} else {
		r.step(reservation.Attach{Sender: env.sender, Name: req.Name, Writer: uint64(g.writer)})
		r.welcome(resp, g.token)
	}
	r.buf = wire.Append(r.buf[:0], resp)
	r.deliver(env, r.buf)
}

// mismatch says why a sender and this receiver cannot work together, naming
// both sides' values.
func (r *Receiver) mismatch(req *wire.AttachRequest) string {
	slot, engine := r.cfg.Reservation.SlotBytes, r.target.Engines()[0]
	switch {
	case req.Version != wire.ProtocolVersion:
		return fmt.Sprintf("sender speaks protocol version %d, receiver %d", req.Version, wire.ProtocolVersion)
	case req.SlotSize != 0 && req.SlotSize != slot:
		return fmt.Sprintf("sender's slots are %d bytes, receiver's %d: give both the same chunk size", req.SlotSize, slot)
	case !slices.Contains(req.Engines, engine):
		return fmt.Sprintf("sender writes with %s, receiver with %s", cmp.Or(strings.Join(req.Engines, ", "), "no engine"), engine)
	}
	return ""
}

func (r *Receiver) welcome(resp *wire.AttachResponse, token []byte) {
	resp.Engine = r.target.Engines()[0]
	resp.Token = token
	for _, region := range r.target.Regions(r.target.Engines()[0]) {
		resp.Regions = append(resp.Regions, wire.Region{ID: int64(region.ID), Desc: region.Desc})
	}
	resp.SlotSize = r.cfg.Reservation.SlotBytes
	resp.SlotCount = int64(r.cfg.Reservation.Slots)
	resp.LeaseMS = r.cfg.Reservation.Lease.Milliseconds()
	resp.ReceiverID = r.cfg.ID
	resp.MaxMessage = wire.MaxMessage
	resp.MaxKeys = wire.MaxKeys
}
