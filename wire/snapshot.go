package wire

// MaxSnapshotList is how many entries each list of a Snapshot or an Event
// holds at most.
const MaxSnapshotList = 10_000

// What Kind says in a Snapshot and in an Event.
const (
	KindReceiver = "receiver"
	KindSender   = "sender"
	KindProxy    = "proxy"
)

// Snapshot is the state of a receiver at one moment: what `pd-recv stat`
// prints as JSON and what a monitor draws. On the wire its fields have the
// same names as in JSON.
type Snapshot struct {
	Time      Stamp             `json:"time"`
	Kind      string            `json:"kind"` // KindReceiver
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
	AdmitWait SnapshotWait      `json:"admit_wait_ms"` // first batch until admission
	WriteTime SnapshotWait      `json:"write_ms"`      // admission until ready
	ReadyTime SnapshotWait      `json:"ready_ms"`      // first batch until ready
	Limits    SnapshotLimits    `json:"limits"`
	Refusals  map[string]int64  `json:"refusals"` // batches refused since the start, by code
	Draining  bool              `json:"draining"` // told to stop: nobody new is let in
}

// SnapshotLimits are the settings by which a receiver admits; 0 is no limit.
type SnapshotLimits struct {
	AdmitTimeoutMS int64 `json:"admit_timeout_ms"`
	LeaseMS        int64 `json:"lease_ms"`
	LegacyLeaseMS  int64 `json:"legacy_lease_ms"`
	ReadyTTLMS     int64 `json:"ready_ttl_ms"`
	Overtake       int   `json:"overtake"` // requests that may pass a waiting one; 0 is none
	QueueLimit     int   `json:"queue_limit"`
	QueueBytes     int64 `json:"queue_bytes"`
	SenderRequests int   `json:"sender_requests"` // of one sender: live
	SenderQueue    int   `json:"sender_queue"`    // slots that its waiting ones need
	SenderShare    int   `json:"sender_share"`    // slots promised to it and held by it
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
	Peak        int   `json:"peak"`  // most slots that were not free at one time since the start
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
	Taken       bool   `json:"taken"`     // ready, and a decoder is taking it

	// Its life so far, milliseconds after its first batch came; -1: not yet.
	AdmittedMS   int64 `json:"admitted_ms"`
	FirstWriteMS int64 `json:"first_write_ms"` // committed, or shared
	LastWriteMS  int64 `json:"last_write_ms"`
	ReadyMS      int64 `json:"ready_ms"`
}

// SnapshotWaiter is one place in the admission queue.
type SnapshotWaiter struct {
	Pos      int    `json:"pos"` // from 1
	ReqID    string `json:"req_id"`
	Sender   string `json:"sender"`
	Need     int    `json:"need"`  // slots
	Lacks    int    `json:"lacks"` // slots still to be freed before it is admitted, all ahead included
	WaitedMS int64  `json:"waited_ms"`
	AtShare  bool   `json:"at_share"` // not in line: its sender is at its share, and lacks is what that one has to free
}

// FirstInLine is who waits and is admitted next, or nil: the first that its
// sender's share does not hold back.
func (s *Snapshot) FirstInLine() *SnapshotWaiter {
	for i := range s.Queue {
		if !s.Queue[i].AtShare {
			return &s.Queue[i]
		}
	}
	return nil
}

// SnapshotSender is one sender that has something or is attached.
type SnapshotSender struct {
	Sender      string `json:"sender"`
	Requests    int    `json:"requests"` // live, waiting ones included
	Queued      int    `json:"queued"`   // of those, waiting
	Attached    bool   `json:"attached"`
	Engine      string `json:"engine"`        // by which it writes; empty unless attached
	LeaseLeftMS int64  `json:"lease_left_ms"` // 0 where there is no sender lease
	Slots       int    `json:"slots"`         // promised to and held by its requests, shared ones included
	Ready       int64  `json:"ready"`         // of its requests so far
	Bytes       int64  `json:"bytes"`         // written by it so far, counted as in Counters
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
	WrittenChunks int64 `json:"written_chunks"` // committed, or ready and of a sender that never attached
	WrittenBytes  int64 `json:"written_bytes"`
	SharedChunks  int64 `json:"shared_chunks"` // not sent because already there
	Refused       int64 `json:"refused"`       // peers that had no key that is allowed, each time they came
}

// SnapshotWait is how long something took in the last minute, in milliseconds.
type SnapshotWait struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// SenderSnapshot is the state of a pd-send, as its monitor stream has it.
type SenderSnapshot struct {
	Time      Stamp           `json:"time"`
	Kind      string          `json:"kind"`  // KindSender
	ID        string          `json:"id"`    // its name, as receivers show it
	Epoch     uint64          `json:"epoch"` // grows from start to start
	UptimeS   float64         `json:"uptime_s"`
	Staging   Staging         `json:"staging"`
	Requests  []SenderRequest `json:"requests"`
	Receivers []SenderLink    `json:"receivers"`
	Totals    SenderTotals    `json:"totals"`
	Counters  SenderCounters  `json:"counters"`
	AdmitWait SnapshotWait    `json:"admit_wait_ms"` // first line until admission
	WriteTime SnapshotWait    `json:"write_ms"`      // admission until all is written and committed
	ReadyTime SnapshotWait    `json:"ready_ms"`      // first line until the end, of requests that became ready
}

// Staging is the state of the staging buffer.
type Staging struct {
	Total   int       `json:"total"` // slots
	Used    int       `json:"used"`
	Bytes   int64     `json:"bytes"`   // of one slot
	Blocked []Blocked `json:"blocked"` // in the order in which they are served
}

// Blocked is a batch whose chunks wait for staging slots.
type Blocked struct {
	ReqID     string `json:"req_id"`
	Receiver  int    `json:"receiver"`   // position in Receivers
	Chunks    int    `json:"chunks"`     // that wait
	WaitingMS int64  `json:"waiting_ms"` // since a chunk of it was last served
}

// SenderRequest is one request that has begun and not ended.
type SenderRequest struct {
	ReqID       string `json:"req_id"`
	Receiver    int    `json:"receiver"`     // position in Receivers
	State       string `json:"state"`        // waiting (for admission), writing, notifying
	TotalChunks int64  `json:"total_chunks"` // as declared
	Sent        int64  `json:"sent"`         // written and committed
	Shared      int64  `json:"shared"`       // already there
	Bytes       int64  `json:"bytes"`        // sent
	AgeMS       int64  `json:"age_ms"`       // since its first line was read
	AdmittedMS  int64  `json:"admitted_ms"`  // after its first line; -1: not yet
}

// SenderLink is a receiver that a pd-send writes to.
type SenderLink struct {
	Endpoint string `json:"endpoint"`
	State    string `json:"state"`    // connecting, attached, refused
	Engine   string `json:"engine"`   // by which it is written; empty unless attached
	Requests int    `json:"requests"` // begun there and not ended
	Staging  int    `json:"staging"`  // slots used for it
	Blocked  int    `json:"blocked"`  // batches that wait for a staging slot
	HeardMS  int64  `json:"heard_ms"` // since anything last came from it; -1: never
	Bytes    int64  `json:"bytes"`    // written and committed there so far
}

// SenderTotals has the true lengths of lists that may be cut.
type SenderTotals struct {
	Requests int `json:"requests"`
	Blocked  int `json:"blocked"`
}

// SenderCounters only ever grow while a pd-send lives.
type SenderCounters struct {
	Ready        int64 `json:"ready"`
	Failed       int64 `json:"failed"`
	Cancelled    int64 `json:"cancelled"`
	SentChunks   int64 `json:"sent_chunks"`
	SharedChunks int64 `json:"shared_chunks"`
	SentBytes    int64 `json:"sent_bytes"`
	Faults       int64 `json:"faults"`      // of the input that name no request
	Undelivered  int64 `json:"undelivered"` // notices that the proxy did not get
	Refused      int64 `json:"refused"`     // who wanted to watch and had no key that is allowed, each time they came
}

// ProxySnapshot is the state of a pd-proxy, as its monitor stream has it.
type ProxySnapshot struct {
	Time     Stamp          `json:"time"`
	Kind     string         `json:"kind"` // KindProxy
	ID       string         `json:"id"`
	Epoch    uint64         `json:"epoch"` // grows from start to start
	Endpoint string         `json:"endpoint"`
	UptimeS  float64        `json:"uptime_s"`
	Expect   int            `json:"expect"`  // notifications until a request is ready
	Pending  int            `json:"pending"` // requests that wait for more notifications
	Waiting  []ProxyRequest `json:"waiting"` // those, oldest first; may be cut
	Counters ProxyCounters  `json:"counters"`
}

// ProxyRequest is a request that waits for more notifications.
type ProxyRequest struct {
	ReqID  string `json:"req_id"`
	Notifs int    `json:"notifs"` // or as many receivers as say that it is ready there, if more
	AgeMS  int64  `json:"age_ms"` // since the first of them
}

// ProxyCounters only ever grow while a pd-proxy lives.
type ProxyCounters struct {
	Ready        int64 `json:"ready"`
	Failed       int64 `json:"failed"`
	Duplicates   int64 `json:"duplicates"`    // notifications of a request that had ended
	LateFailures int64 `json:"late_failures"` // of a request that was ready already
	Forgotten    int64 `json:"forgotten"`     // pending requests, dropped to make room
	BadFrames    int64 `json:"bad_frames"`    // messages that were no notification
	Recovered    int64 `json:"recovered"`     // of the ready ones: a receiver said so before there were notifications enough
	Refused      int64 `json:"refused"`       // peers that had no key that is allowed, each time they came
}

// Event tells monitors what has happened, some of it at a time.
type Event struct {
	Time    Stamp        `json:"time"`
	Kind    string       `json:"kind"`  // of who tells: KindReceiver, KindSender, KindProxy
	ID      string       `json:"id"`    // as in its Snapshot
	Epoch   uint64       `json:"epoch"` // as in its Snapshot
	Events  []EventEntry `json:"events"`
	Dropped int64        `json:"dropped"` // that came since the Event before and found no room; older than Events
}

// EventEntry is one thing that happened to a request.
type EventEntry struct {
	Time        Stamp   `json:"time"`
	Event       string  `json:"event"` // as pd-recv prints it; of others, how the request ended
	ReqID       string  `json:"req_id"`
	Sender      string  `json:"sender"`
	Chunks      int     `json:"chunks"`
	TotalChunks uint64  `json:"total_chunks"`
	Bytes       int64   `json:"bytes"`
	WaitedMS    float64 `json:"waited_ms"` // for admission, where the event is about that
	TookMS      float64 `json:"took_ms"`   // from the first batch until now, where the event is an end or ready
	Code        string  `json:"code"`
	Reason      string  `json:"reason"`
	Free        int     `json:"free"` // slots free after it; of a receiver
}
