// Package rdma is the small interface behind which the one-sided write engines
// stand: a target owns slots of memory and lets initiators write into them, an
// initiator attaches to a target and writes. It knows nothing of requests,
// admission or the wire; descriptors, tokens and accesses are opaque bytes to
// everybody but the engine. Start reading at Target and Remote; rdma/shm is the
// engine for one host, rdma/ofi the one across hosts, rdma/buffer the memory
// under both, rdma/engines the list of all.
package rdma

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// Errors of a Remote.
var (
	// ErrUnknownRegion is in the error of a Write that names a region the Remote
	// has not been told of: attach again and Update with the regions of now.
	ErrUnknownRegion = errors.New("the region is not known here")

	// ErrGone is in the error of a Write, and in Cause, when the target can be
	// written no more, for whatever reason. Done is closed then, or soon. It is
	// in the error of Target.Open too, and of an Attach whose target went away
	// before it let us in.
	ErrGone = errors.New("the data connection has ended")

	// ErrEnded is in Cause, with ErrGone, when the target has withdrawn the grant.
	ErrEnded = errors.New("the receiver has taken its memory back")

	// ErrUnreachable is in the error of an Attach that found nobody to talk to,
	// as an engine for one host does on another: try the next engine.
	ErrUnreachable = errors.New("not reachable")
)

// Writer names one grant of write access: one attach of one sender. The
// receiver numbers them and never uses a number twice.
type Writer uint64

// Region is one piece of registered memory that holds some of the slots.
// Region 0 holds all of them at start; a revocation moves slots to another.
type Region struct {
	ID   int
	Desc []byte // the engine's own, handed to initiators as it is
}

// Fabric says where an engine across hosts finds the network.
type Fabric struct {
	Provider string // libfabric's name of it, "tcp;ofi_rxm"
	Addr     string // of this host on it; "": a target takes all, an initiator what reaches the target
	Service  string // port of the target's control connection; "": a free one
}

// Locks reports whether the provider locks the memory that is registered with it,
// as those of devices do; the others copy.
func (f Fabric) Locks() bool {
	core, _, _ := strings.Cut(f.Provider, ";")
	return !slices.Contains([]string{"tcp", "sockets", "udp", "net", "shm", "sm2"}, core)
}

// Target is the receiver's side: the memory of the buffer, written under one
// engine or several. Its methods may be called from several goroutines. All but
// Revoke and Close return at once.
type Target interface {
	// Engines are the names of the engines offered, best first.
	Engines() []string
	// Regions describes all regions in which a slot may live, to initiators of
	// the named engine. Region 0 is the first, and a region once in the list
	// stays there.
	Regions(engine string) []Region
	// Grant makes the secret with which one initiator of the named engine may
	// connect, once, as w. Asked again for the same w it gives the same one.
	Grant(w Writer, engine string) (token []byte, err error)
	// GrantRead makes the secret with which one local decoder may map the
	// buffer read-only. It is good for one connection and forgotten, unused,
	// after a minute.
	GrantRead() (token []byte, err error)
	// Withdraw forgets w's token. It reports whether a connection made with it
	// is still open; if so its end will be told on Gone. If not, w cannot write
	// and never will. An engine that can ends the connection itself.
	Withdraw(w Writer) (connected bool)
	// Gone tells each writer whose connection has ended: it can write no more.
	// None is lost, however late they are read. Close closes the channel.
	Gone() <-chan Writer
	// Open lets w write a slot, where it lives now, and returns what its
	// initiator needs for that, nil under an engine that needs nothing. A slot is
	// open to one writer at a time: opening it shuts it to the one before. It
	// fails when w is not connected, with ErrGone if it was and its end is told on
	// Gone, or when the engine can register no more memory.
	Open(w Writer, slot int) (access []byte, err error)
	// Shut lets nobody begin a write to a slot any more: one that tries loses
	// its connection. A write that has begun may go on: only Revoke keeps that
	// away. So it is for slots that their writer has done with.
	Shut(slot int)
	// Revoke gives the slots new, zeroed, prefaulted memory in another region,
	// shut, and returns that region's number. Whoever could write before may go
	// on, for a while at least, and loses nothing by it but what it writes: it
	// goes to the old memory, which nobody reads and nobody is given while such a
	// writer is left. It takes a few milliseconds a MiB; nobody may use the slots
	// meanwhile. On error nothing has changed.
	Revoke(slots []int) (region int, err error)
	// Slot is the memory of a slot where it lives now, good until Close.
	Slot(slot int) []byte
	// Close ends all connections and gives the memory back.
	Close() error
}

// Op is one write: the local bytes go to the start of a slot.
type Op struct {
	Local  []byte // within Attachment.Staging
	Region int
	Slot   int
	Access []byte // what Target.Open returned
}

// Attachment is what an initiator needs to reach a target.
type Attachment struct {
	ReceiverID string
	Token      []byte
	Regions    []Region
	SlotSize   int64 // bytes
	Slots      int
	Staging    []byte // the memory that writes are read from, good until the Remote is closed
	Host       string // of the receiver, as the initiator reaches it
	Fabric     Fabric // the initiator's own
}

// Remote is the initiator's side: one attached target. Its methods may be
// called from several goroutines.
type Remote interface {
	// Write posts the writes and returns when all are complete at the target,
	// or with an error and an unknown number of them done. All are checked
	// before the first is posted. An unknown region is ErrUnknownRegion. When it
	// returns the local memory is not read any more; so where a posted write
	// cannot be called back, the end of ctx ends the whole Remote.
	Write(ctx context.Context, ops []Op) error
	// Update learns the regions of now, after an AttachResponse that named new
	// ones. Those it knows already stay as they are.
	Update(regions []Region) error
	// Done is closed when the target is gone, and by Close.
	Done() <-chan struct{}
	// Cause says why Done is closed: ErrGone is in it. Nil before, and after Close.
	Cause() error
	// Close waits for writes under way, which end early and with an error, and
	// then ends the connection.
	Close() error
}

// Server is one engine's door to a buffer at the target; rdma/engines makes a
// Target of some of them. Methods are as the Target's of the same name.
type Server interface {
	Desc() []byte // of region 0; other regions need none
	Grant(w Writer) (token []byte, err error)
	Withdraw(w Writer) (connected bool)
	Open(w Writer, slot int) (access []byte, err error)
	Shut(slot int)
	// Leave says that the slot has other memory now, and is shut. Whoever could
	// write before may go on writing to the old.
	Leave(slot int)
	Close() error
}
