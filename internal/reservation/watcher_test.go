package reservation

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/pd-tools/pd-tools/wire"
)

// watcher holds the machine to §5 from outside: it sees messages, answers,
// records and ledgers, and knows nothing of how either machine or model came
// to them.
type watcher struct {
	cfg   Config
	open  map[Tag]bool // false: answered
	alive map[string]*seen
	ended map[string]Time // by sender and request, when; kept for cfg.Memory
	// places are slots that a writer may still write to: it was told to and has
	// neither committed nor cancelled. A slot that got new memory is another
	// place.
	places map[memoryPlace]writing
	region map[int]int
	grants map[string][]uint64 // of an attached sender: writers that are not gone
	owner  map[uint64]string   // of every writer ever
	doors  map[int]uint64      // to which writer a slot is open
	opened map[int]opening     // by slot, what the last Step opened
	shut   map[int]uint64      // and to whom a slot that it shut was open before
	news   []memoryPlace       // what its answers told somebody of for the first time
	last   wire.Counters
	peak   int
	// refused counts the batches that were refused, by code.
	refused map[string]int64
}

// memoryPlace is a slot and where its memory is.
type memoryPlace struct{ slot, region int }

// writing is who may write a chunk. One that never attached has no writer: it
// has no access of ours.
type writing struct {
	sender, req, key string
	length           int64
	writers          []uint64
	over             bool // its request has ended: another may have its name
}

// opening is a Door, and to whom its slot was open before.
type opening struct {
	Door
	was uint64
}

// seen is what the records told of a live request.
type seen struct {
	sender string
	kinds  []Kind
}

// toWrite is one chunk as a sender knows it.
type toWrite struct {
	key    string
	slot   int
	length int64
}

func newWatcher(cfg Config) watcher {
	return watcher{
		cfg: cfg, open: map[Tag]bool{}, alive: map[string]*seen{}, ended: map[string]Time{},
		places: map[memoryPlace]writing{}, region: map[int]int{}, grants: map[string][]uint64{},
		owner: map[uint64]string{}, doors: map[int]uint64{}, refused: map[string]int64{},
	}
}

func (v *watcher) asked(t *tag) { v.open[t] = true }

// unanswered counts the messages that still wait for their answer.
func (v *watcher) unanswered() int {
	n := 0
	for _, open := range v.open {
		if open {
			n++
		}
	}
	return n
}

// toWrite is what a sender was told to write for a request and has not
// committed, in order of slots.
func (v *watcher) toWrite(sender, req string) []toWrite {
	var list []toWrite
	for at, wr := range v.places {
		if wr.sender == sender && wr.req == req && at.region == v.region[at.slot] && !(wr.over && v.alive[sender+" "+req] != nil) {
			list = append(list, toWrite{wr.key, at.slot, wr.length})
		}
	}
	slices.SortFunc(list, func(a, b toWrite) int { return a.slot - b.slot })
	return list
}

// attached: under the new grant it may write for the requests that live what it
// could before, and what it had been told before it attached. One that has
// ended it has been told of.
func (v *watcher) attached(sender string, writer uint64) {
	for at, wr := range v.places {
		if wr.sender == sender && !wr.over && v.alive[sender+" "+wr.req] != nil && (len(wr.writers) == 0 || slices.ContainsFunc(v.grants[sender], func(g uint64) bool { return slices.Contains(wr.writers, g) })) {
			wr.writers = append(slices.Clone(wr.writers), writer)
			v.places[at] = wr
		}
	}
	v.grants[sender] = append(v.grants[sender], writer)
	v.owner[writer] = sender
}

// detached: whoever is not attached is told nothing under a grant.
func (v *watcher) detached(attached func(sender string) bool) {
	for s := range v.grants {
		if !attached(s) {
			delete(v.grants, s)
		}
	}
}

func (v *watcher) gone(writer uint64) {
	for at, wr := range v.places {
		if !slices.Contains(wr.writers, writer) {
			continue
		}
		wr.writers = slices.DeleteFunc(slices.Clone(wr.writers), func(g uint64) bool { return g == writer })
		v.places[at] = wr
		if len(wr.writers) == 0 {
			delete(v.places, at)
		}
	}
	for s, grants := range v.grants {
		v.grants[s] = slices.DeleteFunc(grants, func(g uint64) bool { return g == writer })
	}
}

// revoked: the slots have new memory; a late write goes to the old.
func (v *watcher) revoked(slots []int, region int) {
	for _, s := range slots {
		v.region[s] = region
	}
}

// accessFailed: the engine could not do these of the last Doors, and who was
// told of the slots then was told otherwise. An earlier grant stays a danger.
func (v *watcher) accessFailed(slots []int) {
	for _, slot := range slots {
		f := v.opened[slot]
		if f.was == 0 {
			delete(v.doors, f.Slot)
		}
		at := memoryPlace{f.Slot, v.region[f.Slot]}
		if wr, ok := v.places[at]; ok {
			wr.writers = slices.DeleteFunc(slices.Clone(wr.writers), func(g uint64) bool { return g == f.Writer })
			v.places[at] = wr
		}
		if slices.Contains(v.news, at) {
			delete(v.places, at)
		}
	}
}

// follow does what the Doors say. Nothing is said twice, and a slot that is
// open is opened only to a later grant of the same sender.
func (v *watcher) follow(fx *Effects) error {
	v.opened, v.shut, v.news = map[int]opening{}, map[int]uint64{}, nil
	for _, d := range fx.Doors {
		was := v.doors[d.Slot]
		switch {
		case d.Writer == was:
			return fmt.Errorf("%+v is said twice", d)
		case d.Writer == 0:
			delete(v.doors, d.Slot)
			delete(v.opened, d.Slot)
			v.shut[d.Slot] = was
			continue
		case was != 0 && (v.owner[was] != v.owner[d.Writer] || was > d.Writer):
			return fmt.Errorf("slot %d is open to %d and is opened to %d", d.Slot, was, d.Writer)
		}
		v.doors[d.Slot] = d.Writer
		v.opened[d.Slot] = opening{d, was}
	}
	for _, rev := range fx.Revocations {
		for _, slot := range rev.Slots {
			if v.doors[slot] != 0 {
				return fmt.Errorf("slot %d is to be revoked and is open to %d", slot, v.doors[slot])
			}
		}
	}
	return nil
}

func (v *watcher) see(now Time, fx *Effects, snap *wire.Snapshot) error {
	for id, at := range v.ended {
		if memory := v.cfg.Memory; memory > 0 && now-at >= memory {
			delete(v.ended, id)
		}
	}
	if err := v.follow(fx); err != nil {
		return err
	}
	for _, a := range fx.Answers {
		open, known := v.open[a.Tag]
		if !open {
			return fmt.Errorf("%v is answered, known %v, and not open", a.Tag, known)
		}
		v.open[a.Tag] = false
		if err := v.answer(a.Tag.(*tag), a.Msg, fx); err != nil {
			return fmt.Errorf("%v: %w", a.Tag, err)
		}
	}
	if err := v.records(now, fx); err != nil {
		return err
	}
	return v.ledger(snap)
}

func (v *watcher) records(now Time, fx *Effects) error {
	for _, r := range fx.Records {
		if err := v.record(now, r); err != nil {
			return fmt.Errorf("record %s of %s %s: %w", r.Kind, r.Sender, r.ReqID, err)
		}
	}
	return nil
}

// ledger: §5.1, and counters only grow.
func (v *watcher) ledger(snap *wire.Snapshot) error {
	s := snap.Slots
	if s.Promised+s.Held+s.Quarantined+s.Free != s.Total || min(s.Promised, s.Held, s.Quarantined, s.Free) < 0 {
		return fmt.Errorf("ledger %+v", s)
	}
	if s.Ready > s.Written || s.Written > s.Held {
		return fmt.Errorf("ready, written, held are not within each other: %+v", s)
	}
	if v.cfg.Mode == None && s.Promised != 0 {
		return fmt.Errorf("mode none promises %d", s.Promised)
	}
	was, is := v.last, snap.Counters
	for i, a, b := 0, reflect.ValueOf(was), reflect.ValueOf(is); i < a.NumField(); i++ {
		if b.Field(i).Int() < a.Field(i).Int() {
			return fmt.Errorf("counters fell from %+v to %+v", was, is)
		}
	}
	if s.Peak < v.peak || s.Peak < s.Total-s.Free {
		return fmt.Errorf("peak %d, was %d: %+v", s.Peak, v.peak, s)
	}
	if v.peak = s.Peak; !maps.Equal(snap.Refusals, v.refused) {
		return fmt.Errorf("refusals %v, expected %v", snap.Refusals, v.refused)
	}
	if len(snap.Requests) == 0 && (s.Promised != 0 || s.Held != 0 || len(snap.Queue) != 0) {
		return fmt.Errorf("no request lives and %+v is left", s)
	}
	v.last = is
	return nil
}

// answer follows who may write where. A place that one chunk's writer may write
// to is given to no other chunk.
func (v *watcher) answer(t *tag, msg any, fx *Effects) error {
	switch msg := msg.(type) {
	case *wire.AllocResponse:
		if t.op.verb == "cancel" {
			v.dropPlaces(t.op.who, t.op.req, "")
		}
		if t.op.verb == "alloc" && msg.Code == "" {
			return v.granted(t, msg, fx)
		}
		if t.op.verb == "alloc" || t.op.verb == "malformed" {
			v.refused[string(msg.Code)]++
		}
	case *wire.CommitResponse:
		if _, again := t.op.opt("again"); again || msg.Code != "" {
			return nil
		}
		if slot, ok := t.op.opt("slot"); ok {
			n, _ := strconv.Atoi(slot)
			delete(v.places, memoryPlace{n, v.region[n]})
		} else if t.op.keys == nil {
			v.dropPlaces(t.op.who, t.op.req, "")
		}
		for _, key := range t.op.keys {
			v.dropPlaces(t.op.who, t.op.req, key)
		}
	}
	return nil
}

func (v *watcher) dropPlaces(sender, req, key string) {
	for at, wr := range v.places {
		if wr.sender == sender && wr.req == req && !wr.over && (key == "" || wr.key == key) && at.region == v.region[at.slot] {
			delete(v.places, at)
		}
	}
}

func (v *watcher) granted(t *tag, msg *wire.AllocResponse, fx *Effects) error {
	q := t.op.allocRequest()
	sent := map[int]bool{}
	for _, i := range msg.AlreadySentIndexes {
		sent[int(i)] = true
	}
	told := map[int64]bool{}
	next := 0
	for i, key := range q.Keys {
		if sent[i] {
			continue
		}
		slot := msg.RemoteIndexes[next]
		if told[slot] {
			return fmt.Errorf("slot %d stands twice in one answer", slot)
		}
		told[slot] = true
		at := memoryPlace{slot: int(slot), region: v.region[int(slot)]}
		if len(msg.Regions) > 0 && int(msg.Regions[next]) != at.region {
			return fmt.Errorf("slot %d is in region %d, told %d", slot, at.region, msg.Regions[next])
		}
		next++
		wr := writing{sender: t.op.who, req: t.op.req, key: key, length: chunkLength(q, i), writers: slices.Clone(v.grants[t.op.who])}
		if had := v.places[at]; len(had.writers) > 0 && (had.over || had.sender != wr.sender || had.req != wr.req || had.key != wr.key) {
			return fmt.Errorf("slot %d goes to %s %s %s while %s may still write %s %s there", slot, wr.sender, wr.req, key, had.sender, had.req, had.key)
		}
		if r := v.alive[t.op.who+" "+t.op.req]; r == nil || !slices.Contains(r.kinds, Ready) {
			if err := v.told(wr, at.slot); err != nil {
				return err
			}
			if had, told := v.places[at]; !told || had.over || had.sender != wr.sender || had.req != wr.req {
				v.news = append(v.news, at)
			}
			v.places[at] = wr // when ready all counts as written
		}
	}
	return nil
}

// told: whoever is told of a slot under a grant may write it, or could until
// later in the same Step.
func (v *watcher) told(wr writing, slot int) error {
	n := len(wr.writers)
	if n == 0 || v.doors[slot] == wr.writers[n-1] || v.shut[slot] == wr.writers[n-1] {
		return nil
	}
	return fmt.Errorf("slot %d is told to %s, whose grant is %d, and is open to %d", slot, wr.sender, wr.writers[n-1], v.doors[slot])
}

// record: a request ends once, and once it has ended it is neither admitted nor
// ready again while it is remembered.
func (v *watcher) record(now Time, r Record) error {
	id := r.Sender + " " + r.ReqID
	if r.Kind == Rejected && v.alive[id] == nil {
		if _, again := v.ended[id]; again && v.cfg.Remember == 0 {
			return fmt.Errorf("it had ended before")
		}
		v.ended[id] = now
		return nil
	}
	if _, again := v.ended[id]; again && v.cfg.Remember == 0 {
		return fmt.Errorf("it has ended")
	}
	s := v.alive[id]
	if s == nil {
		s = &seen{sender: r.Sender}
		v.alive[id] = s
	}
	if slices.Contains(s.kinds, r.Kind) {
		return fmt.Errorf("for the second time, after %v", s.kinds)
	}
	s.kinds = append(s.kinds, r.Kind)
	if r.Kind == Ready {
		v.dropPlaces(r.Sender, r.ReqID, "") // all is written
	}
	if r.Kind <= Ready {
		if n := len(s.kinds); n > 1 && s.kinds[n-2] >= r.Kind {
			return fmt.Errorf("after %v", s.kinds[:n-1])
		}
		return nil
	}
	if r.Kind == Released && !slices.Contains(s.kinds, Ready) || r.Unread != (r.Kind == Expired && slices.Contains(s.kinds, Ready)) {
		return fmt.Errorf("unread %v after %v", r.Unread, s.kinds)
	}
	for at, wr := range v.places {
		switch {
		case wr.sender != r.Sender || wr.req != r.ReqID:
		case len(wr.writers) == 0:
			delete(v.places, at)
		default:
			wr.over = true
			v.places[at] = wr
		}
	}
	delete(v.alive, id)
	v.ended[id] = now
	return nil
}
