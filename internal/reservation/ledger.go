package reservation

// ledger counts the slots and knows what each holds. It keeps
//
//	promised + held + quarantined + free = total
//
// where free is what is neither promised nor in use.
type ledger struct {
	slots       []slot
	empty       []int32 // slots that nobody holds, the last freed on top
	promised    int     // of the empty ones, reserved by admitted requests
	held        int
	quarantined int
	written     int // held and committed
	ready       int // written, and held by a request that is ready
	peak        int // most that were not free at the end of a Step

	// copies finds a committed slot by what is in it: the first of a list.
	copies map[content]int32
}

// slot is a chunk-sized place in the buffer.
type slot struct {
	key    string
	length int64
	crc    uint32 // once it is committed

	committed bool
	written   bool // committed, or of a sender that never attached and ready
	shared    bool // in copies

	holders int32 // requests that hold it; 0: empty or in quarantine
	ready   int32 // of those, ready ones
	region  int32 // where its memory is
	door    door

	prevCopy, nextCopy int32 // slots with the same content, or noSlot
}

// content is what makes two chunks the same.
type content struct {
	key    string
	length int64
}

func newLedger(slots int) ledger {
	l := ledger{
		slots:  make([]slot, slots),
		empty:  make([]int32, 0, slots),
		copies: make(map[content]int32),
	}
	for i := slots - 1; i >= 0; i-- {
		l.empty = append(l.empty, int32(i))
	}
	return l
}

func (l *ledger) free() int { return len(l.empty) - l.promised }

func (l *ledger) notePeak() { l.peak = max(l.peak, len(l.slots)-l.free()) }

// occupy puts a chunk into an empty slot.
func (l *ledger) occupy(key string, length int64) int32 {
	top := len(l.empty) - 1
	i := l.empty[top]
	l.empty = l.empty[:top]
	l.held++
	l.slots[i] = slot{key: key, length: length, holders: 1, region: l.slots[i].region}
	return i
}

// share adds a holder to a committed slot with this content. "A key already in
// the buffer, committed and of the same length, is not sent again: it is
// already sent, the chunk has one more holder." A key allocated but not
// committed is not shared, nor is one of a sender that never attached: neither
// is in copies.
func (l *ledger) share(key string, length int64) (int32, bool) {
	i, ok := l.copies[content{key, length}]
	if ok {
		l.slots[i].holders++
	}
	return i, ok
}

// write notes that a slot's chunk is whole.
func (l *ledger) write(i int32) {
	l.slots[i].written = true
	l.written++
}

// offer lets others share a committed slot. "Of several committed copies one
// is shared; while one is left the key counts as present."
func (l *ledger) offer(i int32) {
	s := &l.slots[i]
	c := content{s.key, s.length}
	s.shared, s.prevCopy, s.nextCopy = true, noSlot, noSlot
	if first, ok := l.copies[c]; ok {
		// Behind the first, which goes on being the one that is shared.
		s.prevCopy, s.nextCopy = first, l.slots[first].nextCopy
		if s.nextCopy != noSlot {
			l.slots[s.nextCopy].prevCopy = i
		}
		l.slots[first].nextCopy = i
		return
	}
	l.copies[c] = i
}

func (l *ledger) unoffer(i int32) {
	s := &l.slots[i]
	if !s.shared {
		return
	}
	s.shared = false
	if s.nextCopy != noSlot {
		l.slots[s.nextCopy].prevCopy = s.prevCopy
	}
	switch {
	case s.prevCopy != noSlot:
		l.slots[s.prevCopy].nextCopy = s.nextCopy
	case s.nextCopy != noSlot:
		l.copies[content{s.key, s.length}] = s.nextCopy
	default:
		delete(l.copies, content{s.key, s.length})
	}
}

// drop takes one holder away and reports whether that was the last: "a chunk
// leaves its slot when its last holder ends". The slot is then the caller's,
// to vacate or to fence.
func (l *ledger) drop(i int32) bool {
	s := &l.slots[i]
	s.holders--
	if s.holders > 0 {
		return false
	}
	l.unoffer(i)
	l.held--
	if s.written {
		l.written--
	}
	l.slots[i] = slot{region: s.region}
	return true
}

// vacate makes a slot that nobody holds free.
func (l *ledger) vacate(i int32) { l.empty = append(l.empty, i) }

// markReady counts a holder that is ready, or (-1) was.
func (l *ledger) markReady(i int32, by int32) {
	s := &l.slots[i]
	before := s.ready > 0
	s.ready += by
	switch after := s.ready > 0; {
	case after && !before:
		l.ready++
	case before && !after:
		l.ready--
	}
}
