// Package rdma is the small interface behind which the one-sided write engines
// stand: a target owns slots of memory and lets initiators write into them, an
// initiator attaches to a target and writes. It knows nothing of requests,
// admission or the wire; descriptors and tokens are opaque bytes to everybody
// but the engine. Start reading at Target and Remote; rdma/shm is the engine
// for one host, rdma/engines the list of all.
package rdma

import (
	"context"
	"errors"
)

// ErrUnknownRegion is in the error of a Write that names a region the Remote
// has not been told of: attach again and Update with the regions of now.
var ErrUnknownRegion = errors.New("the region is not known here")

// Writer names one grant of write access: one attach of one sender. The
// receiver numbers them and never uses a number twice.
type Writer uint64

// Region is one piece of registered memory that holds some of the slots.
// Region 0 holds all of them at start; a revocation moves slots to another.
type Region struct {
	ID   int
	Desc []byte // the engine's own, handed to initiators as it is
}

// Target is the receiver's side: the memory of the buffer. Its methods may be
// called from several goroutines. All but Revoke and Close return at once.
type Target interface {
	// Engine is the engine's name, "shm".
	Engine() string
	// Regions describes all regions in which a slot may live. Region 0 is the
	// first, and a region once in the list stays there.
	Regions() []Region
	// Grant makes the secret with which one initiator may connect, once, as w.
	// Asked again for the same w it gives the same one.
	Grant(w Writer) (token []byte, err error)
	// GrantRead makes the secret with which one local decoder may map the
	// buffer read-only. It is good for one connection and forgotten, unused,
	// after a minute.
	GrantRead() (token []byte, err error)
	// Withdraw forgets w's token. It reports whether a connection made with it
	// is still open; if so its end will be told on Gone. If not, w cannot write
	// and never will.
	Withdraw(w Writer) (connected bool)
	// Gone tells each writer whose connection has ended: it can write no more.
	// None is lost, however late they are read. Close closes the channel.
	Gone() <-chan Writer
	// Revoke gives the slots new, zeroed, prefaulted memory in another region
	// and returns that region's number. Whoever was granted access before may
	// go on writing to the old memory, which nobody reads and nobody is given
	// while such a writer is left. w is the one that the slots are taken from.
	// It takes a few milliseconds a MiB; nobody may use the slots meanwhile. On
	// error nothing has changed.
	Revoke(slots []int, w Writer) (region int, err error)
	// Slot is the memory of a slot where it lives now, good until Close.
	Slot(slot int) []byte
	// Close ends all connections and gives the memory back.
	Close() error
}

// Op is one write: the local bytes go to the start of a slot.
type Op struct {
	Local  []byte
	Region int
	Slot   int
}

// Attachment is what an initiator needs to reach a target.
type Attachment struct {
	ReceiverID string
	Token      []byte
	Regions    []Region
	SlotSize   int64 // bytes
	Slots      int
}

// Remote is the initiator's side: one attached target. Its methods may be
// called from several goroutines.
type Remote interface {
	// Write posts the writes and returns when all are complete at the target,
	// or with an error and an unknown number of them done. All are checked
	// before the first is posted. An unknown region is ErrUnknownRegion.
	Write(ctx context.Context, ops []Op) error
	// Update learns the regions of now, after an AttachResponse that named new
	// ones. Those it knows already stay as they are.
	Update(regions []Region) error
	// Done is closed when the target is gone, and by Close.
	Done() <-chan struct{}
	// Close waits for writes under way, which end early and with an error, and
	// then ends the connection.
	Close() error
}
