package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A disk that is full under pd-recv take -o: the file does not appear, nothing
// lies beside it, what was there before stays, and the request stays ready.
func TestTakeOntoAFullDisk(t *testing.T) {
	t.Parallel()
	r := receive(t, 64)
	s := send(t, r)
	s.write(batch("A", 64, 0, 64)) // 64 KiB
	s.result("A", "ready")
	check := func(how string, o outcome, says, dir string, want ...string) {
		t.Helper()
		if o.code != 1 || o.stdout != "" || strings.Count(o.stderr, says) != 1 || strings.Contains(o.stderr, "goroutine") {
			t.Errorf("%s: exit %d, stdout %q, stderr:\n%s", how, o.code, o.stdout, o.stderr)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if strings.Join(names, " ") != strings.Join(want, " ") {
			t.Errorf("%s: left are %q, want %q", how, names, want)
		}
		if stat := r.stat(); len(stat.Requests) != 1 || stat.Requests[0].State != "ready" {
			t.Errorf("%s: the requests are %+v", how, stat.Requests)
		}
	}
	dir := t.TempDir()
	check("a device that is full", run(t, nil, "pd-recv", "take", "-o", "/dev/full", r.endpoint, "A"), "no space left on device", dir)

	// No file may grow beyond 16 KiB (of 512 bytes or of 1 KiB, as shells have it).
	small := limited(t, "-f 16", "pd-recv")
	kv := filepath.Join(dir, "kv")
	check("a file that cannot grow", run(t, nil, small, "take", "-o", kv, r.endpoint, "A"), "file too large", dir)
	if err := os.WriteFile(kv, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a file that is there", run(t, nil, small, "take", "-o", kv, r.endpoint, "A"), "file too large", dir, "kv")
	if read(t, kv) != "old" {
		t.Error("what was there is not there any more")
	}
	output(t, 0, "pd-recv", "take", "-o", kv, r.endpoint, "A")
	if read(t, kv) != pattern(chunkSize, keys("A", 0, 64)...) {
		t.Error("the file has other bytes")
	}
	r.empty()
}
