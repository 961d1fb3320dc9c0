package top

import (
	"fmt"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

// senderFigures are the lines above a sender's tables.
func (m *Model) senderFigures(f *frame, w int) []line {
	s := f.send
	return []line{
		m.stagingLine(s, w),
		m.throughputLine("Write", f, s.Counters.SentBytes, w),
		m.ends(w, took(label("Admit").add(plain, "            "), "waited", seen(s.Counters.Ready, s.AdmitWait), w),
			m.tally(nil, "waiting", int64(f.need), warn), nil),
		m.sentLine(f, w),
		m.noticesLine(s, w),
	}
}

// stagingLine is the staging buffer as a bar.
func (m *Model) stagingLine(s *wire.SenderSnapshot, w int) line {
	st := &s.Staging
	if st.Total == 0 {
		return label("Staging").add(plain, "none before a receiver is attached").cut(w)
	}
	size := fmt.Sprintf(" %s of %s slots x %s", m.units.count(int64(st.Used)), m.units.count(int64(st.Total)), m.units.bytes(float64(st.Bytes)))
	right := text(size + " " + pad(percent(st.Used, st.Total), 4, false))
	if n := s.Totals.Blocked; n > 0 {
		right = right.add(bad, "  BLOCKED "+m.units.count(int64(n)))
	}
	n := max(w-labelWide-2-right.width(), 4)
	parts := share([]int{st.Used, st.Total - st.Used}, n)
	l := label("Staging").add(plain, "[").add(good, strings.Repeat(m.glyphs.written, parts[0])).
		add(faint, strings.Repeat(m.glyphs.free, parts[1])).add(plain, "]")
	return l.join(right).cut(w)
}

func (m *Model) sentLine(f *frame, w int) line {
	s := f.send
	l := m.becameReady(f, s.Counters.Ready, s.ReadyTime, w)
	failed := m.tally(nil, "failed", s.Counters.Failed, bad)
	return m.ends(w, l, m.tally(failed, "cancelled", s.Counters.Cancelled, warn), failed, nil)
}

func (m *Model) noticesLine(s *wire.SenderSnapshot, w int) line {
	c := &s.Counters
	l := label("Sent").add(plain, fmt.Sprintf("%s chunks  shared %s", pad(m.units.count(c.SentChunks), 12, false), m.units.count(c.SharedChunks)))
	l = m.tally(l, "input faults", c.Faults, bad)
	l = m.tally(l, "undelivered", c.Undelivered, bad)
	return m.ends(w, l, took(nil, "write", seen(s.Counters.Ready, s.WriteTime), w), nil)
}

// linkName is the endpoint of a receiver by its position.
func linkName(s *wire.SenderSnapshot, i int) string {
	if i < 0 || i >= len(s.Receivers) {
		return "-"
	}
	return strings.TrimPrefix(s.Receivers[i].Endpoint, "tcp://")
}

// silentAfter is for how long nothing came from a receiver before that is worth
// a word: pd-send asks it for a sign of life every 5s, or oftener.
const silentAfter = 10_000 // ms

// linkTrouble says in capitals what is wrong with a pd-send's receiver; nothing
// if all is well. One that has stopped is attached until the pd-send gives it
// up.
func (m *Model) linkTrouble(l *wire.SenderLink) string {
	switch {
	case l.State != "attached":
		return strings.ToUpper(clean(l.State, m.opts.ASCII))
	case m.isStale(l.Endpoint):
		return "STALE"
	case l.HeardMS >= silentAfter:
		return "SILENT"
	}
	return ""
}

// isStale is whether the receiver there is watched too, and told nothing lately.
func (m *Model) isStale(endpoint string) bool {
	for i := range m.sources {
		if v := m.view(i); v.status.State == Stale && v.frame != nil && v.frame.recv != nil && v.frame.recv.Endpoint == endpoint {
			return true
		}
	}
	return false
}

func (m *Model) sendingTable(v view) *table {
	f := v.frame
	s := f.send
	at := func(row int) *wire.SenderRequest { return &s.Requests[row] }
	rate := func(row int) float64 { return f.reqRate[at(row).ReqID] }
	blocked := make(map[string]int, len(s.Staging.Blocked))
	for i := range s.Staging.Blocked {
		blocked[s.Staging.Blocked[i].ReqID] += s.Staging.Blocked[i].Chunks
	}
	state := func(row int) span {
		switch {
		case at(row).State == "waiting":
			return span{"WAITING", warn}
		case blocked[at(row).ReqID] > 0:
			return span{"BLOCKED", bad}
		}
		return m.foreign(at(row).State)
	}
	left := func(row int) int64 { return max(at(row).TotalChunks-at(row).Sent-at(row).Shared, 0) }
	return &table{
		name: "REQUESTS", empty: "idle: no request has begun", rows: len(s.Requests), total: s.Totals.Requests, sort: 7,
		key: func(row int) string { return at(row).ReqID },
		has: func(row int, what string) bool {
			return contains(what, at(row).ReqID, linkName(s, at(row).Receiver), state(row).text)
		},
		open: func(row int) { m.detail = m.detailOf(m.at, at(row).ReqID) },
		cols: []column{
			{name: "REQUEST", wide: 10, grow: 2, most: 40, left: true,
				cell: func(row, _ int) span { return m.foreign(at(row).ReqID) },
				cmp:  by(func(row int) string { return at(row).ReqID })},
			{name: "RECEIVER", wide: 14, grow: 1, most: 32, left: true, drop: 1,
				cell: func(row, _ int) span { return m.foreign(linkName(s, at(row).Receiver)) },
				cmp:  by(func(row int) int { return at(row).Receiver })},
			{name: "CHUNKS", wide: 7, cell: func(row, w int) span { return number(at(row).TotalChunks, w) },
				cmp: by(func(row int) int64 { return at(row).TotalChunks }), desc: true},
			{name: "SENT", wide: 6, cell: func(row, w int) span { return number(at(row).Sent, w) },
				cmp: by(func(row int) int64 { return at(row).Sent }), desc: true},
			{name: "SHARED", wide: 6, drop: 3, cell: func(row, w int) span { return number(at(row).Shared, w) },
				cmp: by(func(row int) int64 { return at(row).Shared }), desc: true},
			{name: "LEFT", wide: 6, drop: 4, cell: func(row, w int) span { return number(left(row), w) }, cmp: by(left), desc: true},
			{name: "RATE", wide: m.rateWide(), drop: 2, cell: func(row, _ int) span {
				if m.totals {
					return span{m.units.bytes(float64(at(row).Bytes)), plain}
				}
				return span{m.bytesCell(f, rate(row)), plain}
			}, cmp: by(rate), desc: true},
			{name: "AGE", wide: 7, cell: func(row, _ int) span { return span{whole(at(row).AgeMS), plain} },
				cmp: by(func(row int) int64 { return at(row).AgeMS }), desc: true},
			{name: "STATE", wide: 9, left: true, cell: func(row, _ int) span { return state(row) },
				cmp: by(func(row int) string { return state(row).text })},
		},
	}
}

func (m *Model) blockedTable(v view) *table {
	s := v.frame.send
	at := func(row int) *wire.Blocked { return &s.Staging.Blocked[row] }
	return &table{
		name: "BLOCKED BATCHES", empty: "no batch waits for staging", rows: len(s.Staging.Blocked), total: s.Totals.Blocked, sort: -1,
		key:  func(row int) string { return at(row).ReqID },
		has:  func(row int, what string) bool { return contains(what, at(row).ReqID, linkName(s, at(row).Receiver)) },
		open: func(row int) { m.detail = m.detailOf(m.at, at(row).ReqID) },
		cols: []column{
			{name: "REQUEST", wide: 8, grow: 2, most: 40, left: true, cell: func(row, _ int) span { return m.foreign(at(row).ReqID) },
				cmp: by(func(row int) string { return at(row).ReqID })},
			{name: "RECEIVER", wide: 8, grow: 1, most: 32, left: true, drop: 1,
				cell: func(row, _ int) span { return m.foreign(linkName(s, at(row).Receiver)) },
				cmp:  by(func(row int) int { return at(row).Receiver })},
			{name: "CHUNKS", wide: 6, cell: func(row, w int) span { return number(int64(at(row).Chunks), w) },
				cmp: by(func(row int) int { return at(row).Chunks }), desc: true},
			{name: "SINCE", wide: 7, cell: func(row, _ int) span { return span{whole(at(row).WaitingMS), warn} },
				cmp: by(func(row int) int64 { return at(row).WaitingMS }), desc: true},
		},
	}
}

func (m *Model) linkTable(v view) *table {
	f := v.frame
	s := f.send
	at := func(row int) *wire.SenderLink { return &s.Receivers[row] }
	return &table{
		name: "RECEIVERS", empty: "no receiver", rows: len(s.Receivers), sort: -1,
		key:  func(row int) string { return at(row).Endpoint },
		has:  func(row int, what string) bool { return contains(what, at(row).Endpoint, at(row).State) },
		open: func(row int) { m.goTo(wire.KindReceiver, "", at(row).Endpoint) },
		cols: []column{
			{name: "RECEIVER", wide: 12, grow: 1, most: 40, left: true, cell: func(row, _ int) span { return m.foreign(linkName(s, row)) },
				cmp: by(func(row int) string { return at(row).Endpoint })},
			{name: "STATE", wide: 10, left: true, drop: 1, cell: func(row, _ int) span {
				if word := m.linkTrouble(at(row)); word != "" {
					return span{word, bad}
				}
				return span{"attached", good}
			}, cmp: by(func(row int) string { return m.linkTrouble(at(row)) }), desc: true},
			{name: "REQ", wide: 5, drop: 4, cell: func(row, w int) span { return number(int64(at(row).Requests), w) },
				cmp: by(func(row int) int { return at(row).Requests }), desc: true},
			{name: "STAGING", wide: 7, drop: 3, cell: func(row, w int) span { return number(int64(at(row).Staging), w) },
				cmp: by(func(row int) int { return at(row).Staging }), desc: true},
			{name: "BLOCKED", wide: 7, cell: func(row, w int) span { return trouble(int64(at(row).Blocked), w) },
				cmp: by(func(row int) int { return at(row).Blocked }), desc: true},
			{name: "HEARD", wide: 6, drop: 2, cell: func(row, _ int) span {
				if at(row).HeardMS < 0 {
					return span{"never", warn}
				}
				return span{whole(at(row).HeardMS), plain}
			}, cmp: by(func(row int) int64 { return at(row).HeardMS }), desc: true},
			{name: "RATE", wide: m.rateWide(), drop: 5, cell: func(row, _ int) span {
				v := f.peerRate[at(row).Endpoint]
				if m.totals {
					v = float64(at(row).Bytes)
				}
				return span{m.bytesCell(f, v), plain}
			}, cmp: by(func(row int) float64 { return f.peerRate[at(row).Endpoint] }), desc: true},
			{name: "ENGINE", wide: 6, left: true, drop: 6, cell: func(row, _ int) span { return m.foreign(at(row).Engine) },
				cmp: by(func(row int) string { return at(row).Engine })},
		},
	}
}
