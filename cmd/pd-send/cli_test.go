package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// run runs pd-send in this process.
func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = cli.Run(newApp(), append([]string{"pd-send"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestWrongUsage(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(trace, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const to = "--to=tcp://127.0.0.1:1"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{}, "--to"},
		{[]string{"--to", "127.0.0.1:1"}, "scheme"},
		{[]string{"--to", "tcp://::1:1"}, "bracket"},
		{[]string{to, "--proxy", "tcp://127.0.0.1"}, "port"},
		{[]string{to, "--staging-size", "0"}, "--staging-size"},
		{[]string{to, "--staging-size", "many"}, "--staging-size"},
		{[]string{to, "--batch", "0"}, "--batch"},
		{[]string{to, "--batch", "8193"}, "8192"},
		{[]string{to, "--engine", "ucx"}, "ofi"},
		{[]string{to, "--fabric", ""}, "--fabric"},
		{[]string{to, "--fabric-addr", "eth0"}, "IP address"},
		{[]string{to, "--timeout", "-1s"}, "--timeout"},
		{[]string{to, "--timeout", "NaN"}, "--timeout"},
		{[]string{to, "--pending", "-1"}, "--pending"},
		{[]string{to, "--pace", "0"}, "--pace"},
		{[]string{to, "--pace", "NaN"}, "--pace"},
		{[]string{to, "--notify", "never"}, "--notify"},
		{[]string{to, "--name", strings.Repeat("n", 257)}, "256"},
		{[]string{to, "--nope"}, "--nope"},
		{[]string{trace, to}, "flags come first"},
		{[]string{"manifest", "--chunk-size", "0"}, "--chunk-size"},
		{[]string{"manifest", "--interleave", "0"}, "--interleave"},
		{[]string{"manifest", "--limit", "-1"}, "--limit"},
		{[]string{"manifest", trace, trace}, "one trace"},
		{[]string{"manifest", trace, "--limit", "1"}, "flags come first"},
	} {
		code, stdout, stderr := run(tt.args...)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, tt.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want %q", tt.args, code, stdout, stderr, tt.want)
		}
	}
}

func TestVariablesStandForFlags(t *testing.T) {
	t.Setenv("PD_SEND_TIMEOUT", "soon")
	code, stdout, stderr := run("--to", "tcp://127.0.0.1:1")
	if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, "PD_SEND_TIMEOUT") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestManifestOfATrace(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	text := `{"timestamp":1500,"input_length":1000,"output_length":1,"hash_ids":[7,8]}` + "\n"
	if err := os.WriteFile(trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := run("manifest", "--chunk-size", "1024", "--batch", "1", "--prefix", "x-", trace)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != cli.ExitOK || stderr != "" || len(lines) != 2 ||
		!strings.Contains(lines[0], `"req_id":"x-000001","total_chunks":2`) || !strings.Contains(lines[0], `"at":1.5`) ||
		!strings.Contains(lines[0], `"length":1024`) || !strings.Contains(lines[1], `"length":976`) {
		t.Errorf("exit %d, stdout %s, stderr %q", code, stdout, stderr)
	}
	code, _, stderr = run("manifest", filepath.Join(t.TempDir(), "none"))
	if code != cli.ExitFailed || !strings.Contains(stderr, "none") {
		t.Errorf("missing trace: exit %d, stderr %q", code, stderr)
	}
}

func TestFlagsThatASmallRunDoesNotNeed(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(manifest, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := run("--to", "tcp://127.0.0.1:9", "--fabric", "verbs;ofi_rxm", "--fabric-addr", "fd00::1", "--monitor", "tcp://127.0.0.1:*", manifest)
	if code != cli.ExitOK || stdout != "" {
		t.Errorf("exit %d, stdout %q", code, stdout)
	}
	for _, want := range []string{"to watch it: pd-top tcp://127.0.0.1:", "0 requests", "notices were off"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr does not say %q: %s", want, stderr)
		}
	}
}

func TestEngineThatIsNotBuiltIn(t *testing.T) {
	built := engines.Names()
	for _, name := range []string{"shm", "ofi"} {
		code, stdout, stderr := run("--to", "tcp://127.0.0.1:9", "--engine", name, os.DevNull)
		want := map[bool]int{true: cli.ExitOK, false: cli.ExitUsage}[slices.Contains(built, name)]
		if code != want || stdout != "" || want == cli.ExitUsage && !strings.Contains(stderr, "-tags no"+name) {
			t.Errorf("--engine %s, built in are %q: exit %d, stdout %q, stderr %q", name, built, code, stdout, stderr)
		}
	}
}

func TestManifestsThatAreNotThere(t *testing.T) {
	code, _, stderr := run("--to", "tcp://127.0.0.1:9", filepath.Join(t.TempDir(), "none.jsonl"))
	if code != cli.ExitFailed || !strings.Contains(stderr, "none.jsonl") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}
