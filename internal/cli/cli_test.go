package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	urfave "github.com/urfave/cli/v2"
)

// config is what the test program's flags fill.
type config struct {
	listen string
	lease  time.Duration
	size   int64
	json   bool
	sink   time.Duration
	sinkOn bool
	to     []string
	keep   bool
	args   []string
	ran    string
}

// testApp is a program with a default action and two commands, like pd-recv.
func testApp(cfg *config) *urfave.App {
	sink := Optional(&cfg.sink, "sink", "DELAY", "0s", "play the decoder", Delay)
	serve := []urfave.Flag{
		Var(&cfg.listen, "listen", "ENDPOINT", "tcp://127.0.0.1:7600", "where senders connect", ListenEndpoint),
		Var(&cfg.lease, "lease", "TIME", "15s", "how long silence is borne", Duration),
		Var(&cfg.size, "chunk-size", "SIZE", "1MiB", "bytes of a slot", Size),
		Bool(&cfg.json, "json", "print JSON"),
		sink,
		List(&cfg.to, "to", "ENDPOINT", "a receiver", DialEndpoint),
	}
	run := func(c *urfave.Context) (err error) {
		cfg.ran, cfg.sinkOn = "serve", sink.IsSet()
		cfg.args, err = Args(c)
		return err
	}
	return &urfave.App{
		Name: "pd-test", Usage: "tests", UsageText: "pd-test [flags]\npd-test take [flags] ENDPOINT REQ_ID",
		Description: "Example:\n  pd-test --listen 'tcp://127.0.0.1:*' | jq",
		Flags:       serve,
		Action:      run,
		Commands: []*urfave.Command{
			{Name: "serve", Usage: "the default", Flags: serve, Action: run},
			{Name: "take", Usage: "take it", UsageText: "pd-test take [--keep] ENDPOINT REQ_ID",
				Flags: []urfave.Flag{Bool(&cfg.keep, "keep", "give it back")},
				Action: func(c *urfave.Context) (err error) {
					cfg.ran = "take"
					cfg.args, err = Args(c, "ENDPOINT", "REQ_ID")
					return err
				}},
			{Name: "fail", Usage: "fails", Action: func(*urfave.Context) error { return errors.New("no luck") }},
			{Name: "sigint", Usage: "is interrupted", Action: func(*urfave.Context) error {
				return fmt.Errorf("stopped: %w", &SignalError{Signal: syscall.SIGINT})
			}},
			{Name: "sigterm", Usage: "is terminated", Action: func(*urfave.Context) error { return &SignalError{Signal: syscall.SIGTERM} }},
		},
	}
}

func run(t *testing.T, args ...string) (cfg config, code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(testApp(&cfg), append([]string{"pd-test"}, args...), &out, &errs)
	return cfg, code, out.String(), errs.String()
}

func TestWrongUsage(t *testing.T) {
	for _, tc := range []struct {
		args string
		env  string // NAME=value
		want string // the first line on stderr, less the program's name
		try  string // the command that help is offered for
	}{
		{args: "--nope", want: "unknown flag --nope"},
		{args: "-x", want: "unknown flag -x"},
		{args: "--listen", want: "--listen needs a value"},
		{args: "--lease 5", want: `--lease "5" is no length of time: write 250ms, 15s or 2m30s`},
		{args: "--lease -5s", want: `--lease "-5s" is negative`},
		{args: "--lease 0", want: `--lease "0" is no time at all`},
		{args: "--lease NaN", want: `--lease "NaN" is no length of time: write 250ms, 15s or 2m30s`},
		{args: "--chunk-size much", want: `--chunk-size "much" is no size: write bytes, or a number with KiB, MiB or GiB`},
		{args: "--listen tcp://127.0.0.1:70000", want: `--listen: endpoint "tcp://127.0.0.1:70000": port "70000" is not 0 to 65535 or *`},
		{args: "--lease 1s --lease 2s", want: `--lease "2s" is given twice`},
		{args: "--json --json", want: "--json is given twice"},
		{args: "--json=perhaps", want: `--json "perhaps" is neither true nor false`},
		{args: "--sink=soon", want: `--sink "soon" is no length of time: write 250ms, 15s or 2m30s`},
		{args: "serve nope", want: `unexpected argument "nope"`, try: " serve"},
		{args: "nope", want: `unknown command "nope": have serve, take, fail, sigint, sigterm`},
		{args: "help", want: `unknown command "help": have serve, take, fail, sigint, sigterm`},
		{args: "nope --json", want: `flag "--json" stands behind an argument: flags come first; if it is none, write -- before the first argument`},
		{args: "take", want: "missing ENDPOINT and REQ_ID", try: " take"},
		{args: "take tcp://127.0.0.1:1", want: "missing REQ_ID", try: " take"},
		{args: "take a b c", want: `unexpected argument "c"`, try: " take"},
		{args: "take a b --keep", want: `flag "--keep" stands behind an argument: flags come first; if it is none, write -- before the first argument`, try: " take"},
		{args: "take a -- -b", want: `flag "--" stands behind an argument: flags come first; if it is none, write -- before the first argument`, try: " take"},
		{args: "take -- -a -b -c", want: `unexpected argument "-c"`, try: " take"},
		{args: "take --nope a b", want: "unknown flag --nope", try: " take"},
		{args: "--lease 1s take a b", want: "--lease is no flag of pd-test take", try: " take"},
		{args: "--lease 1s serve --lease 2s", want: `--lease "2s" is given twice`, try: " serve"},
		{args: "--completion tcsh", want: `--completion "tcsh" is none of bash, zsh, fish`},
		{env: "PD_TEST_LEASE=soon", want: `variable PD_TEST_LEASE "soon" is no length of time: write 250ms, 15s or 2m30s`},
		{env: "PD_TEST_JSON=perhaps", want: `variable PD_TEST_JSON "perhaps" is neither true nor false`},
		{env: "PD_TEST_TO=tcp://127.0.0.1:1,x", want: `variable PD_TEST_TO: endpoint "x" has no scheme: write tcp://HOST:PORT`},
		{args: "take a b", env: "PD_TEST_KEEP=x", want: `variable PD_TEST_KEEP "x" is neither true nor false`, try: " take"},
	} {
		t.Run(tc.args+tc.env, func(t *testing.T) {
			setenv(t, tc.env)
			_, code, stdout, stderr := run(t, strings.Fields(tc.args)...)
			want := "pd-test: " + tc.want + "\nTry 'pd-test" + tc.try + " --help'\n"
			if code != ExitUsage || stdout != "" || stderr != want {
				t.Errorf("exit %d, stdout %q\nstderr %s\nwant   %s", code, stdout, stderr, want)
			}
		})
	}
}

func setenv(t *testing.T, pair string) {
	if name, value, ok := strings.Cut(pair, "="); ok {
		t.Setenv(name, value)
	}
}

func TestExitCodes(t *testing.T) {
	for cmd, want := range map[string]struct {
		code   int
		stderr string
	}{
		"serve":   {ExitOK, ""},
		"fail":    {ExitFailed, "pd-test: no luck\n"},
		"sigint":  {130, "pd-test: stopped: interrupted\n"},
		"sigterm": {143, "pd-test: terminated\n"},
	} {
		_, code, stdout, stderr := run(t, cmd)
		if code != want.code || stdout != "" || stderr != want.stderr {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want %+v", cmd, code, stdout, stderr, want)
		}
	}
}

func TestFlagBeatsVariableBeatsDefault(t *testing.T) {
	t.Setenv("PD_TEST_LEASE", "7s")
	t.Setenv("PD_TEST_CHUNK_SIZE", "64KiB")
	t.Setenv("PD_TEST_LISTEN", "") // as good as not there
	t.Setenv("PD_TEST_SINK", "3ms")
	t.Setenv("PD_TEST_TO", "tcp://127.0.0.1:1,tcp://127.0.0.1:2")
	cfg, code, _, stderr := run(t, "--chunk-size", "4096", "--json")
	if code != ExitOK {
		t.Fatal(stderr)
	}
	if cfg.listen != "tcp://127.0.0.1:7600" || cfg.lease != 7*time.Second || cfg.size != 4096 || !cfg.json ||
		!cfg.sinkOn || cfg.sink != 3*time.Millisecond || strings.Join(cfg.to, " ") != "tcp://127.0.0.1:1 tcp://127.0.0.1:2" {
		t.Errorf("got %+v", cfg)
	}
	cfg, _, _, _ = run(t, "--to", "tcp://127.0.0.1:3", "--to", "tcp://127.0.0.1:4")
	if strings.Join(cfg.to, " ") != "tcp://127.0.0.1:3 tcp://127.0.0.1:4" {
		t.Errorf("--to is %v", cfg.to)
	}
}

// A bad variable that is not asked for is no obstacle.
func TestVariableMatters(t *testing.T) {
	t.Setenv("PD_TEST_LEASE", "bad")
	for _, args := range [][]string{{"--lease", "1s"}, {"--help"}, {"--version"}, {"take", "a", "b"}} {
		if _, code, _, stderr := run(t, args...); code != ExitOK {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
}

func TestFlagsBeforeAndAfterTheCommand(t *testing.T) {
	t.Setenv("PD_TEST_LEASE", "9s")
	cfg, code, _, stderr := run(t, "--lease", "1s", "serve", "--chunk-size", "2KiB")
	if code != ExitOK || cfg.lease != time.Second || cfg.size != 2048 {
		t.Errorf("exit %d, %s%+v", code, stderr, cfg)
	}
	cfg, code, _, _ = run(t, "take", "--keep", "--", "a", "-b")
	if code != ExitOK || !cfg.keep || strings.Join(cfg.args, " ") != "a -b" {
		t.Errorf("exit %d, keep %v, args %q", code, cfg.keep, cfg.args)
	}
	cfg, code, _, _ = run(t, "take", "--keep", "a", "b")
	if code != ExitOK || cfg.ran != "take" || !cfg.keep || strings.Join(cfg.args, " ") != "a b" {
		t.Errorf("exit %d, %+v", code, cfg)
	}
}

func TestOptionalValue(t *testing.T) {
	for arg, want := range map[string]time.Duration{"--sink": 0, "--sink=2ms": 2 * time.Millisecond} {
		if cfg, code, _, stderr := run(t, arg); code != ExitOK || !cfg.sinkOn || cfg.sink != want {
			t.Errorf("%s: exit %d %s%+v", arg, code, stderr, cfg)
		}
	}
	if cfg, _, _, _ := run(t); cfg.sinkOn {
		t.Error("sink is on without the flag")
	}
}

func TestHelp(t *testing.T) {
	const want = `pd-test: tests

  pd-test [flags]
  pd-test take [flags] ENDPOINT REQ_ID

Commands ('pd-test COMMAND --help' tells more):
  serve    the default
  take     take it
  fail     fails
  sigint   is interrupted
  sigterm  is terminated

Flags:
  -h, --help          print this help
  --version           print the version
  --completion SHELL  print a completion script: bash, zsh or fish
  --listen ENDPOINT   where senders connect (default tcp://127.0.0.1:7600)
  --lease TIME        how long silence is borne (default 15s)
  --chunk-size SIZE   bytes of a slot (default 1MiB)
  --json              print JSON
  --sink[=DELAY]      play the decoder
  --to ENDPOINT       a receiver (may be given several times)
Each flag has a variable, which it overrides: --listen has PD_TEST_LISTEN.

Example:
  pd-test --listen 'tcp://127.0.0.1:*' | jq
`
	for _, args := range [][]string{{"--help"}, {"-h"}, {"--help", "nope"}, {"--json", "--help"}} {
		cfg, code, stdout, stderr := run(t, args...)
		if code != ExitOK || stderr != "" || stdout != want || cfg.ran != "" {
			t.Errorf("%v: exit %d, stderr %q, stdout\n%s", args, code, stderr, stdout)
		}
	}
	for _, args := range [][]string{{"take", "--help"}, {"--help", "take"}, {"take", "-h", "a"}} {
		_, code, stdout, stderr := run(t, args...)
		if code != ExitOK || stderr != "" || !strings.HasPrefix(stdout, "pd-test take: take it\n") || !strings.Contains(stdout, "--keep") || strings.Contains(stdout, "--lease") {
			t.Errorf("%v: exit %d, stderr %q, stdout\n%s", args, code, stderr, stdout)
		}
	}
}

func TestVersion(t *testing.T) {
	_, code, stdout, stderr := run(t, "--version")
	if code != ExitOK || stderr != "" || !strings.HasPrefix(stdout, "pd-test ") || strings.Count(stdout, "\n") != 1 || len(stdout) < len("pd-test x\n") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// Help that cannot be printed is a failure.
func TestHelpToAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	var stderr bytes.Buffer
	if code := Run(testApp(&config{}), []string{"pd-test", "--help"}, full, &stderr); code != ExitFailed || !strings.Contains(stderr.String(), "no space") {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		_, code, stdout, _ := run(t, "--completion", shell)
		if code != ExitOK || !strings.Contains(stdout, "pd-test") || strings.Contains(stdout, "PROG") || strings.Contains(stdout, "FUNC") {
			t.Errorf("%s: exit %d\n%s", shell, code, stdout)
		}
	}
}

// bash, with the script loaded, completes commands and flags.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	dir := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(dir, "pd-test")); err != nil {
		t.Fatal(err)
	}
	_, _, script, _ := run(t, "--completion", "bash")
	for words, want := range map[string]string{
		"pd-test ":                 "serve take fail sigint sigterm",
		"pd-test --li":             "--listen",
		"pd-test take --":          "--help --keep",
		"pd-test --json --lease 1": "",
	} {
		array := `"` + strings.Join(strings.Split(words, " "), `" "`) + `"`
		cmd := exec.CommandContext(patient(t), bash, "--norc", "-c", script+`
COMP_WORDS=(`+array+`); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _pd_test; echo "${COMPREPLY[*]}"`)
		cmd.Env = append(os.Environ(), asProgram+"=app", "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q completes to %q, want %q (%v)", words, got, want, err)
		}
	}
}

func TestValues(t *testing.T) {
	size := func(s string) (string, error) { v, err := Size(s); return fmt.Sprint(v), err }
	sizeLimit := func(s string) (string, error) { v, err := SizeLimit(s); return fmt.Sprint(v), err }
	limit := func(s string) (string, error) { v, err := Limit(s); return fmt.Sprint(v), err }
	delay := func(s string) (string, error) { v, err := Delay(s); return fmt.Sprint(v), err }
	count := func(s string) (string, error) { v, err := Count(s); return fmt.Sprint(v), err }
	integer := func(s string) (string, error) { v, err := Int(1, 8192)(s); return fmt.Sprint(v), err }
	factor := func(s string) (string, error) { v, err := Factor(s); return fmt.Sprint(v), err }
	list := func(s string) (string, error) { v, err := ListOf("shm", "ofi")(s); return strings.Join(v, "+"), err }
	for _, tc := range []struct {
		name  string
		parse func(string) (string, error)
		in    string
		want  string // "" is an error
	}{
		{"Size", size, "4096", "4096"}, {"Size", size, "64KiB", "65536"}, {"Size", size, "64MB", "64000000"},
		{"Size", size, "1.5GiB", "1610612736"}, {"Size", size, "0", ""}, {"Size", size, "", ""}, {"Size", size, "-1", ""},
		{"Size", size, "1,5MiB", ""}, {"Size", size, "9EiB", ""}, {"Size", size, "inf", ""}, {"Size", size, "NaN", ""}, {"Size", size, "0.1", ""},
		{"SizeLimit", sizeLimit, "inf", "0"}, {"SizeLimit", sizeLimit, "0", "0"}, {"SizeLimit", sizeLimit, "1", "1"}, {"SizeLimit", sizeLimit, "-inf", ""},
		{"Limit", limit, "inf", "0s"}, {"Limit", limit, "0", "0s"}, {"Limit", limit, "1h", "1h0m0s"}, {"Limit", limit, "-1s", ""}, {"Limit", limit, "5", ""},
		{"Delay", delay, "0", "0s"}, {"Delay", delay, "2ms", "2ms"}, {"Delay", delay, "inf", ""},
		{"Count", count, "inf", "0"}, {"Count", count, "0", "0"}, {"Count", count, "7", "7"}, {"Count", count, "-1", ""}, {"Count", count, "1.5", ""},
		{"Int", integer, "1", "1"}, {"Int", integer, "8192", "8192"}, {"Int", integer, "0", ""}, {"Int", integer, "8193", ""}, {"Int", integer, "x", ""},
		{"Factor", factor, "2.5", "2.5"}, {"Factor", factor, "0", ""}, {"Factor", factor, "-1", ""}, {"Factor", factor, "NaN", ""}, {"Factor", factor, "inf", ""},
		{"HTTPAddress", HTTPAddress, "127.0.0.1:9100", "127.0.0.1:9100"}, {"HTTPAddress", HTTPAddress, "[::1]:*", "[::1]:0"}, {"HTTPAddress", HTTPAddress, "*:0", ":0"},
		{"HTTPAddress", HTTPAddress, ":9100", ":9100"}, {"HTTPAddress", HTTPAddress, "localhost:1", "localhost:1"}, {"HTTPAddress", HTTPAddress, "9100", ""},
		{"HTTPAddress", HTTPAddress, "::1:9100", ""}, {"HTTPAddress", HTTPAddress, "[g::]:1", ""}, {"HTTPAddress", HTTPAddress, "http://h:1", ""},
		{"HTTPAddress", HTTPAddress, "h:65536", ""}, {"HTTPAddress", HTTPAddress, "h:http", ""}, {"HTTPAddress", HTTPAddress, "a b:1", ""},
		{"ListOf", list, "shm", "shm"}, {"ListOf", list, "ofi,shm", "ofi+shm"}, {"ListOf", list, "shm,shm", ""}, {"ListOf", list, "", ""}, {"ListOf", list, "tcp", ""},
	} {
		got, err := tc.parse(tc.in)
		if (err != nil) != (tc.want == "") || err == nil && got != tc.want {
			t.Errorf("%s(%q) = %s, %v; want %q", tc.name, tc.in, got, err, tc.want)
		}
	}
}
