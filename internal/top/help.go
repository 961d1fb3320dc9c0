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
func (m *Model) keyLine() line {
	h := helper(m.glyphs, m.w)
	return line{{h.ShortHelpView(keys.short(len(m.sources) > 1)), faint}}.cut(m.w)
}

// words say what the columns and states mean.
var words = []string{
	"The buffer's slots: ready (written, waits for its decoder), written (of requests that are not ready yet), held (has a",
	"chunk, not written), promised (reserved, no chunk yet), quarantined (somebody may still write to it), free. They add up.",
	"RES      slots reserved for the request          ALLOC    of those, with a chunk          WRITTEN  of those, committed",
	"NEED     slots a waiting request asks for        LACKS    slots to be freed before its turn, all ahead of it included",
	"*        it would fit into what is free, but waits behind others",
	"BLOCKED  a sender's requests that wait for admission; STG.BLK its batches that wait for its own staging buffer",
	"SINCE    how long the oldest of them has waited  HOLDS    slots promised to and held by the sender's requests",
	"STALLED  not all is written and nothing was heard of it for --stall",
	"UNREAD   ready for 30s (or half of --ready-ttl) and nobody takes it; TAKEN: a decoder is reading it",
	"STALE    nothing comes from the endpoint any more: these are the last numbers known",
	"p50 p99 max are of the last minute; wait: first batch to admission; time: first batch to ready; write: between the two.",
	"Rates are by the source's own clock, of the last second or refresh; the line of bars has a second each, newest at right.",
	"Filter: part of a request, sender or state, in whatever case; ! in front: what has it not. Times are UTC. +/- sets the delay.",
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
	return append(lines, line{{"esc or ? closes this, j and k scroll", faint}})
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
		for _, part := range wrap(s, m.w) {
			lines = append(lines, text(part))
		}
	}
	return lines
}

// wrap breaks plain text at spaces; what follows is set in.
func wrap(s string, w int) []string {
	var parts []string
	for len(s) > w {
		at := strings.LastIndexByte(s[:w+1], ' ')
		if at <= 9 {
			at = w
		}
		parts = append(parts, strings.TrimRight(s[:at], " "))
		s = "         " + strings.TrimLeft(s[at:], " ")
	}
	return append(parts, s)
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
