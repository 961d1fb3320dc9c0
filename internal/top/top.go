// Package top is what pd-top shows: a model that takes snapshots, events and
// keys, and a text for the terminal that depends on nothing else. It reads no
// clock and opens nothing.
//
// Rules of the screen: a line is never wider than the terminal; text from
// elsewhere goes through clean before it is measured; times and rates are by
// the clock of whoever tells, so that a frozen screen does not tick; what moves
// without anything having happened stands in one line; trouble is spelt in
// capitals, since there may be no colour.
package top

import (
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/wire"
)

// Options are how a Model begins.
type Options struct {
	Endpoints []string      // as the user gave them; a Report's Source is a position here
	Delay     time.Duration // between refreshes, as is shown; 0 is 1s
	Stall     time.Duration // from when on a request counts as stalled; 0 is 2s
	ASCII     bool          // draw with ASCII only
	Color     bool          // without it no escape sequence comes out
	Sort      string        // of SortKeys; empty is the first
	Reverse   bool
	Filter    string
	Raw       bool // bytes and counts in full
}

// State is how it is with a source.
type State uint8

// The states of a source.
const (
	Waiting State = iota // nothing has come yet
	Live
	Stale // nothing comes any more
)

// Report is a snapshot that came from a source.
type Report struct {
	Source int
	Msg    wire.Message // *wire.Snapshot, *wire.SenderSnapshot or *wire.ProxySnapshot; read only from now on
	At     time.Time    // when, by our clock
}

// Events are what a source has told.
type Events struct {
	Source int
	Event  *wire.Event // read only from now on
}

// Status is how it is with a source at a time of our clock.
type Status struct {
	Source int
	State  State
	Since  time.Time // of the state
	Retry  int       // attempts to connect since then
	Err    string    // of the last
	// Refused: by its keys or by ours, as Err says.
	Refused bool
	Now     time.Time
}

// SetDelay comes out as a command's message: the program is to refresh so often
// from now on.
type SetDelay struct{ Delay time.Duration }

// delays are what + and - go through.
var delays = []time.Duration{
	250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// maxFilter is how long the filter may be, bytes.
const maxFilter = 200

// Model is the state of the screen. It is a tea.Model.
type Model struct {
	opts   Options
	glyphs *glyphs
	paint  painter
	units  units
	totals bool
	delay  time.Duration

	w, h    int
	now     time.Time // by our clock, as far as it was told
	sources []*source
	frozen  []view // of each source, while paused

	overview bool // is shown, not the screen of source at
	at       int
	screens  []screen // of each source; the last is the overview's

	filter  string
	typing  bool
	help    bool
	scroll  int // of the help
	detail  *detail
	dirty   bool // the tables are older than what they show
	current []*table
}

// screen is what the user has done to one screen.
type screen struct {
	panes []pane
	focus int
	zoom  bool
}

// pane is what the user has done to one table.
type pane struct {
	chosen  string // key of the row; empty: the first, whichever that is
	index   int    // where it is, or was, in order
	off     int    // the first row that is shown, in order
	sort    int    // column
	sorted  bool   // sort is the user's
	reverse bool
	order   []int
}

// view is what a screen shows of a source.
type view struct {
	endpoint  string
	status    Status
	frame     *frame
	events    []entry
	restarted time.Time
	now       time.Time
}

// New is a model that waits for its first messages.
func New(o Options) *Model {
	if o.Delay <= 0 {
		o.Delay = time.Second
	}
	if o.Stall <= 0 {
		o.Stall = 2 * time.Second
	}
	m := &Model{
		opts: o, glyphs: &unicodeGlyphs, paint: newPainter(o.Color), units: units{raw: o.Raw}, delay: o.Delay,
		overview: len(o.Endpoints) != 1, filter: o.Filter, dirty: true,
		screens: make([]screen, len(o.Endpoints)+1),
	}
	if o.ASCII {
		m.glyphs = &asciiGlyphs
	}
	for i := range o.Endpoints {
		m.sources = append(m.sources, &source{status: Status{Source: i}})
	}
	return m
}

// Init is for the library.
func (m *Model) Init() tea.Cmd { return nil }

// Update is for the library. Messages of other kinds change nothing.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.w, m.h = max(msg.Width, 0), max(msg.Height, 0)
	case Report:
		m.report(msg)
	case Events:
		if s := m.source(msg.Source); s != nil && msg.Event != nil {
			s.tell(msg.Source, msg.Event)
			m.changed()
		}
	case Status:
		if s := m.source(msg.Source); s != nil {
			m.tick(msg.Now)
			s.tellStatus(msg)
			m.changed()
		}
	case tea.KeyMsg:
		cmd = m.key(msg)
	default:
		return m, nil
	}
	m.refresh()
	return m, cmd
}

func (m *Model) source(i int) *source {
	if i < 0 || i >= len(m.sources) {
		return nil
	}
	return m.sources[i]
}

func (m *Model) report(r Report) {
	s, f := m.source(r.Source), newFrame(r.Msg)
	if s == nil || f == nil {
		return
	}
	m.tick(r.At)
	s.take(r.Source, f, r.At, m.opts.Stall)
	if s.status.State != Live {
		s.tellStatus(Status{Source: r.Source, State: Live, Since: r.At, Now: r.At})
	}
	m.changed()
}

// changed makes the tables anew, unless the screen is frozen.
func (m *Model) changed() {
	if m.frozen == nil {
		m.dirty = true
	}
}

func (m *Model) tick(now time.Time) {
	if now.After(m.now) {
		m.now = now
	}
}

// view is what is shown of a source.
func (m *Model) view(i int) view {
	if m.frozen != nil {
		return m.frozen[i]
	}
	s := m.sources[i]
	return view{m.opts.Endpoints[i], s.status, s.frame, s.events, s.restarted, m.now}
}

// screen is the one that is shown.
func (m *Model) screen() *screen {
	if m.overview {
		return &m.screens[len(m.sources)]
	}
	return &m.screens[m.at]
}

// refresh makes the tables of the screen that is shown, where they are not of
// now, and puts each pane's window where its chosen row is.
func (m *Model) refresh() {
	s := m.screen()
	if m.dirty {
		m.dirty = false
		m.current = m.tables()
		f := parseFilter(m.filter)
		for len(s.panes) < len(m.current) {
			s.panes = append(s.panes, pane{})
		}
		s.focus = min(s.focus, max(len(m.current)-1, 0))
		for i, t := range m.current {
			p := &s.panes[i]
			if !p.sorted {
				p.sort, p.reverse = t.sort, t.reversed
			}
			p.order = t.order(f, p.sort, p.reverse)
		}
		m.detail.follow(m)
	}
	rows := m.paneRows()
	for i, t := range m.current {
		s.panes[i].follow(t, rows[i])
	}
}

// follow finds the chosen row again and moves the window of so many rows.
func (p *pane) follow(t *table, rows int) {
	n := len(p.order)
	if p.chosen == "" {
		p.index, p.off = 0, 0
		return
	}
	at := slices.IndexFunc(p.order, func(row int) bool { return t.key(row) == p.chosen })
	if at >= 0 {
		p.index = at
	} else {
		p.index = max(min(p.index, n-1), 0)
		if n > 0 {
			p.chosen = t.key(p.order[p.index]) // from now on this one
		}
	}
	p.off = min(p.off, max(n-rows, 0), p.index)
	p.off = max(p.off, p.index-rows+1, 0)
}

// choose moves the chosen row to a place in the order.
func (p *pane) choose(t *table, index int) {
	if len(p.order) == 0 {
		return
	}
	p.index = max(min(index, len(p.order)-1), 0)
	p.chosen = t.key(p.order[p.index])
}

// key does what a key says.
func (m *Model) key(msg tea.KeyMsg) tea.Cmd {
	if key.Matches(msg, keys.interrupt) {
		return tea.Interrupt
	}
	if m.typing {
		m.typed(msg)
		return nil
	}
	switch {
	case key.Matches(msg, keys.quit):
		return tea.Quit
	case key.Matches(msg, keys.suspend):
		return tea.Suspend
	case key.Matches(msg, keys.redraw):
		return tea.ClearScreen
	case key.Matches(msg, keys.help):
		m.help, m.scroll = !m.help, 0
	case key.Matches(msg, keys.slow):
		return m.setDelay(1)
	case key.Matches(msg, keys.fast):
		return m.setDelay(-1)
	case key.Matches(msg, keys.units):
		m.units.raw = !m.units.raw
		m.dirty = true
	case key.Matches(msg, keys.totals):
		m.totals = !m.totals
		m.dirty = true
	case key.Matches(msg, keys.pause):
		m.pause()
	case key.Matches(msg, keys.esc):
		m.escape()
	case m.help:
		m.scrollHelp(msg)
	case m.detail != nil:
		m.detail.key(msg)
	default:
		m.screenKey(msg)
	}
	return nil
}

// typed is a key of somebody who writes the filter.
func (m *Model) typed(msg tea.KeyMsg) {
	switch msg.Type {
	case tea.KeyEnter:
		m.typing = false
	case tea.KeyEsc:
		m.typing, m.filter = false, ""
	case tea.KeyBackspace, tea.KeyCtrlH:
		r := []rune(m.filter)
		m.filter = string(r[:max(len(r)-1, 0)])
	case tea.KeyCtrlU:
		m.filter = ""
	case tea.KeySpace, tea.KeyRunes:
		if more := m.filter + string(msg.Runes); len(more) <= maxFilter {
			m.filter = more
		}
	}
	m.dirty = true
}

// escape closes what lies on top.
func (m *Model) escape() {
	s := m.screen()
	switch {
	case m.help:
		m.help = false
	case m.detail != nil:
		m.detail = nil
	case m.filter != "":
		m.filter, m.dirty = "", true
	case s.zoom:
		s.zoom = false
	case len(m.sources) > 1:
		m.show(len(m.sources))
	}
}

func (m *Model) pause() {
	if m.frozen != nil {
		m.frozen = nil
		m.dirty = true
		return
	}
	frozen := make([]view, len(m.sources))
	for i := range m.sources {
		frozen[i] = m.view(i)
	}
	m.frozen = frozen
}

func (m *Model) setDelay(step int) tea.Cmd {
	at, found := slices.BinarySearch(delays, m.delay)
	if !found && step > 0 {
		at-- // the next greater one
	}
	m.delay = delays[max(min(at+step, len(delays)-1), 0)]
	msg := SetDelay{m.delay}
	return func() tea.Msg { return msg }
}

// show goes to the screen of a source; one past the last is the overview.
func (m *Model) show(i int) {
	m.overview = i == len(m.sources)
	if !m.overview {
		m.at = i
	}
	m.detail = nil
	m.dirty = true
}

// screenKey is a key that is about the tables.
func (m *Model) screenKey(msg tea.KeyMsg) {
	s := m.screen()
	several := len(m.sources) > 1
	shown := m.at
	if m.overview {
		shown = len(m.sources)
	}
	switch {
	case key.Matches(msg, keys.filter):
		m.typing = true
		return
	case several && key.Matches(msg, keys.next):
		m.show((shown + 1) % (len(m.sources) + 1))
		return
	case several && key.Matches(msg, keys.previous):
		m.show((shown + len(m.sources)) % (len(m.sources) + 1))
		return
	case several && key.Matches(msg, keys.overview):
		m.show(len(m.sources))
		return
	case several && m.overview && len(msg.Runes) == 1 && msg.Runes[0] >= '1' && int(msg.Runes[0]-'1') < len(m.sources):
		m.show(int(msg.Runes[0] - '1'))
		return
	}
	if len(m.current) == 0 {
		return
	}
	t, p := m.current[s.focus], &s.panes[s.focus]
	page := max(m.paneRows()[s.focus]-1, 1)
	switch {
	case key.Matches(msg, keys.pane):
		s.focus = (s.focus + 1) % len(m.current)
	case key.Matches(msg, keys.back):
		s.focus = (s.focus + len(m.current) - 1) % len(m.current)
	case key.Matches(msg, keys.panes):
		i := int(msg.Runes[0] - '1')
		if i == s.focus {
			s.zoom = !s.zoom
		} else if i < len(m.current) {
			s.focus = i
		}
	case key.Matches(msg, keys.zoom):
		s.zoom = !s.zoom
	case key.Matches(msg, keys.up):
		p.choose(t, p.index-1)
	case key.Matches(msg, keys.down):
		p.choose(t, p.index+1)
	case key.Matches(msg, keys.pageUp):
		p.choose(t, p.index-page)
	case key.Matches(msg, keys.pageDown):
		p.choose(t, p.index+page)
	case key.Matches(msg, keys.first):
		p.chosen = ""
	case key.Matches(msg, keys.last):
		p.choose(t, len(p.order)-1)
	case key.Matches(msg, keys.sort):
		p.nextSort(t)
		m.dirty = true
	case key.Matches(msg, keys.reverse):
		p.sorted, p.reverse = true, !p.reverse
		m.dirty = true
	case key.Matches(msg, keys.enter):
		m.open(t, p)
	}
}

// nextSort goes to the next column that can be sorted by.
func (p *pane) nextSort(t *table) {
	for range t.cols {
		p.sort = (p.sort + 1) % len(t.cols)
		if t.cols[p.sort].cmp != nil {
			break
		}
	}
	p.sorted, p.reverse = true, false
}

// open shows more of the chosen row.
func (m *Model) open(t *table, p *pane) {
	if p.index >= len(p.order) {
		return
	}
	row := p.order[p.index]
	if t.open != nil {
		t.open(row)
	}
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

// SortKeys are the columns that Options.Sort may name.
func SortKeys() []string {
	m := New(Options{Endpoints: []string{""}})
	var names []string
	for _, c := range m.requestTable(view{frame: newFrame(&wire.Snapshot{})}).cols {
		if c.cmp != nil {
			names = append(names, strings.ToLower(c.name))
		}
	}
	return names
}
