package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A signal to a whole pipeline, as ^C is one, ends the program before pd-send as
// well, and so its input: it is the signal that counts.
func TestSignalToAPipeline(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]string{syscall.SIGINT: "exit 130", syscall.SIGTERM: "exit 143"} {
		r := receive(t, 8)
		script := `trap : INT TERM; (printf "$2"; exec sleep 600) | "$0" --to "$1"; echo exit $?`
		cmd := exec.CommandContext(t.Context(), "bash", "-c", script, filepath.Join(bin, "pd-send"), r.endpoint, strings.ReplaceAll(batch("A", 4, 0, 2), "\n", `\n`))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var out strings.Builder
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.event("event", "admitted", "req_id", "A")
		if err := syscall.Kill(-cmd.Process.Pid, signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, want) || !strings.Contains(got, `"status":"cancelled"`) {
			t.Errorf("%v: %s", signal, got)
		}
	}
}
