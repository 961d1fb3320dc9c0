package wire

// The message names, as they stand in the "type" field.
const (
	NameAllocRequest    = "AllocRequest"
	NameAllocResponse   = "AllocResponse"
	NameProxyNotif      = "ProxyNotif"
	NameCancelNotif     = "CancelNotif"
	NameAttachRequest   = "AttachRequest"
	NameAttachResponse  = "AttachResponse"
	NameCommitRequest   = "CommitRequest"
	NameCommitResponse  = "CommitResponse"
	NameHeartbeat       = "Heartbeat"
	NameTakeRequest     = "TakeRequest"
	NameTakeResponse    = "TakeResponse"
	NameReleaseRequest  = "ReleaseRequest"
	NameReleaseResponse = "ReleaseResponse"
	NameStatRequest     = "StatRequest"
	NameSnapshot        = "Snapshot" // its "kind" says which of the three
	NameEvent           = "Event"
	NameFailNotif       = "FailNotif"
	NameReadyRequest    = "ReadyRequest"
	NameReadyResponse   = "ReadyResponse"
)

// ProtocolVersion is what AttachRequest and AttachResponse carry. A peer with
// another version is refused at attach.
const ProtocolVersion = 1

// AllocRequest asks for one slot for each key: one batch of a request's
// chunks. It is LMCache's message; Epoch is ours.
type AllocRequest struct {
	Keys          []string // one chunk each, in chunk order
	Fmt           Int      // memory format, see Fmt*
	Shape         []Int    // of a full chunk
	Dtype         string   // element type, see DtypeSize
	LastChunkToks Int      // the last key's extent in the token dimension
	ReqID         string
	IsLastBatch   bool   // no new keys follow
	TotalChunks   Int    // chunks of the whole request, over all batches
	Epoch         uint64 // the receiver's, 0 (left out) from peers that did not attach
}

// AllocResponse answers AllocRequest, CancelNotif and Heartbeat.
type AllocResponse struct {
	RemoteIndexes      []int64 // a slot for each key not already sent, in key order; -1 on failure
	AlreadySentIndexes []int64 // positions in the request's keys, from 0
	Error              string  // empty on success; for people
	Code               Code    // empty on success; for programs
	Epoch              uint64  // only to a peer that attached
	Regions            []int64 // one a remote index; left out when all are region 0

	// Access is what the sender's engine needs to write each slot, one a remote
	// index, the engine's own; left out when there is none, as under shm.
	Access [][]byte
}

// ProxyNotif tells the proxy that every chunk of a request has landed.
type ProxyNotif struct{ ReqID string }

// CancelNotif ends a request of its sender. Keys are a hint and not used.
type CancelNotif struct {
	ReqID string
	Keys  []string
}

// AttachRequest introduces a sender. It is idempotent.
type AttachRequest struct {
	Name      string   // for people
	Version   int64    // ProtocolVersion
	SlotSize  int64    // bytes of a staging slot the sender has already cut; 0: any will do
	Engines   []string // names of write engines, best first
	ByteOrder string   // of the sender's host: LittleEndian or BigEndian; empty: not said
}

// What AttachRequest.ByteOrder says. Chunks are copied byte by byte: whoever
// reads them must have the order of whoever made them.
const (
	LittleEndian = "little"
	BigEndian    = "big"
)

// AttachResponse says how to write into the receiver's buffer.
type AttachResponse struct {
	Error      string
	Code       Code
	Version    int64
	Engine     string   // the one chosen of AttachRequest.Engines
	Token      []byte   // secret that binds the data connection to this sender
	Regions    []Region // all regions of now
	SlotSize   int64    // bytes
	SlotCount  int64
	LeaseMS    int64 // silence after which all of this sender ends, milliseconds
	ReceiverID string
	Epoch      uint64
	MaxMessage int64 // bytes a request message
	MaxKeys    int64 // keys a batch
	OneFrame   bool  // it takes messages that carry their correlation themselves
}

// Region describes one piece of registered memory; Desc is the engine's own.
type Region struct {
	ID   int64
	Desc []byte
}

// CommitRequest says that these slots of the request are written and flushed.
// Slots, Lengths and CRCs run in parallel.
type CommitRequest struct {
	ReqID   string
	Slots   []int64
	Lengths []int64  // bytes
	CRCs    []uint32 // CRC-32C (Castagnoli) of the chunk
	Epoch   uint64
}

// CommitResponse makes a commit count.
type CommitResponse struct {
	Error string
	Code  Code
	Ready bool // the request is ready: all chunks committed and the last batch allocated
}

// Heartbeat renews the lease of everything its sender has.
type Heartbeat struct{ Epoch uint64 }

// TakeRequest asks where a ready request's chunks lie. Asked again by the same
// connection it renews the take.
type TakeRequest struct{ ReqID string }

// TakeResponse lists the chunks in chunk order.
type TakeResponse struct {
	Error      string
	Code       Code
	ReqID      string
	Chunks     []TakenChunk
	SlotSize   int64 // bytes
	SlotCount  int64 // of the whole buffer
	LeaseMS    int64 // how long the take lasts unless asked again, milliseconds
	ReceiverID string
	Token      []byte   // secret with which a local decoder may map the buffer
	Regions    []Region // those that Chunks name
}

// TakenChunk is one chunk of a taken request.
type TakenChunk struct {
	Key    string
	Slot   int64
	Region int64
	Length int64 // bytes
	CRC    uint32
	HasCRC bool // false: its sender never attached, nothing to check
}

// ReleaseRequest says that a ready request is consumed: its slots are free.
type ReleaseRequest struct {
	ReqID string
	Keep  bool // give a take back instead: the request is ready again
}

// ReleaseResponse answers ReleaseRequest.
type ReleaseResponse struct {
	Error string
	Code  Code
}

// StatRequest asks for a Snapshot.
type StatRequest struct{}

// FailNotif tells the proxy that a request failed.
type FailNotif struct {
	ReqID  string
	Reason string
}

// ReadyRequest asks which requests are ready: those that became so after
// number After of Epoch. Where Epoch is not the receiver's, of all.
type ReadyRequest struct {
	Epoch uint64 // 0: none known yet
	After uint64 // the last number known, 0: none
}

// ReadyResponse has them in the order in which they became ready, MaxReadyList
// at most.
type ReadyResponse struct {
	Error   string
	Code    Code
	Epoch   uint64 // of the receiver: numbers mean nothing in another
	Entries []ReadyEntry
	More    bool // there are more behind the last
}

// ReadyEntry is one request that is ready, taken by a decoder or not.
type ReadyEntry struct {
	Seq   uint64 // grows from one that became ready to the next, stays when a take is given back
	ReqID string
}

// Code says why a request was refused, for programs.
type Code string

// Codes of refused batches, in the order in which a message is checked.
const (
	CodeBadRequest        Code = "bad_request"
	CodeStaleEpoch        Code = "stale_epoch"
	CodeDuplicateRequest  Code = "duplicate_request"
	CodeTooLarge          Code = "too_large"
	CodeRolledBack        Code = "rolled_back"
	CodeNoTotal           Code = "no_total"
	CodeProtocolViolation Code = "protocol_violation"
	CodeQueueFull         Code = "queue_full"
	CodeAdmissionTimeout  Code = "admission_timeout"
	CodeInternal          Code = "internal"
	CodeShuttingDown      Code = "shutting_down"
)

// Codes of refused takes and releases.
const (
	CodeUnknownRequest Code = "unknown_request"
	CodeNotReady       Code = "not_ready"
	CodeTaken          Code = "taken"
	CodeExpired        Code = "expired"
)
