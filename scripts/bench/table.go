package main

import (
	"fmt"
	"slices"
	"strings"
)

// unit writes a figure for people.
type unit func(float64) string

func perSecond(v float64) string { return fmt.Sprintf("%s/s", thousands(v)) }
func microseconds(v float64) string {
	return fmt.Sprintf("%.0f µs", v)
}
func megabytes(v float64) string { return fmt.Sprintf("%s MB/s", thousands(v)) } // of 10^6 bytes
func ofACore(v float64) string   { return fmt.Sprintf("%.2f%%", 100*v) }

func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// limit is what a ratio must keep to. The zero value is none.
type limit struct {
	bound float64
	most  bool // the ratio must not be above the bound; else not below
}

func atLeast(v float64) limit { return limit{bound: v} }
func atMost(v float64) limit  { return limit{bound: v, most: true} }

func (l limit) String() string {
	switch {
	case l.bound == 0:
		return ""
	case l.most:
		return fmt.Sprintf("≤ %g", l.bound)
	}
	return fmt.Sprintf("≥ %g", l.bound)
}

func (l limit) holds(ratio float64) bool {
	switch {
	case l.bound == 0:
		return true
	case l.most:
		return ratio <= l.bound
	}
	return ratio >= l.bound
}

// row compares two things measured in turn, once each in every round.
type row struct {
	name      string
	ours, ref []float64 // a figure a round
	unit      unit
	limit     limit
}

// ratio is the median over the rounds of ours to the reference.
func (r *row) ratio() float64 {
	ratios := make([]float64, len(r.ours))
	for i := range r.ours {
		ratios[i] = r.ours[i] / r.ref[i]
	}
	return median(ratios)
}

func (r *row) add(ours, ref float64) {
	r.ours = append(r.ours, ours)
	r.ref = append(r.ref, ref)
}

func (r *row) verdict() string {
	switch {
	case r.limit.bound == 0:
		return ""
	case r.limit.holds(r.ratio()):
		return "ok"
	case r.limit.most:
		return "above"
	}
	return "below"
}

func (r *row) cells() []string {
	return []string{
		r.name, r.unit(median(r.ours)), r.unit(median(r.ref)),
		fmt.Sprintf("%.3f", r.ratio()), r.limit.String(), r.verdict(),
	}
}

func (r *row) String() string { return strings.Join(r.cells(), "  ") }

// table is what a run prints.
type table struct {
	rows  []*row
	notes []string // what a reader must know of them
}

func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (t *table) row(u unit, l limit, format string, args ...any) *row {
	r := &row{name: fmt.Sprintf(format, args...), unit: u, limit: l}
	t.rows = append(t.rows, r)
	return r
}

func (t *table) missed() bool {
	return slices.ContainsFunc(t.rows, func(r *row) bool { return !r.limit.holds(r.ratio()) })
}

func (t *table) markdown() string {
	var out strings.Builder
	line := func(cells ...string) { fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | ")) }
	line("name", "ours", "reference", "ratio", "floor", "verdict")
	out.WriteString("|---|--:|--:|--:|--:|---|\n")
	for _, r := range t.rows {
		line(r.cells()...)
	}
	out.WriteString("\nFigures are medians over the rounds; the ratio is the median of each round's own ratio.\n")
	for _, note := range t.notes {
		out.WriteString(note + "\n")
	}
	return out.String()
}

// inTurn measures ours and the reference one after the other, now the one
// first and now the other.
func inTurn[T any](round int, ours, ref func() (T, error)) (got, want T, err error) {
	first, second := ours, ref
	if round%2 == 1 {
		first, second = ref, ours
	}
	a, err := first()
	if err != nil {
		return got, want, err
	}
	b, err := second()
	if err != nil {
		return got, want, err
	}
	if round%2 == 1 {
		return b, a, nil
	}
	return a, b, nil
}

// median of values; 0 when there are none. It leaves them as they are.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}
