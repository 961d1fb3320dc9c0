package top

import (
	"fmt"
	"strings"
	"time"
)

// Below this there is room for one line only.
const (
	leastWidth  = 60
	leastHeight = 12
	besides     = 76 // from this width on two panes stand side by side
)

// View is for the library.
func (m *Model) View() string {
	if m.w <= 0 || m.h <= 0 {
		return ""
	}
	if m.w < leastWidth || m.h < leastHeight {
		return m.paint.paint(m.small(), m.w, func(int) bool { return false })
	}
	lines, old := m.full()
	if len(lines) > m.h {
		lines = append(lines[:m.h-1:m.h-1], lines[len(lines)-1])
	}
	// What is old looks so, but for the first two lines, which say it.
	return m.paint.paint(lines, m.w, func(i int) bool { return old && i > 1 && i < len(lines)-1 })
}

// full is a screen with room for more than a line.
func (m *Model) full() (lines []line, old bool) {
	if m.help {
		return m.helpScreen(), false
	}
	lines, old = m.top()
	body := m.h - len(lines) - 1
	switch {
	case m.detail != nil:
		lines = append(lines, clip(m.detail.lines(m), m.detail.off, body)...)
	case len(m.current) == 0:
		lines = append(lines, m.nothing()...)
	default:
		lines = append(lines, m.body(body)...)
	}
	for len(lines) < m.h-1 {
		lines = append(lines, nil)
	}
	return append(lines[:m.h-1], m.foot()), old
}

// clip is so many lines from off on.
func clip(lines []line, off, n int) []line {
	off = max(min(off, len(lines)-n), 0)
	return lines[off:min(off+max(n, 0), len(lines))]
}

// top is what stands above the tables.
func (m *Model) top() (lines []line, old bool) {
	if m.overview {
		return m.overviewTop(), false
	}
	v := m.view(m.at)
	lines = append(lines, m.titleLine(v))
	if b := m.banner(v); b != nil {
		lines = append(lines, b)
	}
	if v.frame != nil {
		lines = append(lines, m.figures(v, m.w, m.h-len(lines))...)
	}
	return lines, v.status.State == Stale
}

// figures are the lines of numbers, at most as many as there is room for.
func (m *Model) figures(v view, w, h int) []line {
	switch f := v.frame; {
	case f.recv != nil:
		return m.receiverFigures(f, w, h)
	case f.send != nil:
		return m.senderFigures(f, w)
	default:
		return m.proxyFigures(f, w)
	}
}

// titleLine says who this is, and is the one line that changes each time.
func (m *Model) titleLine(v view) line {
	c := func(s string) string { return clean(s, m.opts.ASCII) }
	var left line
	left = left.add(strong, "pd-top").add(plain, "  ")
	every := "  every " + shortDuration(m.delay)
	f := v.frame
	if f == nil {
		return spread(left.add(plain, m.glyphs.shorten(c(v.endpoint), 60)+every), m.stateWord(v), m.w)
	}
	kind, where, how, brief := "pd-recv", v.endpoint, "", ""
	switch {
	case f.recv != nil:
		if f.recv.Endpoint != "" {
			where = f.recv.Endpoint
		}
		brief = "  " + m.glyphs.shorten(c(f.recv.Admission), 10)
		how = brief
		if f.recv.Admission == "reserve" {
			how += ", " + overtake(f.recv.Limits.Overtake)
		}
	case f.send != nil:
		kind = "pd-send"
	case f.proxy != nil:
		kind = "pd-proxy"
		if f.proxy.Endpoint != "" {
			where = f.proxy.Endpoint
		}
		if f.proxy.Expect > 1 {
			how = "  " + commas(f.proxy.Expect) + " notices each"
		}
	}
	id, at := m.glyphs.shorten(c(f.life.id), 24), m.glyphs.shorten(c(where), 40)
	up := "  up " + millis(f.life.up*1000)
	right := m.stateWord(v)
	room := m.w - right.width() - 1
	short := strings.TrimPrefix(at, "tcp://")
	left = widest(room,
		left.add(faint, kind+" ").add(strong, id).add(plain, "  "+at+up+how+every),
		left.add(strong, id).add(plain, "  "+short+up+how+every),
		left.add(strong, id).add(plain, "  "+short+up+brief+every),
		left.add(strong, id).add(plain, "  "+short+up+every),
		left.add(strong, m.glyphs.shorten(id, 12)).add(plain, "  "+m.glyphs.shorten(short, 22)+up),
		left.add(strong, m.glyphs.shorten(id, 12)),
	)
	return spread(left, right, m.w)
}

func overtake(n int) string {
	if n == 0 {
		return "in order"
	}
	return "overtake " + commas(n)
}

// shortDuration is 1s and 250ms, not 1.00s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

// clock is a time of day; all programs tell theirs in UTC.
func clock(t time.Time) string {
	if t.IsZero() {
		return "--:--:--"
	}
	return t.UTC().Format("15:04:05") + "Z"
}

// stateWord is the right end of the first line.
func (m *Model) stateWord(v view) line {
	var at string
	if v.frame != nil {
		at = clock(v.frame.life.time)
	}
	word, st := m.word(v)
	return text(at+"  ").add(st, word)
}

// word is what stands for the state of a source.
func (m *Model) word(v view) (string, style) {
	if m.frozen != nil {
		return "PAUSED", warn
	}
	return v.word()
}

// word says in capitals how it is with a source.
func (v *view) word() (string, style) {
	switch {
	case v.status.State != Live && v.status.Refused:
		return "REFUSED", bad
	case v.status.State == Stale:
		return "STALE", bad
	case v.frame == nil:
		return "WAITING", warn
	case v.frame.recv != nil && v.frame.recv.Draining:
		return "DRAINING", warn
	case v.restartedLately():
		return "RESTARTED", warn
	}
	return "LIVE", good
}

func (v *view) restartedLately() bool {
	return !v.restarted.IsZero() && v.now.Sub(v.restarted) < restartShown
}

// banner is the line under the first where not all is well; else nil.
func (m *Model) banner(v view) line {
	var l line
	switch word, _ := v.word(); word {
	case "REFUSED":
		l = l.add(bad, "REFUSED").add(plain, fmt.Sprintf(" for %s: %s", m.lasting(v), clean(v.status.Err, m.opts.ASCII)))
		if v.frame != nil {
			l = l.add(plain, "; the numbers are of "+clock(v.frame.life.time))
		}
	case "STALE":
		l = l.add(bad, "STALE").add(plain, fmt.Sprintf(" for %s, since %s: these are the last numbers known%s", m.lasting(v), clock(v.status.Since), m.retries(v)))
	case "WAITING":
		l = l.add(warn, "WAITING").add(plain, fmt.Sprintf(" for %s: nothing has come yet%s", m.lasting(v), m.retries(v)))
	case "DRAINING":
		l = l.add(warn, "DRAINING").add(plain, ": it was told to stop and ends with its last request, or when its time is over; new ones are refused")
	case "RESTARTED":
		l = l.add(warn, "RESTARTED").add(plain, " at "+clock(v.frame.life.time)+": all counters have begun again")
	default:
		return nil
	}
	return l
}

// lasting is since when a source is as it is.
func (m *Model) lasting(v view) string {
	if v.status.Since.IsZero() {
		return "a moment"
	}
	return shortDuration(max(v.status.Now.Sub(v.status.Since), 0).Truncate(time.Second))
}

func (m *Model) retries(v view) string {
	var s string
	if v.status.Retry > 0 {
		s = ", retry " + commas(v.status.Retry)
	}
	if v.status.Err != "" {
		s += ": " + clean(v.status.Err, m.opts.ASCII)
	}
	return s
}

// nothing stands where a source has not told anything yet.
func (m *Model) nothing() []line {
	if m.overview {
		return []line{nil, text("no endpoint to watch")}
	}
	return []line{nil, text("waiting for the first snapshot of " + clean(m.opts.Endpoints[m.at], m.opts.ASCII))}
}

// foot is the last line: the keys, or the filter while it is written.
func (m *Model) foot() line {
	if m.detail != nil {
		return m.keyLine(keys.inDetail())
	}
	if m.typing {
		return text("filter: /"+clean(m.filter, m.opts.ASCII)).add(chosen, " ").add(faint, "   enter keeps it, esc clears it, ! in front inverts")
	}
	return m.keyLine(keys.short(len(m.sources) > 1))
}

// rect is where a pane is drawn, its title included.
type rect struct {
	pane       int
	x, y, w, h int
}

// layout says where each pane is in so many lines.
func (m *Model) layout(h int) []rect {
	s := m.screen()
	n := len(m.current)
	if n == 0 {
		return nil
	}
	all := []rect{{s.focus, 0, 0, m.w, h}}
	if s.zoom || h < 10 || n == 1 {
		return all
	}
	// The last pane is the events'.
	events := 0
	if h >= 14 {
		events = max(h/5, 3)
	}
	if n == 2 {
		events = h * 2 / 5
		if m.overview {
			events = max(h-len(m.sources)-4, h/3) // its rows are always the same
		}
		return []rect{{0, 0, 0, m.w, h - events}, {1, 0, h - events, m.w, events}}
	}
	middle := max(h*2/5, 5)
	rest := h - middle - events
	rects := []rect{{0, 0, 0, m.w, rest}}
	if m.w >= besides {
		a := min(m.w*54/100, 84)
		rects = append(rects, rect{1, 0, rest, a, middle}, rect{2, a + 1, rest, m.w - a - 1, middle})
	} else {
		which := 1
		if s.focus == 2 {
			which = 2
		}
		rects = append(rects, rect{which, 0, rest, m.w, middle})
	}
	if events > 0 {
		rects = append(rects, rect{3, 0, h - events, m.w, events})
	} else if s.focus == 3 {
		return all
	}
	return rects
}

// paneRows is how many rows of each pane are shown.
func (m *Model) paneRows() []int {
	rows := make([]int, len(m.current))
	if m.w < leastWidth || m.h < leastHeight {
		return rows
	}
	lines, _ := m.top()
	for _, r := range m.layout(m.h - len(lines) - 1) {
		rows[r.pane] = m.current[r.pane].room(r)
	}
	return rows
}

// hasFoot is whether there is room for the line under the rows.
func (t *table) hasFoot(r rect) bool { return t.foot != nil && r.h >= 6 }

// room is how many rows fit under the title and the names of the columns.
func (t *table) room(r rect) int {
	n := r.h - 1
	if !t.nameless {
		n--
	}
	if t.hasFoot(r) {
		n--
	}
	return max(n, 0)
}

// body draws the tables in h lines.
func (m *Model) body(h int) []line {
	lines := make([]line, h)
	for _, r := range m.layout(h) {
		for i, l := range m.pane(r) {
			y := r.y + i
			if y >= h {
				break
			}
			if r.x == 0 {
				lines[y] = l
				continue
			}
			lines[y] = lines[y].fill(r.x-1).add(faint, m.glyphs.bar).join(l)
		}
	}
	return lines
}

// pane draws one table into its place: exactly r.h lines.
func (m *Model) pane(r rect) []line {
	s := m.screen()
	t, p := m.current[r.pane], &s.panes[r.pane]
	rows := t.room(r)
	lines := make([]line, 0, r.h)
	lines = append(lines, m.paneTitle(t, p, r, rows))
	room := r.w - 1
	if r.x+r.w < m.w {
		room-- // or the last column would touch the bar
	}
	widths := fit(t.cols, room)
	if !t.nameless {
		lines = append(lines, t.header(widths))
	}
	focused := r.pane == s.focus
	for i := p.off; i < min(p.off+rows, len(p.order)); i++ {
		mark, isChosen := " ", focused && i == p.index
		if isChosen {
			mark = ">"
		}
		lines = append(lines, t.row(m.glyphs, widths, p.order[i], mark, isChosen && p.chosen != "").cut(r.w))
	}
	if len(p.order) == 0 && rows > 0 {
		lines = append(lines, text("   "+t.nothing()).cut(r.w))
	}
	if t.hasFoot(r) {
		for len(lines) < r.h-1 {
			lines = append(lines, nil)
		}
		lines = append(lines, t.foot(r.w).cut(r.w))
	}
	for len(lines) < r.h {
		lines = append(lines, nil)
	}
	return lines[:r.h]
}

// paneTitle is the rule above a table: its name and count, which rows these
// are, how they are sorted and filtered.
func (m *Model) paneTitle(t *table, p *pane, r rect, rows int) line {
	g := m.glyphs
	rule, st := g.rule, faint
	if r.pane == m.screen().focus {
		rule, st = g.strong, plain
	}
	total := max(t.total, t.rows)
	begin := line{{rule + rule, st}, {fmt.Sprintf(" %d %s ", r.pane+1, t.name), strong}}
	count := m.units.count(int64(total)) + " "
	if total > t.rows {
		count = fmt.Sprintf("%s of %s", commas(t.rows), count)
	}
	var window string
	if len(p.order) > rows && rows > 0 {
		window = fmt.Sprintf("(%s-%s) ", commas(p.off+1), commas(int64(min(p.off+rows, len(p.order)))))
	}
	var sorted line
	if p.sort >= 0 && p.sort < len(t.cols) && t.cols[p.sort].cmp != nil {
		arrow := g.up
		if t.cols[p.sort].desc != p.reverse {
			arrow = g.down
		}
		sorted = text(" sort " + t.cols[p.sort].name + " " + arrow + " ")
	}
	filtered := m.filtered(t, p.order, 16)
	end := line{{rule, st}}
	full := begin.add(plain, count).add(plain, window).join(t.extra)
	for _, way := range [][2]line{
		{full, sorted.join(filtered).join(end)},
		{full, filtered.join(end)},
		{begin.add(plain, count).join(t.extra), filtered.join(end)},
		{begin.add(plain, count), filtered.join(end)},
		{begin.add(plain, count), nil},
	} {
		if n := r.w - way[0].width() - way[1].width(); n >= 0 {
			return way[0].add(st, strings.Repeat(rule, n)).join(way[1])
		}
	}
	return begin.cut(r.w)
}

// filtered names the filter, in so many columns, and how many rows of t pass it
// where not all do.
func (m *Model) filtered(t *table, passed []int, w int) line {
	if m.filter == "" {
		return nil
	}
	f := " filter " + m.glyphs.shorten(clean(m.filter, m.opts.ASCII), w)
	if len(passed) < t.rows {
		f += ": " + commas(len(passed))
	}
	return line{{f + " ", warn}}
}

// small is what fits where there is no room: a line a source.
func (m *Model) small() []line {
	var lines []line
	for i := range m.sources {
		if !m.overview && i != m.at {
			continue
		}
		if len(lines) == m.h {
			break
		}
		lines = append(lines, m.smallLine(m.view(i)))
	}
	if len(lines) == 0 {
		lines = append(lines, text("pd-top: no endpoint"))
	}
	return lines
}

// smallLine says the most in as much room as there is.
func (m *Model) smallLine(v view) line {
	where := m.glyphs.shorten(strings.TrimPrefix(clean(v.endpoint, m.opts.ASCII), "tcp://"), 22) + "  "
	var l line
	if word, st := m.word(v); word != "LIVE" {
		l = l.add(st, word+"  ")
	}
	brief := l
	switch f := v.frame; {
	case f == nil:
	case f.recv != nil:
		s := &f.recv.Slots
		used := percent(s.Total-s.Free, s.Total)
		queue := "  q" + commas(f.recv.Totals.Queue)
		brief = l.add(plain, used+queue)
		l = l.add(plain, fmt.Sprintf("%s used (%sR %sw %sa %sp %sf)%s  %s  p99 %s", used, commas(s.Ready), commas(s.Written-s.Ready),
			commas(s.Held-s.Written), commas(s.Promised), commas(s.Free), queue, m.byteRate(f.rates, f.rates.bytes), millis(f.recv.AdmitWait.P99)))
	case f.send != nil:
		s := &f.send.Staging
		used := "-"
		if s.Total > 0 {
			used = commas(s.Used) + "/" + commas(s.Total)
		}
		used += "  blocked " + commas(f.send.Totals.Blocked)
		brief = l.add(plain, used)
		l = l.add(plain, fmt.Sprintf("staging %s  %s  p99 %s", used, m.byteRate(f.rates, f.rates.bytes), millis(f.send.AdmitWait.P99)))
	default:
		brief = l.add(plain, "pending "+commas(f.proxy.Pending))
		l = l.add(plain, fmt.Sprintf("pending %s  ready %s  failed %s", commas(f.proxy.Pending), m.rate(f.rates, f.rates.ready), m.rate(f.rates, f.rates.failed)))
	}
	if v.frame != nil {
		for _, word := range m.troubles(v.frame) {
			l, brief = l.add(bad, "  "+word), brief.add(bad, "  "+word)
		}
	}
	named := text(where)
	if m.overview {
		return widest(m.w, named.join(l), named.join(brief), brief)
	}
	return widest(m.w, line{{"pd-top ", strong}, {where, plain}}.join(l), named.join(l), l, named.join(brief), brief)
}

// byteRate and rate are "-" while nothing is known.
func (m *Model) byteRate(r rates, v float64) string {
	if !r.known {
		return "-"
	}
	return m.units.bytes(v) + "/s"
}

func (m *Model) rate(r rates, v float64) string {
	if !r.known {
		return "-"
	}
	return m.units.perSecond(v)
}
