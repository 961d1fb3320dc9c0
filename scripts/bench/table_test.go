package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		before := slices.Clone(c.in)
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
		if !slices.Equal(c.in, before) {
			t.Errorf("median changed %v to %v", before, c.in)
		}
	}
}

// One bad round must not move a ratio, and a ratio is taken within a round.
func TestRatioIsMedianOfRounds(t *testing.T) {
	var r row
	r.add(90, 100)
	r.add(45, 50)
	r.add(1, 1000)
	if got := r.ratio(); got != 0.9 {
		t.Errorf("ratio %v, want 0.9", got)
	}
}

func TestInTurn(t *testing.T) {
	for round, want := range []string{"ours ref ", "ref ours "} {
		var order string
		measure := func(name string) func() (string, error) {
			return func() (string, error) { order += name + " "; return name, nil }
		}
		got, ref, err := inTurn(round, measure("ours"), measure("ref"))
		if got != "ours" || ref != "ref" || err != nil {
			t.Errorf("round %d: got %q, %q, %v", round, got, ref, err)
		}
		if order != want {
			t.Errorf("round %d went %q, want %q", round, order, want)
		}
	}
}

func TestReadyTime(t *testing.T) {
	const events = `{"event":"listening"}
{"event":"queued","time":"2026-01-01T00:00:00Z"}
{"event":"admitted","time":"2026-01-01T00:00:01Z"}
{"event":"admitted","time":"2026-01-01T00:00:02Z"}
{"event":"ready","time":"2026-01-01T00:00:03Z"}
{"event":"ready","time":"2026-01-01T00:00:04.5Z"}
{"event":"rea`
	took, ready, err := readyTime([]byte(events))
	if want := 3500 * time.Millisecond; took != want || ready != 2 || err != nil {
		t.Errorf("got %v, %d ready, %v, want %v, 2 ready", took, ready, err, want)
	}
}

func TestTemplate(t *testing.T) {
	tmpl := newTemplate(allocRequest("bench-"+marker, 0, 3, 3, 0))
	for _, n := range []uint32{0, 7, 0xdeadbeef} {
		want := wire.Append(nil, allocRequest(fmt.Sprintf("bench-%08x", n), 0, 3, 3, 0))
		if got := tmpl.number(n); !bytes.Equal(got, want) {
			t.Errorf("request %#x: got %q, want %q", n, got, want)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limit limit
		ratio float64
		holds bool
		text  string
	}{
		{limit{}, 0, true, ""},
		{atLeast(0.9), 0.9, true, "≥ 0.9"},
		{atLeast(0.9), 0.899, false, "≥ 0.9"},
		{atMost(1.5), 1.5, true, "≤ 1.5"},
		{atMost(1.5), 1.501, false, "≤ 1.5"},
	} {
		if got := c.limit.holds(c.ratio); got != c.holds {
			t.Errorf("%v holds %v: %v, want %v", c.limit, c.ratio, got, c.holds)
		}
		if got := c.limit.String(); got != c.text {
			t.Errorf("limit is written %q, want %q", got, c.text)
		}
	}
}

func TestTable(t *testing.T) {
	var tab table
	tab.row(perSecond, atLeast(0.5), "fast, %d keys", 1).add(1234567, 1000000)
	if tab.missed() {
		t.Error("missed although the only floor is held")
	}
	tab.row(microseconds, atMost(1.5), "slow").add(200, 100)
	if !tab.missed() {
		t.Error("not missed although a floor is not held")
	}
	got := tab.markdown()
	for _, want := range []string{
		"| fast, 1 keys | 1,234,567/s | 1,000,000/s | 1.235 | ≥ 0.5 | ok |\n",
		"| slow | 200 µs | 100 µs | 2.000 | ≤ 1.5 | above |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("table lacks %q:\n%s", want, got)
		}
	}
}
