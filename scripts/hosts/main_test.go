package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	var none, all table
	if none.markdown() != "" || none.missed() != nil {
		t.Errorf("an empty table: %q, %v", none.markdown(), none.missed())
	}
	for _, r := range []row{
		{name: "floor", ratio: 0.9, least: 0.9},
		{name: "ceiling", ratio: 1.15, most: 1.15},
		{name: "both", ratio: 1, least: 0.9, most: 1.15},
	} {
		all.add(r)
	}
	if err := all.missed(); err != nil {
		t.Error(err)
	}
	all.add(row{name: "slow", ratio: 0.89, least: 0.9})
	all.add(row{name: "late", ratio: 1.16, least: 0.9, most: 1.15})
	err := all.missed()
	if err == nil || !strings.Contains(err.Error(), "slow: the ratio is 0.890, it must be ≥ 0.90\nlate: the ratio is 1.160, it must be 0.90 – 1.15") {
		t.Errorf("missed: %v", err)
	}
	text := all.markdown()
	for _, want := range []string{"| floor |  |  | 0.90 | ≥ 0.90 | ok |", "| late |  |  | 1.16 | 0.90 – 1.15 | **missed** |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestDeal(t *testing.T) {
	line := func(id string, last bool) string {
		b := request(id, 2, 10)
		b.Last = last
		return string(lines(b))
	}
	parts, err := deal([]byte(line("A", false)+line("B", true)+line("A", true)+line("C", true)), 2)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{line("A", false) + line("A", true) + line("C", true), line("B", true)} {
		if string(parts[i]) != want {
			t.Errorf("part %d is\n%s", i, parts[i])
		}
	}
}

// The rate is that of what came after the first request that got ready.
func TestRate(t *testing.T) {
	r := &receiver{process: &process{}}
	at := time.Now()
	for i, kind := range []string{"ready", "admitted", "ready", "ready", "ready"} {
		text := fmt.Sprintf(`{"event":%q,"time":%q,"bytes":1000000}`, kind, at.Add(time.Duration(i)*time.Second).Format(time.RFC3339Nano))
		r.out = append(r.out, []byte(text+"\n"))
	}
	if got := r.rate(at.Add(-time.Second), at.Add(3500*time.Millisecond)); got < 5.3 || got > 5.4 { // 2 in 3 s
		t.Errorf("rate %v", got)
	}
}

// A program that ends, one that says nothing and the end of the run all end a
// wait, each with words of its own.
func TestUntil(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	start := func() *process {
		return &process{name: "it", host: &host{bed: &bed{ctx: ctx}}, news: make(chan struct{}), done: make(chan struct{})}
	}
	never := func() bool { return false }
	over := start()
	over.change(func() { over.stderr.WriteString("no port\n"); close(over.done) })
	if err := over.until(time.Minute, "a line", never); err == nil || err.Error() != "it: ended without a line; it said: no port" {
		t.Errorf("ended: %v", err)
	}
	if err := start().until(time.Millisecond, "a line", never); err == nil || err.Error() != "it: a line did not come within 1ms; it said: " {
		t.Errorf("silent: %v", err)
	}
	p := start()
	go p.change(func() { p.out = append(p.out, []byte(`{"event":"ready"}`)) })
	if _, err := find(p, time.Minute, "a line", func(e event) bool { return e.Event == "ready" }); err != nil {
		t.Error(err)
	}
	cancel()
	if err := start().until(time.Minute, "a line", never); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"-only", "nothing"}, {"-rates"}} {
		var stderr strings.Builder
		if err := runAll(context.Background(), args, &strings.Builder{}, &stderr); err != errUsage || stderr.Len() == 0 {
			t.Errorf("%q: %v, %q", args, err, stderr.String())
		}
	}
}
