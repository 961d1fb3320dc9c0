package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

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

// progress is a bar of what is written.
func (m *Model) progress(r *wire.SnapshotRequest, w int) string {
	n := max(w-2, 0)
	done := max(min(int(ratio(r.Written, r.TotalChunks)*float64(n)), n), 0)
	return "[" + strings.Repeat(m.glyphs.done, done) + strings.Repeat(m.glyphs.open, n-done) + "]"
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
