package top

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

const labelWide = 8 // of what stands at the left of a line of figures

func label(s string) line { return line{{pad(s, labelWide, true), strong}} }

// share divides n columns among sizes: to each that is not 0 at least one, the
// rest in proportion, n in all.
func share(sizes []int, n int) []int {
	out := make([]int, len(sizes))
	total := 0.0
	for _, s := range sizes {
		total += float64(max(s, 0))
	}
	if total == 0 || n <= 0 {
		return out
	}
	for i, s := range sizes {
		if s > 0 {
			out[i] = max(int(float64(s)/total*float64(n)), 1)
		}
	}
	sum := 0
	for _, k := range out {
		sum += k
	}
	// What rounding has taken or given goes to, or comes from, the greatest.
	for ; sum != n; sum += sign(n - sum) {
		out[slices.Index(out, slices.Max(out))] += sign(n - sum)
	}
	return out
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// throughputLine is bytes, or requests, by wall clock: now, the last seconds,
// the last minute, and the most that was seen.
func (m *Model) throughputLine(name string, f *frame, total int64, w int) line {
	say := m.units.bytes
	unit := "/s"
	if f.proxy != nil {
		say = func(v float64) string { return strings.TrimSuffix(m.units.perSecond(v), "/s") }
	}
	now, avg, peak := "-", "-", "-"
	if f.rates.known {
		now, peak = say(f.rates.bytes)+unit, say(f.rates.peak)+unit
		if f.proxy != nil {
			now = say(f.rates.ready) + unit
		}
	}
	if f.rates.avgKnown {
		avg = say(f.rates.avg) + unit
	}
	all := say(float64(total))
	if f.proxy != nil {
		all = m.units.count(total)
	}
	if m.totals {
		now = all
	}
	l := label(name).add(strong, pad(now, m.rateWide()+1, false)).add(plain, " ")
	full := fmt.Sprintf("  1m avg %s  peak %s  total %s", pad(avg, 10, false), pad(peak, 10, false), pad(all, 9, false))
	right := text(full)
	if w < 96 {
		right = text(fmt.Sprintf("  1m avg %s  peak %s", pad(avg, 10, false), pad(peak, 10, false)))
	}
	if w < 76 {
		right = text("  peak " + pad(peak, 10, false))
	}
	return spread(l.add(good, m.sparkline(f.spark, w-l.width()-right.width())), right, w)
}

// sparkline draws the last seconds, newest at the right, as high as the
// greatest that is shown.
func (m *Model) sparkline(v []float64, w int) string {
	if w <= 0 {
		return ""
	}
	v = v[max(len(v)-w, 0):]
	most := 0.0
	for _, x := range v {
		if x > most {
			most = x
		}
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", w-len(v)))
	ramp := m.glyphs.ramp
	for _, x := range v {
		switch {
		case math.IsNaN(x):
			b.WriteByte(' ')
		case x <= 0:
			b.WriteString(ramp[0])
		default:
			b.WriteString(ramp[min(1+int(x/most*float64(len(ramp)-1)), len(ramp)-1)])
		}
	}
	return b.String()
}

// took is how long something took in the last minute, added to a line; where
// there is little room, without the longest.
func took(l line, what string, s wire.SnapshotWait, w int) line {
	brief := l.add(plain, fmt.Sprintf("  %s p50 %s  p99 %s", pad(what, 8, true), pad(millis(s.P50), 6, true), pad(millis(s.P99), 6, true)))
	return widest(w, brief.add(plain, "  max "+pad(millis(s.Max), 6, true)), brief)
}

// seen is how long something took, or no time at all if it never happened.
func seen(times int64, s wire.SnapshotWait) wire.SnapshotWait {
	if times == 0 && s.Max == 0 {
		return wire.SnapshotWait{P50: -1, P99: -1, Max: -1}
	}
	return s
}

// tally is a count that is trouble unless it is 0.
func (m *Model) tally(l line, name string, n int64, st style) line {
	if n == 0 {
		st = plain
	}
	return l.add(st, "  "+name+" "+m.units.count(n))
}

// ends is l with the first of the right ends that fits.
func (m *Model) ends(w int, l line, rights ...line) line {
	for _, r := range rights {
		if l.width()+r.width() <= w {
			return spread(l, r, w)
		}
	}
	return l.cut(w)
}

// becameReady is how many requests became ready, and how long that took.
func (m *Model) becameReady(f *frame, ready int64, s wire.SnapshotWait, w int) line {
	now := m.rate(f.rates, f.rates.ready)
	if m.totals {
		now = m.units.count(ready)
	}
	return took(label("Ready").add(strong, pad(now, 12, false)), "to ready", seen(ready, s), w)
}
