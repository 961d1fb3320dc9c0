package reservation

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// Time is a reading of a monotonic clock, in nanoseconds from any origin. The
// machine never reads a clock: every Step is told the time.
type Time = time.Duration

// Tag comes with a message that wants an answer and goes back with it. The
// machine keeps it and never looks inside.
type Tag any

// Event is one thing that happened: one of the types below.
type Event interface{ event() }

// Attach makes a sender an attached one, with a lease of its own and the right
// to commit. Asked again it keeps everything; Writer is then the new grant.
type Attach struct {
	Sender string // ROUTER identity
	Name   string // for people
	Engine string // by which it writes, for people
	Writer uint64 // the grant under which it writes from now on; never used for another sender
}

// Alloc is a batch.
type Alloc struct {
	Sender string
	Tenant string             // whose quotas the request is on; empty: the sender's own
	Req    *wire.AllocRequest // the machine keeps it while it waits
	Size   int                // bytes of the message, for the queue's limit
	Tag    Tag                // answered by a wire.AllocResponse
}

// Malformed is a message that could not be decoded.
type Malformed struct {
	Sender string
	ReqID  string // as far as it could be read
	Keys   int    // how many it had, as far as that could be read
	Reason string
	Tag    Tag // answered by a wire.AllocResponse
}

// Commit says that slots are written.
type Commit struct {
	Sender string
	Req    *wire.CommitRequest
	Tag    Tag // answered by a wire.CommitResponse
}

// Cancel ends a request of its sender. "The keys of a CancelNotif are a hint":
// the machine does not need them.
type Cancel struct {
	Sender string
	ReqID  string
	Tag    Tag // answered by a wire.AllocResponse
}

// Heartbeat renews a sender's lease.
type Heartbeat struct {
	Sender string
	Epoch  uint64
	Tag    Tag // answered by a wire.AllocResponse
}

// Heard renews a sender's lease: a message came that the machine need not see.
type Heard struct{ Sender string }

// Take gives a ready request to a decoder.
type Take struct {
	Conn  string // ROUTER identity of the decoder
	ReqID string
	Tag   Tag // answered by a wire.TakeResponse, chunks, code and error filled in
}

// Release consumes a ready request, or gives a take back.
type Release struct {
	Conn  string
	ReqID string
	Keep  bool
	Tag   Tag // answered by a wire.ReleaseResponse
}

// ListReady asks which requests are ready.
type ListReady struct {
	Conn string
	Req  *wire.ReadyRequest
	Tag  Tag // answered by a wire.ReadyResponse
}

// Gone says that nobody can write under a grant any more: its connection has
// ended. If it was its sender's current one, the sender ends with it.
type Gone struct{ Writer uint64 }

// Overrun ends a sender that does not read its answers.
type Overrun struct{ Sender string }

// Revoked answers a Revocation: its slots have new memory, in Region.
type Revoked struct {
	ID     uint64
	Region int
}

// RevokeFailed answers a Revocation: the slots stay in quarantine until nobody
// can write to them any more: until each grant that could is Gone.
type RevokeFailed struct{ ID uint64 }

// AccessFailed says that the engine could not open slots, all those of the
// Effects of the Step before that it could not. It is given before any other
// event. The requests that hold them end; the batches that were answered with
// such a slot the caller tells so itself, in place of that answer.
type AccessFailed struct {
	Slots  []int
	Reason string // for people
}

// Shutdown answers everybody who waits and refuses new requests from now on.
type Shutdown struct{}

// Close ends every request that there still is: the receiver goes, and all it
// has with it. What comes afterwards is refused.
type Close struct{}

// Tick lets time pass: only here does anything expire. Give it after the
// messages already received, and at least every Config.MaxGap/2.
type Tick struct{}

func (Attach) event()       {}
func (Alloc) event()        {}
func (Malformed) event()    {}
func (Commit) event()       {}
func (Cancel) event()       {}
func (Heartbeat) event()    {}
func (Heard) event()        {}
func (Take) event()         {}
func (Release) event()      {}
func (ListReady) event()    {}
func (Gone) event()         {}
func (Overrun) event()      {}
func (Revoked) event()      {}
func (RevokeFailed) event() {}
func (AccessFailed) event() {}
func (Shutdown) event()     {}
func (Close) event()        {}
func (Tick) event()         {}

// Effects is what the caller must now do. It is valid until the next Step.
type Effects struct {
	Doors       []Door       // before all else, in order: have the engine do each; report those it could not open as AccessFailed
	Answers     []Answer     // send each
	Records     []Record     // tell whoever listens
	Revocations []Revocation // have the engine do each, then report Revoked or RevokeFailed
	Ended       []uint64     // grants that are over: withdraw each; where no connection is open under it, report Gone
}

// Door lets a grant write a slot: from when the slot is allocated until its
// chunk is committed or its request has ended. Nothing is said twice.
type Door struct {
	Slot   int
	Writer uint64 // 0: the slot is shut
}

// Answer is one message to whoever sent Tag.
type Answer struct {
	Tag Tag
	Msg any // *wire.AllocResponse, *wire.CommitResponse, *wire.TakeResponse, *wire.ReleaseResponse or *wire.ReadyResponse
}

// Revocation asks for new memory for slots that may still be written to.
type Revocation struct {
	ID     uint64
	Writer uint64 // the grant under which, the latest where there are several
	Slots  []int
}

// Kind is what happened to a request.
type Kind uint8

// The kinds, in the words that pd-recv prints.
const (
	Queued Kind = iota + 1
	Admitted
	Allocated
	Ready
	Released
	Cancelled
	Rejected
	TimedOut
	RolledBack
	Expired
)

var kindNames = [...]string{
	Queued: "queued", Admitted: "admitted", Allocated: "allocated", Ready: "ready", Released: "released",
	Cancelled: "cancelled", Rejected: "rejected", TimedOut: "timed_out", RolledBack: "rolled_back", Expired: "expired",
}

func (k Kind) String() string { return kindNames[k] }

// Record is one line of a request's history.
type Record struct {
	Kind        Kind
	ReqID       string
	Sender      string        // as people know it: the name it attached with, or its identity
	Chunks      int           // chunks that have a slot
	TotalChunks uint64        // as declared
	Bytes       int64         // of those chunks
	Shared      int           // of those chunks, not sent because already there
	Waited      time.Duration // Admitted, TimedOut: how long it waited for admission
	Wrote       time.Duration // Ready: since it was admitted
	Took        time.Duration // Ready and the ends of live requests: since its first batch came
	Code        wire.Code
	Reason      string
	Unread      bool // Expired: it was ready
	Free        int  // slots free after this
}

// Mode is the admission policy.
type Mode uint8

// The policies of --admission.
const (
	Reserve Mode = iota // all chunks of a request are reserved before the first is allocated
	Serial              // one request at a time
	None                // allocate as it comes, promised = 0: deadlocks, and shows why
)

var modeNames = [...]string{Reserve: "reserve", Serial: "serial", None: "none"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode reads what --admission takes.
func ParseMode(s string) (Mode, error) {
	for m, name := range modeNames {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("unknown admission mode %q: must be reserve, serial or none", s)
}
