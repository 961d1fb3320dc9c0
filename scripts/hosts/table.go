package main

import (
	"errors"
	"fmt"
	"strings"
)

// table is what was measured, a ratio a row, each with the bounds it must keep.
type table struct {
	rows []row
}

type row struct {
	name        string
	ours, ref   string // the figures
	ratio       float64
	least, most float64 // of the ratio; 0: no bound
}

func (t *table) add(r row) { t.rows = append(t.rows, r) }

func (r row) holds() bool {
	return r.ratio >= r.least && (r.most == 0 || r.ratio <= r.most)
}

func (r row) bounds() string {
	switch {
	case r.most == 0:
		return fmt.Sprintf("≥ %.2f", r.least)
	case r.least == 0:
		return fmt.Sprintf("≤ %.2f", r.most)
	}
	return fmt.Sprintf("%.2f – %.2f", r.least, r.most)
}

func (t *table) markdown() string {
	if len(t.rows) == 0 {
		return ""
	}
	var s strings.Builder
	s.WriteString("| across hosts | | | ratio | bounds | |\n|---|--:|--:|--:|---|---|\n")
	for _, r := range t.rows {
		verdict := "ok"
		if !r.holds() {
			verdict = "**missed**"
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %.2f | %s | %s |\n", r.name, r.ours, r.ref, r.ratio, r.bounds(), verdict)
	}
	return s.String()
}

// missed names the rows that do not keep their bounds.
func (t *table) missed() error {
	var errs []error
	for _, r := range t.rows {
		if !r.holds() {
			errs = append(errs, fmt.Errorf("%s: the ratio is %.3f, it must be %s", r.name, r.ratio, r.bounds()))
		}
	}
	return errors.Join(errs...)
}
