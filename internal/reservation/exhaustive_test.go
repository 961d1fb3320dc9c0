package reservation

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var exhaustiveEnds = flag.Int("exhaustive.ends", 1, "how often a sender crashes or falls silent; 2 takes minutes")

// TestExhaustive goes through everything that can happen in a small world: four
// slots, three requests of two and three chunks from two senders, one key that
// two of them share. In every state everything is checked, and from every state
// everybody doing their part drains it. States that differ in nothing that
// matters are visited once.
func TestExhaustive(t *testing.T) {
	small := smallWorld{
		cfg: Config{
			Slots: 4, AdmitTimeout: 20 * time.Second, Lease: 15 * time.Second, LegacyLease: 14 * time.Second,
			ReadyTTL: 20 * time.Second, Memory: time.Minute, Remember: 16, MaxGap: 4 * time.Second,
		},
		attached: []string{"s1", "s2"},
		scripts: []script{
			{"s1", "A", 3, [][]string{{"k", "a1"}, {"a2"}}},
			{"s2", "B", 2, [][]string{{"k"}, {"b1"}}},
			{"s1", "C", 2, [][]string{{"c0", "c1"}}},
		},
		cancels: 1, ends: *exhaustiveEnds,
	}
	attached := small
	attached.cancels = 3
	failing := small
	failing.failures, failing.cancels, failing.ends = 2, 0, 0
	legacy := small
	legacy.attached, legacy.cfg.Overtake = []string{"s1"}, 1
	serial := small
	serial.cfg.Mode, serial.cancels = Serial, 0
	none := small
	none.cfg.Mode, none.cancels = None, 0
	share := small
	share.cfg.SenderShare, share.cfg.Overtake = 4, 1
	for _, c := range []struct {
		name  string
		small smallWorld
	}{
		{"attached", attached}, {"an engine that fails", failing}, {"one never attached, overtake 1", legacy}, {"serial", serial}, {"none", none}, {"a share, overtake 1", share},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() {
				c.small.ends, c.small.cancels = 0, 1
			}
			c.small.explore(t)
		})
	}
}

type script struct {
	sender, id string
	total      int
	batches    [][]string
}

type smallWorld struct {
	cfg      Config
	attached []string
	scripts  []script
	cancels  int // how many requests are cancelled
	ends     int // how many times a sender crashes or falls silent
	failures int // how many batches the engine cannot open the slots of
}

// progress is how far the peers have come: what they may still do.
type progress struct {
	sent     [3]int // batches
	cancels  int
	ends     int
	failures int
}

func (s *smallWorld) explore(t *testing.T) {
	seen := map[string]bool{}
	level := [][]op{nil}
	states, moves := 0, 0
	for len(level) > 0 {
		var next [][]op
		var failure string
		var mu sync.Mutex
		var wg sync.WaitGroup
		work := make(chan []op)
		for range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				for path := range work {
					steps, where, err := s.visit(path)
					mu.Lock()
					if err != nil && failure == "" {
						failure = s.report(where, err)
					}
					states++
					moves += len(steps)
					for _, step := range steps {
						if !seen[step.key] {
							seen[step.key] = true
							next = append(next, step.path)
						}
					}
					mu.Unlock()
				}
			})
		}
		for _, path := range level {
			work <- path
		}
		close(work)
		wg.Wait()
		if failure != "" {
			t.Fatal(failure)
		}
		level = next
	}
	t.Logf("%d states, %d moves", states, moves)
}

type move struct {
	path []op
	key  string
}

// visit checks the state at the end of a path and tells what can follow, or on
// which path something is wrong.
func (s *smallWorld) visit(path []op) (moves []move, where []op, err error) {
	w, p, err := s.replay(path)
	if err != nil {
		return nil, path, err
	}
	choices := s.choices(w, p)
	if err := w.do(op{verb: "drain"}); err != nil {
		return nil, append(path, op{verb: "drain"}), err
	}
	for _, o := range choices {
		longer := append(slices.Clone(path), o)
		w, p, err := s.replay(longer)
		if err != nil {
			return nil, longer, err
		}
		moves = append(moves, move{longer, fmt.Sprint(p) + w.essence()})
	}
	return moves, nil, nil
}

func (s *smallWorld) replay(path []op) (*world, progress, error) {
	var p progress
	w := newWorld(s.cfg)
	for _, who := range s.attached {
		if err := w.do(op{verb: "attach", who: who}); err != nil {
			return w, p, err
		}
	}
	for i, o := range path {
		w.quick = i < len(path)-1 // what came before has been checked
		if err := s.do(w, &p, o); err != nil {
			return w, p, err
		}
	}
	w.quick = false
	return w, p, nil
}

// do understands the commands of the test language and "silent s1": s1 says
// nothing for longer than its lease while the others go on.
func (s *smallWorld) do(w *world, p *progress, o op) error {
	switch o.verb {
	case "alloc":
		if _, fails := o.opt("noaccess"); fails {
			p.failures++
		}
		p.sent[slices.IndexFunc(s.scripts, func(x script) bool { return x.id == o.req })]++
	case "cancel":
		p.cancels++
	case "gone":
		p.ends++
	case "silent":
		p.ends++
		for range 2 {
			if err := w.do(op{verb: "advance", who: "8s"}); err != nil {
				return err
			}
			for _, who := range s.attached {
				if who != o.who && w.md.sender(who) != nil {
					if err := w.do(op{verb: "heartbeat", who: who}); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	return w.do(o)
}

// choices is all that can happen next.
func (s *smallWorld) choices(w *world, p progress) []op {
	var list []op
	for i, sc := range s.scripts {
		if p.sent[i] < len(sc.batches) {
			o := op{verb: "alloc", who: sc.sender, req: sc.id, keys: sc.batches[p.sent[i]], opts: []string{fmt.Sprintf("total=%d", sc.total)}}
			if p.sent[i] == len(sc.batches)-1 {
				o.opts = append(o.opts, "last")
			}
			list = append(list, o)
			if p.failures < s.failures {
				o.opts = append(slices.Clone(o.opts), fmt.Sprintf("noaccess=%d", len(o.keys)-1)) // the last key's
				list = append(list, o)
			}
		}
		r := w.md.find(sc.id)
		if r == nil {
			continue
		}
		if p.cancels < s.cancels {
			list = append(list, op{verb: "cancel", who: sc.sender, req: sc.id})
		}
		for _, c := range w.watch.toWrite(sc.sender, sc.id) {
			if w.md.sender(sc.sender) != nil {
				list = append(list, op{verb: "commit", who: sc.sender, req: sc.id, keys: []string{c.key}})
			}
		}
		if r.ready && r.taker == "" {
			list = append(list, op{verb: "take", who: "d", req: sc.id})
		}
		if r.taker != "" {
			list = append(list, op{verb: "release", who: "d", req: sc.id})
		}
	}
	if len(w.pending) > 0 {
		list = append(list, op{verb: "revoked"}, op{verb: "revoke-failed"})
	}
	if p.ends < s.ends {
		for _, who := range []string{"s1", "s2"} {
			if w.md.sender(who) != nil {
				list = append(list, op{verb: "gone", who: who})
			}
			list = append(list, op{verb: "silent", who: who})
		}
	}
	return list
}

// essence is all of a state that what follows can depend on: which slot is
// which does not matter, nor the time of day.
func (w *world) essence() string {
	var b strings.Builder
	md := w.md
	ago := func(t Time) int { return int((md.now - t).Seconds()) }
	live := slices.Clone(md.live)
	slices.SortFunc(live, func(a, b *mReq) int { return strings.Compare(a.id, b.id) })
	for _, r := range live {
		fmt.Fprintf(&b, "|%s %v%v%v%v%v %s %d", r.id, r.legacy, r.admitted, r.lastAsked, r.lastDone, r.ready, r.taker, r.promised)
		for _, c := range r.chunks {
			fmt.Fprintf(&b, " %s%v%d", c.key, c.committed, len(c.holders))
		}
		for _, batch := range r.waiting {
			fmt.Fprintf(&b, " %v%d", batch.keys, ago(batch.came))
		}
		switch {
		case r.taker != "":
			fmt.Fprintf(&b, " take %d", ago(r.takenAt))
		case r.ready && !r.legacy:
			fmt.Fprintf(&b, " ready %d", ago(r.readyAt))
		case r.legacy:
			fmt.Fprintf(&b, " named %d", ago(r.named))
		}
	}
	for _, r := range md.queue {
		fmt.Fprintf(&b, "|q %s %v%d %d", r.id, r.held, r.passed, ago(r.since))
	}
	for _, s := range md.senders {
		fmt.Fprintf(&b, "|s %s %d", s.id, ago(s.heard))
	}
	for _, f := range md.fenced {
		fmt.Fprintf(&b, "|f %s %v%v", f.chunk.key, f.pending, f.writers)
	}
	for _, e := range md.ended {
		fmt.Fprintf(&b, "|e %s%v", e.id, e.expired)
	}
	return b.String()
}

func (s *smallWorld) report(path []op, err error) string {
	var ops []op
	for _, who := range s.attached {
		ops = append(ops, op{verb: "attach", who: who})
	}
	return fmt.Sprintf("%v\n\ncase %s\n%s----", err, caseLine(s.cfg), lines(append(ops, path...)))
}
