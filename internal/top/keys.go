package top

import "github.com/charmbracelet/bubbles/key"

// keyMap has every key once: the foot line and the help are made of it.
type keyMap struct {
	quit, interrupt, help, suspend, redraw   key.Binding
	up, down, pageUp, pageDown, first, last  key.Binding
	pane, back, panes, zoom, enter, esc      key.Binding
	sort, reverse, filter, pause, slow, fast key.Binding
	units, totals, next, previous, overview  key.Binding
}

func bind(shown, does string, keys ...string) key.Binding {
	return key.NewBinding(key.WithKeys(keys...), key.WithHelp(shown, does))
}

var keys = keyMap{
	quit:      bind("q", "quit", "q"),
	interrupt: bind("^C", "quit (exit 130)", "ctrl+c"),
	help:      bind("?", "help", "?", "h"),
	suspend:   bind("^Z", "suspend", "ctrl+z"),
	redraw:    bind("^L", "redraw", "ctrl+l"),
	up:        bind("k/up", "row up", "k", "up"),
	down:      bind("j/down", "row down", "j", "down"),
	pageUp:    bind("PgUp", "page up", "pgup", "ctrl+b"),
	pageDown:  bind("PgDn", "page down", "pgdown", "ctrl+f"),
	first:     bind("g/Home", "first row", "g", "home"),
	last:      bind("G/End", "last row", "G", "end"),
	pane:      bind("tab", "pane", "tab"),
	back:      bind("S-tab", "pane before", "shift+tab"),
	panes:     bind("1-4", "pane; again: zoom", "1", "2", "3", "4"),
	zoom:      bind("z", "zoom the pane", "z"),
	enter:     bind("enter", "detail", "enter"),
	esc:       bind("esc", "back, no filter", "esc"),
	sort:      bind("s", "sort", "s"),
	reverse:   bind("S", "reverse", "S"),
	filter:    bind("/", "filter", "/"),
	pause:     bind("p", "pause", "p", " "),
	slow:      bind("+", "longer delay", "+", "="),
	fast:      bind("-", "shorter delay", "-", "_"),
	units:     bind("u", "units", "u"),
	totals:    bind("t", "totals", "t"),
	next:      bind("c", "next endpoint", "c"),
	previous:  bind("C", "endpoint before", "C"),
	overview:  bind("0/o", "overview", "0", "o"),
}

// short is the foot line: what counts most first, since the rest is cut off.
func (k *keyMap) short(several bool) []key.Binding {
	b := []key.Binding{k.quit, k.help, k.sort, k.filter, k.pause, k.pane, k.enter}
	if several {
		b = append(b, k.next)
	}
	return append(b, k.units, k.totals, bind("+/-", "delay"))
}

// inDetail and inHelp are the foot line there.
func (k *keyMap) inDetail() []key.Binding {
	return []key.Binding{k.esc, k.down, k.up, k.pause, k.units, k.help, k.quit}
}

func (k *keyMap) inHelp() []key.Binding {
	return []key.Binding{k.esc, k.down, k.up, k.pageDown, k.pageUp, k.quit}
}

// full is the help, in columns.
func (k *keyMap) full() [][]key.Binding {
	return [][]key.Binding{
		{k.up, k.down, k.pageUp, k.pageDown, k.first, k.last, k.enter, k.esc},
		{k.pane, k.back, k.panes, k.zoom, k.next, k.previous, k.overview, k.help},
		{k.sort, k.reverse, k.filter, k.pause, k.slow, k.fast, k.units, k.totals},
		{k.redraw, k.suspend, k.quit, k.interrupt},
	}
}
