package top

import (
	"fmt"

	"github.com/pd-tools/pd-tools/wire"
)

// proxyFigures are the lines above a proxy's tables.
func (m *Model) proxyFigures(f *frame, w int) []line {
	c := &f.proxy.Counters
	failed := m.rate(f.rates, f.rates.failed)
	if m.totals {
		failed = m.units.count(c.Failed)
	}
	l := label("Failed").add(strong, pad(failed, 12, false)).add(plain, fmt.Sprintf("  pending %s", m.units.count(int64(f.proxy.Pending))))
	if f.oldest > 0 {
		l = l.add(plain, ", oldest "+whole(f.oldest))
	}
	l = m.ends(w, l, m.tally(nil, "failed", c.Failed, bad), nil)
	faults := text(pad("Faults", labelWide-2, true))
	faults = m.tally(faults, "duplicates", c.Duplicates, warn)
	faults = m.tally(faults, "late failures", c.LateFailures, warn)
	faults = m.tally(faults, "forgotten", c.Forgotten, bad)
	faults = m.tally(faults, "bad frames", c.BadFrames, bad)
	return []line{m.throughputLine("Ready", f, c.Ready, w), l, faults.cut(w)}
}

func (m *Model) pendingTable(v view) *table {
	s := v.frame.proxy
	at := func(row int) *wire.ProxyRequest { return &s.Waiting[row] }
	return &table{
		name: "PENDING", empty: "no request waits for a notification", rows: len(s.Waiting), total: s.Pending, sort: 3,
		key:  func(row int) string { return at(row).ReqID },
		has:  func(row int, what string) bool { return contains(what, at(row).ReqID) },
		open: func(row int) { m.detail = m.detailOf(m.at, at(row).ReqID) },
		cols: []column{
			{name: "REQUEST", wide: 10, grow: 1, most: 80, left: true, cell: func(row, _ int) span { return m.foreign(at(row).ReqID) },
				cmp: by(func(row int) string { return at(row).ReqID })},
			{name: "HAS", wide: 6, cell: func(row, w int) span { return number(int64(at(row).Notifs), w) },
				cmp: by(func(row int) int { return at(row).Notifs }), desc: true},
			{name: "OF", wide: 6, cell: func(_, w int) span { return number(int64(s.Expect), w) }},
			{name: "AGE", wide: 8, cell: func(row, _ int) span { return span{whole(at(row).AgeMS), plain} },
				cmp: by(func(row int) int64 { return at(row).AgeMS }), desc: true},
		},
	}
}
