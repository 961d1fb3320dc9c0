package reservation

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/pd-tools/pd-tools/wire"
)

// model is the contract written a second time, as plainly as can be: slices,
// linear scans, no index, nothing kept that can be counted. It takes the same
// events as the Machine and says what must come out. Where the contract leaves
// a choice to the machine (which slot, which of several committed copies) the
// model asks for no particular one, looks whether the one taken was allowed,
// and goes on with it.
type model struct {
	cfg       Config
	last, now Time
	stopping  bool
	closed    bool
	live      []*mReq    // order of arrival
	queue     []*mReq    // order of arrival
	senders   []*mSender // attached ones
	ended     []mEnded   // oldest first
	fenced    []*mFence
	region    map[int]int // of a slot, where not 0
	counters  wire.Counters
	peak      int
	did       map[string]*mDid // by sender
	readied   []*mReq          // all that ever became ready by commits, in that order

	// What the last event must have brought about.
	wants   []*want
	records []Record
	fences  []*mFence // new ones
	over    []uint64  // writers whose sender ended
	choices []mChoice
	order   []Record // the machine's records: of what is due at the same moment it chooses which goes first
	slotOf  func(id, key string) int
}

// mChunk is a chunk in the buffer: it has one slot and lives while it has
// holders.
type mChunk struct {
	key       string
	length    int64
	slot      int // -1 until the machine has told which
	committed bool
	crc       uint32
	closed    bool // the engine could not open its slot
	again     bool // its sender could write it under an earlier grant too
	holders   []*mReq
	legacy    bool // written without a commit, never shared
}

type mBatch struct {
	tag   Tag
	keys  []string
	lens  []int64
	last  bool
	fresh int // keys that its request did not have
	size  int
	came  Time
}

type mReq struct {
	id, sender string
	legacy     bool
	total      int
	chunks     []*mChunk
	shared     int
	promised   int
	waiting    []mBatch
	since      Time // has waited from here
	held       bool // while it waits: by its sender's share
	passed     int
	admitted   bool
	lastAsked  bool
	lastDone   bool
	ready      bool
	taker      string
	born       Time
	named      Time
	readyAt    Time
	takenAt    Time
	life       [4]Time // admitted, first and last write, first ready; 0: not yet
}

type mSender struct {
	id     string
	writer uint64   // the current grant
	grants []uint64 // all that may still write
	heard  Time
}

// mDid is what a sender has done since it first had something or attached.
type mDid struct{ ready, bytes int64 }

type mEnded struct {
	sender, id string
	expired    bool
	at         Time
}

// mFence is one slot that is given to nobody.
type mFence struct {
	chunk   *mChunk
	sender  string
	writers []uint64
	id      uint64 // of the revocation
	pending bool   // the revocation has not been answered
}

// mChoice is a key of which several committed copies can be shared.
type mChoice struct {
	r          *mReq
	candidates []*mChunk
}

// want is one answer that must come.
type want struct {
	tag   Tag
	codes []wire.Code // allowed ones; the empty code is success
	// AllocResponse
	alloc    bool
	bad      int // how often -1, when refused
	chunks   []*mChunk
	sent     []int64
	attached bool // the answer carries the epoch
	// CommitResponse
	commit bool
	ready  bool
	// TakeResponse
	take  bool
	taken *mReq
	list  []*mChunk
	// ReadyResponse
	page *wire.ReadyResponse
}

func newModel(cfg Config) *model {
	return &model{cfg: cfg, region: map[int]int{}, did: map[string]*mDid{}}
}

// --- counting ---

func (md *model) chunksHeld() []*mChunk {
	var held []*mChunk
	for _, r := range md.live {
		for _, c := range r.chunks {
			if !slices.Contains(held, c) {
				held = append(held, c)
			}
		}
	}
	return held
}

func (md *model) promised() int {
	n := 0
	for _, r := range md.live {
		n += r.promised
	}
	return n
}

func (md *model) free() int {
	return md.cfg.Slots - md.promised() - len(md.chunksHeld()) - len(md.fenced)
}

func (md *model) find(id string) *mReq {
	for _, r := range md.live {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (md *model) own(sender, id string) *mReq {
	if r := md.find(id); r != nil && r.sender == sender {
		return r
	}
	return nil
}

func (md *model) sender(id string) *mSender {
	for _, s := range md.senders {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (md *model) remembered(sender, id string) bool {
	for _, e := range md.ended {
		if e.sender == sender && e.id == id {
			return true
		}
	}
	return false
}

func (r *mReq) chunk(key string) *mChunk {
	for _, c := range r.chunks {
		if c.key == key {
			return c
		}
	}
	return nil
}

// asked are all keys that came, those of waiting batches included.
func (r *mReq) asked() []string {
	var keys []string
	for _, c := range r.chunks {
		keys = append(keys, c.key)
	}
	for _, b := range r.waiting {
		for _, k := range b.keys {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

func (r *mReq) bytes() int64 {
	var n int64
	for _, c := range r.chunks {
		n += c.length
	}
	return n
}

func (r *mReq) written() int {
	n := 0
	for _, c := range r.chunks {
		if c.committed || c.legacy && r.ready {
			n++
		}
	}
	return n
}

func (r *mReq) state() string {
	switch {
	case !r.admitted:
		return "queued"
	case r.ready: // also while it is taken
		return "ready"
	case r.lastDone:
		return "allocated"
	}
	return "admitted"
}

// --- events ---

// step does what an event must bring about. slotOf tells which slot a key of a
// request that still lives has in the machine, where several were allowed.
func (md *model) step(now Time, ev Event, fx *Effects, slotOf func(id, key string) int) {
	md.order, md.slotOf = fx.Records, slotOf
	md.wants, md.records, md.fences, md.over, md.choices = nil, nil, nil, nil, nil
	gap := now - md.last
	md.last = now
	if md.cfg.MaxGap > 0 && gap > md.cfg.MaxGap {
		gap = md.cfg.MaxGap
	}
	md.now += gap
	switch ev := ev.(type) {
	case Attach:
		md.attach(ev)
	case Alloc:
		md.alloc(ev)
	case Malformed:
		md.malformed(ev)
	case Commit:
		md.commit(ev)
	case Cancel:
		md.cancel(ev)
	case Heartbeat:
		md.heartbeat(ev)
	case Heard:
		md.renew(ev.Sender)
	case Take:
		md.renew(ev.Conn)
		md.take(ev)
	case Release:
		md.renew(ev.Conn)
		md.release(ev)
	case ListReady:
		md.renew(ev.Conn)
		md.listReady(ev)
	case Gone:
		md.gone(ev.Writer)
	case Overrun:
		md.overrun(ev.Sender)
	case Revoked:
		md.revoked(ev.ID, ev.Region, true)
	case RevokeFailed:
		md.revoked(ev.ID, 0, false)
	case AccessFailed:
		md.accessFailed(ev.Slots)
	case Shutdown:
		md.shutdown()
	case Close:
		md.close()
	case Tick:
		md.expire()
	}
	md.admission()
	md.peak = max(md.peak, md.cfg.Slots-md.free())
	for id := range md.did {
		if md.sender(id) == nil && !slices.ContainsFunc(md.live, func(r *mReq) bool { return r.sender == id }) {
			delete(md.did, id)
		}
	}
}

// didOf is what a sender has done.
func (md *model) didOf(sender string) *mDid {
	if md.did[sender] == nil {
		md.did[sender] = &mDid{}
	}
	return md.did[sender]
}

// wrote counts a chunk of r's that is now whole.
func (md *model) wrote(r *mReq, c *mChunk) {
	md.didOf(r.sender).bytes += c.length
	md.counters.WrittenChunks++
	md.counters.WrittenBytes += c.length
	r.wroteAt(md.now)
}

func (r *mReq) wroteAt(now Time) {
	if r.life[1] == 0 {
		r.life[1] = now
	}
	r.life[2] = now
}

// renew: any message of an attached sender renews what it has.
func (md *model) renew(sender string) {
	if s := md.sender(sender); s != nil {
		s.heard = md.now
	}
}

func (md *model) attach(ev Attach) {
	s := md.sender(ev.Sender)
	if s == nil {
		s = &mSender{id: ev.Sender}
		md.senders = append(md.senders, s)
		for _, r := range md.live {
			if r.sender == ev.Sender {
				md.convert(r)
			}
		}
	}
	if s.writer != ev.Writer {
		md.over = append(md.over, s.grants...) // superseded
		for _, r := range md.live {
			for _, c := range r.chunks {
				c.again = c.again || r.sender == s.id && len(s.grants) > 0
			}
		}
		s.grants = append(s.grants, ev.Writer)
		s.writer = ev.Writer
	}
	s.heard = md.now
}

// convert: what a sender had before it attached is an attached sender's from
// now on.
func (md *model) convert(r *mReq) {
	r.legacy = false
	for _, c := range r.chunks {
		c.legacy = c.legacy && r.ready
	}
}

func (md *model) alloc(ev Alloc) {
	md.renew(ev.Sender)
	q := ev.Req
	r := md.own(ev.Sender, q.ReqID)
	if code := md.refusal(ev, r); code != "" {
		md.refuse(ev.Sender, q.ReqID, len(q.Keys), q.TotalChunks, code, ev.Tag)
		return
	}
	first := r == nil
	if first {
		total, _ := q.TotalChunks.Int64()
		r = &mReq{id: q.ReqID, sender: ev.Sender, legacy: md.sender(ev.Sender) == nil, total: int(total), born: md.now}
		md.live = append(md.live, r)
	}
	b := mBatch{tag: ev.Tag, keys: q.Keys, last: q.IsLastBatch, size: ev.Size, came: md.now, fresh: fresh(q.Keys, r)}
	for i := range q.Keys {
		b.lens = append(b.lens, chunkLength(q, i))
	}
	r.named = md.now
	r.lastAsked = r.lastAsked || b.last
	r.waiting = append(r.waiting, b)
	switch {
	case slices.Contains(md.queue, r): // waits with its request
	case md.cfg.Mode == None && b.fresh == 0, md.cfg.Mode != None && r.admitted:
		r.since = md.now
		md.admit(r)
	default:
		md.queueUp(r, md.now)
		md.admission()
		if first && len(r.waiting) > 0 {
			md.rec(r, Record{Kind: Queued})
		}
	}
}

// refusal goes through the table of §4 from the top.
func (md *model) refusal(ev Alloc, r *mReq) wire.Code {
	q := ev.Req
	first := r == nil && !md.remembered(ev.Sender, q.ReqID)
	total, fits := q.TotalChunks.Int64()
	switch {
	case badRequest(md.cfg, q, r, first):
		return wire.CodeBadRequest
	case q.Epoch != 0 && (q.Epoch != md.cfg.Epoch || md.sender(ev.Sender) == nil):
		return wire.CodeStaleEpoch
	case r == nil && md.find(q.ReqID) != nil:
		return wire.CodeDuplicateRequest
	case !fits || total > int64(md.cfg.Slots) || md.cfg.SenderShare > 0 && total > int64(md.cfg.SenderShare):
		return wire.CodeTooLarge
	case r == nil && md.remembered(ev.Sender, q.ReqID):
		return wire.CodeRolledBack
	case first && total == 0:
		return wire.CodeNoTotal
	case md.violates(q, r):
		return wire.CodeProtocolViolation
	case md.queueFull(ev, r):
		return wire.CodeQueueFull
	case md.stopping && (first || md.waits(ev.Sender, q, r)):
		return wire.CodeShuttingDown
	}
	return ""
}

func badRequest(cfg Config, q *wire.AllocRequest, r *mReq, first bool) bool {
	if q.ReqID == "" || len(q.ReqID) > 512 || len(q.Keys) > 8192 || q.TotalChunks.Sign() < 0 {
		return true
	}
	if f, ok := q.Fmt.Int64(); !ok || f != wire.FmtBinary || q.Dtype != "uint8" || len(q.Shape) != 1 {
		return true // the tests send nothing else that is right
	}
	full, _ := q.Shape[0].Int64()
	last, _ := q.LastChunkToks.Int64()
	if full < 0 || last < 1 || last > full || len(q.Keys) > 1 && full > cfg.SlotBytes || len(q.Keys) == 1 && last > cfg.SlotBytes {
		return true
	}
	for i, k := range q.Keys {
		if slices.Contains(q.Keys[:i], k) || len(k) > 4096 {
			return true
		}
		if r != nil {
			if had, ok := r.askedLength(k); ok && had != chunkLength(q, i) {
				return true
			}
		}
	}
	return first && len(q.Keys) == 0 && q.IsLastBatch
}

// chunkLength is the bytes of the i-th key of a batch.
func chunkLength(q *wire.AllocRequest, i int) int64 {
	full, _ := q.Shape[0].Int64()
	if i == len(q.Keys)-1 {
		full, _ = q.LastChunkToks.Int64()
	}
	return full
}

func (r *mReq) askedLength(key string) (int64, bool) {
	if c := r.chunk(key); c != nil {
		return c.length, true
	}
	for _, b := range r.waiting {
		if i := slices.Index(b.keys, key); i >= 0 {
			return b.lens[i], true
		}
	}
	return 0, false
}

// fresh counts the keys that r has not asked for before.
func fresh(keys []string, r *mReq) int {
	n := len(keys)
	if r != nil {
		asked := r.asked()
		for _, k := range keys {
			if slices.Contains(asked, k) {
				n--
			}
		}
	}
	return n
}

func (md *model) violates(q *wire.AllocRequest, r *mReq) bool {
	t, _ := q.TotalChunks.Int64()
	if r == nil {
		return len(q.Keys) > int(t)
	}
	if t != 0 && int(t) != r.total {
		return true
	}
	n := fresh(q.Keys, r)
	return len(r.asked())+n > r.total || r.lastAsked && n > 0
}

// asks are the slots that a batch needs which is to wait.
func (md *model) asks(q *wire.AllocRequest, r *mReq) int {
	if md.cfg.Mode == None {
		return fresh(q.Keys, r)
	}
	t, _ := q.TotalChunks.Int64()
	return int(t)
}

// waits: what this batch asks for is not to be had now.
func (md *model) waits(sender string, q *wire.AllocRequest, r *mReq) bool {
	need := md.asks(q, r)
	switch {
	case r != nil && len(r.waiting) > 0:
		return true
	case md.cfg.Mode == None && need == 0, md.cfg.Mode != None && r != nil:
		return false
	}
	return md.overShare(sender, need, md.queue) || !md.admissible(need, md.queue)
}

func (md *model) queueFull(ev Alloc, r *mReq) bool {
	has := 0
	for _, l := range md.live {
		if sameTenant(l.sender, ev.Sender) {
			has++
		}
	}
	if limit := md.cfg.SenderRequests; limit > 0 && r == nil && has >= limit {
		return true
	}
	if !md.waits(ev.Sender, ev.Req, r) {
		return false
	}
	another := r == nil || len(r.waiting) == 0
	if md.cfg.SenderQueue > 0 && another && md.wanted(ev.Sender)+md.asks(ev.Req, r) > md.cfg.SenderQueue {
		return true
	}
	return md.cfg.QueueLimit > 0 && another && len(md.queue) >= md.cfg.QueueLimit || md.overBytes(ev.Size)
}

// wanted are the slots that the waiting requests of a sender's tenant need together.
func (md *model) wanted(sender string) int {
	n := 0
	for _, r := range md.queue {
		if sameTenant(r.sender, sender) {
			n += md.need(r)
		}
	}
	return n
}

func (md *model) overBytes(size int) bool {
	n := int64(size)
	for _, r := range md.live {
		for _, b := range r.waiting {
			n += int64(b.size)
		}
	}
	return md.cfg.QueueBytes > 0 && n > md.cfg.QueueBytes
}

func (md *model) malformed(ev Malformed) {
	md.renew(ev.Sender)
	if r := md.own(ev.Sender, ev.ReqID); r != nil {
		r.named = md.now
	}
	md.refuse(ev.Sender, ev.ReqID, ev.Keys, wire.Int{}, wire.CodeBadRequest, ev.Tag)
}

// refuse: a refusal of its own sender's batch ends a live request, unless a
// decoder is taking it; a refused first batch is remembered.
func (md *model) refuse(sender, id string, keys int, total wire.Int, code wire.Code, tag Tag) {
	md.wants = append(md.wants, &want{tag: tag, alloc: true, codes: []wire.Code{code}, bad: max(keys, 1), attached: md.sender(sender) != nil})
	if r := md.own(sender, id); r != nil {
		if r.taker == "" {
			md.end(r, Record{Kind: RolledBack, Code: code}, wire.CodeRolledBack)
		}
		return
	}
	if id != "" && len(id) <= wire.MaxReqID && !md.remembered(sender, id) {
		declared, _ := total.Uint64()
		md.count(Record{Kind: Rejected, ReqID: id, Sender: sender, Code: code, TotalChunks: declared})
		md.remember(sender, id, false)
	}
}

// --- admission ---

// admissible: so many slots are free, and nobody ahead has been passed often
// enough. In mode serial nobody goes while another request owns the buffer.
func (md *model) admissible(need int, ahead []*mReq) bool {
	if md.cfg.Mode == Serial {
		for _, r := range md.live {
			if r.admitted && !r.ready {
				return false
			}
		}
	}
	for _, r := range ahead {
		if !r.held && r.passed >= md.cfg.Overtake {
			return false
		}
	}
	return need <= md.free()
}

// need is the declared total, whatever may turn out shared; in mode none the
// keys of the batch in front.
func (md *model) need(r *mReq) int {
	if md.cfg.Mode == None {
		return r.waiting[0].fresh
	}
	return r.total
}

// overShare: a tenant that had so many slots more would have more than its
// share, those included that its requests ahead in the queue wait for; or one of
// those is held back already.
func (md *model) overShare(sender string, need int, ahead []*mReq) bool {
	if md.cfg.SenderShare == 0 || need == 0 {
		return false
	}
	for _, r := range md.live {
		if sameTenant(r.sender, sender) {
			need += r.promised + len(r.chunks)
		}
	}
	for _, r := range ahead {
		if sameTenant(r.sender, sender) {
			need += md.need(r)
			if r.held {
				return true
			}
		}
	}
	return need > md.cfg.SenderShare
}

func (md *model) queueUp(r *mReq, since Time) {
	r.since, r.passed = since, 0
	r.held = md.overShare(r.sender, md.need(r), md.queue)
	md.queue = append(md.queue, r)
}

// letIn: who is now within its sender's share is held back no more, and counts
// as passed as often as the one in line that is next behind it.
func (md *model) letIn() {
	for i, r := range md.queue {
		if !r.held || md.overShare(r.sender, md.need(r), md.queue[:i]) {
			continue
		}
		r.held = false
		for _, behind := range md.queue[i+1:] {
			if !behind.held {
				r.passed = behind.passed
				break
			}
		}
	}
}

func (md *model) admission() {
	md.letIn()
	for md.admitOne() {
		md.letIn()
	}
}

func (md *model) admitOne() bool {
	for i, r := range md.queue {
		if r.held || !md.admissible(md.need(r), md.queue[:i]) {
			continue
		}
		for _, ahead := range md.queue[:i] {
			if !ahead.held {
				ahead.passed++
			}
		}
		md.queue = slices.Delete(md.queue, i, i+1)
		md.admit(r)
		return true
	}
	return false
}

func (md *model) admit(r *mReq) {
	if !r.admitted {
		r.admitted = true
		r.life[0] = md.now
		if md.cfg.Mode != None {
			r.promised = r.total
		}
		md.rec(r, Record{Kind: Admitted, Waited: md.now - r.since})
	}
	for goes := true; len(r.waiting) > 0; goes = false {
		b := r.waiting[0]
		if md.cfg.Mode == None && !goes && (b.fresh > md.free() || md.overShare(r.sender, b.fresh, md.queue)) {
			md.queueUp(r, b.came)
			return
		}
		r.waiting = r.waiting[1:]
		md.allocate(r, b)
	}
}

func (md *model) copies(key string, length int64) []*mChunk {
	var same []*mChunk
	for _, c := range md.chunksHeld() {
		if c.key == key && c.length == length && c.committed {
			same = append(same, c)
		}
	}
	return same
}

func (md *model) allocate(r *mReq, b mBatch) {
	w := &want{tag: b.tag, alloc: true, codes: []wire.Code{""}, attached: md.sender(r.sender) != nil}
	md.wants = append(md.wants, w)
	r.named = md.now
	for i, k := range b.keys {
		c := r.chunk(k)
		switch {
		case c != nil && c.committed:
			w.sent = append(w.sent, int64(i))
			continue
		case c != nil:
			w.chunks = append(w.chunks, c)
			continue
		}
		if r.promised > 0 {
			r.promised--
		}
		if same := md.copies(k, b.lens[i]); len(same) > 0 {
			w.sent = append(w.sent, int64(i))
			// What happens at the same moment and after it depends on which it is.
			slot := md.slotOf(r.id, k)
			if at := slices.IndexFunc(same, func(c *mChunk) bool { return c.slot >= 0 && c.slot == slot }); at > 0 {
				same[0], same[at] = same[at], same[0]
			}
			r.chunks = append(r.chunks, same[0])
			same[0].holders = append(same[0].holders, r)
			r.shared++
			md.counters.SharedChunks++
			r.wroteAt(md.now)
			if len(same) > 1 {
				md.choices = append(md.choices, mChoice{r, same})
			}
			continue
		}
		c = &mChunk{key: k, length: b.lens[i], slot: -1, holders: []*mReq{r}, legacy: r.legacy}
		r.chunks = append(r.chunks, c)
		w.chunks = append(w.chunks, c)
	}
	if b.last && !r.lastDone {
		r.lastDone = true
		r.promised = 0
		md.rec(r, Record{Kind: Allocated})
		md.maybeReady(r)
	}
}

func (md *model) maybeReady(r *mReq) {
	if r.ready || !r.lastDone {
		return
	}
	for _, c := range r.chunks {
		if !c.committed && !r.legacy {
			return
		}
	}
	for _, c := range r.chunks {
		if !c.committed {
			md.wrote(r, c)
		}
	}
	r.ready = true
	r.readyAt = md.now
	r.life[3] = md.now
	md.didOf(r.sender).ready++
	if !r.legacy {
		md.readied = append(md.readied, r)
	}
	md.rec(r, Record{Kind: Ready})
}

// --- commit, cancel, take ---

func (md *model) commit(ev Commit) {
	md.renew(ev.Sender)
	q := ev.Req
	w := &want{tag: ev.Tag, commit: true}
	md.wants = append(md.wants, w)
	r := md.own(ev.Sender, q.ReqID)
	switch {
	case md.sender(ev.Sender) == nil || q.Epoch != 0 && q.Epoch != md.cfg.Epoch:
		w.codes = []wire.Code{wire.CodeStaleEpoch}
		return
	case r == nil:
		w.codes = []wire.Code{wire.CodeUnknownRequest}
		if md.remembered(ev.Sender, q.ReqID) {
			w.codes = []wire.Code{wire.CodeRolledBack}
		}
		md.counters.StaleWrites++
		return
	case r.legacy:
		w.codes = []wire.Code{wire.CodeProtocolViolation}
		return
	case len(q.Slots) != len(q.Lengths) || len(q.Slots) != len(q.CRCs):
		w.codes = []wire.Code{wire.CodeBadRequest}
		return
	}
	var found []*mChunk
	for i, slot := range q.Slots {
		if slices.Contains(q.Slots[:i], slot) {
			w.codes = []wire.Code{wire.CodeBadRequest}
			return
		}
		var c *mChunk
		for _, have := range r.chunks {
			if have.slot == int(slot) {
				c = have
			}
		}
		if c == nil || c.length != q.Lengths[i] || c.committed && c.crc != q.CRCs[i] {
			w.codes = []wire.Code{wire.CodeBadRequest, wire.CodeProtocolViolation}
			return
		}
		found = append(found, c)
	}
	for i, c := range found {
		if !c.legacy { // counts as written already
			if !c.committed {
				md.wrote(r, c)
			}
			c.committed, c.crc = true, q.CRCs[i]
		}
	}
	md.maybeReady(r)
	w.codes = []wire.Code{""}
	w.ready = r.ready
}

func (md *model) cancel(ev Cancel) {
	md.renew(ev.Sender)
	w := &want{tag: ev.Tag, alloc: true, codes: []wire.Code{""}, attached: md.sender(ev.Sender) != nil}
	md.wants = append(md.wants, w)
	r := md.find(ev.ReqID)
	switch {
	case ev.ReqID == "" || len(ev.ReqID) > 512:
		w.codes = []wire.Code{wire.CodeBadRequest}
	case r != nil && r.sender != ev.Sender:
	case r == nil && md.remembered(ev.Sender, ev.ReqID):
	case r == nil:
		md.remember(ev.Sender, ev.ReqID, false)
	default:
		r.named = md.now
		if r.taker == "" {
			md.end(r, Record{Kind: Cancelled}, wire.CodeRolledBack)
		}
	}
}

func (md *model) heartbeat(ev Heartbeat) {
	md.renew(ev.Sender)
	w := &want{tag: ev.Tag, alloc: true, codes: []wire.Code{""}, attached: true}
	md.wants = append(md.wants, w)
	if md.sender(ev.Sender) == nil {
		w.codes, w.attached = []wire.Code{wire.CodeStaleEpoch}, false
	} else if ev.Epoch != 0 && ev.Epoch != md.cfg.Epoch {
		w.codes = []wire.Code{wire.CodeStaleEpoch}
	} else if md.closed {
		w.codes = []wire.Code{wire.CodeShuttingDown}
	}
}

func (md *model) unknown(id string) []wire.Code {
	codes := []wire.Code{}
	for _, e := range md.ended {
		if e.id == id {
			code := wire.CodeUnknownRequest
			if e.expired {
				code = wire.CodeExpired
			}
			codes = append(codes, code)
		}
	}
	if len(codes) == 0 {
		codes = append(codes, wire.CodeUnknownRequest)
	}
	return codes
}

func (md *model) take(ev Take) {
	w := &want{tag: ev.Tag, take: true}
	md.wants = append(md.wants, w)
	r := md.find(ev.ReqID)
	switch {
	case r == nil:
		w.codes = md.unknown(ev.ReqID)
	case !r.ready:
		w.codes = []wire.Code{wire.CodeNotReady}
	case r.taker != "" && r.taker != ev.Conn:
		w.codes = []wire.Code{wire.CodeTaken}
	default:
		r.taker = ev.Conn
		r.takenAt = md.now
		r.named = md.now
		w.codes, w.taken = []wire.Code{""}, r
		w.list = slices.Clone(r.chunks)
	}
}

func (md *model) release(ev Release) {
	w := &want{tag: ev.Tag}
	md.wants = append(md.wants, w)
	r := md.find(ev.ReqID)
	switch {
	case r == nil:
		w.codes = md.unknown(ev.ReqID)
	case !r.ready:
		w.codes = []wire.Code{wire.CodeNotReady}
	case r.taker != "" && r.taker != ev.Conn:
		w.codes = []wire.Code{wire.CodeTaken}
	case ev.Keep:
		w.codes = []wire.Code{""}
		if r.taker != "" {
			md.giveBack(r)
		}
	default:
		w.codes = []wire.Code{""}
		md.end(r, Record{Kind: Released}, wire.CodeRolledBack)
	}
}

// giveBack: the request is ready again, and waits anew for a decoder.
func (md *model) giveBack(r *mReq) {
	r.taker = ""
	r.named, r.readyAt = md.now, md.now
}

// listReady: the number of a request is its place among all that ever became
// ready.
func (md *model) listReady(ev ListReady) {
	page := &wire.ReadyResponse{Epoch: md.cfg.Epoch}
	for i, r := range md.readied {
		seq := uint64(i) + 1
		switch known := ev.Req.Epoch == md.cfg.Epoch && seq <= ev.Req.After; {
		case known || !slices.Contains(md.live, r):
		case len(page.Entries) == wire.MaxReadyList:
			page.More = true
		default:
			page.Entries = append(page.Entries, wire.ReadyEntry{Seq: seq, ReqID: r.id})
		}
	}
	md.wants = append(md.wants, &want{tag: ev.Tag, codes: []wire.Code{""}, page: page})
}

// --- ends ---

// end removes every trace of a request but the memory of it.
func (md *model) end(r *mReq, rec Record, waiters wire.Code) {
	rec.Unread = rec.Kind == Expired && r.ready
	if rec.Kind == Expired && rec.Code == "" {
		rec.Code = wire.CodeExpired
	}
	if len(r.waiting) > 0 {
		rec.Waited = md.now - r.since
	}
	md.rec(r, rec)
	for _, b := range r.waiting {
		md.wants = append(md.wants, &want{tag: b.tag, alloc: true, codes: []wire.Code{waiters}, bad: max(len(b.keys), 1), attached: md.sender(r.sender) != nil})
	}
	md.live = slices.DeleteFunc(md.live, func(o *mReq) bool { return o == r })
	md.queue = slices.DeleteFunc(md.queue, func(o *mReq) bool { return o == r })
	for _, c := range r.chunks {
		c.holders = slices.DeleteFunc(c.holders, func(o *mReq) bool { return o == r })
		written := c.committed || c.legacy && r.ready
		if len(c.holders) == 0 && !written && !c.closed && rec.Kind != Cancelled && rec.Kind != Released {
			md.fence(r, c)
		}
	}
	md.remember(r.sender, r.id, rec.Kind == Expired)
}

// fence: a slot that an attached sender may still be writing.
func (md *model) fence(r *mReq, c *mChunk) {
	s := md.sender(r.sender)
	if s == nil || len(s.grants) == 0 {
		return
	}
	f := &mFence{chunk: c, sender: r.sender, writers: slices.Clone(s.grants), pending: true}
	md.fenced = append(md.fenced, f)
	md.fences = append(md.fences, f)
}

func (md *model) remember(sender, id string, expired bool) {
	md.ended = append(md.ended, mEnded{sender, id, expired, md.now})
	limit := md.cfg.Remember
	if limit == 0 {
		limit = defaultRemember
	}
	if len(md.ended) > limit {
		md.ended = md.ended[1:]
	}
}

func (md *model) gone(writer uint64) {
	for _, f := range md.fenced {
		f.writers = slices.DeleteFunc(f.writers, func(w uint64) bool { return w == writer })
	}
	md.unfence()
	for _, s := range md.senders {
		s.grants = slices.DeleteFunc(s.grants, func(w uint64) bool { return w == writer })
		if s.writer == writer {
			md.over = append(md.over, writer)
			md.endSender(s)
			return
		}
	}
}

// unfence frees the slots whose writers are all gone. While a revocation is
// still going on its slots stay: it ends with new memory for them.
func (md *model) unfence() {
	md.fenced = slices.DeleteFunc(md.fenced, func(f *mFence) bool { return !f.pending && len(f.writers) == 0 })
}

// accessFailed: whoever holds one of the slots ends. Nobody could write to such
// a slot, unless under an earlier grant.
func (md *model) accessFailed(slots []int) {
	for _, r := range slices.Clone(md.live) {
		hit := false
		for _, c := range r.chunks {
			if slices.Contains(slots, c.slot) && !c.committed {
				hit = true
				c.closed = !c.again
			}
		}
		if hit {
			md.end(r, Record{Kind: RolledBack, Code: wire.CodeInternal}, wire.CodeRolledBack)
		}
	}
}

// doors: an attached sender may write what it holds and has not committed, under
// its current grant.
func (md *model) doors() map[int]uint64 {
	open := map[int]uint64{}
	for _, r := range md.live {
		for _, c := range r.chunks {
			if s := md.sender(r.sender); s != nil && !c.committed && !(c.legacy && r.ready) {
				open[c.slot] = s.writer
			}
		}
	}
	return open
}

// endSender: everything of it ends but what is ready: that is the decoder's.
func (md *model) endSender(s *mSender) {
	for _, r := range slices.Clone(md.live) {
		if r.sender == s.id && !r.ready {
			md.end(r, Record{Kind: Expired}, wire.CodeRolledBack)
		}
	}
	md.over = append(md.over, s.grants...)
	md.senders = slices.DeleteFunc(md.senders, func(o *mSender) bool { return o == s })
}

func (md *model) overrun(sender string) {
	if s := md.sender(sender); s != nil {
		md.endSender(s)
		return
	}
	for _, r := range slices.Clone(md.live) {
		if r.sender == sender && !r.ready {
			md.end(r, Record{Kind: Expired}, wire.CodeRolledBack)
		}
	}
}

func (md *model) revoked(id uint64, region int, ok bool) {
	for _, f := range md.fenced {
		if f.id != id || !f.pending {
			continue
		}
		f.pending = false
		if ok {
			f.writers = nil
			md.region[f.chunk.slot] = region
		}
	}
	md.unfence()
}

func (md *model) shutdown() {
	md.stopping = true
	for _, r := range slices.Clone(md.queue) {
		kind := Rejected // refused at its first batch
		if r.admitted {  // mode none
			kind = RolledBack
		}
		md.end(r, Record{Kind: kind, Code: wire.CodeShuttingDown}, wire.CodeShuttingDown)
	}
}

// close leaves nothing alive. Who was told that a request is ready hears that it
// is not any more.
func (md *model) close() {
	md.shutdown()
	md.closed = true
	for len(md.live) > 0 {
		r := md.live[0]
		rec := Record{Kind: RolledBack, Code: wire.CodeShuttingDown}
		if r.ready {
			rec.Kind = Expired
		}
		md.end(r, rec, wire.CodeRolledBack)
	}
}

// expire does whatever is due, in the order in which it was due; of several
// that are due at the same moment the machine chooses which goes first.
func (md *model) expire() {
	for md.expireOne() {
	}
}

func (md *model) expireOne() bool {
	var first *mDeadline
	for _, d := range md.deadlines() {
		if d.at > md.now || first != nil && d.at > first.at {
			continue
		}
		if first == nil || d.at < first.at || md.rank(d.id) < md.rank(first.id) {
			first = &d
		}
	}
	if first == nil {
		return false
	}
	first.do()
	md.admission()
	return true
}

// rank is where the machine's records tell of the end of this request, or of
// the first of this sender's: last when they do not.
func (md *model) rank(id string) int {
	for i, r := range md.order {
		if r.Kind > Ready && (r.ReqID == id || r.Sender == id) {
			return i
		}
	}
	return len(md.order)
}

type mDeadline struct {
	at Time
	id string
	do func()
}

// deadlines are all that run.
func (md *model) deadlines() []mDeadline {
	var list []mDeadline
	add := func(from Time, d Time, id string, do func()) {
		if d > 0 {
			list = append(list, mDeadline{from + d, id, do})
		}
	}
	for _, s := range md.senders {
		add(s.heard, md.cfg.Lease, s.id, func() { md.endSender(s) })
	}
	for _, r := range md.live {
		switch {
		case r.taker != "":
			add(r.takenAt, md.cfg.Lease, r.id, func() { md.giveBack(r) })
		case len(r.waiting) > 0:
			add(r.since, md.cfg.AdmitTimeout, r.id, func() { md.timeOut(r) })
		case r.legacy:
			add(r.named, md.cfg.LegacyLease, r.id, func() { md.end(r, Record{Kind: Expired}, wire.CodeRolledBack) })
		case r.ready:
			add(r.readyAt, md.cfg.ReadyTTL, r.id, func() { md.end(r, Record{Kind: Expired}, wire.CodeRolledBack) })
		}
	}
	memory := md.cfg.Memory
	if memory == 0 {
		memory = defaultMemory
	}
	if len(md.ended) > 0 {
		add(md.ended[0].at, memory, forgetting, func() { md.ended = md.ended[1:] })
	}
	return list
}

// forgetting is no request's id.
const forgetting = "-"

// compareDue: whoever waits for NextDue is in time for everything, and does not
// wait for nothing.
func (md *model) compareDue(in Time, ok, ticked bool) error {
	if ok && ticked && in <= 0 {
		return fmt.Errorf("something is still due after a Tick")
	}
	for _, d := range md.deadlines() {
		if left := max(d.at-md.now, 0); d.id != forgetting && (!ok || in > left) {
			return fmt.Errorf("%s is due in %v, told %v, %v", d.id, left, in, ok)
		}
	}
	return nil
}

func (md *model) timeOut(r *mReq) {
	md.end(r, Record{Kind: TimedOut, Code: wire.CodeAdmissionTimeout}, wire.CodeAdmissionTimeout)
}

// --- records ---

func (md *model) rec(r *mReq, rec Record) {
	rec.ReqID, rec.Sender = r.id, r.sender
	rec.Chunks, rec.TotalChunks, rec.Bytes, rec.Shared = len(r.chunks), uint64(r.total), r.bytes(), r.shared
	if rec.Kind == Ready {
		rec.Wrote = md.now - r.life[0]
	}
	if rec.Kind >= Ready {
		rec.Took = md.now - r.born
	}
	md.count(rec)
}

func (md *model) count(rec Record) {
	md.records = append(md.records, rec)
	c := &md.counters
	switch rec.Kind {
	case Admitted:
		c.Admitted++
	case Ready:
		c.Ready++
	case Released:
		c.Released++
	case Cancelled:
		c.Cancelled++
	case Rejected:
		c.Rejected++
		if rec.Code == wire.CodeDuplicateRequest {
			c.Duplicates++
		}
	case TimedOut:
		c.TimedOut++
	case RolledBack:
		c.RolledBack++
	case Expired:
		if rec.Unread {
			c.ExpiredUnread++
		} else {
			c.Expired++
		}
	}
}

// --- comparing ---

// compare holds the machine's effects and snapshot against the model.
func (md *model) compare(fx *Effects, snap *wire.Snapshot) error {
	if err := md.learn(fx); err != nil {
		return err
	}
	for _, f := range []func() error{
		md.compareSlots,
		func() error { return md.compareRecords(fx) },
		func() error { return md.compareSnapshot(snap) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// learn takes over what was the machine's to choose.
func (md *model) learn(fx *Effects) error {
	if err := md.compareAnswers(fx); err != nil {
		return err
	}
	for _, ch := range md.choices {
		if err := md.choose(ch); err != nil {
			return err
		}
	}
	return md.compareFences(fx)
}

func (md *model) choose(ch mChoice) error {
	if !slices.Contains(md.live, ch.r) {
		return nil // ended meanwhile, and its share with it
	}
	old := ch.candidates[0]
	slot := md.slotOf(ch.r.id, old.key)
	for _, c := range ch.candidates {
		if c.slot != slot {
			continue
		}
		old.holders = slices.DeleteFunc(old.holders, func(o *mReq) bool { return o == ch.r })
		c.holders = append(c.holders, ch.r)
		ch.r.chunks[slices.Index(ch.r.chunks, old)] = c
		return nil
	}
	return fmt.Errorf("%s shares slot %d for %q, which is no committed copy of it", ch.r.id, slot, old.key)
}

func (md *model) compareAnswers(fx *Effects) error {
	left := slices.Clone(md.wants)
	for _, a := range fx.Answers {
		i := slices.IndexFunc(left, func(w *want) bool { return w.tag == a.Tag })
		if i < 0 {
			return fmt.Errorf("answer to %v not expected: %+v", a.Tag, a.Msg)
		}
		if err := md.compareAnswer(left[i], a.Msg); err != nil {
			return fmt.Errorf("answer to %v: %w", a.Tag, err)
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 {
		return fmt.Errorf("no answer to %v, expected %+v", left[0].tag, *left[0])
	}
	return nil
}

func (md *model) compareAnswer(w *want, msg any) error {
	var code wire.Code
	var text string
	var detail func() error
	switch msg := msg.(type) {
	case *wire.AllocResponse:
		if !w.alloc {
			return fmt.Errorf("an AllocResponse for another kind of message")
		}
		code, text = msg.Code, msg.Error
		detail = func() error { return md.compareAlloc(w, msg) }
	case *wire.CommitResponse:
		if !w.commit {
			return fmt.Errorf("a CommitResponse for another kind of message")
		}
		code, text = msg.Code, msg.Error
		detail = func() error {
			if code == "" && msg.Ready != w.ready {
				return fmt.Errorf("ready is %v, expected %v", msg.Ready, w.ready)
			}
			return nil
		}
	case *wire.TakeResponse:
		if !w.take {
			return fmt.Errorf("a TakeResponse for another kind of message")
		}
		code, text = msg.Code, msg.Error
		detail = func() error { return md.compareTake(w, msg) }
	case *wire.ReleaseResponse:
		if w.alloc || w.commit || w.take || w.page != nil {
			return fmt.Errorf("a ReleaseResponse for another kind of message")
		}
		code, text = msg.Code, msg.Error
		detail = func() error { return nil }
	case *wire.ReadyResponse:
		if w.page == nil {
			return fmt.Errorf("a ReadyResponse for another kind of message")
		}
		code, text = msg.Code, msg.Error
		detail = func() error {
			if !reflect.DeepEqual(msg, w.page) {
				return fmt.Errorf("ready: %+v, expected %+v", msg, w.page)
			}
			return nil
		}
	default:
		return fmt.Errorf("unknown type %T", msg)
	}
	if !slices.Contains(w.codes, code) {
		return fmt.Errorf("code %q (%s), expected %q", code, text, w.codes)
	}
	if (code == "") != (text == "") {
		return fmt.Errorf("code %q with error text %q", code, text)
	}
	return detail()
}

func (md *model) compareAlloc(w *want, msg *wire.AllocResponse) error {
	if epoch := md.cfg.Epoch; w.attached && msg.Epoch != epoch || !w.attached && msg.Epoch != 0 {
		return fmt.Errorf("epoch %d, sender attached %v", msg.Epoch, w.attached)
	}
	if msg.Code != "" {
		if len(msg.RemoteIndexes) != w.bad || len(msg.AlreadySentIndexes) != 0 || len(msg.Regions) != 0 {
			return fmt.Errorf("refused with indexes %v %v, expected %d times -1", msg.RemoteIndexes, msg.AlreadySentIndexes, w.bad)
		}
		for _, x := range msg.RemoteIndexes {
			if x != -1 {
				return fmt.Errorf("refused with indexes %v", msg.RemoteIndexes)
			}
		}
		return nil
	}
	if !slices.Equal(msg.AlreadySentIndexes, w.sent) {
		return fmt.Errorf("already sent %v, expected %v", msg.AlreadySentIndexes, w.sent)
	}
	if len(msg.RemoteIndexes) != len(w.chunks) {
		return fmt.Errorf("remote indexes %v, expected %d of them", msg.RemoteIndexes, len(w.chunks))
	}
	regions, any := make([]int64, len(w.chunks)), false
	for i, c := range w.chunks {
		slot := int(msg.RemoteIndexes[i])
		if slot < 0 || slot >= md.cfg.Slots {
			return fmt.Errorf("slot %d of %d", slot, md.cfg.Slots)
		}
		if c.slot == -1 {
			c.slot = slot
		}
		if c.slot != slot {
			return fmt.Errorf("slot %d for %q, which has slot %d", slot, c.key, c.slot)
		}
		regions[i] = int64(md.region[slot])
		any = any || regions[i] != 0
	}
	if !any || !w.attached {
		regions = nil
	}
	if !slices.Equal(msg.Regions, regions) {
		return fmt.Errorf("regions %v, expected %v", msg.Regions, regions)
	}
	return nil
}

func (md *model) compareTake(w *want, msg *wire.TakeResponse) error {
	if w.taken == nil {
		if len(msg.Chunks) > 0 {
			return fmt.Errorf("refused with chunks %v", msg.Chunks)
		}
		return nil
	}
	if msg.ReqID != w.taken.id || len(msg.Chunks) != len(w.list) {
		return fmt.Errorf("%q with %d chunks, expected %q with %d", msg.ReqID, len(msg.Chunks), w.taken.id, len(w.list))
	}
	for i, c := range w.list {
		expect := wire.TakenChunk{Key: c.key, Slot: int64(c.slot), Region: int64(md.region[c.slot]), Length: c.length, CRC: c.crc, HasCRC: c.committed}
		if msg.Chunks[i] != expect {
			return fmt.Errorf("chunk %d is %+v, expected %+v", i, msg.Chunks[i], expect)
		}
	}
	return nil
}

// compareSlots: no slot belongs to two chunks at once, nor is it fenced.
func (md *model) compareSlots() error {
	used := map[int]string{}
	for _, c := range md.chunksHeld() {
		if c.slot == -1 {
			return fmt.Errorf("no answer told the slot of %q", c.key)
		}
		if who, taken := used[c.slot]; taken {
			return fmt.Errorf("slot %d belongs to %s and to %s", c.slot, who, c.key)
		}
		used[c.slot] = c.key
	}
	for _, f := range md.fenced {
		if who, taken := used[f.chunk.slot]; taken {
			return fmt.Errorf("slot %d belongs to %s while %s may still write %s there", f.chunk.slot, who, f.sender, f.chunk.key)
		}
		if f.chunk.slot != -1 {
			used[f.chunk.slot] = f.chunk.key
		}
	}
	return nil
}

func (md *model) compareRecords(fx *Effects) error {
	left := slices.Clone(md.records)
	for _, got := range fx.Records {
		if got.Free < 0 || got.Free > md.cfg.Slots {
			return fmt.Errorf("record %s of %s: free %d", got.Kind, got.ReqID, got.Free)
		}
		// The first that is left of this request.
		i := slices.IndexFunc(left, func(r Record) bool { return r.ReqID == got.ReqID && r.Sender == got.Sender })
		if i < 0 {
			return fmt.Errorf("record %s of %s not expected (code %q, %s)", got.Kind, got.ReqID, got.Code, got.Reason)
		}
		expect := left[i]
		got.Free, got.Reason = 0, ""
		if got != expect {
			return fmt.Errorf("record %+v, expected %+v", got, expect)
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 {
		return fmt.Errorf("no record %+v", left[0])
	}
	if n := len(fx.Records); n > 0 && md.cfg.Mode != None && fx.Records[n-1].Kind > Ready && fx.Records[n-1].Free != md.free() {
		return fmt.Errorf("last record says free %d, are %d", fx.Records[n-1].Free, md.free())
	}
	return nil
}

func (md *model) compareFences(fx *Effects) error {
	left := slices.Clone(md.fences)
	for _, rev := range fx.Revocations {
		if len(rev.Slots) == 0 {
			return fmt.Errorf("revocation %d of nothing", rev.ID)
		}
		for _, f := range md.fenced {
			if f.id == rev.ID {
				return fmt.Errorf("revocation %d twice", rev.ID)
			}
		}
		for _, slot := range rev.Slots {
			i := slices.IndexFunc(left, func(f *mFence) bool {
				return f.chunk.slot == slot && slices.Contains(f.writers, rev.Writer)
			})
			if i < 0 {
				return fmt.Errorf("revocation of slot %d of writer %d not expected", slot, rev.Writer)
			}
			left[i].id = rev.ID
			left = slices.Delete(left, i, i+1)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("slot %d (%s) is not revoked though %s may still write it", left[0].chunk.slot, left[0].chunk.key, left[0].sender)
	}
	got, expect := slices.Clone(fx.Ended), slices.Clone(md.over)
	slices.Sort(got)
	slices.Sort(expect)
	if !slices.Equal(got, expect) {
		return fmt.Errorf("ended writers %v, expected %v", got, expect)
	}
	return nil
}

func (md *model) compareSnapshot(snap *wire.Snapshot) error {
	slots := wire.SnapshotSlots{
		Total: md.cfg.Slots, Promised: md.promised(), Held: len(md.chunksHeld()), Quarantined: len(md.fenced),
		Free: md.free(), Peak: md.peak, Bytes: md.cfg.SlotBytes,
	}
	for _, c := range md.chunksHeld() {
		written, ready := c.committed, false
		for _, r := range c.holders {
			written = written || c.legacy && r.ready
			ready = ready || r.ready
		}
		if written {
			slots.Written++
		}
		if ready {
			slots.Ready++
		}
	}
	if snap.Slots != slots {
		return fmt.Errorf("slots %+v, expected %+v", snap.Slots, slots)
	}
	if slots.Free < 0 {
		return fmt.Errorf("free is %d", slots.Free)
	}
	if snap.Draining != md.stopping {
		return fmt.Errorf("draining is %v", snap.Draining)
	}
	if snap.Counters != md.counters {
		return fmt.Errorf("counters %+v, expected %+v", snap.Counters, md.counters)
	}
	if err := md.compareRequests(snap); err != nil {
		return err
	}
	return md.compareSenders(snap)
}

func (md *model) compareRequests(snap *wire.Snapshot) error {
	if len(snap.Requests) != len(md.live) || snap.Totals.Requests != len(md.live) {
		return fmt.Errorf("%d requests, total %d, expected %d", len(snap.Requests), snap.Totals.Requests, len(md.live))
	}
	for _, got := range snap.Requests {
		r := md.find(got.ReqID)
		if r == nil {
			return fmt.Errorf("request %s lives, expected not", got.ReqID)
		}
		expect := wire.SnapshotRequest{
			ReqID: r.id, Sender: r.sender, State: r.state(), TotalChunks: r.total, Allocated: len(r.chunks),
			Written: r.written(), Shared: r.shared, Bytes: r.bytes(),
			AgeMS: (md.now - r.born).Milliseconds(), IdleMS: got.IdleMS, Taken: r.taker != "",
		}
		for i, ms := range []*int64{&expect.AdmittedMS, &expect.FirstWriteMS, &expect.LastWriteMS, &expect.ReadyMS} {
			if *ms = -1; r.life[i] != 0 {
				*ms = (r.life[i] - r.born).Milliseconds()
			}
		}
		if got != expect {
			return fmt.Errorf("request %+v, expected %+v", got, expect)
		}
	}
	if len(snap.Queue) != len(md.queue) || snap.Totals.Queue != len(md.queue) {
		return fmt.Errorf("%d queued, total %d, expected %d", len(snap.Queue), snap.Totals.Queue, len(md.queue))
	}
	ahead := 0
	for i, r := range md.queue {
		got := snap.Queue[i]
		expect := wire.SnapshotWaiter{
			Pos: i + 1, ReqID: r.id, Sender: r.sender, Need: md.need(r), WaitedMS: (md.now - r.since).Milliseconds(), AtShare: r.held,
		}
		if r.held {
			expect.Lacks = md.overBy(i)
		} else {
			ahead += expect.Need
			expect.Lacks = max(0, ahead-md.free())
		}
		if got != expect {
			return fmt.Errorf("waiter %+v, expected %+v", got, expect)
		}
	}
	return nil
}

// overBy is what the sender of one that is held back must free first.
func (md *model) overBy(at int) int {
	n := -md.cfg.SenderShare
	for _, r := range md.live {
		if sameTenant(r.sender, md.queue[at].sender) {
			n += r.promised + len(r.chunks)
		}
	}
	for _, r := range md.queue[:at+1] {
		if sameTenant(r.sender, md.queue[at].sender) {
			n += md.need(r)
		}
	}
	return n
}

func (md *model) compareSenders(snap *wire.Snapshot) error {
	expect := map[string]wire.SnapshotSender{}
	for _, s := range md.senders {
		left := int64(0)
		if md.cfg.Lease > 0 {
			left = max(0, (s.heard + md.cfg.Lease - md.now).Milliseconds())
		}
		did := md.didOf(s.id)
		expect[s.id] = wire.SnapshotSender{Sender: s.id, Attached: true, LeaseLeftMS: left, Ready: did.ready, Bytes: did.bytes}
	}
	for _, r := range md.live {
		s := expect[r.sender]
		s.Sender = r.sender
		s.Ready, s.Bytes = md.didOf(r.sender).ready, md.didOf(r.sender).bytes
		s.Requests++
		s.Slots += r.promised + len(r.chunks)
		if len(r.waiting) > 0 {
			s.Queued++
		}
		expect[r.sender] = s
	}
	if len(snap.Senders) != len(expect) || snap.Totals.Senders != len(expect) {
		return fmt.Errorf("%d senders, total %d, expected %d", len(snap.Senders), snap.Totals.Senders, len(expect))
	}
	for _, got := range snap.Senders {
		if got != expect[got.Sender] {
			return fmt.Errorf("sender %+v, expected %+v", got, expect[got.Sender])
		}
	}
	return nil
}
