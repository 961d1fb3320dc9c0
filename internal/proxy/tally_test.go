package proxy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// play feeds notifications, "A" for ready, "A!" for failed, "A@0" for receiver 0
// that says it is ready there and "@0" for that one started anew, and returns
// what is told: "A" or "A!", with the number of notifications where it is not 1.
func play(t *Tally, notifs string) string {
	var told []string
	for _, n := range strings.Fields(notifs) {
		id, failed := strings.CutSuffix(n, "!")
		var o Outcome
		var effect Effect
		id, at, found := strings.Cut(id, "@")
		receiver, _ := strconv.Atoi(at)
		if failed {
			o, effect = t.Failed(noon, id, "why")
		} else if found && id == "" {
			t.Lost(receiver)
		} else if found {
			o, effect = t.Found(noon, id, receiver)
		} else {
			o, effect = t.Ready(noon, id)
		}
		if effect != Ended {
			continue
		}
		text := o.ReqID
		if o.Status == Failed {
			text += "!"
		}
		if o.Notifs != 1 {
			text += fmt.Sprint(o.Notifs)
		}
		told = append(told, text)
	}
	return strings.Join(told, " ")
}

func TestTally(t *testing.T) {
	for _, tc := range []struct {
		name           string
		expect         int
		pending, ended int // 0: as in the program
		notifs         string
		want           string
		counters       Counters
		waiting        int
	}{
		{name: "each ready id once", expect: 1, notifs: "A B A C A B", want: "A B C", counters: Counters{Ready: 3, Duplicates: 3}},
		{name: "a failure", expect: 1, notifs: "A! B", want: "A! B", counters: Counters{Ready: 1, Failed: 1}},
		{name: "a failure once", expect: 1, notifs: "A! A!", want: "A!", counters: Counters{Failed: 1, Duplicates: 1}},
		{name: "never ready after it failed", expect: 1, notifs: "A! A A", want: "A!", counters: Counters{Failed: 1, Duplicates: 2}},
		{name: "a failure after it was ready", expect: 1, notifs: "A A!", want: "A", counters: Counters{Ready: 1, LateFailures: 1}},
		{name: "waits for every rank", expect: 3, notifs: "A B A B A C", want: "A3", counters: Counters{Ready: 1}, waiting: 2},
		{name: "more than every rank", expect: 2, notifs: "A A A A", want: "A2", counters: Counters{Ready: 1, Duplicates: 2}},
		{name: "failure beats success", expect: 3, notifs: "A A A! A", want: "A!3", counters: Counters{Failed: 1, Duplicates: 1}},
		{name: "a failure first", expect: 3, notifs: "A! A A A", want: "A!", counters: Counters{Failed: 1, Duplicates: 3}},
		{name: "the oldest pending is forgotten", expect: 2, pending: 2, notifs: "A B C B C A", want: "B2 C2", counters: Counters{Ready: 2, Forgotten: 1}, waiting: 1},
		{name: "a second notification keeps the age", expect: 3, pending: 2, notifs: "A B A C B B", want: "B3", counters: Counters{Ready: 1, Forgotten: 1}, waiting: 1},
		{name: "an ended one makes room", expect: 2, pending: 1, notifs: "A A B B", want: "A2 B2", counters: Counters{Ready: 2}},
		{name: "found", expect: 1, notifs: "A@0 A@1 A B@1", want: "A0 B0", counters: Counters{Ready: 2, Recovered: 2, Duplicates: 1}},
		{name: "found after it was notified", expect: 1, notifs: "A A@0", want: "A", counters: Counters{Ready: 1}},
		{name: "found after it failed", expect: 1, notifs: "A! A@0 A@1", want: "A!", counters: Counters{Failed: 1}},
		{name: "failed after it was found", expect: 1, notifs: "A@0 A!", want: "A0", counters: Counters{Ready: 1, Recovered: 1, LateFailures: 1}},
		{name: "found at as many as it takes", expect: 2, notifs: "A@0 A@0 A@1", want: "A0", counters: Counters{Ready: 1, Recovered: 1}},
		{name: "found what was notified", expect: 2, notifs: "A A@0 A@1", want: "A", counters: Counters{Ready: 1, Recovered: 1}},
		{name: "notified what was found", expect: 2, notifs: "A@0 A B@0", waiting: 2},
		{name: "enough notifications", expect: 2, notifs: "A@0 A A", want: "A2", counters: Counters{Ready: 1}},
		{name: "one of two failed", expect: 2, notifs: "A@0 A! A@1", want: "A!", counters: Counters{Failed: 1}},
		{name: "a receiver is started anew", expect: 2, notifs: "A@0 B@0 B C@1 @0 A@1 B@1 C@0", want: "C0", counters: Counters{Ready: 1, Recovered: 1}, waiting: 2},
		{name: "and says it again", expect: 2, notifs: "A@0 B@1 @0 A@0 A@1 @0 @1", want: "A0", counters: Counters{Ready: 1, Recovered: 1}},
		{name: "room for those found", expect: 2, pending: 1, notifs: "A@0 B@0", counters: Counters{Forgotten: 1}, waiting: 1},
		{name: "an old ended one is forgotten", expect: 1, ended: 2, notifs: "A B A C A", want: "A B C A", counters: Counters{Ready: 4, Duplicates: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tally := NewTally(tc.expect)
			if tc.pending > 0 {
				tally.pending.limit = tc.pending
			}
			if tc.ended > 0 {
				tally.ended.limit = tc.ended
			}
			if got := play(tally, tc.notifs); got != tc.want {
				t.Errorf("told %q, want %q", got, tc.want)
			}
			if tally.Counters != tc.counters || tally.Pending() != tc.waiting {
				t.Errorf("counters %+v, %d pending, want %+v, %d", tally.Counters, tally.Pending(), tc.counters, tc.waiting)
			}
		})
	}
}

// Requests that never end, and those that do, leave no more behind than the
// two memories hold.
func TestTallyIsBounded(t *testing.T) {
	tally := NewTally(2)
	if tally.pending.limit != 65_536 || tally.ended.limit != 65_536 {
		t.Errorf("limits are %d and %d, help says 65,536", tally.pending.limit, tally.ended.limit)
	}
	const limit, n = 500, 5000
	tally.pending.limit, tally.ended.limit = limit, limit
	for i := range n {
		tally.Ready(noon, fmt.Sprint("pending-", i))
		tally.Failed(noon, fmt.Sprint("failed-", i), "why")
	}
	if p, e := tally.pending, tally.ended; p.len() != limit || len(p.byKey) != limit || e.len() != limit || len(e.byKey) != limit {
		t.Errorf("%d and %d pending, %d and %d ended, want %d", p.len(), len(p.byKey), e.len(), len(e.byKey), limit)
	}
	if tally.Forgotten != n-limit {
		t.Errorf("%d forgotten, want %d", tally.Forgotten, n-limit)
	}
	if _, effect := tally.Ready(noon, fmt.Sprint("pending-", n-1)); effect != Ended {
		t.Error("the youngest pending request was forgotten")
	}
}

// The tally agrees with the whole history looked at again each time.
func TestTallyAgainstHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		expect := rapid.IntRange(1, 4).Draw(t, "expect")
		tally := NewTally(expect)
		var history []string
		for _, n := range rapid.SliceOf(rapid.StringMatching(`[A-C]!?`)).Draw(t, "notifications") {
			before := tellHistory(history, expect)
			history = append(history, n)
			want := strings.TrimSpace(strings.TrimPrefix(tellHistory(history, expect), before))
			if got := play(tally, n); got != want {
				t.Fatalf("after %v: told %q, want %q", history, got, want)
			}
		}
	})
}

// tellHistory is the rule written a second way: a request's end is the first
// failure, or the expect-th notification if no failure is before it.
func tellHistory(history []string, expect int) string {
	var told []string
	seen := map[string]int{}
	over := map[string]bool{}
	for _, n := range history {
		id := n[:1]
		seen[id]++
		failed := len(n) > 1
		if over[id] || !failed && seen[id] < expect {
			continue
		}
		over[id] = true
		if seen[id] > 1 {
			n += fmt.Sprint(seen[id])
		}
		told = append(told, n)
	}
	return strings.Join(told, " ")
}
