package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A notification is lost with the proxy that took it. The next one asks the
// receivers what is ready: each id is printed once in a life, none is lost.

// recovering starts a pd-proxy on an endpoint that asks these receivers.
func recovering(t *testing.T, endpoint string, receivers []*receiver, flags ...string) *program {
	t.Helper()
	args := []string{"--listen", endpoint}
	for _, r := range receivers {
		args = append(args, "--recover", r.endpoint)
	}
	p := start(t, nil, "pd-proxy", append(args, flags...)...)
	listening(p)
	return p
}

// prints waits until a plain pd-proxy has printed just these ids, in any order.
func (p *program) prints(ids ...string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%d ids", len(ids)), func() bool { return len(p.out) >= len(ids) })
	got := p.stdout()
	slices.Sort(got)
	want := slices.Clone(ids)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		p.t.Errorf("printed %q, want %q", got, want)
	}
}

// The proxy is down while requests become ready, is started, is killed and
// started again, and ends as it should.
func TestProxyRecovers(t *testing.T) {
	t.Parallel()
	r := receive(t, 100)
	endpoint := "tcp://127.0.0.1:" + freePort(t)
	s := send(t, r) // it tells nobody
	s.write(batch("A", 2, 0, 2), batch("B", 2, 0, 2))
	s.result("A", "ready")
	s.result("B", "ready")

	p := recovering(t, endpoint, []*receiver{r})
	p.prints("A", "B")
	told := send(t, r, "--proxy", endpoint)
	told.write(batch("C", 2, 0, 2))
	told.result("C", "ready")
	p.prints("A", "B", "C")
	p.kill(syscall.SIGKILL)
	p.exits()

	r.drop("A")
	s.write(batch("D", 2, 0, 2))
	s.result("D", "ready")
	p = recovering(t, endpoint, []*receiver{r}, "--json")
	for _, id := range []string{"B", "C", "D"} {
		p.event("req_id", id, "status", "ready")
	}
	told.write(batch("E", 2, 0, 2)) // its connection comes back by itself
	told.result("E", "ready")
	p.event("req_id", "E", "status", "ready")
	p.kill(syscall.SIGTERM)
	if code := p.exits(); code != 0 || len(p.stdout()) != 4 || !strings.Contains(p.stderr(), "4 ready (") {
		t.Errorf("exit %d, printed %q; stderr:\n%s", code, p.stdout(), p.stderr())
	}
	told.ends(0)
	s.ends(0)
}

// The proxy is killed right after it received, again and again, while requests
// flow: the lives together have printed every one, each no more than once.
func TestProxyIsKilledAsItReceives(t *testing.T) {
	t.Parallel()
	const lives, each = 6, 20
	r := receive(t, 2*lives*each)
	endpoint := "tcp://127.0.0.1:" + freePort(t)
	s := send(t, r, "--proxy", endpoint)
	printed := map[string]int{}
	ends := func(p *program) {
		p.kill(syscall.SIGKILL)
		p.exits()
		once := map[string]bool{}
		for _, id := range p.stdout() {
			if printed[id]++; once[id] {
				t.Errorf("%s is printed twice in one life", id)
			}
			once[id] = true
		}
	}
	var all []string
	for life := range lives {
		p := recovering(t, endpoint, []*receiver{r})
		for i := range each {
			id := fmt.Sprintf("R%d-%d", life, i)
			all = append(all, id)
			s.write(batch(id, 2, 0, 2))
		}
		p.until("an id of this life", func() bool {
			return slices.ContainsFunc(p.out, func(id string) bool { return strings.HasPrefix(id, fmt.Sprintf("R%d-", life)) })
		})
		ends(p)
	}
	p := recovering(t, endpoint, []*receiver{r})
	for _, id := range all {
		s.result(id, "ready")
	}
	p.prints(all...)
	ends(p)
	for _, id := range all {
		if printed[id] == 0 {
			t.Errorf("%s was ready and is never printed", id)
		}
	}
	s.ends(0)
}

// A receiver is not there when the proxy starts, and is started anew while it
// runs; what is ready in its next life is printed.
func TestProxyRecoversFromALateReceiver(t *testing.T) {
	t.Parallel()
	other := receive(t, 10)
	old := receive(t, 10)
	old.kill(syscall.SIGKILL)
	old.exits()
	p := recovering(t, "tcp://127.0.0.1:*", []*receiver{old, other})
	s := send(t, other)
	s.write(batch("A", 2, 0, 2))
	s.result("A", "ready")
	p.prints("A") // a receiver that is down holds up nobody
	p.says("no answer from " + old.endpoint)

	for life, id := range []string{"B", "C"} {
		r := receiveAt(t, old.endpoint, 10)
		s := send(t, r)
		s.write(batch(id, 2, 0, 2))
		s.result(id, "ready")
		p.prints([]string{"A", "B", "C"}[:life+2]...)
		s.ends(0)
		r.kill(syscall.SIGKILL)
		r.exits()
	}
	p.says(old.endpoint + " answers")
	p.says(old.endpoint + " was started anew")
}

// Two ranks, each at a receiver of its own: what is ready at one only waits,
// what has failed at one is never ready.
func TestProxyRecoversRanks(t *testing.T) {
	t.Parallel()
	receivers := []*receiver{receive(t, 10), receive(t, 10)}
	ranks := []*fed{send(t, receivers[0]), send(t, receivers[1])}
	rank := func(i int, id string) {
		ranks[i].write(batch(id, 2, 0, 2))
		ranks[i].result(id, "ready")
	}
	rank(0, "both")
	rank(1, "both")
	rank(0, "one")
	rank(0, "failed")
	endpoint := "tcp://127.0.0.1:" + freePort(t)
	p := recovering(t, endpoint, receivers, "--expect", "2", "--json")
	p.event("req_id", "both", "status", "ready")

	fails := send(t, receivers[1], "--proxy", endpoint)
	fails.write(batch("failed", 11, 0, 2))
	fails.result("failed", "failed")
	p.event("req_id", "failed", "status", "failed")
	fails.ends(1)
	rank(1, "failed")
	rank(1, "one")
	p.event("req_id", "one", "status", "ready")
	rank(1, "last")
	rank(0, "last")
	p.event("req_id", "last", "status", "ready")
	if n := len(p.stdout()); n != 4 || len(p.lines("req_id", "failed", "status", "ready")) > 0 {
		t.Errorf("printed %q", p.stdout())
	}
}

// -n and --timeout end a proxy that asks; a receiver named twice is a mistake.
func TestProxyRecoversAndEnds(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	s := send(t, r)
	s.write(batch("A", 2, 0, 2), batch("B", 2, 0, 2))
	s.result("A", "ready")
	s.result("B", "ready")
	if p := recovering(t, "tcp://127.0.0.1:*", []*receiver{r}, "-n", "2"); p.exits() != 0 {
		t.Errorf("-n 2: exit %d", p.status)
	} else {
		p.prints("A", "B")
	}
	gone := &receiver{endpoint: nobody}
	began := time.Now()
	if p := recovering(t, "tcp://127.0.0.1:*", []*receiver{r, gone}, "-n", "3", "--timeout", "500ms"); p.exits() != 1 {
		t.Errorf("--timeout: exit %d", p.status)
	} else {
		p.prints("A", "B")
	}
	if took := time.Since(began); took > soon {
		t.Errorf("--timeout 500ms ends after %v", took)
	}
	o := run(t, nil, "pd-proxy", "--listen", "tcp://127.0.0.1:*", "--recover", r.endpoint, "--recover", r.endpoint)
	if o.code != 2 || o.stdout != "" || !lineWith(o.stderr, r.endpoint, "is given twice") {
		t.Errorf("a receiver named twice: %+v", o)
	}
}
