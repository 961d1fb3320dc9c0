package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A receiver is killed while two senders are in full run: each ends within its
// time-out and says of every request how it ended.
func TestReceiverDiesUnderLoad(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	trace := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(trace, []byte(output(t, 0, "gentrace", "--requests", "200")), 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := output(t, 0, "pd-send", "manifest", "--chunk-size", "16KiB", "--interleave", "16", trace)
	r := receiveChunks(t, 128, 16<<10, "--sink")
	proxy, to := proxied(t)
	var senders []*program
	halves := halves(t, manifest)
	for _, half := range halves {
		senders = append(senders, start(t, strings.NewReader(half), "pd-send", "--to", r.endpoint, "--proxy", to, "--timeout", timeout.String()))
	}
	r.until("ten requests to be ready", func() bool { return strings.Count(strings.Join(r.out, "\n"), `"event":"ready"`) >= 10 })
	r.kill(syscall.SIGKILL)
	killed := time.Now()
	ready := 0
	for i, s := range senders {
		if code := s.exits(); code != 1 || time.Since(killed) > 2*timeout+soon {
			t.Errorf("a sender ends with %d, %v after its receiver", code, time.Since(killed))
		}
		ended := map[string]int{}
		for _, l := range s.lines() {
			ended[l.str("req_id")]++
			if l.str("status") == "ready" {
				ready++
			} else if l.str("error") == "" {
				t.Errorf("it does not say why: %v", l)
			}
		}
		for id := range totals(t, halves[i]) {
			if ended[id] != 1 {
				t.Errorf("of request %s there are %d lines", id, ended[id])
			}
		}
	}
	proxy.until("all that is ready to reach the proxy", func() bool {
		return strings.Count(strings.Join(proxy.out, "\n"), `"status":"ready"`) == ready
	})
}

// The programs with the race detector, where the tests have it, while faults
// befall them: make chaos for half a minute.
func TestChaos(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(filepath.Join(bin, "chaos"), "-bin", bin, "-seed", "1-2", "-time", "30s").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
