package top

import (
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
)

// style is how a piece of text is to look. What it says is always said in
// words or signs too, since there may be no colour.
type style uint8

const (
	plain style = iota
	strong
	faint
	good
	warn
	bad
	info
	chosen
	styles
)

// span is clean text of one style; a line is what is drawn in one row.
type span struct {
	text  string
	style style
}

type line []span

func text(s string) line { return line{{s, plain}} }

func (l line) width() int {
	w := 0
	for _, s := range l {
		w += width(s.text)
	}
	return w
}

// add appends without ever touching what another line shares.
func (l line) add(st style, s string) line { return append(l[:len(l):len(l)], span{s, st}) }

func (l line) join(m line) line { return append(l[:len(l):len(l)], m...) }

// cut is the line in at most w columns.
func (l line) cut(w int) line {
	for i, s := range l {
		sw := width(s.text)
		if sw > w {
			return l[:i:i].add(s.style, head(s.text, max(w, 0)))
		}
		w -= sw
	}
	return l
}

// fill is the line in exactly w columns.
func (l line) fill(w int) line {
	l = l.cut(w)
	if n := w - l.width(); n > 0 {
		l = l.add(plain, strings.Repeat(" ", n))
	}
	return l
}

// spread puts right at the end of w columns, and left before it. Where both do
// not fit, the left one is cut.
func spread(left, right line, w int) line {
	rw := right.width()
	if rw > w {
		return right.cut(w)
	}
	if left.width()+rw > w {
		left = left.cut(max(w-rw-1, 0))
	}
	return left.fill(w - rw).join(right)
}

// widest is the first of several ways to say something, widest first, that
// fits into w columns.
func widest(w int, ways ...line) line {
	for _, l := range ways {
		if l.width() <= w {
			return l
		}
	}
	return ways[len(ways)-1].cut(w)
}

// painter turns lines into what a terminal takes.
type painter struct {
	open, close [styles]string
}

// newPainter with colour uses the sixteen colours that every terminal has;
// without, it lets no escape through.
func newPainter(colour bool) painter {
	var p painter
	if !colour {
		return p
	}
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.ANSI)
	r.SetHasDarkBackground(true) // or it would ask the terminal
	for st, look := range map[style]lipgloss.Style{
		strong: r.NewStyle().Bold(true),
		faint:  r.NewStyle().Faint(true),
		good:   r.NewStyle().Foreground(lipgloss.Color("2")),
		warn:   r.NewStyle().Foreground(lipgloss.Color("3")),
		bad:    r.NewStyle().Foreground(lipgloss.Color("1")).Bold(true),
		info:   r.NewStyle().Foreground(lipgloss.Color("6")),
		chosen: r.NewStyle().Reverse(true),
	} {
		p.open[st], p.close[st], _ = strings.Cut(look.Render("x"), "x")
	}
	return p
}

// paint writes the lines, each cut to w columns and without spaces at its end.
// With dim they look old.
func (p *painter) paint(lines []line, w int, dim func(i int) bool) string {
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		p.line(&b, l.cut(w), dim(i))
	}
	return b.String()
}

func (p *painter) line(b *strings.Builder, l line, dim bool) {
	end := len(l)
	for end > 0 && l[end-1].style != chosen && strings.Trim(l[end-1].text, " ") == "" {
		end--
	}
	for i, s := range l[:end] {
		st, t := s.style, s.text
		if i == end-1 && st != chosen {
			t = strings.TrimRight(t, " ")
		}
		if dim {
			st = faint
		}
		if t == "" {
			continue
		}
		b.WriteString(p.open[st])
		b.WriteString(t)
		b.WriteString(p.close[st])
	}
}
