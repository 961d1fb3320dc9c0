package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// overviewTop is the line above the overview.
func (m *Model) overviewTop() []line {
	states := map[string]int{}
	styles := map[string]style{"LIVE": good}
	var newest time.Time
	for i := range m.sources {
		v := m.view(i)
		word, st := v.word()
		if word == "RESTARTED" {
			word = "LIVE"
		} else {
			styles[word] = st
		}
		states[word]++
		if v.frame != nil && v.frame.life.time.After(newest) {
			newest = v.frame.life.time
		}
	}
	l := line{{"pd-top", strong}, {fmt.Sprintf("  %d endpoints  every %s", len(m.sources), shortDuration(m.delay)), plain}}
	right := text(clock(newest))
	for _, word := range []string{"LIVE", "DRAINING", "REFUSED", "STALE", "WAITING"} {
		if n := states[word]; n > 0 || word == "LIVE" {
			right = right.add(styles[word], fmt.Sprintf("  %d %s", n, word))
		}
	}
	if m.frozen != nil {
		right = right.add(warn, "  PAUSED")
	}
	return []line{spread(l, right, m.w)}
}

// summary is a source in one line.
type summary struct {
	kind, id, state string
	style           style
	part, all       int // slots in use
	queue, blocked  int64
	rate            string
	perSecond       float64
	oldest          int64
	note            string
}

func (m *Model) summary(i int) summary {
	v := m.view(i)
	s := summary{kind: "-", id: strings.TrimPrefix(v.endpoint, "tcp://"), rate: "-", queue: -1, blocked: -1, oldest: -1}
	s.state, s.style = v.word()
	f := v.frame
	if f == nil {
		s.note = v.status.Err
		return s
	}
	s.kind, s.id = strings.Replace(f.life.kind, "receiver", "recv", 1), f.life.id
	s.oldest = f.oldest
	s.perSecond, s.rate = f.rates.bytes, m.byteRate(f.rates, f.rates.bytes)
	notes := m.troubles(f)
	switch {
	case f.recv != nil:
		s.part, s.all = f.recv.Slots.Total-f.recv.Slots.Free, f.recv.Slots.Total
		s.queue, s.blocked = int64(f.recv.Totals.Queue), int64(f.recv.Totals.Queue)
		if first := f.recv.FirstInLine(); first != nil {
			notes = append(notes, fmt.Sprintf("first needs %s, lacks %s", commas(first.Need), commas(first.Lacks)))
		}
	case f.send != nil:
		s.kind = "send"
		s.part, s.all = f.send.Staging.Used, f.send.Staging.Total
		s.queue, s.blocked = int64(f.need), int64(f.send.Totals.Blocked)
		notes = nil // by name, not counted
		for i := range f.send.Receivers {
			if word := m.linkTrouble(&f.send.Receivers[i]); word != "" {
				notes = append(notes, linkName(f.send, i)+" "+word)
			}
		}
		if n := f.send.Counters.Failed; n > 0 {
			notes = append(notes, m.units.count(n)+" failed")
		}
	default:
		s.queue = int64(f.proxy.Pending)
		s.perSecond, s.rate = f.rates.ready, m.rate(f.rates, f.rates.ready)
		if n := f.proxy.Counters.Failed; n > 0 {
			notes = append(notes, m.units.count(n)+" failed")
		}
	}
	switch word, _ := v.word(); {
	case word == "REFUSED":
		notes = append([]string{strings.TrimPrefix(v.status.Err, v.endpoint+" ")}, notes...)
	case v.status.State == Stale:
		notes = append([]string{"heard " + clock(f.life.time)}, notes...)
	}
	s.note = strings.Join(notes, ", ")
	return s
}

// troubles are words for what is wrong with a program's requests, receivers or
// slots, each with how many there are.
func (m *Model) troubles(f *frame) (words []string) {
	add := func(n int, word string) {
		if n > 0 {
			words = append(words, m.units.some(n, word))
		}
	}
	switch {
	case f.recv != nil:
		add(f.stalled, "STALLED")
		add(f.unread, "UNREAD")
		add(f.recv.Slots.Quarantined, "QUARANTINED")
	case f.send != nil:
		n := map[string]int{}
		for i := range f.send.Receivers {
			n[m.linkTrouble(&f.send.Receivers[i])]++
		}
		delete(n, "")
		for _, word := range slices.Sorted(maps.Keys(n)) {
			add(n[word], word)
		}
	}
	return words
}

// known is a count, or "-" where there is none.
func known(n int64, st style, w int) span {
	switch {
	case n < 0:
		return span{"-", faint}
	case n == 0:
		return span{"0", plain}
	}
	return span{brief(n, w), st}
}

func (m *Model) overviewTables() []*table {
	all := make([]summary, len(m.sources))
	for i := range all {
		all[i] = m.summary(i)
	}
	at := func(row int) *summary { return &all[row] }
	endpoint := func(row int) string { return strings.TrimPrefix(m.opts.Endpoints[row], "tcp://") }
	used := func(row int) float64 { return ratio(at(row).part, at(row).all) }
	longest := 0
	for i := range all {
		all[i].note = clean(all[i].note, m.opts.ASCII)
		longest = max(longest, width(all[i].note))
	}
	t := &table{
		name: "ENDPOINTS", empty: "none", rows: len(all), sort: 0,
		key: func(row int) string { return m.opts.Endpoints[row] },
		has: func(row int, what string) bool {
			return contains(what, at(row).kind, at(row).id, endpoint(row), at(row).state, at(row).note)
		},
		open: func(row int) { m.show(row) },
		cols: []column{
			{name: "#", wide: 3, cell: func(row, w int) span { return number(int64(row+1), w) }, cmp: by(func(row int) int { return row })},
			{name: "KIND", wide: 5, left: true, cell: func(row, _ int) span { return m.foreign(at(row).kind) },
				cmp: by(func(row int) string { return at(row).kind })},
			{name: "ID", wide: 10, grow: 1, most: 24, left: true, cell: func(row, _ int) span { return span{clean(at(row).id, m.opts.ASCII), strong} },
				cmp: by(func(row int) string { return at(row).id })},
			{name: "ENDPOINT", wide: 14, grow: 1, most: 32, left: true, drop: 4, cell: func(row, _ int) span { return m.foreign(endpoint(row)) },
				cmp: by(endpoint)},
			{name: "STATE", wide: 9, left: true, cell: func(row, _ int) span { return span{at(row).state, at(row).style} },
				cmp: by(func(row int) string { return at(row).state })},
			{name: "USED", wide: 5, cell: func(row, _ int) span {
				st := plain
				if used(row) >= 0.95 {
					st = warn
				}
				return span{percent(at(row).part, at(row).all), st}
			}, cmp: by(used), desc: true},
			{name: "QUEUE", wide: 6, cell: func(row, w int) span { return known(at(row).queue, warn, w) },
				cmp: by(func(row int) int64 { return at(row).queue }), desc: true},
			{name: "BLOCKED", wide: 7, drop: 1, cell: func(row, w int) span { return known(at(row).blocked, bad, w) },
				cmp: by(func(row int) int64 { return at(row).blocked }), desc: true},
			{name: "RATE", wide: m.rateWide(), cell: func(row, _ int) span { return span{at(row).rate, plain} },
				cmp: by(func(row int) float64 { return at(row).perSecond }), desc: true},
			{name: "OLDEST", wide: 7, drop: 2, cell: func(row, _ int) span {
				if at(row).oldest < 0 {
					return span{"-", faint}
				}
				return span{whole(at(row).oldest), plain}
			}, cmp: by(func(row int) int64 { return at(row).oldest }), desc: true},
			{name: "NOTE", wide: min(longest, 12), full: longest, grow: 2, most: 200, left: true, prose: true, drop: 3, cell: func(row, _ int) span {
				return span{at(row).note, bad}
			}},
		},
	}
	// The chosen row in full: there may be no room for its columns.
	t.foot = func(w int) line {
		p := &m.screen().panes[0]
		if p.index >= len(p.order) {
			return nil
		}
		row := p.order[p.index]
		l := text("   " + m.foreign(endpoint(row)).text)
		if note := at(row).note; note != "" {
			l = l.add(bad, "  "+note)
		}
		return l
	}
	return []*table{t, m.eventTable(-1, m.allEvents())}
}

// allEvents are the newest of all sources, by time.
func (m *Model) allEvents() []entry {
	const each = 200
	var all []entry
	for i := range m.sources {
		e := m.view(i).events
		all = append(all, e[max(len(e)-each, 0):]...)
	}
	slices.SortStableFunc(all, func(a, b entry) int { return a.time.Compare(b.time) })
	return all
}
