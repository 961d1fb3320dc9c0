package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckerSeesDifferences: pd-check, on whose word the demo stands, sees one
// byte that differs, a request of another length, and one that is not there.
func TestCheckerSeesDifferences(t *testing.T) {
	const line = `{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","file":"FILE","length":1024},{"key":"b","length":1000}],"last":true}`
	dir := t.TempDir()
	kv, manifest := filepath.Join(dir, "kv"), filepath.Join(dir, "manifest")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sent := strings.ReplaceAll(line, "FILE", kv)
	write(kv, strings.Repeat("x", 1024))
	recv := receive(t, 8)
	if code := start(t, strings.NewReader(sent), "pd-send", "--to", recv.endpoint).exits(); code != 0 {
		t.Fatalf("pd-send ends with %d", code)
	}
	for _, c := range []struct {
		name, bytes, manifest, id string
		code                      int
		says                      string
	}{
		{"not in the manifest", "x", sent, "B", 1, "not in the manifest"},
		{"not at the receiver", "x", strings.ReplaceAll(sent, `"A"`, `"B"`), "B", 1, "unknown_request"},
		{"another key", "x", strings.ReplaceAll(sent, `"b"`, `"c"`), "A", 1, "the manifest says"},
		{"one byte", "y", sent, "A", 1, "its bytes differ"},
		{"all as it should be", "x", sent, "A", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(kv, strings.Repeat("x", 1023)+c.bytes)
			write(manifest, c.manifest)
			p := start(t, strings.NewReader(c.id+"\n"), "pd-check", "--manifest", manifest, recv.endpoint)
			if code := p.exits(); code != c.code || !strings.Contains(p.stderr(), c.says) {
				t.Errorf("ends with %d, want %d; %q on stderr, want %q in it", code, c.code, p.stderr(), c.says)
			}
		})
	}
	recv.empty()
}
