package cli

import "testing"

func TestLockedTooLittle(t *testing.T) {
	const want = "at most 8.0 MiB of memory can be locked, verbs locks what it writes, and the buffer has 8.0 MiB: raise the limit (ulimit -l)"
	if got := lockedTooLittle(8<<20, "verbs", "the buffer", 8<<20); got != "" {
		t.Errorf("as much as is needed: %s", got)
	}
	if got := lockedTooLittle(8<<20, "verbs", "the buffer", 8<<20+1); got != want {
		t.Errorf("one byte less: %q, want %q", got, want)
	}
}
