package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTrace sends real requests: the first 2,000 of Mooncake's conversation
// trace, from $PD_TRACE or beside the repository. A buffer of 128 slots is
// smaller than some of them.
func TestTrace(t *testing.T) {
	trace := realTrace(t)
	const requests, tooLarge = 2000, 71
	manifest := output(t, 0, "pd-send", "manifest", "--chunk-size", "16KiB", "--interleave", "16", "--limit", fmt.Sprint(requests), trace)
	t.Run("512 slots", func(t *testing.T) { runTrace(t, manifest, 512, requests, 0) })
	t.Run("128 slots", func(t *testing.T) { runTrace(t, manifest, 128, requests, tooLarge) })
}

// realTrace names the trace, or skips a test.
func realTrace(t *testing.T) string {
	t.Helper()
	trace := os.Getenv("PD_TRACE")
	if trace == "" {
		trace = filepath.Join(root(), "../shared/data/mooncake_conversation_head.jsonl")
	}
	if _, err := os.Stat(trace); err != nil {
		t.Skipf("NOT RUN: no trace: %v; name one with PD_TRACE", err)
	}
	return trace
}

// TestGeneratedTrace does the same with a trace that is always there.
func TestGeneratedTrace(t *testing.T) {
	const requests = 150
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(trace, []byte(output(t, 0, "gentrace", "--requests", fmt.Sprint(requests))), 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := output(t, 0, "pd-send", "manifest", "--chunk-size", "16KiB", "--interleave", "16", trace)
	tooLarge := 0
	for _, total := range totals(t, manifest) {
		if total > 64 {
			tooLarge++
		}
	}
	if tooLarge == 0 {
		t.Fatal("no request is larger than 64 chunks")
	}
	runTrace(t, manifest, 64, requests, tooLarge)
}

// runTrace sends the requests of a manifest from two senders at once into a
// receiver with so many slots, and checks what becomes of every one.
func runTrace(t *testing.T, manifest string, slots, requests, tooLarge int) {
	sizes := totals(t, manifest)
	if len(sizes) != requests {
		t.Fatalf("the manifest has %d requests, want %d", len(sizes), requests)
	}
	recv := receiveChunks(t, slots, 16<<10, "--admit-timeout", "300s", "--sink=2ms")
	proxy := start(t, nil, "pd-proxy", "--listen", "tcp://127.0.0.1:*", "-n", fmt.Sprint(requests))
	to := listening(proxy)
	var senders []*program
	for i, half := range halves(t, manifest) {
		senders = append(senders, start(t, strings.NewReader(half), "pd-send", "--to", recv.endpoint, "--proxy", to,
			"--name", fmt.Sprintf("half-%d", i), "--timeout", "300s"))
	}
	ready, shared, refused := map[string]bool{}, 0, map[string]bool{}
	for _, s := range senders {
		code, failed := s.exitsWithin(5*time.Minute), 0
		for _, l := range s.lines() {
			id := l.str("req_id")
			shared += l.num("shared")
			if l.str("status") == "ready" {
				ready[id] = true
				continue
			}
			failed++
			refused[id] = true
			checkTooLarge(t, l, sizes[id], slots)
		}
		if code != min(failed, 1) {
			t.Errorf("a sender of which %d requests failed ends with %d", failed, code)
		}
	}
	if len(ready) != requests-tooLarge || len(refused) != tooLarge {
		t.Errorf("%d ready and %d failed, want %d and %d", len(ready), len(refused), requests-tooLarge, tooLarge)
	}
	if shared == 0 {
		t.Error("no prefix was shared")
	}
	if code := proxy.exits(); code != min(tooLarge, 1) {
		t.Errorf("the proxy ends with %d", code)
	}
	checkOnce(t, proxy.stdout(), ready)
	for _, l := range recv.lines("event", "queued") {
		if id := l.str("req_id"); refused[id] {
			t.Errorf("request %s is too large and yet waited", id)
		}
	}
	if s := recv.empty(); s.Slots.Promised+s.Slots.Held+s.Slots.Quarantined != 0 {
		t.Errorf("slots at the end: %+v", s.Slots)
	}
}

// checkTooLarge checks the line of a request that failed: it is larger than the
// buffer and was told so with both numbers.
func checkTooLarge(t *testing.T, l line, size, slots int) {
	t.Helper()
	text := l.str("error")
	if l.str("code") != "too_large" || size <= slots || !strings.Contains(text, fmt.Sprint(size)) || !strings.Contains(text, fmt.Sprint(slots)) {
		t.Errorf("of a request of %d chunks: %v", size, l)
	}
}

// checkOnce checks that the proxy printed each ready id, once.
func checkOnce(t *testing.T, printed []string, ready map[string]bool) {
	t.Helper()
	seen := map[string]bool{}
	for _, id := range printed {
		if seen[id] || !ready[id] {
			t.Errorf("the proxy printed %q, seen before: %v, ready: %v", id, seen[id], ready[id])
		}
		seen[id] = true
	}
	if len(seen) != len(ready) {
		t.Errorf("the proxy printed %d ids of %d that are ready", len(seen), len(ready))
	}
}

// listening waits for the endpoint that a program other than pd-recv says on
// stderr.
func listening(p *program) string {
	p.t.Helper()
	p.says("listening on ")
	_, rest, _ := strings.Cut(p.stderr(), "listening on ")
	endpoint, _, _ := strings.Cut(rest, "\n")
	return endpoint
}

type manifestLine struct {
	ReqID string `json:"req_id"`
	Total int    `json:"total_chunks"`
}

func eachLine(t *testing.T, manifest string, do func(text []byte, l manifestLine)) {
	t.Helper()
	for text := range bytes.Lines([]byte(manifest)) {
		var l manifestLine
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		do(text, l)
	}
}

// totals returns how many chunks each request has.
func totals(t *testing.T, manifest string) map[string]int {
	t.Helper()
	of := map[string]int{}
	eachLine(t, manifest, func(_ []byte, l manifestLine) { of[l.ReqID] = l.Total })
	return of
}

// halves deals the requests out to two senders in turn.
func halves(t *testing.T, manifest string) [2]string {
	t.Helper()
	var half [2]strings.Builder
	turn := map[string]int{}
	eachLine(t, manifest, func(text []byte, l manifestLine) {
		if _, known := turn[l.ReqID]; !known {
			turn[l.ReqID] = len(turn) % 2
		}
		half[turn[l.ReqID]].Write(text)
	})
	return [2]string{half[0].String(), half[1].String()}
}
