package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// What one peer does or does not do costs the others nothing that is not bounded:
// receivers that hang or are not there, small requests beside a large one, a proxy
// that nobody started. Numbers are as in reports_test.go.

// monitorOf is where a pd-send can be watched.
func monitorOf(s *fed) (endpoint string) {
	s.t.Helper()
	s.until("where it can be watched", func() bool {
		m := regexp.MustCompile(`pd-top (tcp://\S+)`).FindStringSubmatch(s.err.String())
		if m != nil {
			endpoint = m[1]
		}
		return m != nil
	})
	return endpoint
}

// F45: a receiver stops in the middle of a write that has some of four staging slots.
// Others are held up no longer than the stall may last, a monitor shows who hangs
// and for how long, what is written there fails, and staging is free again.
func TestReceiverStalls(t *testing.T) {
	t.Parallel()
	const chunk, timeout = 32 << 20, 12 * time.Second // and pd-top calls a receiver SILENT after 10s
	first := receiveChunks(t, 4, chunk, "--engine", "ofi", "--lease", "10m")
	second := receiveChunks(t, 4, chunk, "--engine", "ofi", "--sink")
	s := feed(t, "pd-send", "--to", first.endpoint, "--to", second.endpoint, "--engine", "ofi", "--staging-size", fmt.Sprint(4*chunk),
		"--timeout", timeout.String(), "--monitor", "tcp://127.0.0.1:*")
	endpoint := monitorOf(s)
	p, watch := watch(t, 120, 30, endpoint), testkit.Subscribe(t, endpoint)
	whole := func(id string, to int) string {
		var chunks []string
		for _, key := range keys(id, 0, 4) {
			chunks = append(chunks, fmt.Sprintf(`{"key":%q,"length":%d}`, key, chunk))
		}
		return fmt.Sprintf(`{"req_id":%q,"total_chunks":4,"chunks":[%s],"last":true,"to":%d}`+"\n", id, strings.Join(chunks, ","), to)
	}
	stuck, began := "", time.Time{}
	for i := range tries {
		id := fmt.Sprint("A", i)
		s.write(whole(id, 0))
		first.happens("allocated", id)
		first.kill(syscall.SIGSTOP) // while it is written to
		began = time.Now()
		snap := testkit.Next(watch, patience, "it hangs or is written", func(snap *wire.SenderSnapshot) bool {
			return len(s.lines("req_id", id)) > 0 || len(snap.Requests) == 1 && snap.Requests[0].ReqID == id && snap.Receivers[0].HeardMS > 1000
		})
		if len(s.lines("req_id", id)) == 0 && snap.Staging.Used > 0 {
			t.Logf("%s hangs with %d of %d staging slots", id, snap.Staging.Used, snap.Staging.Total)
			stuck = id
			break
		}
		first.kill(syscall.SIGCONT)
		s.result(id, "ready")
		first.drop(id)
	}
	if stuck == "" {
		t.Fatalf("in %d writes the receiver never stopped during one", tries)
	}
	delay := delays(t)
	s.write(whole("B", 1), whole("C", 1), whole("D", 1))
	p.shows("who hangs, and for how long", has(stuck+` .*1[0-9]\.\ds`, `SILENT`, `[1-4] of 4 slots`))
	for _, id := range []string{"B", "C", "D"} {
		s.result(id, "ready")
	}
	if took := time.Since(began); took > timeout+soon/2+delay() {
		t.Errorf("the others waited %v for one that may stall for %v", took, timeout)
	}
	if l := s.result(stuck, "failed"); l.str("code") != "unreachable" {
		t.Errorf("what hung ends as %v", l)
	}
	snap := testkit.Next(watch, patience, "nothing is left", func(s *wire.SenderSnapshot) bool { return len(s.Requests) == 0 })
	if st := snap.Staging; st.Used != 0 || st.Total != 4 || len(st.Blocked) > 0 {
		t.Errorf("staging: %+v", st)
	}
	first.kill(syscall.SIGCONT)
	s.write(whole("E", 0))
	s.result("E", "ready")
	s.ends(1)
}

// F46: twenty requests each to a receiver, to an address where nobody listens and
// to one that nobody has: the first are not held up, the others fail at once and
// in the same few seconds; when somebody listens there the next goes through
// within a redial.
func TestUnreachableReceivers(t *testing.T) {
	t.Parallel()
	const each, timeout, redial = 20, 5 * time.Second, time.Second
	live, dead := receive(t, 10, "--sink"), "tcp://127.0.0.1:"+freePort(t)
	s := feed(t, "pd-send", "--to", live.endpoint, "--to", dead, "--to", "tcp://192.0.2.1:7600", "--timeout", timeout.String())
	s.write(batch("first", 2, 0, 2, `"to":0`))
	s.result("first", "ready") // it runs
	began, delay := time.Now(), delays(t)
	for i := range each {
		for to, name := range []string{"live", "dead", "gone"} {
			s.write(batch(fmt.Sprint(name, i), 2, 0, 2, fmt.Sprintf(`"to":%d`, to)))
		}
	}
	for i := range each {
		for _, name := range []string{"dead", "gone"} {
			if l := s.result(fmt.Sprint(name, i), "failed"); l.str("code") != "unreachable" || l["total_ms"].(float64) > float64((timeout+time.Second+delay()).Milliseconds()) {
				t.Errorf("to nobody: %v", l)
			}
		}
		s.result(fmt.Sprint("live", i), "ready")
	}
	if took := time.Since(began); took > timeout+2*time.Second+delay() {
		t.Errorf("all of them fail within %v, the time-out is %v", took, timeout)
	}
	out := s.stdout()
	ready := func(l string) bool { return strings.Contains(l, `"status":"ready"`) }
	if i := slices.IndexFunc(out, func(l string) bool { return !ready(l) }); i != each+1 {
		t.Errorf("%d are ready before the first fails, want %d", i, each+1)
	}
	eventually(t, "it to be dead for ten seconds", func() bool { return time.Since(began) > 10*time.Second })
	receiveAt(t, dead, 10, "--sink")
	opened := time.Now()
	s.write(batch("next", 2, 0, 2, `"to":1`))
	s.result("next", "ready")
	if took := time.Since(opened); took > redial+time.Second+delay() {
		t.Errorf("it is found after %v", took)
	}
	s.ends(1)
}

// F36: small requests come ten a second while a large one waits for an even larger
// one. In strict order none passes it; where some may, so many do and no more, and
// it is the next when there is room. Who waits, where and for how long is seen.
func TestSmallOnesComeAllTheTime(t *testing.T) {
	t.Parallel()
	const smalls, every = 100, 100 * time.Millisecond
	for _, overtake := range []int{0, 7} {
		t.Run(fmt.Sprint("overtake ", overtake), func(t *testing.T) {
			t.Parallel()
			r := receive(t, 10, "--overtake", fmt.Sprint(overtake), "--sink")
			a, b, c := send(t, r), send(t, r), send(t, r, "--pace", "1")
			a.write(batch("A", 8, 0, 4))
			r.happens("admitted", "A")
			began := time.Now()
			b.write(batch("B", 6, 0, 6))
			r.happens("queued", "B")
			for i := range smalls {
				c.write(batch(fmt.Sprint("s", i), 2, 0, 2, fmt.Sprintf(`"at":%v`, (time.Duration(i)*every).Seconds())))
			}
			if overtake > 0 {
				r.happens("admitted", fmt.Sprint("s", overtake-1))
			}
			r.happens("queued", fmt.Sprint("s", overtake+10))
			var snap shot
			eventually(t, "the large one to have waited for a second", func() bool {
				snap = r.shot()
				return len(snap.Queue) == 0 || snap.Queue[0].WaitedMS >= 1000
			})
			if q := snap.Queue; len(q) < 11 || q[0].ReqID != "B" || q[0].Pos != 1 || q[0].Need != 6 || q[1].WaitedMS >= q[0].WaitedMS {
				t.Errorf("who waits: %+v", q)
			}
			eventually(t, "the large one to have been there for five seconds", func() bool { return time.Since(began) > 5*time.Second })
			a.write(batch("A", 8, 4, 4))
			b.result("B", "ready")
			for i := range smalls {
				c.result(fmt.Sprint("s", i), "ready")
			}
			passed := 0
			for _, l := range r.lines("event", "admitted") {
				if l.str("req_id") == "B" {
					break
				}
				passed++
			}
			if passed-1 != overtake { // A was there before
				t.Errorf("%d small requests passed the large one, want %d", passed-1, overtake)
			}
			r.inOrder("released A", "admitted B")
			for _, s := range []*fed{a, b, c} {
				s.ends(0)
			}
			r.empty()
		})
	}
}

// F42: ten notices for a proxy that is not there, with a receiver and without:
// whoever is told to end does so within its time and says how many were left; told
// twice, it ends at once.
func TestNoticesThatNobodyTakes(t *testing.T) {
	t.Parallel()
	const notices, most = 10, 5 * time.Second // the default of --shutdown-timeout
	live := receive(t, 100)
	for name, tt := range map[string]struct {
		to      string
		request func(id string) string
	}{
		"nothing to write":       {live.endpoint, zero},
		"all of it written":      {live.endpoint, func(id string) string { return batch(id, 2, 0, 2) }},
		"the receiver is absent": {nobody, func(id string) string { return batch(id, 2, 0, 2) }},
	} {
		for _, twice := range []bool{false, true} {
			t.Run(fmt.Sprint(name, map[bool]string{true: ", twice"}[twice]), func(t *testing.T) {
				t.Parallel()
				s := feed(t, "pd-send", "--to", tt.to, "--proxy", nobody, "--monitor", "tcp://127.0.0.1:*")
				watch, delay := testkit.Subscribe(t, monitorOf(s)), delays(t)
				for i := range notices {
					s.write(tt.request(fmt.Sprint(name, twice, i)))
				}
				testkit.Next(watch, patience, "all of them are under way", func(s *wire.SenderSnapshot) bool {
					n := 0
					for _, r := range s.Requests {
						if r.State == "notifying" || tt.to == nobody {
							n++
						}
					}
					return n == notices
				})
				began := time.Now()
				if twice {
					for !s.within(10*time.Millisecond, func() bool { return s.ended }) {
						s.kill(syscall.SIGINT) // one that comes while another is pending is none
					}
					if code, took := s.exits(), time.Since(began); code != 130 || took > time.Second+delay() {
						t.Errorf("it ends with %d after %v; stderr:\n%s", code, took, s.stderr())
					}
					return
				}
				s.kill(syscall.SIGTERM)
				code, took := s.exits(), time.Since(began)
				if code != 143 || took > most+time.Second/2+delay() || !strings.Contains(s.stderr(), fmt.Sprintf("%d notices undelivered", notices)) {
					t.Errorf("it ends with %d after %v; stderr:\n%s", code, took, s.stderr())
				}
				if n := len(s.lines("status", "cancelled")) + len(s.lines("status", "failed")); n != notices || len(s.stdout()) != notices {
					t.Errorf("%d requests have ended: %q", n, s.stdout())
				}
			})
		}
	}
}
