package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

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
