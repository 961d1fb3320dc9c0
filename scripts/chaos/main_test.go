package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

func TestSeedIsThePlan(t *testing.T) {
	all := func(string) bool { return true }
	for _, seed := range []uint64{1, 2} {
		if a, b := newConfig(seed, []string{"shm", "ofi"}), newConfig(seed, []string{"shm", "ofi"}); !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d makes two worlds: %+v and %+v", seed, a, b)
		}
		a, b := newFaults(seed, time.Minute, 2, all), newFaults(seed, time.Minute, 2, all)
		if !reflect.DeepEqual(a, b) || len(a) < 60 {
			t.Errorf("seed %d makes two plans, or one of %d faults in a minute", seed, len(a))
		}
	}
	if reflect.DeepEqual(newFaults(1, time.Minute, 2, all), newFaults(2, time.Minute, 2, all)) {
		t.Error("two seeds make one plan")
	}
}

// A run in which all is well, which each case below spoils in one way.
func goodRun() *ledger {
	l := newLedger(false)
	at := time.Unix(1000, 0)
	s := &senderLife{name: "send0.1", how: byItself}
	r := &receiverLife{name: "recv0.1", counters: map[string]int64{"admitted": 2, "ready": 2, "released": 2}}
	p := &proxyLife{name: "proxy0.1"}
	for _, id := range []string{"A", "B"} {
		q := &request{id: id, by: s, total: 1, chunks: []manifest.Chunk{{Key: id, Length: 10}}, begun: true, releases: true}
		res := result{ReqID: id, Status: "ready", Chunks: 1, Sent: 1, Bytes: 10, at: at}
		q.results, s.results = []result{res}, append(s.results, res)
		l.requests[id] = q
		for _, kind := range []string{"admitted", "allocated", "ready", "released"} {
			r.events = append(r.events, event{Event: kind, ReqID: id, Sender: s.name, Chunks: 1, Total: 1, Bytes: 10, at: at})
		}
		p.outcomes = append(p.outcomes, outcome{ReqID: id, Status: "ready", at: at})
	}
	l.senders, l.receivers, l.proxies = []*senderLife{s}, []*receiverLife{r}, []*proxyLife{p}
	return l
}

func TestCheck(t *testing.T) {
	if wrong := goodRun().check(); len(wrong) > 0 {
		t.Fatalf("a good run is called wrong: %v", wrong)
	}
	cases := []struct {
		name  string
		spoil func(l *ledger, s *senderLife, r *receiverLife, p *proxyLife)
		want  string // "": still right
	}{
		{"a sender says nothing of a request", func(l *ledger, s *senderLife, _ *receiverLife, _ *proxyLife) { l.requests["A"].results = nil }, "has 0 lines"},
		{"the same, and it was killed", func(l *ledger, s *senderLife, _ *receiverLife, _ *proxyLife) {
			l.requests["A"].results, s.results, s.how = nil, nil, killed
		}, ""},
		{"a sender says it twice", func(l *ledger, s *senderLife, _ *receiverLife, _ *proxyLife) {
			l.requests["A"].results = append(l.requests["A"].results, l.requests["A"].results...)
		}, "has 2 lines"},
		{"a failure without a reason", func(l *ledger, s *senderLife, _ *receiverLife, p *proxyLife) {
			l.requests["A"].results[0] = result{ReqID: "A", Status: "failed"}
		}, "does not say why"},
		{"cancelled by nobody", func(l *ledger, s *senderLife, _ *receiverLife, p *proxyLife) {
			l.requests["A"].results[0] = result{ReqID: "A", Status: "cancelled", Error: "stopped"}
		}, "which nobody asked for"},
		{"told ready, and failed", func(l *ledger, s *senderLife, _ *receiverLife, p *proxyLife) {
			l.requests["A"].results[0] = result{ReqID: "A", Status: "failed", Error: "why", Code: "timeout"}
		}, "a proxy calls request A ready, its sender failed"},
		{"told failed, and ready", func(l *ledger, s *senderLife, _ *receiverLife, p *proxyLife) { p.outcomes[0].Status = "failed" }, "a proxy calls request A failed"},
		{"ready, and its receiver knows nothing", func(l *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events, r.counters = r.events[4:], map[string]int64{"admitted": 1, "ready": 1, "released": 1}
		}, "its receiver never did"},
		{"the same, and the receiver was killed", func(l *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events, r.counters, r.how, r.endedAt = r.events[4:], nil, killed, time.Unix(1001, 0)
		}, ""},
		{"ready with a chunk missing", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) { r.events[2].Chunks = 0 }, "is ready with 0 of 1 chunks"},
		{"ready before it is allocated", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events[1], r.events[2] = r.events[2], r.events[1]
		}, `is "ready" after "admitted"`},
		{"released twice", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events = append(r.events, r.events[3])
		}, `is "released" after "released"`},
		{"never released", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events, r.counters["released"] = r.events[:7], 1
		}, "did not end"},
		{"the same, and its receiver was terminated", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events, r.counters, r.how = r.events[:7], nil, terminated
		}, "did not end"},
		{"it ended with its receiver, which was terminated", func(l *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events[7].Event, r.events[7].Code, r.counters, r.how, l.recover = "expired", "shutting_down", nil, terminated, true
		}, ""},
		{"the same, and nobody told it to end", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.events[7].Event, r.events[7].Code = "expired", "shutting_down"
		}, "a stop that there was not"},
		{"released by nobody", func(l *ledger, _ *senderLife, _ *receiverLife, _ *proxyLife) { l.requests["A"].releases = false }, "no decoder did it"},
		{"a counter is wrong", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) { r.counters["cancelled"] = 1 }, "counts 1 cancelled and has 0 lines"},
		{"the same, and a line was dropped", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			r.counters["cancelled"] = 1
			r.events = append(r.events, event{Event: "dropped", Dropped: 1})
		}, ""},
		{"a proxy tells twice", func(_ *ledger, _ *senderLife, _ *receiverLife, p *proxyLife) {
			p.outcomes = append(p.outcomes, p.outcomes[0])
		}, "tells of request A twice"},
		{"a stranger's request", func(_ *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) { r.events[0].Sender = "x" }, "never sent there"},
		{"what is ready is refused to its decoder", func(l *ledger, _ *senderLife, r *receiverLife, _ *proxyLife) {
			l.requests["A"].refused = []refusal{{"not_ready", time.Unix(1000, 0)}}
		}, "cannot be taken"},
		{"a clean end with a failure", func(l *ledger, s *senderLife, _ *receiverLife, _ *proxyLife) { s.results[0].Status = "failed" }, "has exit code 0"},
		{"a notice is lost in between", func(l *ledger, s *senderLife, r *receiverLife, p *proxyLife) {
			third := *l.requests["B"]
			third.id, third.results = "C", []result{{ReqID: "C", Status: "ready", Chunks: 1, Sent: 1}}
			l.requests["C"] = &third
			s.results = []result{s.results[0], third.results[0], s.results[1]}
			for _, e := range r.events[4:] {
				e.ReqID = "C"
				r.events = append(r.events, e)
			}
			r.counters = map[string]int64{"admitted": 3, "ready": 3, "released": 3}
		}, "not of these"},
	}
	for _, c := range cases {
		l := goodRun()
		c.spoil(l, l.senders[0], l.receivers[0], l.proxies[0])
		wrong := strings.Join(l.check(), "\n")
		if c.want == "" && wrong != "" || !strings.Contains(wrong, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, wrong, c.want)
		}
	}
}

func TestSeeds(t *testing.T) {
	for in, want := range map[string]int{"1": 1, "3-5": 3, "5-3": 0, "x": 0, "1-": 0, "": 0, "-1": 0, "1-4000000000": 0} {
		list, err := parseSeeds(in)
		if len(list) != want && err == nil || want > 0 && (err != nil || len(list) != want) {
			t.Errorf("%q: %v, %v", in, list, err)
		}
		if want == 0 && (err == nil || !strings.Contains(err.Error(), "must be a number from 0, or a range")) {
			t.Errorf("%q: %v", in, err)
		}
	}
}
