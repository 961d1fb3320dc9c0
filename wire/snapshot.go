package wire

import "time"

// MaxSnapshotList is how many entries each list of a Snapshot holds at most.
const MaxSnapshotList = 10_000

// Snapshot is the state of a receiver at one moment: what `pd-recv stat`
// prints as JSON and what a monitor draws. On the wire its fields have the
// same names as in JSON.
type Snapshot struct {
	Time      time.Time         `json:"time"`
	Kind      string            `json:"kind"` // "receiver"
	ID        string            `json:"id"`
	Epoch     uint64            `json:"epoch"`
	Endpoint  string            `json:"endpoint"`
	Engine    string            `json:"engine"`
	Admission string            `json:"admission"`
	UptimeS   float64           `json:"uptime_s"`
	Slots     SnapshotSlots     `json:"slots"`
	Requests  []SnapshotRequest `json:"requests"`
	Queue     []SnapshotWaiter  `json:"queue"`
	Senders   []SnapshotSender  `json:"senders"`
	Totals    SnapshotTotals    `json:"totals"`
	Counters  Counters          `json:"counters"`
	AdmitWait SnapshotWait      `json:"admit_wait_ms"`
}

// SnapshotSlots is the ledger. Promised + Held + Quarantined + Free = Total;
// Written is part of Held, Ready of Written.
type SnapshotSlots struct {
	Total       int   `json:"total"`
	Promised    int   `json:"promised"` // reserved, not yet allocated
	Held        int   `json:"held"`     // allocated to chunks
	Written     int   `json:"written"`  // held and committed
	Ready       int   `json:"ready"`    // written, by requests that are ready
	Quarantined int   `json:"quarantined"`
	Free        int   `json:"free"`
	Bytes       int64 `json:"bytes"` // of one slot
}

// SnapshotRequest is one live request, waiting ones included.
type SnapshotRequest struct {
	ReqID       string `json:"req_id"`
	Sender      string `json:"sender"`
	State       string `json:"state"` // queued, admitted, allocated, ready
	TotalChunks int    `json:"total_chunks"`
	Allocated   int    `json:"allocated"` // chunks with a slot, shared ones included
	Written     int    `json:"written"`   // of those, committed
	Shared      int    `json:"shared"`    // of those, not sent because already there
	Bytes       int64  `json:"bytes"`     // of the chunks that have a slot
	AgeMS       int64  `json:"age_ms"`    // since its first batch came
	IdleMS      int64  `json:"idle_ms"`   // since a message last named it
}

// SnapshotWaiter is one place in the admission queue.
type SnapshotWaiter struct {
	Pos      int    `json:"pos"` // from 1
	ReqID    string `json:"req_id"`
	Sender   string `json:"sender"`
	Need     int    `json:"need"`  // slots
	Lacks    int    `json:"lacks"` // slots still to be freed before it is admitted, all ahead included
	WaitedMS int64  `json:"waited_ms"`
}

// SnapshotSender is one sender that has something or is attached.
type SnapshotSender struct {
	Sender      string `json:"sender"`
	Requests    int    `json:"requests"` // live, waiting ones included
	Queued      int    `json:"queued"`   // of those, waiting
	Attached    bool   `json:"attached"`
	Engine      string `json:"engine"`        // by which it writes; empty unless attached
	LeaseLeftMS int64  `json:"lease_left_ms"` // 0 where there is no sender lease
}

// SnapshotTotals has the true lengths of lists that may be cut.
type SnapshotTotals struct {
	Requests int `json:"requests"`
	Queue    int `json:"queue"`
	Senders  int `json:"senders"`
}

// Counters only ever grow while a receiver lives.
type Counters struct {
	Admitted      int64 `json:"admitted"`
	Ready         int64 `json:"ready"`
	Released      int64 `json:"released"`
	Cancelled     int64 `json:"cancelled"`
	Rejected      int64 `json:"rejected"` // requests refused at their first batch
	TimedOut      int64 `json:"timed_out"`
	RolledBack    int64 `json:"rolled_back"`
	Expired       int64 `json:"expired"`        // before they were ready
	ExpiredUnread int64 `json:"expired_unread"` // while ready
	Duplicates    int64 `json:"duplicates"`     // of Rejected, those whose req_id was another sender's
	StaleWrites   int64 `json:"stale_writes"`   // commits for requests that had ended
	BadFrames     int64 `json:"bad_frames"`     // messages that could not be decoded
	Undeliverable int64 `json:"undeliverable"`  // answers whose peer was gone
}

// SnapshotWait is the admission wait of the last minute, in milliseconds.
type SnapshotWait struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}
