package reservation

import (
	"fmt"
	"hash/crc32"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	testEpoch = 77
	chunkSize = 16 // bytes of a slot
)

// op is one command of the test language, in which scenarios are written, the
// simulator acts and failures are printed. Each is understood on its own, so
// that any list of them can be run:
//
//	attach s1                          s1 introduces itself, under the grant it has, or a new one: anew
//	alloc s1 A keys=a,b total=8 last   a batch; size=12: full chunks of 12 bytes;
//	                                   tail=5: bytes of the last; bytes=300: of the message;
//	                                   epoch=none|stale; bad=fmt|dtype|shape|tail|big|neg|key|id
//	malformed s1 A keys=a              a batch that could not be decoded
//	commit s1 A                        all that s1 was told to write; keys=a: these;
//	                                   slot=3: this one; crc=9, len=3: other than true;
//	                                   again: what it has committed; bad=twice|lists
//	cancel s1 A
//	heartbeat s1                       epoch=stale
//	heard s1
//	take d1 A
//	release d1 A                       keep: give it back
//	list p1                            what is ready; after=2: behind number 2 (epoch=stale: of another epoch)
//	gone s1                            its connection ends; writer=1: that of this grant
//	overrun s1
//	revoked                            the oldest revocation is done; id=2: this one
//	revoke-failed                      the same, in vain
//	shutdown
//	close                              the end: what is left ends
//	advance 15s                        time passes, Tick by Tick
//	jump 15s                           the receiver stands still, then Ticks
//	drain                              everybody does their part: nothing may be left
//
// Behind any that is one event: noaccess, the engine cannot open a slot that
// this would open; noaccess=2: all but two of them.
type op struct {
	verb     string
	who, req string
	keys     []string
	opts     []string // the others, as written
}

func parseOp(line string) (op, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return op{}, fmt.Errorf("empty command")
	}
	o := op{verb: words[0]}
	for _, word := range words[1:] {
		switch {
		case strings.HasPrefix(word, "keys="):
			o.keys = splitKeys(strings.TrimPrefix(word, "keys="))
		case strings.Contains(word, "=") || slices.Contains([]string{"last", "keep", "anew", "again", "noaccess"}, word):
			o.opts = append(o.opts, word)
		case o.who == "":
			o.who = word
		case o.req == "":
			o.req = word
		default:
			return op{}, fmt.Errorf("%q: what is %q?", line, word)
		}
	}
	return o, nil
}

// splitKeys understands a,b and a0..a3.
func splitKeys(list string) []string {
	keys := []string{}
	for _, k := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		from, to, isRange := strings.Cut(k, "..")
		if !isRange {
			keys = append(keys, k)
			continue
		}
		stem := strings.TrimRight(from, "0123456789")
		lo, _ := strconv.Atoi(from[len(stem):])
		hi, _ := strconv.Atoi(to[len(stem):])
		for i := lo; i <= hi; i++ {
			keys = append(keys, fmt.Sprintf("%s%d", stem, i))
		}
	}
	return keys
}

func (o op) String() string {
	words := []string{o.verb}
	for _, w := range []string{o.who, o.req} {
		if w != "" {
			words = append(words, w)
		}
	}
	if o.keys != nil {
		words = append(words, "keys="+strings.Join(o.keys, ","))
	}
	return strings.Join(append(words, o.opts...), " ")
}

func (o op) opt(name string) (string, bool) {
	for _, w := range o.opts {
		if key, value, _ := strings.Cut(w, "="); key == name {
			return value, true
		}
	}
	return "", false
}

func (o op) num(name string, otherwise int64) int64 {
	if v, ok := o.opt(name); ok {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", o, err))
		}
		return n
	}
	return otherwise
}

// tag is what the tests send along with a message.
type tag struct {
	n    int
	what string // "s1 A"
	op   op
}

func (t *tag) String() string { return fmt.Sprintf("#%d (%s)", t.n, t.op) }

// world is a machine, the model beside it, and what an outsider sees: senders
// that know only what they were told.
type world struct {
	cfg      Config
	m        *Machine
	md       *model
	now      Time
	snap     wire.Snapshot
	tags     int
	writers  uint64
	grants   map[uint64]string // all writers ever, and whose they are
	pending  []Revocation      // not answered, oldest first
	regions  int
	watch    watcher
	trace    *strings.Builder // nil: not wanted
	doors    bool             // the trace has the Doors too
	quick    bool             // check only what the model needs to go on
	failed   error
	requests int // first batches sent
	events   int
	started  map[string]bool
}

func newWorld(cfg Config) *world {
	cfg.Epoch = testEpoch
	if cfg.SlotBytes == 0 {
		cfg.SlotBytes = chunkSize
	}
	return &world{
		cfg: cfg, m: New(cfg), md: newModel(cfg), grants: map[uint64]string{}, watch: newWatcher(cfg), started: map[string]bool{},
	}
}

// do runs one command and checks everything after every event of it. The first
// failure stays.
func (w *world) do(o op) (err error) {
	if w.failed != nil {
		return w.failed
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", o, err)
			w.failed = err
		}
	}()
	if err := w.run(o); err != nil {
		return err
	}
	could, fails := o.opt("noaccess")
	if !fails {
		return nil
	}
	n, _ := strconv.Atoi(could)
	return w.accessFailed(n)
}

// accessFailed: of the slots that the last Step opened the engine could open
// but so many.
func (w *world) accessFailed(could int) error {
	slots := slices.Sorted(maps.Keys(w.watch.opened))
	if could >= len(slots) {
		return nil
	}
	slots = slots[could:]
	w.watch.accessFailed(slots)
	return w.step(AccessFailed{Slots: slots, Reason: "no more memory can be registered"})
}

func (w *world) run(o op) error {
	switch o.verb {
	case "attach":
		return w.attach(o)
	case "alloc":
		if id := o.who + "/" + o.req; !w.started[id] {
			w.started[id] = true
			w.requests++
		}
		return w.step(Alloc{Sender: o.who, Tenant: tenantName(o.who), Req: o.allocRequest(), Size: int(o.num("bytes", 100)), Tag: w.tag(o)})
	case "malformed":
		return w.step(Malformed{Sender: o.who, ReqID: o.req, Keys: len(o.keys), Reason: "is no message", Tag: w.tag(o)})
	case "commit":
		return w.step(Commit{Sender: o.who, Req: w.commitRequest(o), Tag: w.tag(o)})
	case "cancel":
		return w.step(Cancel{Sender: o.who, ReqID: o.req, Tag: w.tag(o)})
	case "heartbeat":
		return w.step(Heartbeat{Sender: o.who, Epoch: o.epoch(testEpoch), Tag: w.tag(o)})
	case "heard":
		return w.step(Heard{Sender: o.who})
	case "take":
		return w.step(Take{Conn: o.who, ReqID: o.req, Tag: w.tag(o)})
	case "release":
		_, keep := o.opt("keep")
		return w.step(Release{Conn: o.who, ReqID: o.req, Keep: keep, Tag: w.tag(o)})
	case "list":
		req := &wire.ReadyRequest{Epoch: o.epoch(testEpoch), After: uint64(o.num("after", 0))}
		return w.step(ListReady{Conn: o.who, Req: req, Tag: w.tag(o)})
	case "gone":
		return w.gone(o)
	case "overrun":
		return w.step(Overrun{Sender: o.who})
	case "revoked", "revoke-failed":
		return w.revoke(o)
	case "shutdown":
		return w.step(Shutdown{})
	case "close":
		return w.step(Close{})
	case "drain":
		return w.drain()
	case "advance":
		return w.advance(o.who)
	case "jump":
		d, err := time.ParseDuration(o.who)
		if err != nil {
			return err
		}
		w.now += d
		return w.step(Tick{})
	}
	return fmt.Errorf("unknown command")
}

// attach: asked again, a sender keeps its grant, unless it is to have a new one.
func (w *world) attach(o op) error {
	who := o.who
	_, anew := o.opt("anew")
	if s := w.md.sender(who); s != nil && !anew {
		return w.step(Attach{Sender: who, Name: who, Writer: s.writer})
	}
	w.writers++
	w.grants[w.writers] = who
	w.watch.attached(who, w.writers)
	return w.step(Attach{Sender: who, Name: who, Writer: w.writers})
}

func (w *world) tag(o op) *tag {
	w.tags++
	t := &tag{n: w.tags, what: strings.TrimSpace(o.who + " " + o.req), op: o}
	w.watch.asked(t)
	return t
}

func (o op) epoch(mine uint64) uint64 {
	switch v, _ := o.opt("epoch"); v {
	case "none":
		return 0
	case "stale":
		return testEpoch + 1
	case "mine":
		return testEpoch
	}
	return mine
}

func (o op) allocRequest() *wire.AllocRequest {
	size := o.num("size", chunkSize)
	_, last := o.opt("last")
	q := &wire.AllocRequest{
		Keys: o.keys, Fmt: wire.I(wire.FmtBinary), Shape: []wire.Int{wire.I(size)}, Dtype: "uint8",
		LastChunkToks: wire.I(o.num("tail", size)), ReqID: o.req, IsLastBatch: last,
		TotalChunks: wire.I(o.num("total", 0)), Epoch: o.epoch(0),
	}
	switch bad, _ := o.opt("bad"); bad {
	case "fmt":
		q.Fmt = wire.I(99)
	case "dtype":
		q.Dtype = "float17"
	case "shape":
		q.Shape = []wire.Int{wire.I(-1)}
	case "tail":
		q.LastChunkToks = wire.I(size + 1)
	case "big":
		q.Shape, q.LastChunkToks = []wire.Int{wire.I(chunkSize + 1)}, wire.I(chunkSize+1)
	case "neg":
		q.TotalChunks = wire.I(-1)
	case "key":
		q.Keys = append(slices.Clone(q.Keys), strings.Repeat("k", wire.MaxKey+1))
	case "keys":
		q.Keys = nil
		for i := range wire.MaxKeys + 1 {
			q.Keys = append(q.Keys, fmt.Sprint("k", i))
		}
	case "id":
		q.ReqID = ""
	case "nothing": // just within the limits
		q.Keys = append(slices.Clone(q.Keys), strings.Repeat("k", wire.MaxKey))
		q.ReqID = strings.Repeat("r", wire.MaxReqID)
	case "longid":
		q.ReqID = strings.Repeat("r", wire.MaxReqID+1)
	case "huge":
		q.TotalChunks = wire.U(1<<64 - 1)
	}
	return q
}

func trueCRC(key string) uint32 { return crc32.ChecksumIEEE([]byte(key)) }

func (w *world) commitRequest(o op) *wire.CommitRequest {
	q := &wire.CommitRequest{ReqID: o.req, Epoch: o.epoch(testEpoch)}
	if slot, ok := o.opt("slot"); ok {
		n, _ := strconv.ParseInt(slot, 10, 64)
		q.Slots = append(q.Slots, n)
		q.Lengths = append(q.Lengths, o.num("len", chunkSize))
		q.CRCs = append(q.CRCs, uint32(o.num("crc", 0)))
		return q
	}
	list := w.watch.toWrite(o.who, o.req)
	if _, again := o.opt("again"); again {
		list = w.committed(o.who, o.req)
	}
	for _, c := range list {
		if o.keys != nil && !slices.Contains(o.keys, c.key) {
			continue
		}
		q.Slots = append(q.Slots, int64(c.slot))
		q.Lengths = append(q.Lengths, o.num("len", c.length))
		q.CRCs = append(q.CRCs, uint32(o.num("crc", int64(trueCRC(c.key)))))
	}
	switch bad, _ := o.opt("bad"); bad {
	case "twice":
		q.Slots, q.Lengths, q.CRCs = slices.Repeat(q.Slots, 2), slices.Repeat(q.Lengths, 2), slices.Repeat(q.CRCs, 2)
	case "lists":
		q.Lengths = append(q.Lengths, chunkSize)
	}
	return q
}

// committed is what is committed of a live request, by whomever.
func (w *world) committed(sender, req string) []toWrite {
	var list []toWrite
	if r := w.md.own(sender, req); r != nil {
		for _, c := range r.chunks {
			if c.committed {
				list = append(list, toWrite{c.key, c.slot, c.length})
			}
		}
	}
	return list
}

// gone: every writer goes only once.
func (w *world) gone(o op) error {
	writer := uint64(o.num("writer", 0))
	if writer == 0 {
		for g, who := range w.grants {
			if who == o.who {
				writer = max(writer, g)
			}
		}
	}
	if _, ok := w.grants[writer]; !ok {
		return nil
	}
	delete(w.grants, writer)
	w.watch.gone(writer)
	return w.step(Gone{Writer: writer})
}

func (w *world) revoke(o op) error {
	i := 0
	if id := uint64(o.num("id", 0)); id != 0 {
		i = slices.IndexFunc(w.pending, func(r Revocation) bool { return r.ID == id })
	}
	if i < 0 || i >= len(w.pending) {
		return nil
	}
	rev := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	if o.verb == "revoke-failed" {
		return w.step(RevokeFailed{ID: rev.ID})
	}
	w.regions++
	w.watch.revoked(rev.Slots, w.regions)
	return w.step(Revoked{ID: rev.ID, Region: w.regions})
}

func (w *world) advance(by string) error {
	left, err := time.ParseDuration(by)
	if err != nil {
		return err
	}
	for left > 0 {
		d := left
		if w.cfg.MaxGap > 0 {
			d = min(left, w.cfg.MaxGap-1) // and the one of step
		}
		left -= d
		w.now += d
		if err := w.step(Tick{}); err != nil {
			return err
		}
	}
	return nil
}

// step gives one event to machine and model and compares all there is.
func (w *world) step(ev Event) error {
	w.now++ // no two events at the same moment
	w.events++
	fx := w.m.Step(w.now, ev)
	w.md.step(w.now, ev, fx, w.slotOf)
	if w.trace != nil {
		w.print(fx)
	}
	for _, rev := range fx.Revocations {
		w.pending = append(w.pending, Revocation{rev.ID, rev.Writer, slices.Clone(rev.Slots)})
	}
	defer w.watch.detached(func(s string) bool { return w.md.sender(s) != nil })
	if w.quick {
		return w.follow(fx)
	}
	w.snap = w.m.Snapshot(w.now)
	if err := w.watch.see(w.md.now, fx, &w.snap); err != nil {
		return err
	}
	if err := w.m.check(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if err := w.md.compare(fx, &w.snap); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if want := w.md.doors(); !maps.Equal(w.watch.doors, want) {
		return fmt.Errorf("slots are open to %v, expected %v", w.watch.doors, want)
	}
	in, ok := w.m.NextDue()
	_, ticked := ev.(Tick)
	return w.md.compareDue(in, ok, ticked)
}

// follow learns from the effects what model and senders must know.
func (w *world) follow(fx *Effects) error {
	if err := w.watch.follow(fx); err != nil {
		return err
	}
	for _, a := range fx.Answers {
		w.watch.open[a.Tag] = false
		if err := w.watch.answer(a.Tag.(*tag), a.Msg, fx); err != nil {
			return err
		}
	}
	if err := w.watch.records(w.md.now, fx); err != nil {
		return err
	}
	return w.md.learn(fx)
}

// tenantName is in the sender's name: T/1 and T/2 are of tenant T.
func tenantName(sender string) string {
	name, _, ok := strings.Cut(sender, "/")
	if !ok {
		return ""
	}
	return name
}

// sameTenant says whether two senders have their quotas together.
func sameTenant(a, b string) bool {
	return a == b || tenantName(a) != "" && tenantName(a) == tenantName(b)
}

// slotOf is the one look inside the machine: which copy a request shares is
// told to nobody until a decoder takes it.
func (w *world) slotOf(id, key string) int {
	r := w.m.live[id]
	if r == nil || r.find(key) < 0 {
		return -1
	}
	return int(r.chunks[r.find(key)].slot)
}

// --- the trace ---

func (w *world) print(fx *Effects) {
	if w.doors {
		w.printDoors(fx.Doors)
	}
	for _, a := range fx.Answers {
		fmt.Fprintf(w.trace, "  %s: %s\n", a.Tag.(*tag).what, describe(a.Msg))
	}
	for _, r := range fx.Records {
		fmt.Fprintf(w.trace, "  * %s\n", describeRecord(r))
	}
	for _, r := range fx.Revocations {
		fmt.Fprintf(w.trace, "  revoke %d: writer %d, slots %s\n", r.ID, r.Writer, join(r.Slots))
	}
	for _, e := range fx.Ended {
		fmt.Fprintf(w.trace, "  writer %d ended\n", e)
	}
}

// printDoors puts those in a row that say the same.
func (w *world) printDoors(doors []Door) {
	for len(doors) > 0 {
		n := 1
		for n < len(doors) && doors[n].Writer == doors[0].Writer {
			n++
		}
		what := "shut"
		if by := doors[0].Writer; by != 0 {
			what = fmt.Sprintf("open to writer %d", by)
		}
		slots := make([]int, n)
		for i := range slots {
			slots[i] = doors[i].Slot
		}
		fmt.Fprintf(w.trace, "  door %s: %s\n", join(slots), what)
		doors = doors[n:]
	}
}

func join[T any](list []T) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = fmt.Sprint(x)
	}
	return strings.Join(words, ",")
}

func describe(msg any) string {
	switch msg := msg.(type) {
	case *wire.AllocResponse:
		if n := len(msg.RemoteIndexes); msg.Code != "" && n > 0 {
			return fmt.Sprintf("%s, %d × -1", msg.Code, n)
		} else if msg.Code != "" {
			return string(msg.Code)
		}
		words := []string{}
		if len(msg.RemoteIndexes) > 0 {
			words = append(words, "slots "+join(msg.RemoteIndexes))
		}
		if len(msg.AlreadySentIndexes) > 0 {
			words = append(words, "sent "+join(msg.AlreadySentIndexes))
		}
		if len(msg.Regions) > 0 {
			words = append(words, "regions "+join(msg.Regions))
		}
		if len(words) == 0 {
			return "ok"
		}
		return strings.Join(words, " ")
	case *wire.CommitResponse:
		if msg.Ready {
			return "written, ready"
		}
		if msg.Code == "" {
			return "written"
		}
		return string(msg.Code)
	case *wire.TakeResponse:
		if msg.Code != "" {
			return string(msg.Code)
		}
		words := []string{"take"}
		for _, c := range msg.Chunks {
			word := fmt.Sprintf("%s@%d", c.Key, c.Slot)
			if c.Region != 0 {
				word += fmt.Sprintf("/%d", c.Region)
			}
			if !c.HasCRC {
				word += " (no crc)"
			}
			words = append(words, word)
		}
		return strings.Join(words, " ")
	case *wire.ReleaseResponse:
		if msg.Code == "" {
			return "ok"
		}
		return string(msg.Code)
	case *wire.ReadyResponse:
		words := []string{"ready"}
		for _, e := range msg.Entries {
			words = append(words, fmt.Sprintf("%d:%s", e.Seq, e.ReqID))
		}
		if msg.More {
			words = append(words, "and more")
		}
		return strings.Join(words, " ")
	}
	return fmt.Sprintf("%T", msg)
}

func describeRecord(r Record) string {
	words := []string{r.Sender, r.ReqID, r.Kind.String()}
	if n := len(r.ReqID); n > 40 {
		words[1] = fmt.Sprintf("(id of %d bytes)", n)
	}
	switch r.Kind {
	case Allocated, Ready:
		words = append(words, fmt.Sprintf("%d of %d", r.Chunks, r.TotalChunks))
		if r.Shared > 0 {
			words = append(words, fmt.Sprintf("shared %d", r.Shared))
		}
	case Expired:
		if r.Unread {
			words = append(words, "unread")
		}
	}
	if r.Code != "" && r.Code != wire.CodeExpired {
		words = append(words, string(r.Code))
	}
	if r.Waited > 0 {
		words = append(words, "waited "+r.Waited.Round(time.Millisecond).String())
	}
	return strings.Join(append(words, fmt.Sprintf("free %d", r.Free)), " ")
}

// state prints what a Snapshot says.
func (w *world) state() string {
	var b strings.Builder
	s := w.snap.Slots
	fmt.Fprintf(&b, "  promised %d + held %d + quarantined %d + free %d = %d, written %d, ready %d\n", s.Promised, s.Held, s.Quarantined, s.Free, s.Total, s.Written, s.Ready)
	for _, r := range w.snap.Requests {
		fmt.Fprintf(&b, "  %s %s %s: %d of %d, written %d, shared %d\n", r.Sender, r.ReqID, r.State, r.Allocated, r.TotalChunks, r.Written, r.Shared)
	}
	for _, q := range w.snap.Queue {
		fmt.Fprintf(&b, "  waits %d. %s %s needs %d, lacks %d", q.Pos, q.Sender, q.ReqID, q.Need, q.Lacks)
		if q.AtShare {
			b.WriteString(" of its sender's share")
		}
		b.WriteString("\n")
	}
	return b.String()
}
