package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

// eventTable lists the events, newest first. src is whose they are; -1: of all.
func (m *Model) eventTable(src int, events []entry) *table {
	if m.filter == "" && slices.ContainsFunc(events, isFolded) {
		events = slices.DeleteFunc(slices.Clone(events), isFolded)
	}
	at := func(row int) *entry { return &events[len(events)-1-row] }
	t := &table{
		name: "EVENTS", empty: "nothing since pd-top began to watch", rows: len(events), sort: -1, nameless: true,
		key: func(row int) string { return strconv.Itoa(at(row).src) + "/" + strconv.FormatInt(at(row).seq, 10) },
		has: func(row int, what string) bool { return at(row).has(what) },
		open: func(row int) {
			if id := at(row).req; id != "" {
				m.detail = m.detailOf(at(row).src, id)
			}
		},
		cols: []column{
			{name: "TIME", wide: 12, left: true, cell: func(row, _ int) span {
				return span{at(row).time.UTC().Format("15:04:05.000"), faint}
			}},
			{name: "LEVEL", wide: 4, left: true, cell: func(row, _ int) span {
				if at(row).bad {
					return span{"WARN", bad}
				}
				return span{"INFO", plain}
			}},
			{name: "EVENT", wide: 20, grow: 1, most: 10_000, left: true, prose: true, cell: func(row, w int) span {
				return span{m.say(at(row), w), plain}
			}},
		},
	}
	if src < 0 {
		who := column{name: "WHO", wide: 12, left: true, cell: func(row, _ int) span { return m.foreign(m.idOf(at(row).src)) }}
		t.cols = slices.Insert(t.cols, 2, who)
	}
	return t
}

func isFolded(e entry) bool { return e.folded }

// idOf names a source.
func (m *Model) idOf(i int) string {
	v := m.view(i)
	if v.frame != nil && v.frame.life.id != "" {
		return v.frame.life.id
	}
	return v.endpoint
}

// has is for the filter.
func (e *entry) has(what string) bool {
	if e.wire == nil {
		return contains(what, e.req, e.text)
	}
	return contains(what, e.req, e.wire.Event, e.wire.Sender, e.wire.Code, e.wire.Reason)
}

// say is an event in words; the request stands first and is shortened so that
// the words are seen.
func (m *Model) say(e *entry, w int) string {
	c := func(s string) string { return clean(s, m.opts.ASCII) }
	var id string
	if e.req != "" {
		id = m.glyphs.shorten(c(e.req), max(w/3, 10)) + " "
	}
	if e.wire == nil {
		return id + c(e.text)
	}
	return id + c(eventWords(e.wire, m.units))
}

// ending says what became of many requests, of which e is one.
func ending(e *wire.EventEntry) string { return strings.ReplaceAll(e.Event, "_", " ") + why(e) }

// why has the code and the reason, where there are any.
func why(e *wire.EventEntry) string {
	var s string
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// eventWords says what has happened, without to whom.
func eventWords(e *wire.EventEntry, u units) string {
	n := commas(e.TotalChunks)
	var s string
	switch e.Event {
	case "queued":
		s = fmt.Sprintf("queued for %s slots", n)
	case "admitted":
		s = fmt.Sprintf("admitted with %s slots", n)
		if e.WaitedMS >= 1 {
			s += ", waited " + millis(e.WaitedMS)
		}
	case "allocated":
		s = fmt.Sprintf("allocated: all %s chunks have a slot", n)
	case "ready":
		s = fmt.Sprintf("ready after %s, %s chunks, %s", millis(e.TookMS), commas(e.Chunks), u.bytes(float64(e.Bytes)))
	case "released":
		s = fmt.Sprintf("released %s slots after %s", commas(e.Chunks), millis(e.TookMS))
	case "timed_out":
		s = "timed out, waited " + millis(e.WaitedMS)
	default:
		s = strings.ReplaceAll(e.Event, "_", " ")
		if e.TookMS > 0 {
			s += " after " + millis(e.TookMS)
		}
	}
	s += why(e)
	if e.Sender != "" {
		s += " (" + e.Sender + ")"
	}
	return s
}
