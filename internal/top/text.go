package top

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-runewidth"

	"github.com/pd-tools/pd-tools/internal/cli"
)

// cells counts the columns of one rune. It does not look at the environment,
// as the library's default does.
var cells = &runewidth.Condition{StrictEmojiNeutral: true}

// maxMarks is how many combining marks a character keeps: more of them reach
// into the lines above and below.
const maxMarks = 2

// clean makes text from elsewhere safe to draw. No control character is left,
// and every rune is as wide as each terminal takes it to be: what some take as
// one with the rune before it (an emoji's joiner, its skin, a flag's second
// half) is spelt out, like \u200d. With ascii so is all else beyond ASCII.
func clean(s string, ascii bool) string {
	if isPlain(s) {
		return s
	}
	s = cli.Escape(s)
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	marks := maxMarks // a mark at the start has nothing to stand on
	from := 0         // in b: where the runes that might still join begin
	for _, r := range s {
		w := cells.RuneWidth(r)
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
			marks, from = 0, b.Len()-1
			continue
		case ascii, w == 0 && (marks == maxMarks || !unicode.IsMark(r)), !addsUp(b.String()[from:], r, w):
			quoted := fmt.Sprintf("%+q", r)
			b.WriteString(quoted[1 : len(quoted)-1])
			marks, from = 0, b.Len()-1
			continue
		case w == 0:
			marks++
		default:
			marks = 0
		}
		if b.Len()-from > 64 {
			from = b.Len() // nothing that joins is so long
		}
		b.WriteRune(r)
	}
	return b.String()
}

// addsUp is whether r behind before takes w columns and joins nothing that
// follows, also where characters are measured as clusters.
func addsUp(before string, r rune, w int) bool {
	const blank = " " // as may stand at both ends
	before = blank + before
	return ansi.StringWidth(before+string(r)+blank) == ansi.StringWidth(before)+w+len(blank)
}

func isPlain(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// width is how many columns clean text takes.
func width(s string) int {
	if isPlain(s) {
		return len(s)
	}
	w := 0
	for _, r := range s {
		w += cells.RuneWidth(r)
	}
	return w
}

// head is as much of clean text as fits into w columns.
func head(s string, w int) string {
	for i := 0; i < len(s); {
		n, cols := unit(s[i:])
		if w -= cols; w < 0 {
			return s[:i]
		}
		i += n
	}
	return s
}

// tail is as much of the end of clean text as fits into w columns.
func tail(s string, w int) string {
	left := width(s)
	for i := 0; i < len(s); {
		n, cols := unit(s[i:])
		// Not at a mark: it would stand on what is before.
		if left <= w && cols > 0 {
			return s[i:]
		}
		i += n
		left -= cols
	}
	return ""
}

// unit is what must not be cut at the start of clean text: a character, or one
// that is spelt out, like \u200d. It takes n bytes and so many columns.
func unit(s string) (n, cols int) {
	if n := spelt(s); n > 0 {
		return n, n
	}
	r, n := utf8.DecodeRuneInString(s)
	return n, cells.RuneWidth(r)
}

// spelt is how long the escape is that s begins with; 0 where it is none.
func spelt(s string) int {
	if len(s) < 2 || s[0] != '\\' {
		return 0
	}
	n := 2
	switch s[1] {
	case 'a', 'b', 'f', 'n', 'r', 't', 'v', '\\', '\'':
	case 'x':
		n += 2
	case 'u':
		n += 4
	case 'U':
		n += 8
	default:
		return 0
	}
	if len(s) < n || strings.Trim(s[2:n], "0123456789abcdef") != "" {
		return 0
	}
	return n
}

// shorten leaves out the middle of text that is too wide: ids that differ do so
// at either end.
func (g *glyphs) shorten(s string, w int) string {
	if width(s) <= w {
		return s
	}
	if w < 4 {
		return head(s, w)
	}
	h := head(s, (w-1+1)/2)
	return h + g.dots + tail(s, w-1-width(h))
}

// pad fills clean text with spaces up to w columns.
func pad(s string, w int, left bool) string {
	n := w - width(s)
	switch {
	case n <= 0:
		return s
	case left:
		return s + strings.Repeat(" ", n)
	}
	return strings.Repeat(" ", n) + s
}

// glyphs are the characters to draw with.
type glyphs struct {
	dots, rule, strong, bar        string
	up, down                       string
	ready, written, held, promised string
	quarantined, free, peak        string
	done, open                     string
	ramp                           []string // from nothing to all
	ascii                          bool
}

var unicodeGlyphs = glyphs{
	dots: "…", rule: "─", strong: "━", bar: "│", up: "▲", down: "▼",
	ready: "█", written: "▓", held: "▒", promised: "░", quarantined: "x", free: "·", peak: "┃",
	done: "█", open: "·",
	ramp: []string{"▁", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
}

var asciiGlyphs = glyphs{
	dots: "~", rule: "-", strong: "=", bar: "|", up: "^", down: "v",
	ready: "@", written: "#", held: "=", promised: "-", quarantined: "x", free: ".", peak: "|",
	done: "#", open: ".",
	ramp:  []string{"_", ".", ":", "-", "=", "+", "*", "#", "@"},
	ascii: true,
}

// count says how many, in powers of 1000 from a million on.
func (u units) count(n int64) string {
	if u.raw || n < 1e6 && n > -1e6 {
		return commas(n)
	}
	v := float64(n)
	for _, unit := range []string{"M", "B"} {
		if v /= 1000; unit == "M" {
			v /= 1000
		}
		if v < 999.5 {
			return three(v) + " " + unit
		}
	}
	return three(v/1000) + " T"
}

func commas[N int | int64 | uint64](n N) string {
	s := fmt.Sprint(n)
	from := 0
	if n < 0 {
		from = 1
	}
	for i := len(s) - 3; i > from; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// some is so many of a kind.
func (u units) some(n int, kind string) string { return u.count(int64(n)) + " " + kind }

// units is how numbers are shown.
type units struct {
	raw bool // bytes and counts in full
}

// bytes says a size, in powers of 1024, or in full.
func (u units) bytes(v float64) string {
	if u.raw {
		return commas(int64(v+0.5)) + " B"
	}
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for v >= 999.5 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return strconv.FormatFloat(v, 'f', 0, 64) + " B"
	}
	return three(v) + " " + units[i]
}

// three is v with a decimal or two where that makes three digits at most, and
// counts of billions stay as they are known: 1.0, 9.41, 11.8, 512.
func three(v float64) string {
	prec := 0
	switch {
	case v < 9.995:
		prec = 2
	case v < 99.95:
		prec = 1
	}
	s := strconv.FormatFloat(v, 'f', prec, 64)
	if prec == 2 && strings.HasSuffix(s, "0") {
		s = s[:len(s)-1]
	}
	return s
}

// perSecond is a rate of things.
func (u units) perSecond(v float64) string {
	if v >= 1e6 {
		return u.count(int64(v)) + "/s"
	}
	if v >= 999.5 {
		return commas(int64(v+0.5)) + "/s"
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + "/s"
}

// millis says how long something took or has lasted.
func millis(ms float64) string {
	switch {
	case !(ms >= 0 && ms < 1e15): // no time at all, or none that can be
		return "-"
	case ms == 0:
		return "0ms"
	case ms < 9.95:
		return strconv.FormatFloat(ms, 'f', 1, 64) + "ms"
	case ms < 999.5:
		return strconv.FormatFloat(ms, 'f', 0, 64) + "ms"
	case ms < 9995:
		return strconv.FormatFloat(ms/1000, 'f', 2, 64) + "s"
	case ms < 99_950:
		return strconv.FormatFloat(ms/1000, 'f', 1, 64) + "s"
	}
	s := int64(ms / 1000)
	switch {
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	case s < 1000*86400:
		return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
	}
	return commas(s/86400) + "d"
}

// whole is millis of an age: below a second no decimals.
func whole(ms int64) string {
	if ms >= 0 && ms < 1000 {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return millis(float64(ms))
}

func percent(part, all int) string {
	if all <= 0 {
		return "-"
	}
	p := math.Round(float64(part) / float64(all) * 100)
	// All and nothing are said only where that is so.
	if part > 0 && part < all {
		p = min(max(p, 1), 99)
	}
	return strconv.FormatFloat(p, 'f', 0, 64) + "%"
}
