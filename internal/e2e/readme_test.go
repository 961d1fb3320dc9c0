package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/built"
)

// TestReadme runs the README's blocks of shell commands, each in a shell of its
// own, one after the other in one folder. Left out are lines that begin with
// make, of which only the target must exist: CI runs them. The default ports
// are exchanged for free ones. The block that needs NIXL is marked bash, not sh:
// scripts/interop/test_nixl.py runs it.
func TestReadme(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(repoFile(t, "README.md"), -1)
	if len(blocks) < 4 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	makefile := repoFile(t, "Makefile")
	for _, m := range regexp.MustCompile("(?m)(?:^ *|`)make ([a-z]+)").FindAllStringSubmatch(repoFile(t, "README.md"), -1) {
		if !strings.Contains(makefile, "\n"+m[1]+":") {
			t.Errorf("the Makefile has no %q", m[1])
		}
	}
	recv, proxy, monitor := freePort(t), freePort(t), freePort(t)
	ports := strings.NewReplacer(":7600", ":"+recv, ":7700", ":"+proxy, ":7602", ":"+monitor, ":7603", ":"+freePort(t), " 7601 ", " "+freePort(t)+" ")
	dir := t.TempDir()
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
		"PD_RECV_LISTEN=tcp://127.0.0.1:"+recv, "PD_RECV_MONITOR=tcp://127.0.0.1:"+monitor, "PD_PROXY_LISTEN=tcp://127.0.0.1:"+proxy)
	for _, b := range blocks {
		if !built.With("ofi") && strings.Contains(b[1], "ofi") {
			continue
		}
		script := regexp.MustCompile("(?m)^make .*$").ReplaceAllString(ports.Replace(b[1]), "")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		// The jobs of a shell that fails end with it.
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+script)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, time.Second
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, script, out)
		}
	}
	ready, err := os.ReadFile(filepath.Join(dir, "ready.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(ready), "\n"); n != 100 {
		t.Errorf("%d of 100 requests became ready", n)
	}
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func repoFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// contractFlags are those that scripts depend on.
var contractFlags = map[string]string{
	"pd-recv": "--listen --buffer-size --chunk-size --engine --fabric --fabric-addr --fabric-service --admission --admit-timeout --lease --legacy-lease --ready-ttl " +
		"--overtake --queue-limit --queue-bytes --sink --proxy --monitor --metrics --shutdown-timeout --curve-key --curve-allow",
	"pd-recv take": "-o --keep --curve-key --curve-allow", "pd-recv stat": "--curve-key --curve-allow", "pd-recv drop": "--curve-key --curve-allow", "pd-top": "--curve-key --curve-allow",
	"pd-recv plan": "--model --bytes-per-token --tokens-per-chunk --buffer-size --admission --overtake --target-p99 --admit-timeout --pace --limit --senders --batch " +
		"--link-rate --ingress-rate --round-trip --consume --consume-per-token --decode-rate --json --plot",
	"pd-send":          "--to --proxy --staging-size --batch --engine --timeout --pending --pace --name --monitor --metrics --notify --shutdown-timeout --curve-key --curve-allow",
	"pd-send manifest": "--chunk-size --tokens-per-chunk --limit --interleave --batch",
	"pd-proxy":         "--listen --json --expect -n --timeout --monitor --metrics --shutdown-timeout --curve-key --curve-allow",
}

func TestHelpHasTheContractsFlags(t *testing.T) {
	for command, flags := range contractFlags {
		have := flagsOfHelp(t, command)
		for _, flag := range strings.Fields(flags) {
			if _, ok := have[flag]; !ok {
				t.Errorf("%s --help has no %s", command, flag)
			}
		}
	}
}

// TestReadmeHasTheFlagsOfHelp compares the README's tables of flags with what
// --help says: the same flags, the same values, the same defaults.
func TestReadmeHasTheFlagsOfHelp(t *testing.T) {
	tables := readmeFlags(t)
	for _, command := range []string{"pd-recv", "pd-send", "pd-send manifest", "pd-proxy", "pd-top"} {
		told, have := tables[command], flagsOfHelp(t, command)
		for flag, what := range told {
			if have[flag] != what {
				t.Errorf("%s: the README says %q of %s, --help says %q", command, what, flag, have[flag])
			}
		}
		for flag := range have {
			if _, ok := told[flag]; !ok {
				t.Errorf("%s: the README has no %s", command, flag)
			}
		}
	}
}

// flagsOfHelp returns each flag of a program or its command with the form of its
// value and its default, but for those that all programs have.
func flagsOfHelp(t *testing.T, command string) map[string]string {
	t.Helper()
	words := strings.Fields(command)
	help := output(t, 0, words[0], append(words[1:], "--help")...)
	flags := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  (?:-[a-z], )?(--?[a-z0-9-]+)(\S*(?: [A-Z]+)?)  +(.*?)(?: \(default (.*)\))?$`).FindAllStringSubmatch(help, -1) {
		if !slices.Contains([]string{"--help", "--version", "--completion"}, m[1]) {
			flags[m[1]] = fmt.Sprintf("%s default %q", m[2], m[4])
		}
	}
	return flags
}

// readmeFlags returns the same from the README's tables: the first table of
// flags under a program's heading is the program's, the second one that of
// pd-send manifest.
func readmeFlags(t *testing.T) map[string]map[string]string {
	t.Helper()
	tables := map[string]map[string]string{}
	command := ""
	row := regexp.MustCompile("^\\| `(--?[a-z-]+)(.*?)` \\| (?:`(.*?)`)? ?\\|")
	for l := range strings.Lines(repoFile(t, "README.md")) {
		if name, ok := strings.CutPrefix(l, "### "); ok {
			command = strings.TrimSpace(name)
		}
		if strings.HasPrefix(l, "`pd-send manifest ") {
			command = "pd-send manifest"
		}
		if m := row.FindStringSubmatch(l); m != nil {
			if tables[command] == nil {
				tables[command] = map[string]string{}
			}
			tables[command][m[1]] = fmt.Sprintf("%s default %q", m[2], m[3])
		}
	}
	return tables
}
