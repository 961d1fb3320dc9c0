// Package rdma is the small interface behind which the one-sided write engines
// stand: a target owns slots of memory and lets initiators write into them, an
// initiator attaches to a target and writes. It knows nothing of requests,
// admission or the wire; descriptors and tokens are opaque bytes to everybody
// but the engine. Start reading at Target and Remote; rdma/shm is the engine
// for one host.
package rdma

import "context"

// Writer names one grant of write access: one attach of one sender. The
// receiver numbers them and never uses a number twice.
type Writer uint64

// Region is one piece of registered memory that holds some of the slots.
// Region 0 holds all of them at start; each revocation opens another.
type Region struct {
	ID   int
	Desc []byte // the engine's own, handed to initiators as it is
}

// Target is the receiver's side: the memory of the buffer. Its methods may be
// called from several goroutines.
type Target interface {
	// Engine is the engine's name, "shm".
	Engine() string
	// Regions describes all regions that hold a slot now.
	Regions() []Region
	// Grant makes the secret with which one initiator may connect as w.
	Grant(w Writer) (token []byte, err error)
	// GrantRead makes the secret with which one local decoder may map the
	// buffer read-only. It is good for one connection and forgotten, unused,
	// after a minute.
	GrantRead() (token []byte, err error)
	// Withdraw forgets w's token. It reports whether a connection made with it
	// is still open; if so its end will be told on Gone.
	Withdraw(w Writer) (connected bool)
	// Gone tells each writer whose connection has ended: it can write no more.
	Gone() <-chan Writer
	// Revoke gives the slots new, zeroed, prefaulted memory in a new region and
	// returns the region's number. Whoever still writes to the old memory
	// writes where nobody reads; that memory is kept until w is gone. It takes
	// about 1.5 ms a MiB. On error nothing has changed.
	Revoke(slots []int, w Writer) (region int, err error)
	// Slot is the memory of a slot where it lies now.
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

// Remote is the initiator's side: one attached target. Write may be called
// from several goroutines.
type Remote interface {
	// Write posts the writes and returns when all are complete at the target,
	// or with an error and an unknown number of them done.
	Write(ctx context.Context, ops []Op) error
	// Update learns the regions of now, after an AttachResponse that named new
	// ones.
	Update(regions []Region) error
	// Done is closed when the target is gone.
	Done() <-chan struct{}
	// Close ends the connection. No write may be under way.
	Close() error
}
