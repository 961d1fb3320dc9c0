package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// F56: a buffer too small for the longest prompt is noticed at the start, which
// says the size that is needed.
func TestBufferForTheLongestPrompt(t *testing.T) {
	t.Parallel()
	flags := func(slots int, more ...string) []string {
		return append([]string{"--listen", "tcp://127.0.0.1:*", "--chunk-size", "1KiB", "--buffer-size", fmt.Sprint(slots << 10), "--tokens-per-chunk", "16"}, more...)
	}
	for _, c := range []struct {
		flags []string
		wants string // on stderr, with exit code 2; "": it starts
	}{
		{flags(256, "--max-prefill", "4096"), ""},
		{flags(255, "--max-prefill", "4096"), "--max-prefill 4096 needs 256 chunks of 16 tokens, --buffer-size 261120 holds 255: needs at least 262144 bytes"},
		{flags(256, "--max-prefill", "4097"), "needs 257 chunks"},
		{flags(255, "--max-prefill", "0"), ""},
		{flags(255), ""},
		{flags(512, "--max-prefill", "4096", "--sender-share", "50%"), ""},
		{flags(512, "--max-prefill", "4096", "--sender-share", "49%"), "--sender-share lets one sender have 250 of 512: needs at least 256"},
	} {
		p := start(t, nil, "pd-recv", c.flags...)
		if c.wants == "" {
			p.event("event", "listening")
			continue
		}
		began, delay := time.Now(), delays(t)
		if code := p.exits(); code != 2 || !strings.Contains(p.stderr(), c.wants) || time.Since(began) > time.Second+delay() {
			t.Errorf("%q ends with %d after %v; stderr: %s", c.flags, code, time.Since(began), p.stderr())
		}
	}
}

// A low limit of open files is said at the start, with what takes how many. Each
// ends soon: the address is not ours, nothing comes, there is nothing to send.
func TestFewFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		program, args string
		limit         int
		says          string
	}{
		{"pd-recv", "--listen tcp://192.0.2.1:1 --buffer-size 64KiB --chunk-size 1KiB", 1023, "at most 1023 files can be open, and each sender takes two"},
		{"pd-recv", "--listen tcp://192.0.2.1:1 --buffer-size 64KiB --chunk-size 1KiB", 1024, ""},
		{"pd-proxy", "--listen tcp://127.0.0.1:* --timeout 100ms", 1023, "at most 1023 files can be open, and each sender and each receiver takes one"},
		{"pd-send", "--to tcp://127.0.0.1:1 /dev/null", 79, "at most 79 files can be open, and each receiver takes two"},
		{"pd-send", "--to tcp://127.0.0.1:1 /dev/null", 80, ""},
	} {
		script := fmt.Sprintf("ulimit -n %d; exec %s %s", c.limit, filepath.Join(bin, c.program), c.args)
		out, _ := exec.Command("bash", "-c", script).CombinedOutput()
		if says := strings.Contains(string(out), "files can be open"); says != (c.says != "") || !strings.Contains(string(out), c.says) {
			t.Errorf("%s with %d files says:\n%s", c.program, c.limit, out)
		}
	}
}
