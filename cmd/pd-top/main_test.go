package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pd-top": main,
		"pd-top-panics": func() {
			var refreshes atomic.Int64
			onRefresh = func() {
				if refreshes.Add(1) == 2 {
					panic("forced")
				}
			}
			main()
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true})
}

// publish tells whoever watches what build says.
func publish(t *testing.T, build func() wire.Message) (endpoint string) {
	t.Helper()
	p, err := monitor.Listen(monitor.Config{
		Endpoint: "tcp://127.0.0.1:*", Kind: wire.KindReceiver, ID: "recv-0", Epoch: 7, Ask: func(f func(wire.Message)) { f(build()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Endpoint()
}

// receiver is a receiver's state with so many requests.
func receiver(requests int) func() wire.Message {
	s := wire.Snapshot{
		Kind: wire.KindReceiver, ID: "recv-0", Epoch: 7, Endpoint: "tcp://127.0.0.1:7600", Engine: "shm", Admission: "reserve",
		Slots: wire.SnapshotSlots{Total: 2 * requests, Held: requests, Free: requests, Bytes: 1 << 20},
	}
	for i := range requests {
		s.Requests = append(s.Requests, wire.SnapshotRequest{
			ReqID: fmt.Sprintf("req-%05d", i), Sender: fmt.Sprintf("send-%d", i%4), State: "allocated", TotalChunks: 8, Allocated: 1,
			Bytes: 1 << 20, AgeMS: int64(i), AdmittedMS: 1, FirstWriteMS: -1, LastWriteMS: -1, ReadyMS: -1,
		})
	}
	s.Totals.Requests = requests
	began := time.Now()
	return func() wire.Message {
		now := s
		now.Time, now.UptimeS = wire.StampOf(time.Now()), time.Since(began).Seconds()
		return &now
	}
}

// command runs pd-top; in a shell script it is "$@".
func command(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Args[0] = "pd-top"
	if script != "" {
		// The program takes its name for what to run.
		cmd = exec.CommandContext(t.Context(), "bash", append([]string{"-c", "top() { (exec -a pd-top '" + self + `' "$@"); }; ` + script, "bash"}, args...)...)
	}
	return cmd
}

// run runs pd-top until its end.
func run(t *testing.T, script string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, script, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// Without a terminal it prints one plain snapshot, whatever stdin is.
func TestNoTerminal(t *testing.T) {
	t.Parallel()
	endpoint := publish(t, receiver(300))
	for _, script := range []string{`top "$@"`, `top "$@" <&-`, `top "$@" </dev/null`} {
		code, stdout, stderr := run(t, script, endpoint)
		if code != 0 || stderr != "" || strings.Count(stdout, "req-") != 300 || strings.Contains(stdout, "\x1b") {
			t.Errorf("%s: exit %d, stderr %q, stdout\n%.500s", script, code, stderr, stdout)
		}
	}
}

// --json: each line is a snapshot, exactly as it was published.
func TestJSON(t *testing.T) {
	t.Parallel()
	ids := []string{"請求-1", "👩‍💻", "e\u0301", "a\tb\nc", "\x1b]0;x\a", strings.Repeat("x", 300), `"\`}
	endpoint := publish(t, func() wire.Message {
		s := receiver(len(ids))().(*wire.Snapshot)
		s.Requests = append([]wire.SnapshotRequest(nil), s.Requests...)
		for i, id := range ids {
			s.Requests[i].ReqID = id
		}
		return s
	})
	other := publish(t, func() wire.Message { return &wire.ProxySnapshot{Kind: wire.KindProxy, ID: "proxy-0"} })
	code, stdout, stderr := run(t, "", "--json", "-n", "2", "-d", "250ms", endpoint, other)
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if strings.Contains(stderr, ": STALE since ") {
		stderr = "" // on a busy machine it may be so for a moment
	}
	if code != 0 || stderr != "" || len(lines) != 4 {
		t.Fatalf("exit %d, stderr %q, %d lines", code, stderr, len(lines))
	}
	var s wire.Snapshot
	if err := json.Unmarshal([]byte(lines[0]), &s); err != nil || len(s.Requests) != len(ids) {
		t.Fatalf("%v: %s", err, lines[0])
	}
	for i, id := range ids {
		if s.Requests[i].ReqID != id {
			t.Errorf("%q became %q", id, s.Requests[i].ReqID)
		}
	}
	if strings.ContainsFunc(stdout, func(r rune) bool { return r < ' ' && r != '\n' }) || !strings.Contains(lines[1], `"proxy-0"`) {
		t.Errorf("stdout: %q", stdout)
	}
}

// F71: a reader that leaves is no fault, a disk that is full is.
func TestStdoutEnds(t *testing.T) {
	t.Parallel()
	endpoint := publish(t, receiver(1))
	code, stdout, stderr := run(t, `(top --json -n 3 -d 250ms "$@"; echo $? >&2) | head -1; wait`, endpoint)
	if lines := strings.Count(stdout, "\n"); code != 0 || lines != 1 || stderr != "141\n" && stderr != "0\n" {
		t.Errorf("exit %d, %d lines, stderr %q", code, lines, stderr)
	}
	for _, flag := range []string{"--once", "--json", "-b"} {
		code, _, stderr = run(t, `top "$@" >/dev/full`, flag, endpoint)
		if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "no space left") {
			t.Errorf("%s to a full disk: exit %d, stderr %q", flag, code, stderr)
		}
	}
}

// Where nobody publishes it says so, soon.
func TestNobody(t *testing.T) {
	t.Parallel()
	nobody, endpoint := "ipc://"+t.TempDir()+"/nobody", publish(t, receiver(1))
	began, held := time.Now(), testkit.Delays(t)
	code, stdout, stderr := run(t, "", nobody)
	if took := time.Since(began); code != 1 || stdout != "" || took > 2*time.Second+held() ||
		!strings.Contains(stderr, nobody) || !strings.Contains(stderr, "--wait") || !strings.Contains(stderr, "--monitor") {
		t.Errorf("exit %d after %v, stderr %q", code, took, stderr)
	}
	// What was asked for and could not be had is a failure, but what there is comes.
	for _, flags := range [][]string{nil, {"--once"}, {"--json", "-n", "1"}, {"-b", "-n", "2", "-d", "250ms"}} {
		code, stdout, stderr = run(t, "", append(flags, nobody, endpoint)...)
		if code != 1 || !strings.Contains(stdout, "req-00000") || !strings.Contains(stderr, nobody) || strings.Contains(stderr, endpoint) {
			t.Errorf("%v, one of two is there: exit %d, stderr %q, stdout\n%s", flags, code, stderr, stdout)
		}
	}
}

// Somebody who publishes nothing, or is no publisher, is said to be just that.
func TestSilent(t *testing.T) {
	t.Parallel()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	for kind, want := range map[zmq4.Type]string{zmq4.PUB: ": somebody is there, but published nothing within 3s", zmq4.ROUTER: " is an endpoint for something else: give that of a --monitor"} {
		s, endpoint, err := ctx.Listen(kind, "tcp://127.0.0.1:*", sock.Options{Linger: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		code, stdout, stderr := run(t, "", endpoint)
		if code != 1 || stdout != "" || !strings.Contains(stderr, endpoint+want) {
			t.Errorf("exit %d, stderr %q, want %q", code, stderr, want)
		}
	}
}

// With --wait it waits for who comes later, and a signal ends it.
func TestWaits(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/later"
	cmd := command(t, "", "--wait", "--once", "ipc://"+path)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := monitor.Listen(monitor.Config{Endpoint: "ipc://" + path, Ask: func(f func(wire.Message)) { f(receiver(1)()) }})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "req-00000") {
		t.Errorf("%v\n%s", err, &out)
	}
	for signal, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		cmd := command(t, "", "--json", "--delay", "1h", p.Endpoint())
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Signal(signal)
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%v: exit %d", signal, got)
		}
	}
}
