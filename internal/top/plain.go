package top

import (
	"bufio"
	"io"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

// plainWidth is how wide the lines of figures are; tables are as wide as what
// is in them.
const plainWidth = 120

// Plain writes what the snapshots say as text: all rows, no colour, ids in
// full.
func Plain(w io.Writer, snapshots ...wire.Message) error {
	m := New(Options{Endpoints: make([]string, len(snapshots)), ASCII: true})
	for i, s := range snapshots {
		m.Update(Report{Source: i, Msg: s})
	}
	return m.Plain(w)
}

// Plain writes the state of all sources as text: the lines of figures, and all
// rows of all tables, sorted and filtered as the Options say.
func (m *Model) Plain(w io.Writer) error {
	shown := *m
	shown.w, shown.paint, shown.frozen = plainWidth, painter{}, nil
	b := bufio.NewWriter(w)
	for i := range m.sources {
		shown.overview, shown.at = false, i
		if i > 0 {
			b.WriteByte('\n')
		}
		shown.plainSource(b, i)
	}
	return b.Flush()
}

func (m *Model) plainSource(b *bufio.Writer, i int) {
	v := m.view(i)
	write := func(l line) {
		var sb strings.Builder
		m.paint.line(&sb, l, false)
		b.WriteString(sb.String())
		b.WriteByte('\n')
	}
	write(m.titleLine(v))
	if l := m.banner(v); l != nil {
		write(l)
	}
	if v.frame == nil {
		return
	}
	for _, l := range m.figures(v, plainWidth, 100) {
		write(l)
	}
	f := parseFilter(m.filter)
	for _, t := range m.tables() {
		order := t.order(f, t.sort, t.reversed)
		if t.nameless && t.rows == 0 {
			continue
		}
		write(nil)
		write(text(t.name + " " + commas(max(t.total, t.rows)) + " ").join(t.extra).join(m.filtered(t, order, maxFilter)))
		m.plainTable(write, t, order)
	}
}

// plainTable writes all rows of a table, each column as wide as it needs.
func (m *Model) plainTable(write func(line), t *table, order []int) {
	widths := make([]int, len(t.cols))
	rows := make([][]string, len(order))
	for i, c := range t.cols {
		if !t.nameless {
			widths[i] = width(c.name)
		}
	}
	for k, row := range order {
		rows[k] = make([]string, len(t.cols))
		for i, c := range t.cols {
			rows[k][i] = c.cell(row, 12).text
			if t.nameless {
				rows[k][i] = c.cell(row, 1000).text
			}
			widths[i] = max(widths[i], width(rows[k][i]))
		}
	}
	if !t.nameless {
		write(t.header(widths))
	}
	for _, cells := range rows {
		var sb strings.Builder
		for i, c := range t.cols {
			sb.WriteString(" " + pad(cells[i], widths[i], c.left))
		}
		write(text(sb.String()))
	}
	if len(rows) == 0 {
		write(text("   " + t.nothing()))
	}
}
