package top

import (
	"strings"

	"github.com/charmbracelet/bubbles/help"
	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
)

// helper is the library's, without styles: those would ask the terminal.
func helper(g *glyphs, w int) help.Model {
	return help.Model{Width: w, ShortSeparator: "  ", FullSeparator: "   ", Ellipsis: g.dots, Styles: help.Styles{
		ShortKey: lipgloss.Style{}, ShortDesc: lipgloss.Style{}, FullKey: lipgloss.Style{}, FullDesc: lipgloss.Style{},
	}}
}

// keyLine is the foot line.
func (m *Model) keyLine(b []key.Binding) line {
	h := helper(m.glyphs, m.w)
	return line{{h.ShortHelpView(b), faint}}.cut(m.w)
}

// words say what the columns and states mean.
var words = []string{
	"The buffer's slots are, and add up to all of them:",
	"  ready        written, of a request that waits for its decoder",
	"  written      of a request that is not ready yet",
	"  alloc        has a chunk that is not written yet; with what is written: held",
	"  promised     reserved for a request, has no chunk yet",
	"  quarantined  somebody gone may still write to it",
	"  peak         the most that were not free at one time",
	"",
	"RES      slots reserved for the request",
	"ALLOC    of those, with a chunk",
	"WRITTEN  of those, committed",
	"RATE     what was written of it in the last second, or since the refresh before",
	"IDLE     since a message last named it",
	"NEED     slots a waiting request asks for",
	"LACKS    slots still to be freed before its turn, all ahead of it included",
	"*        it would fit into what is free, but waits behind others",
	"BLOCKED  the sender's requests that wait for admission here; SINCE: the oldest",
	"STG      its batches that wait for its own staging buffer; SINCE: the oldest.",
	"         Known where that pd-send's monitor is watched too",
	"HOLDS    slots promised to and held by the sender's requests",
	"LEASE    until the sender's lease ends, if nothing is heard of it",
	"",
	"STALLED  not all is written, and nothing was heard of it for --stall",
	"UNREAD   ready for 30s (or half of --ready-ttl) and nobody takes it",
	"TAKEN    a decoder is reading it",
	"STALE    nothing comes from the endpoint: these are the last numbers known;",
	"         of a pd-send's receiver: it is watched too, and is so",
	"REFUSED  the same, for our key is not taken there, or theirs not here",
	"DRAINING it was told to stop: new requests are refused, those it has go on",
	"SILENT   a pd-send is attached there and has heard nothing for 10s",
	"",
	"p50, p99 and max are of the last minute. waited: first batch to admission;",
	"to ready: first batch to ready; write: admission to ready. Rates are by the",
	"source's own clock. The line of bars has a second each, the newest at right.",
	"A filter is part of a request, sender or state; with ! in front, what has it",
	"not. Times are UTC.",
}

// helpScreen is the whole screen of help.
func (m *Model) helpScreen() []line {
	g := m.glyphs
	lines := []line{line{{g.strong + g.strong, plain}, {" pd-top: keys ", strong}}}
	lines[0] = lines[0].add(plain, strings.Repeat(g.strong, max(m.w-lines[0].width(), 0)))
	lines = append(lines, clip(m.helpBody(), m.scroll, m.h-2)...)
	for len(lines) < m.h-1 {
		lines = append(lines, nil)
	}
	return append(lines, m.keyLine(keys.inHelp()))
}

func (m *Model) helpBody() []line {
	var lines []line
	// Where the columns do not fit, they stand below each other.
	groups := keys.full()
	h := helper(m.glyphs, 0)
	wide := h.FullHelpView(groups)
	if lipgloss.Width(wide) > m.w {
		wide = h.FullHelpView([][]key.Binding{append(groups[0], groups[1]...), append(groups[2], groups[3]...)})
	}
	for _, s := range strings.Split(wide, "\n") {
		lines = append(lines, text(strings.TrimRight(s, " ")))
	}
	lines = append(lines, nil)
	for _, s := range words {
		lines = append(lines, text(s))
	}
	return lines
}

func (m *Model) scrollHelp(msg tea.KeyMsg) {
	most := max(len(m.helpBody())-(m.h-2), 0)
	switch {
	case key.Matches(msg, keys.up):
		m.scroll--
	case key.Matches(msg, keys.down):
		m.scroll++
	case key.Matches(msg, keys.pageUp):
		m.scroll -= m.h - 3
	case key.Matches(msg, keys.pageDown):
		m.scroll += m.h - 3
	case key.Matches(msg, keys.first):
		m.scroll = 0
	case key.Matches(msg, keys.last):
		m.scroll = most
	}
	m.scroll = max(min(m.scroll, most), 0)
}
