package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What is not there: a file, a receiver, a proxy, a free port. What is said
// names it and says what to do, the exit code is 1, and everything else goes on.

func TestManifestIsNotThere(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--sink")
	good := filepath.Join(t.TempDir(), "good")
	if err := os.WriteFile(good, []byte(batch("A", 1, 0, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		o := run(t, nil, "pd-send", "--to", r.endpoint, bad, good)
		if o.code != 1 || !lineWith(o.stderr, bad, "no such file") && !lineWith(o.stderr, bad, "is a directory") {
			t.Errorf("exit %d, stderr %s", o.code, o.stderr)
		}
		if !strings.Contains(o.stdout, `"status":"ready"`) {
			t.Errorf("the manifest behind it was not sent: %s", o.stdout)
		}
	}
	o := run(t, nil, "pd-send", "manifest", "none")
	if o.code != 1 || o.stdout != "" || !strings.Contains(o.stderr, "none: no such file") {
		t.Errorf("of a missing trace: %+v", o)
	}
}

func TestReceiverIsNotThere(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--sink")
	const timeout = 5 * time.Second
	s := feed(t, "pd-send", "--to", nobody, "--to", r.endpoint, "--timeout", timeout.String())
	began := time.Now()
	s.write(batch("A", 8, 0, 8, `"to":0`), batch("B", 8, 0, 8, `"to":1`))
	s.result("B", "ready")
	l := s.result("A", "failed")
	if l.str("code") != "unreachable" || !strings.Contains(l.str("error"), nobody) || !strings.Contains(l.str("error"), "is pd-recv running there?") {
		t.Errorf("without its receiver a request ends as %v", l)
	}
	if took := time.Since(began); took > timeout+soon {
		t.Errorf("it took %v to give up after %v", took, timeout)
	}
	s.ends(1)
	for _, args := range [][]string{{"stat", "--timeout=100ms", nobody}, {"take", "--timeout=100ms", nobody, "A"}, {"drop", "--timeout=100ms", nobody, "A"}} {
		if o := run(t, nil, "pd-recv", args...); o.code != 1 || o.stdout != "" || !lineWith(o.stderr, nobody, "is pd-recv running there?") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestProxyIsNotThere(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	s := send(t, r, "--proxy", nobody, "--timeout", "5s")
	s.write(batch("A", 8, 0, 8))
	r.happens("ready", "A")
	l := s.result("A", "failed")
	if l.str("code") != "not_notified" || !strings.Contains(l.str("error"), nobody) || !strings.Contains(l.str("error"), "is pd-proxy running there?") {
		t.Errorf("without its proxy a request ends as %v", l)
	}
	r.happens("cancelled", "A") // what nobody is told of is not kept
	s.ends(1)
	r.empty()

	// A receiver whose proxy is absent goes on, and so does a sender that needs
	// none (F63).
	lonely := receive(t, 10, "--proxy", nobody, "--sink", "--legacy-lease", "100ms")
	lmcache(t, lonely).alloc("A", 8, false, keys("A", 0, 4)...)
	lonely.happens("expired", "A")
	s = send(t, lonely)
	s.write(batch("B", 8, 0, 8))
	s.result("B", "ready")
	s.ends(0)
	if !strings.Contains(s.stderr(), "notices were off (no --proxy)") {
		t.Errorf("the summary does not say that there is no proxy: %s", s.stderr())
	}
}

// F61: a second instance ends at once and names the port; a new one binds right
// after a kill; several run beside each other.
func TestPortIsTaken(t *testing.T) {
	t.Parallel()
	r := receive(t, 10)
	_, proxy := proxied(t)
	for _, endpoint := range []string{r.endpoint, proxy} {
		checkPortTaken(t, endpoint, "pd-recv", "--listen", endpoint, "--buffer-size", "10KiB", "--chunk-size", "1KiB")
		checkPortTaken(t, endpoint, "pd-proxy", "--listen", endpoint)
	}
	seen := map[string]bool{}
	for i := range 4 {
		r := receive(t, 10)
		if seen[r.endpoint] {
			t.Errorf("two receivers have %s", r.endpoint)
		}
		seen[r.endpoint] = true
		s := send(t, r)
		s.write(batch(fmt.Sprint("A", i), 8, 0, 4))
		r.happens("admitted", fmt.Sprint("A", i))
		r.kill(9)
		r.exits()
		receiveAt(t, r.endpoint, 10)
		s.kill(9)
	}
}
