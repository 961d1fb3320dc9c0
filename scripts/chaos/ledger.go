package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

// ledger is all that was fed, printed and taken in the run of one seed.
type ledger struct {
	recover   bool // proxies ask for what is ready
	mu        sync.Mutex
	requests  map[string]*request
	senders   []*senderLife
	receivers []*receiverLife
	proxies   []*proxyLife
	faults    map[string]int
	wrong     []string
	bytes     int64 // compared
	takes     int   // whose bytes were compared
	snapshots int   // whose slots were added up
	quiet     time.Duration
}

func newLedger(recover bool) *ledger {
	return &ledger{recover: recover, requests: map[string]*request{}, faults: map[string]int{}}
}

// request is one that was fed to a sender.
type request struct {
	id        string
	by        *senderLife
	to        int // receiver
	total     int64
	chunks    []manifest.Chunk
	begun     bool // its first line went into the sender's pipe
	cancelled bool // a cancel line was fed
	results   []result
	queued    bool      // for a decoder
	releases  bool      // we asked for its release, or had it asked for
	refused   []refusal // takes
}

// refusal is a take that a receiver did not grant.
type refusal struct {
	code string
	at   time.Time
}

// senderLife is one life of a pd-send; how is how it ended.
type senderLife struct {
	name    string
	proxy   int
	how     ending
	told    bool // to end, before it was killed or after
	code    int
	results []result // of all its requests, in order
	cuts    []span   // of its connection to the proxy
}

type ending string

const (
	alive      ending = ""
	byItself   ending = "by itself"
	killed     ending = "killed"
	terminated ending = "terminated"
)

type span struct{ from, to time.Time }

// result is a line of pd-send.
type result struct {
	ReqID  string `json:"req_id"`
	Status string
	Chunks int64
	Sent   int64
	Shared int64
	Bytes  int64
	Error  string
	Code   string
	at     time.Time
}

// event is a line of pd-recv.
type event struct {
	Event    string
	Endpoint string
	Epoch    uint64
	ReqID    string `json:"req_id"`
	Sender   string
	Chunks   int64
	Total    int64 `json:"total_chunks"`
	Bytes    int64
	Code     string
	Reason   string
	Dropped  int64
	at       time.Time
}

type receiverLife struct {
	name     string
	receiver int
	sink     bool
	how      ending
	endedAt  time.Time
	events   []event
	sockets  []string         // its abstract unix sockets
	counters map[string]int64 // when quiet; nil if it did not live to see that
}

// outcome is a line of pd-proxy --json.
type outcome struct {
	ReqID  string `json:"req_id"`
	Status string
	Reason string
	at     time.Time
}

type proxyLife struct {
	name     string
	proxy    int
	how      ending
	outcomes []outcome
}

// add changes something.
func (l *ledger) add(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

// violated notes that something is wrong.
func (l *ledger) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.add(func() { l.wrong = append(l.wrong, text) })
}

// line decodes what a program printed.
func line[T any](l *ledger, of string, text []byte) (v T, ok bool) {
	if err := json.Unmarshal(text, &v); err != nil {
		l.violated("%s printed %q: %v", of, text, err)
		return v, false
	}
	return v, true
}
