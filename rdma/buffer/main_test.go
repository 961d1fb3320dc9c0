package buffer

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// leavesNothing fails the test if, when it is over and all it cleaned up, the
// process has more of our files or mappings than before.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := holdings(t)
	t.Cleanup(func() {
		if after := holdings(t); after != before {
			t.Errorf("before: %s, after: %s", before, after)
		}
	})
}

func holdings(t *testing.T) string {
	t.Helper()
	memfds := 0
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if link, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(link, "memfd:") {
			memfds++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d memfds, %d mappings", memfds, strings.Count(string(maps), "memfd:"))
}

// needFiles skips a test that opens more files than the system lets it.
func needFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < n {
		t.Skipf("needs %d files open, the limit is %d", n, limit.Cur)
	}
}

// pattern is n bytes that seed decides.
func pattern(n int, seed uint64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}
