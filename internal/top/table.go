package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// column is one column of a table, of rows that are known by number.
type column struct {
	name  string
	wide  int                   // columns of the terminal it takes
	full  int                   // columns for which those that drop before it make room; 0: wide
	grow  int                   // its share of what is left over
	most  int                   // how wide that may make it
	left  bool                  // aligned
	prose bool                  // is cut at its end, not in the middle
	drop  int                   // the highest goes first where there is no room; 0 stays
	cell  func(row, w int) span // in w columns, or less
	cmp   func(a, b int) int    // nil: it cannot be sorted by
	desc  bool                  // sorted, the greatest comes first
}

// table is a list as it could be drawn.
type table struct {
	name     string // of the pane
	empty    string // what stands where there are no rows
	cols     []column
	rows     int
	total    int // where rows were left out; else rows
	key      func(row int) string
	has      func(row int, what string) bool // for the filter: what is lower case
	sort     int                             // the column by which it is sorted at first; -1: as it is
	reversed bool
	nameless bool             // without the names of the columns
	extra    line             // behind the count in the title
	foot     func(w int) line // under the rows; may be nil
	open     func(row int)    // shows more of it; may be nil
}

// nothing stands where there are no rows to show.
func (t *table) nothing() string {
	if t.rows > 0 {
		return "nothing passes the filter"
	}
	return t.empty
}

// fit gives each column its width in w, 0 to those that have no room.
func fit(cols []column, w int) []int {
	const gap = 1
	widths := make([]int, len(cols))
	need := -gap
	for i, c := range cols {
		widths[i] = max(c.wide, c.full)
		need += widths[i] + gap
	}
	for need > w {
		worst := -1
		for i, c := range cols {
			if widths[i] > 0 && c.drop > 0 && (worst < 0 || c.drop > cols[worst].drop) {
				worst = i
			}
		}
		if worst < 0 {
			break
		}
		if less := min(widths[worst]-cols[worst].wide, need-w); less > 0 {
			need -= less
			widths[worst] -= less
			continue
		}
		need -= widths[worst] + gap
		widths[worst] = 0
	}
	// The growing ones take what is left, by their shares.
	for left := w - need; left > 0; {
		shares := 0
		for i, c := range cols {
			if widths[i] > 0 && c.grow > 0 && widths[i] < c.most {
				shares += c.grow
			}
		}
		if shares == 0 {
			break
		}
		given := 0
		for i, c := range cols {
			if widths[i] > 0 && c.grow > 0 && widths[i] < c.most {
				n := min(max(left*c.grow/shares, 1), c.most-widths[i], left-given)
				widths[i] += n
				given += n
			}
		}
		left -= given
	}
	return widths
}

// header is the line with the columns' names.
func (t *table) header(widths []int) line {
	var l line
	for i, c := range t.cols {
		if widths[i] > 0 {
			l = l.add(faint, " "+pad(head(c.name, widths[i]), widths[i], c.left))
		}
	}
	return l
}

// row draws one row; mark is its first character.
func (t *table) row(g *glyphs, widths []int, row int, mark string, isChosen bool) line {
	l := make(line, 0, len(t.cols)+1)
	for i, c := range t.cols {
		if widths[i] == 0 {
			continue
		}
		s := c.cell(row, widths[i])
		if c.prose && width(s.text) > widths[i] {
			s.text = head(s.text, max(widths[i]-1, 0)) + g.dots
		}
		s.text = pad(g.shorten(s.text, widths[i]), widths[i], c.left)
		if isChosen {
			s.style = chosen
		}
		l = append(l, span{mark, s.style}, s)
		mark = " "
	}
	return l
}

// order is which rows pass the filter, sorted. Rows that are equal stay in the
// order in which they came.
func (t *table) order(f filter, by int, reverse bool) []int {
	rows := make([]int, 0, t.rows)
	for i := range t.rows {
		if f.what == "" || t.has(i, f.what) != f.not {
			rows = append(rows, i)
		}
	}
	if by < 0 || by >= len(t.cols) || t.cols[by].cmp == nil {
		if reverse {
			slices.Reverse(rows)
		}
		return rows
	}
	c := t.cols[by]
	sign := 1
	if c.desc != reverse {
		sign = -1
	}
	slices.SortStableFunc(rows, func(a, b int) int { return sign * c.cmp(a, b) })
	return rows
}

// filter is what stands behind the slash.
type filter struct {
	what string // lower case
	not  bool
}

func parseFilter(s string) filter {
	rest, not := strings.CutPrefix(s, "!")
	if rest == "" {
		return filter{}
	}
	return filter{what: strings.ToLower(rest), not: not}
}

// contains is whether one of the texts has what in it, in whatever case.
func contains(what string, texts ...string) bool {
	for _, s := range texts {
		if strings.Contains(strings.ToLower(s), what) {
			return true
		}
	}
	return false
}

// by compares rows by a number or text of theirs.
func by[T cmp.Ordered](f func(row int) T) func(a, b int) int {
	return func(a, b int) int { return cmp.Compare(f(a), f(b)) }
}

// number is a count in a cell of w columns.
func number(n int64, w int) span { return span{brief(n, w), plain} }

// brief is a count in at most w columns, where that can be: with commas, else
// without, else in thousands, millions and so on. Never is a digit left out.
func brief(n int64, w int) string {
	s := commas(n)
	if len(s) <= w {
		return s
	}
	if s = strconv.FormatInt(n, 10); len(s) <= w {
		return s
	}
	for _, unit := range "kMBT" {
		n /= 1000
		if s = strconv.FormatInt(n, 10) + string(unit); len(s) <= w {
			break
		}
	}
	return s
}

// foreign is text from elsewhere.
func (m *Model) foreign(s string) span { return span{clean(s, m.opts.ASCII), plain} }

func ratio(a, b int) float64 {
	if b <= 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// rateWide is how many columns a rate of bytes takes, or a size.
func (m *Model) rateWide() int {
	if m.units.raw {
		return 18
	}
	return 11
}

// bytesCell is a rate in a table, or with totals a size.
func (m *Model) bytesCell(f *frame, v float64) string {
	switch {
	case m.totals:
		return m.units.bytes(v)
	case !f.rates.known:
		return "-"
	case v == 0:
		return "0"
	}
	return m.units.bytes(v) + "/s"
}

// trouble is a count that is good only while it is 0.
func trouble(n int64, w int) span {
	if n == 0 {
		return span{"0", faint}
	}
	return span{brief(n, w), bad}
}
