package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

const labelWide = 8 // of what stands at the left of a line of figures

func label(s string) line { return line{{pad(s, labelWide, true), strong}} }

// receiverFigures are the lines above a receiver's tables.
func (m *Model) receiverFigures(f *frame, w, h int) []line {
	s := f.recv
	lines := []line{
		m.bufferLine(&s.Slots, w),
		m.gaugeLine(&s.Slots, w),
		m.throughputLine("Write", f, s.Counters.WrittenBytes, w),
		m.admitLine(f, w),
		m.readyLine(f, w),
	}
	switch {
	case h < 16:
		lines = lines[:4]
	case h >= 26:
		lines = append(lines, m.endedLine(s, w), m.faultsLine(s, w))
	}
	return lines
}

// part is one of the kinds of slots; they add up to the whole buffer.
type part struct {
	name, short, glyph string
	slots              int
	style              style
}

func (m *Model) parts(s *wire.SnapshotSlots) []part {
	g := m.glyphs
	return []part{
		{"ready", "R", g.ready, s.Ready, info},
		{"written", "w", g.written, s.Written - s.Ready, good},
		{"alloc", "a", g.held, s.Held - s.Written, warn},
		{"promised", "p", g.promised, s.Promised, plain},
		{"quarantined", "q", g.quarantined, s.Quarantined, bad},
		{"free", "f", g.free, s.Free, faint},
	}
}

// bufferLine is the legend of the gauge with its numbers.
func (m *Model) bufferLine(s *wire.SnapshotSlots, w int) line {
	size := fmt.Sprintf("%s x %s", m.units.count(int64(s.Total)), m.units.bytes(float64(s.Bytes)))
	whole := size + " = " + m.units.bytes(float64(s.Total)*float64(s.Bytes))
	var long, brief line
	for _, p := range m.parts(s) {
		if p.name == "quarantined" && p.slots == 0 {
			continue // rare, and trouble when it is not
		}
		n := m.units.count(int64(p.slots))
		long = long.add(p.style, "  "+p.glyph+" "+p.name+" ").add(plain, n)
		brief = brief.add(p.style, " "+p.glyph+p.name[:1]).add(plain, n)
	}
	peak := fmt.Sprintf("  %s peak %s", m.glyphs.peak, m.units.count(int64(s.Peak)))
	l := label("Buffer")
	return widest(w,
		spread(l.add(plain, whole), long.add(plain, peak), max(w, len(whole)+labelWide+1+long.width()+width(peak))),
		spread(l.add(plain, size), long.add(plain, peak), max(w, len(size)+labelWide+1+long.width()+width(peak))),
		spread(l.add(plain, size), long, max(w, len(size)+labelWide+1+long.width())),
		spread(l, long, max(w, labelWide+long.width())),
		l.join(brief),
	)
}

// gaugeLine is the whole buffer as a bar. What is there at all is seen: a part
// has at least one column.
func (m *Model) gaugeLine(s *wire.SnapshotSlots, w int) line {
	used := pad(percent(s.Total-s.Free, s.Total), 5, false) + " of " + m.units.count(int64(s.Total))
	n := w - 2 - width(used) - 1
	parts := m.parts(s)
	sizes := make([]int, len(parts))
	for i, p := range parts {
		sizes[i] = p.slots
	}
	l := text("[")
	at := 0
	peak := -1
	if s.Total > 0 && s.Peak > s.Total-s.Free {
		peak = min(int(float64(s.Peak)/float64(s.Total)*float64(n)), n-1)
	}
	for i, k := range share(sizes, n) {
		p := parts[i]
		if peak >= at && peak < at+k {
			l = l.add(p.style, strings.Repeat(p.glyph, peak-at)).add(plain, m.glyphs.peak).add(p.style, strings.Repeat(p.glyph, at+k-peak-1))
		} else {
			l = l.add(p.style, strings.Repeat(p.glyph, k))
		}
		at += k
	}
	return l.add(plain, strings.Repeat(" ", max(n-at, 0))+"]").add(strong, used)
}

// share divides n columns among sizes: to each that is not 0 at least one, the
// rest in proportion, n in all.
func share(sizes []int, n int) []int {
	out := make([]int, len(sizes))
	total := 0.0
	for _, s := range sizes {
		total += float64(max(s, 0))
	}
	if total == 0 || n <= 0 {
		return out
	}
	for i, s := range sizes {
		if s > 0 {
			out[i] = max(int(float64(s)/total*float64(n)), 1)
		}
	}
	sum := 0
	for _, k := range out {
		sum += k
	}
	// What rounding has taken or given goes to, or comes from, the greatest.
	for ; sum != n; sum += sign(n - sum) {
		out[slices.Index(out, slices.Max(out))] += sign(n - sum)
	}
	return out
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// throughputLine is bytes, or requests, by wall clock: now, the last seconds,
// the last minute, and the most that was seen.
func (m *Model) throughputLine(name string, f *frame, total int64, w int) line {
	say := m.units.bytes
	unit := "/s"
	if f.proxy != nil {
		say = func(v float64) string { return strings.TrimSuffix(m.units.perSecond(v), "/s") }
	}
	now, avg, peak := "-", "-", "-"
	if f.rates.known {
		now, peak = say(f.rates.bytes)+unit, say(f.rates.peak)+unit
		if f.proxy != nil {
			now = say(f.rates.ready) + unit
		}
	}
	if f.rates.avgKnown {
		avg = say(f.rates.avg) + unit
	}
	all := say(float64(total))
	if f.proxy != nil {
		all = m.units.count(total)
	}
	if m.totals {
		now = all
	}
	l := label(name).add(strong, pad(now, m.rateWide()+1, false)).add(plain, " ")
	full := fmt.Sprintf("  1m avg %s  peak %s  total %s", pad(avg, 10, false), pad(peak, 10, false), pad(all, 9, false))
	right := text(full)
	if w < 96 {
		right = text(fmt.Sprintf("  1m avg %s  peak %s", pad(avg, 10, false), pad(peak, 10, false)))
	}
	if w < 76 {
		right = text("  peak " + pad(peak, 10, false))
	}
	return spread(l.add(good, m.sparkline(f.spark, w-l.width()-right.width())), right, w)
}

// sparkline draws the last seconds, newest at the right, as high as the
// greatest that is shown.
func (m *Model) sparkline(v []float64, w int) string {
	if w <= 0 {
		return ""
	}
	v = v[max(len(v)-w, 0):]
	most := 0.0
	for _, x := range v {
		if x > most {
			most = x
		}
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", w-len(v)))
	ramp := m.glyphs.ramp
	for _, x := range v {
		switch {
		case math.IsNaN(x):
			b.WriteByte(' ')
		case x <= 0:
			b.WriteString(ramp[0])
		default:
			b.WriteString(ramp[min(1+int(x/most*float64(len(ramp)-1)), len(ramp)-1)])
		}
	}
	return b.String()
}

// took is how long something took in the last minute, added to a line; where
// there is little room, without the longest.
func took(l line, what string, s wire.SnapshotWait, w int) line {
	brief := l.add(plain, fmt.Sprintf("  %s p50 %s  p99 %s", pad(what, 8, true), pad(millis(s.P50), 6, true), pad(millis(s.P99), 6, true)))
	return widest(w, brief.add(plain, "  max "+pad(millis(s.Max), 6, true)), brief)
}

// seen is how long something took, or no time at all if it never happened.
func seen(times int64, s wire.SnapshotWait) wire.SnapshotWait {
	if times == 0 && s.Max == 0 {
		return wire.SnapshotWait{P50: -1, P99: -1, Max: -1}
	}
	return s
}

// tally is a count that is trouble unless it is 0.
func (m *Model) tally(l line, name string, n int64, st style) line {
	if n == 0 {
		st = plain
	}
	return l.add(st, "  "+name+" "+m.units.count(n))
}

func (m *Model) admitLine(f *frame, w int) line {
	s := f.recv
	now := m.rate(f.rates, f.rates.admitted)
	if m.totals {
		now = m.units.count(s.Counters.Admitted)
	}
	l := took(label("Admit").add(strong, pad(now, 12, false)), "waited", seen(s.Counters.Admitted, s.AdmitWait), w)
	queued := m.tally(nil, "queued", int64(s.Totals.Queue), warn)
	slots := queued
	if s.Totals.Queue > 0 {
		slots = queued.add(plain, fmt.Sprintf(" (%s slots)", m.units.count(int64(f.need))))
	}
	refused := m.tally(nil, "refused", s.Counters.Rejected, bad)
	return m.ends(w, l, slots.join(refused), queued.join(refused), queued, nil)
}

// ends is l with the first of the right ends that fits.
func (m *Model) ends(w int, l line, rights ...line) line {
	for _, r := range rights {
		if l.width()+r.width() <= w {
			return spread(l, r, w)
		}
	}
	return l.cut(w)
}

// becameReady is how many requests became ready, and how long that took.
func (m *Model) becameReady(f *frame, ready int64, s wire.SnapshotWait, w int) line {
	now := m.rate(f.rates, f.rates.ready)
	if m.totals {
		now = m.units.count(ready)
	}
	return took(label("Ready").add(strong, pad(now, 12, false)), "to ready", seen(ready, s), w)
}

func (m *Model) readyLine(f *frame, w int) line {
	s := f.recv
	l := m.becameReady(f, s.Counters.Ready, s.ReadyTime, w)
	expired := m.tally(nil, "expired", s.Counters.Expired, bad)
	unread := m.tally(expired, "expired unread", s.Counters.ExpiredUnread, bad)
	brief := m.tally(expired, "unread", s.Counters.ExpiredUnread, bad)
	return m.ends(w, l, unread, brief, expired, nil)
}

// endedLine has how requests have ended, and what writing takes.
func (m *Model) endedLine(s *wire.Snapshot, w int) line {
	c := &s.Counters
	l := label("Ended").add(plain, fmt.Sprintf("%s released", pad(m.units.count(c.Released), 9, false)))
	l = m.tally(l, "cancelled", c.Cancelled, plain)
	l = m.tally(l, "timed out", c.TimedOut, bad)
	return m.ends(w, l, took(nil, "write", seen(s.Counters.Ready, s.WriteTime), w), nil)
}

// faultsLine has what must not happen, and why batches were refused.
func (m *Model) faultsLine(s *wire.Snapshot, w int) line {
	c := &s.Counters
	l := text(pad("Faults", labelWide-2, true))
	l = m.tally(l, "rolled back", c.RolledBack, warn)
	l = m.tally(l, "stale writes", c.StaleWrites, bad)
	l = m.tally(l, "bad frames", c.BadFrames, bad)
	l = m.tally(l, "duplicate ids", c.Duplicates, bad)
	l = m.tally(l, "undeliverable", c.Undeliverable, bad)
	codes := make([]string, 0, len(s.Refusals))
	for code := range s.Refusals {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	for _, code := range codes {
		if n := s.Refusals[code]; n > 0 {
			l = m.tally(l, "refused "+clean(code, m.opts.ASCII), n, bad)
		}
	}
	return l.cut(w)
}

// tables are those of the screen that is shown.
func (m *Model) tables() []*table {
	if m.overview {
		return m.overviewTables()
	}
	v := m.view(m.at)
	switch f := v.frame; {
	case f == nil:
		return nil
	case f.recv != nil:
		return []*table{m.requestTable(v), m.queueTable(v), m.senderTable(v), m.eventTable(m.at, v.events)}
	case f.send != nil:
		return []*table{m.sendingTable(v), m.blockedTable(v), m.linkTable(v), m.eventTable(m.at, v.events)}
	default:
		return []*table{m.pendingTable(v), m.eventTable(m.at, v.events)}
	}
}

// number is a count in a cell of w columns.
func number(n int64, w int) span { return span{brief(n, w), plain} }

// brief is a count in at most w columns, where that can be: with commas, else
// without, else in thousands, millions and so on. Never is a digit left out.
func brief(n int64, w int) string {
	s := commas(n)
	if len(s) <= w {
		return s
	}
	if s = strconv.FormatInt(n, 10); len(s) <= w {
		return s
	}
	for _, unit := range "kMBT" {
		n /= 1000
		if s = strconv.FormatInt(n, 10) + string(unit); len(s) <= w {
			break
		}
	}
	return s
}

// foreign is text from elsewhere.
func (m *Model) foreign(s string) span { return span{clean(s, m.opts.ASCII), plain} }

func (m *Model) requestTable(v view) *table {
	f := v.frame
	s := f.recv
	at := func(row int) *wire.SnapshotRequest { return &s.Requests[f.active[row]] }
	state := func(row int) span { return m.stateOf(f, at(row)) }
	rate := func(row int) float64 { return f.reqRate[at(row).ReqID] }
	bytes := func(row int) float64 {
		if m.totals {
			return float64(writtenBytes(at(row)))
		}
		return rate(row)
	}
	cols := []column{
		{name: "REQUEST", wide: 10, grow: 2, most: 40, left: true,
			cell: func(row, _ int) span { return m.foreign(at(row).ReqID) },
			cmp:  by(func(row int) string { return at(row).ReqID })},
		{name: "SENDER", wide: 10, grow: 1, most: 32, left: true, drop: 1,
			cell: func(row, _ int) span { return m.foreign(at(row).Sender) },
			cmp:  by(func(row int) string { return at(row).Sender })},
		{name: "RES", wide: 5, cell: func(row, w int) span { return number(int64(reserved(s, at(row))), w) },
			cmp: by(func(row int) int { return reserved(s, at(row)) }), desc: true},
		{name: "ALLOC", wide: 6, drop: 2, cell: func(row, w int) span { return number(int64(at(row).Allocated), w) },
			cmp: by(func(row int) int { return at(row).Allocated }), desc: true},
		{name: "WRITTEN", wide: 7, cell: func(row, w int) span { return number(int64(at(row).Written), w) },
			cmp: by(func(row int) int { return at(row).Written }), desc: true},
		{name: "PROGRESS", wide: 12, grow: 1, most: 40, left: true, drop: 6,
			cell: func(row, w int) span { return span{m.progress(at(row), w), good} },
			cmp:  by(func(row int) float64 { return ratio(at(row).Written, at(row).TotalChunks) }), desc: true},
		{name: "RATE", wide: m.rateWide(), drop: 3,
			cell: func(row, _ int) span { return span{m.bytesCell(f, bytes(row)), plain} },
			cmp:  by(rate), desc: true},
		{name: "AGE", wide: 7, cell: func(row, _ int) span { return span{whole(at(row).AgeMS), plain} },
			cmp: by(func(row int) int64 { return at(row).AgeMS }), desc: true},
		{name: "IDLE", wide: 7, drop: 5, cell: func(row, _ int) span { return span{whole(at(row).IdleMS), plain} },
			cmp: by(func(row int) int64 { return at(row).IdleMS }), desc: true},
		{name: "STATE", wide: 8, left: true, cell: func(row, _ int) span { return state(row) },
			cmp: by(func(row int) int { return rank(state(row)) })},
	}
	if m.totals {
		cols[6].name = "BYTES"
		cols[6].cmp = by(bytes)
	}
	t := &table{
		name: "RESERVATIONS", empty: "idle: nothing is reserved", cols: cols, rows: len(f.active),
		total: len(f.active) + max(s.Totals.Requests-len(s.Requests), 0),
		key:   func(row int) string { return at(row).ReqID },
		has: func(row int, what string) bool {
			return contains(what, at(row).ReqID, at(row).Sender, state(row).text)
		},
		sort: 7, open: func(row int) { m.detail = m.detailOf(m.at, at(row).ReqID) },
	}
	if name := strings.ToUpper(m.opts.Sort); name != "" {
		if i := slices.IndexFunc(cols, func(c column) bool { return c.name == name }); i >= 0 {
			t.sort = i
		}
	}
	t.reversed = m.opts.Reverse
	if f.stalled > 0 {
		t.extra = t.extra.add(bad, " "+m.units.some(f.stalled, "STALLED")+" ")
	}
	if f.unread > 0 {
		t.extra = t.extra.add(bad, " "+m.units.some(f.unread, "UNREAD")+" ")
	}
	return t
}

// reserved is how many slots are promised to a request or held by it.
func reserved(s *wire.Snapshot, r *wire.SnapshotRequest) int {
	switch {
	case r.State == "queued":
		return 0
	case s.Admission == "none":
		return r.Allocated
	}
	return r.TotalChunks
}

func ratio(a, b int) float64 {
	if b <= 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// progress is a bar of what is written.
func (m *Model) progress(r *wire.SnapshotRequest, w int) string {
	n := max(w-2, 0)
	done := max(min(int(ratio(r.Written, r.TotalChunks)*float64(n)), n), 0)
	return "[" + strings.Repeat(m.glyphs.done, done) + strings.Repeat(m.glyphs.open, n-done) + "]"
}

// rateWide is how many columns a rate of bytes takes, or a size.
func (m *Model) rateWide() int {
	if m.units.raw {
		return 18
	}
	return 11
}

// bytesCell is a rate in a table, or with totals a size.
func (m *Model) bytesCell(f *frame, v float64) string {
	switch {
	case m.totals:
		return m.units.bytes(v)
	case !f.rates.known:
		return "-"
	case v == 0:
		return "0"
	}
	return m.units.bytes(v) + "/s"
}

// stateOf is the word for where a request is; trouble is in capitals.
func (m *Model) stateOf(f *frame, r *wire.SnapshotRequest) span {
	switch {
	case isStalled(r, m.opts.Stall):
		return span{"STALLED", bad}
	case isUnread(r, f.recv.Limits.ReadyTTLMS):
		return span{"UNREAD", bad}
	case r.State == "ready" && r.Taken:
		return span{"TAKEN", info}
	case r.State == "ready":
		return span{"ready", info}
	case r.State == "admitted" && r.Allocated == 0:
		return span{"granted", plain}
	case r.State == "admitted", r.State == "allocated":
		return span{"writing", good}
	}
	return m.foreign(r.State)
}

// rank sorts states: what is trouble first.
func rank(s span) int {
	return slices.Index([]string{"STALLED", "UNREAD", "granted", "writing", "TAKEN", "ready"}, s.text)
}

func (m *Model) queueTable(v view) *table {
	s := v.frame.recv
	at := func(row int) *wire.SnapshotWaiter { return &s.Queue[row] }
	fits := func(q wire.SnapshotWaiter) bool { return !q.AtShare && q.Need <= s.Slots.Free && q.Lacks > 0 }
	atShare := func(q wire.SnapshotWaiter) bool { return q.AtShare }
	t := &table{
		name: "ADMISSION QUEUE", empty: "no request waits", rows: len(s.Queue), total: s.Totals.Queue, sort: 0,
		cols: []column{
			{name: "POS", wide: 3, cell: func(row, w int) span { return number(int64(at(row).Pos), w) },
				cmp: by(func(row int) int { return at(row).Pos })},
			{name: "REQUEST", wide: 7, grow: 2, most: 40, left: true,
				cell: func(row, _ int) span { return m.foreign(at(row).ReqID) },
				cmp:  by(func(row int) string { return at(row).ReqID })},
			{name: "SENDER", wide: 9, grow: 1, most: 32, left: true, drop: 1,
				cell: func(row, _ int) span { return m.foreign(at(row).Sender) },
				cmp:  by(func(row int) string { return at(row).Sender })},
			{name: "NEED", wide: 5, cell: func(row, w int) span { return number(int64(at(row).Need), w) },
				cmp: by(func(row int) int { return at(row).Need }), desc: true},
			{name: "LACKS", wide: 5, cell: func(row, w int) span { return span{brief(int64(at(row).Lacks), w), warn} },
				cmp: by(func(row int) int { return at(row).Lacks })},
			{name: "WAIT ", wide: 7, cell: func(row, _ int) span {
				mark := " "
				switch {
				case fits(*at(row)):
					mark = "*"
				case at(row).AtShare:
					mark = "="
				}
				return span{whole(at(row).WaitedMS) + mark, plain}
			}, cmp: by(func(row int) int64 { return at(row).WaitedMS }), desc: true},
		},
		key: func(row int) string { return at(row).ReqID },
		has: func(row int, what string) bool {
			return contains(what, at(row).ReqID, at(row).Sender, "queued")
		},
		open: func(row int) { m.detail = m.detailOf(m.at, at(row).ReqID) },
	}
	if s.Totals.Queue > 0 {
		t.extra = text(fmt.Sprintf("(%s slots) ", m.units.count(int64(v.frame.need))))
	}
	switch {
	case slices.ContainsFunc(s.Queue, fits):
		t.foot = func(w int) line {
			free := commas(s.Slots.Free)
			behind := fmt.Sprintf("     * fits in the %s free, held behind #%s", free, commas(s.FirstInLine().Pos))
			return widest(w,
				text(behind).add(faint, " ("+overtake(s.Limits.Overtake)+")"),
				text("     * fits in the "+free+" free"))
		}
	case slices.ContainsFunc(s.Queue, atShare):
		t.foot = func(w int) line {
			return widest(w,
				text("     = lacks slots of its sender's share, "+commas(s.Limits.SenderShare)+": in nobody's way"),
				text("     = its sender is at its share"))
		}
	}
	return t
}

func (m *Model) senderTable(v view) *table {
	f := v.frame
	s := f.recv
	at := func(row int) *wire.SnapshotSender { return &s.Senders[row] }
	wait := func(row int) waiting { return f.waiting[at(row).Sender] }
	staging, any := m.stagings()
	blocked := 0
	for i := range s.Senders {
		blocked += s.Senders[i].Queued
	}
	atStaging := 0
	for i := range s.Senders {
		atStaging += len(staging[s.Senders[i].Sender].Blocked)
	}
	t := &table{
		name: "SENDERS", empty: "no sender", rows: len(s.Senders), total: s.Totals.Senders, sort: 2,
		key: func(row int) string { return at(row).Sender },
		has: func(row int, what string) bool { return contains(what, at(row).Sender) },
		cols: []column{
			{name: "SENDER", wide: 9, grow: 1, most: 40, left: true,
				cell: func(row, _ int) span { return m.foreign(at(row).Sender) },
				cmp:  by(func(row int) string { return at(row).Sender })},
			{name: "ACTIVE", wide: 6, drop: 3, cell: func(row, w int) span { return number(int64(at(row).Requests-at(row).Queued), w) },
				cmp: by(func(row int) int { return at(row).Requests - at(row).Queued }), desc: true},
			{name: "BLOCKED", wide: 7, cell: func(row, w int) span {
				return trouble(int64(at(row).Queued), w)
			}, cmp: by(func(row int) int { return at(row).Queued }), desc: true},
			{name: "SINCE", wide: 6, cell: func(row, _ int) span {
				if at(row).Queued == 0 {
					return span{"-", faint}
				}
				return span{whole(wait(row).oldest), warn}
			}, cmp: by(func(row int) int64 { return wait(row).oldest }), desc: true},
			{name: "HOLDS", wide: 5, drop: 2, cell: func(row, w int) span { return number(int64(at(row).Slots), w) },
				cmp: by(func(row int) int { return at(row).Slots }), desc: true},
		},
	}
	if any {
		of := func(row int) *wire.Staging {
			st := staging[at(row).Sender]
			return &st
		}
		since := func(row int) int64 { return oldestBlocked(of(row)) }
		t.cols = append(t.cols,
			column{name: "STAGING", wide: 9, drop: 4, cell: func(row, _ int) span {
				if of(row).Total == 0 {
					return span{"-", faint}
				}
				return span{commas(of(row).Used) + "/" + commas(of(row).Total), plain}
			}, cmp: by(func(row int) int { return of(row).Used }), desc: true},
			column{name: "STG", wide: 3, drop: 1, cell: func(row, w int) span {
				if of(row).Total == 0 {
					return span{"-", faint}
				}
				return trouble(int64(len(of(row).Blocked)), w)
			}, cmp: by(func(row int) int { return len(of(row).Blocked) }), desc: true},
			column{name: "SINCE", wide: 6, drop: 1, cell: func(row, _ int) span {
				if len(of(row).Blocked) == 0 {
					return span{"-", faint}
				}
				return span{whole(since(row)), warn}
			}, cmp: by(since), desc: true},
		)
	}
	t.cols = append(t.cols,
		column{name: "RATE", wide: m.rateWide(), drop: 5, cell: func(row, _ int) span {
			v := f.peerRate[at(row).Sender]
			if m.totals {
				v = float64(at(row).Bytes)
			}
			return span{m.bytesCell(f, v), plain}
		}, cmp: by(func(row int) float64 { return f.peerRate[at(row).Sender] }), desc: true},
		column{name: "LEASE", wide: 6, drop: 6, cell: func(row, _ int) span {
			switch {
			case !at(row).Attached:
				return span{"gone", warn}
			case at(row).LeaseLeftMS == 0:
				return span{"-", faint}
			}
			return span{whole(at(row).LeaseLeftMS), plain}
		}, cmp: by(func(row int) int64 { return at(row).LeaseLeftMS })},
	)
	if blocked > 0 {
		t.extra = t.extra.add(warn, "BLOCKED "+m.units.count(int64(blocked))+" ")
	}
	if atStaging > 0 {
		t.extra = t.extra.add(warn, "at staging "+m.units.count(int64(atStaging))+" ")
	}
	t.open = func(row int) { m.goTo(wire.KindSender, at(row).Sender, "") }
	return t
}

// trouble is a count that is good only while it is 0.
func trouble(n int64, w int) span {
	if n == 0 {
		return span{"0", faint}
	}
	return span{brief(n, w), bad}
}

func oldestBlocked(s *wire.Staging) int64 {
	var ms int64
	for i := range s.Blocked {
		ms = max(ms, s.Blocked[i].WaitingMS)
	}
	return ms
}

// stagings are the staging buffers of the pd-sends that are watched too, by
// name; whether there is any.
func (m *Model) stagings() (map[string]wire.Staging, bool) {
	all := map[string]wire.Staging{}
	for i := range m.sources {
		if f := m.view(i).frame; f != nil && f.send != nil {
			all[f.send.ID] = f.send.Staging
		}
	}
	return all, len(all) > 0
}

// goTo shows the screen of a program that is watched too, if it is.
func (m *Model) goTo(kind, id, endpoint string) {
	for i := range m.sources {
		f := m.view(i).frame
		if f == nil || f.life.kind != kind {
			continue
		}
		if id != "" && f.life.id == id || endpoint != "" && f.recv != nil && f.recv.Endpoint == endpoint {
			m.show(i)
			return
		}
	}
}
