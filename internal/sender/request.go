package sender

import (
	"container/list"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/wire"
)

// stage is how far a request is.
//
//	held ─▶ asked ─▶ admitted ─▶ notifying ─▶ ended
type stage uint8

const (
	held      stage = iota // its first batch is not sent yet
	asked                  // its first batch waits for an answer
	admitted               // all batches that are read are sent or on their way
	notifying              // complete; the proxy is being told
	ended
)

// request is one request from its first line to its end.
type request struct {
	id       string
	seq      uint64 // by age
	total    int64  // chunks, as declared
	receiver *receiver
	session  *session // in which its batches are asked; nil while held
	stage    stage
	lastRead bool     // no line of it follows
	first    *flight  // of its first batch
	unasked  []*batch // read while it is not admitted, but for the first
	asking   int      // batches but the first that are asked for and not answered
	final    *batch   // the last, while it waits for those
	open     int      // batches not done
	jobs     []*job   // under way
	fence    int      // writes that may be under way although the request has ended
	owes     bool     // it has ended and is to be cancelled at its receiver, which is not asked yet
	cost     int64    // bytes of memory it counts for, its unfinished batches included
	young    *list.Element
	verdict  *verdict // how it ends as soon as the proxy's notice is withdrawn

	sent, shared, bytes int64
	started             time.Duration // first line read
	admittedAt          time.Duration // 0: never
	writtenAt           time.Duration // all written and committed; 0: not yet
}

// verdict is how a request ends.
type verdict struct {
	status Status
	code   wire.Code
	reason string
	there  bool // the receiver has ended it already
	quiet  bool // the proxy is not told
}

// batch is one AllocRequest of a request.
type batch struct {
	req    *request
	chunks []manifest.Chunk
	last   bool
	cost   int64
	claim  claim
	to     []destination // of the chunks that are to be sent, in order
	next   int           // in to: without a staging slot yet
	left   int           // in to: not written yet
	crcs   []uint32      // of to
}

// destination is where one chunk goes.
type destination struct {
	chunk        int // in the batch
	slot, region int64
	access       []byte // what the engine needs to write there
}

// What a request and its parts count for in memory, bytes, besides their texts.
const (
	requestCost = 1000
	batchCost   = 400
	chunkCost   = 150
)

func costOf(chunks []manifest.Chunk) int64 {
	cost := int64(batchCost)
	for i := range chunks {
		cost += chunkCost + int64(len(chunks[i].Key)+len(chunks[i].File))
	}
	return cost
}

// alloc is the message that asks for b's slots.
func (b *batch) alloc(epoch uint64) *wire.AllocRequest {
	req := &wire.AllocRequest{
		Keys:        make([]string, len(b.chunks)),
		Fmt:         wire.I(wire.FmtBinary),
		Dtype:       "uint8",
		ReqID:       b.req.id,
		IsLastBatch: b.last,
		TotalChunks: wire.I(b.req.total),
		Epoch:       epoch,
	}
	full, lastLength := int64(1), int64(1)
	for i := range b.chunks {
		req.Keys[i] = b.chunks[i].Key
		full, lastLength = b.chunks[0].Length, b.chunks[i].Length
	}
	req.Shape = []wire.Int{wire.I(full)}
	req.LastChunkToks = wire.I(lastLength)
	return req
}

// commit is the message that makes b's written chunks count.
func (b *batch) commit(epoch uint64) *wire.CommitRequest {
	req := &wire.CommitRequest{
		ReqID:   b.req.id,
		Slots:   make([]int64, len(b.to)),
		Lengths: make([]int64, len(b.to)),
		CRCs:    b.crcs,
		Epoch:   epoch,
	}
	for i, d := range b.to {
		req.Slots[i] = d.slot
		req.Lengths[i] = b.chunks[d.chunk].Length
	}
	return req
}

// longest is the length of b's longest chunk.
func (b *batch) longest() (longest *manifest.Chunk) {
	for i := range b.chunks {
		if longest == nil || b.chunks[i].Length > longest.Length {
			longest = &b.chunks[i]
		}
	}
	return longest
}

// recall calls back what of the request's jobs it can and counts the rest.
func (r *request) recall() {
	for _, j := range r.jobs {
		if !j.abort() {
			r.fence++
		}
	}
}

func (r *request) addJob(j *job) {
	j.place = len(r.jobs)
	r.jobs = append(r.jobs, j)
}

func (r *request) removeJob(j *job) {
	end := len(r.jobs) - 1
	r.jobs[j.place] = r.jobs[end]
	r.jobs[j.place].place = j.place
	r.jobs[end] = nil
	r.jobs = r.jobs[:end]
}

// memory remembers the requests that ended last.
type memory struct {
	ids  map[string]struct{}
	ring []string
	next int
}

// remembered is how many ended requests are known: lines of one are skipped.
const remembered = 65_536

func (m *memory) has(id string) bool {
	_, ok := m.ids[id]
	return ok
}

func (m *memory) add(id string) {
	if m.ids == nil {
		m.ids = make(map[string]struct{})
	}
	if len(m.ring) < remembered {
		m.ring = append(m.ring, id)
	} else {
		delete(m.ids, m.ring[m.next])
		m.ring[m.next] = id
		m.next = (m.next + 1) % remembered
	}
	m.ids[id] = struct{}{}
}
