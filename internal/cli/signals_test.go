package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitForSignal is a program that, told to stop, says so and stops when its
// stdin ends.
func waitForSignal() int {
	timeout, err := time.ParseDuration(os.Getenv("PD_CLI_TEST_TIMEOUT"))
	if err != nil {
		panic(err)
	}
	ctx, stop := Signals(context.Background(), timeout)
	defer stop()
	fmt.Println("waiting")
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	fmt.Println("stopped cleanly")
	var s *SignalError
	if errors.As(Interrupted(ctx), &s) {
		return s.Code()
	}
	return ExitFailed
}

// started starts a program; lines are what it says.
func started(t *testing.T, cmd *exec.Cmd) (lines *bufio.Scanner) {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(stdout)
}

func TestSignals(t *testing.T) {
	// Under nohup SIGHUP is ignored, and a child inherits that; caught it is not.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for _, tc := range []struct {
		name    string
		timeout string
		send    []syscall.Signal
		stops   bool // the program ends cleanly after the first signal
		code    int
		stderr  string
	}{
		{name: "interrupt", timeout: "1h", send: []syscall.Signal{syscall.SIGINT}, stops: true, code: 130},
		{name: "terminate", timeout: "0s", send: []syscall.Signal{syscall.SIGTERM}, stops: true, code: 143},
		{name: "hang up", timeout: "1h", send: []syscall.Signal{syscall.SIGHUP}, stops: true, code: 129},
		{name: "second at once", timeout: "1h", send: []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}, code: 130},
		{name: "the same once it has acted", timeout: "1h", send: []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, code: 130},
		{name: "second without limit", timeout: "0s", send: []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, code: 143},
		{name: "too slow", timeout: "10ms", send: []syscall.Signal{syscall.SIGTERM}, code: 143, stderr: "did not stop within 10ms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.CommandContext(patient(t), os.Args[0])
			cmd.Env = append(os.Environ(), asProgram+"=signals", "PD_CLI_TEST_TIMEOUT="+tc.timeout)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			lines := started(t, cmd)
			for _, s := range tc.send {
				if !lines.Scan() {
					t.Fatal("no line before the signal")
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			if tc.stops {
				stdin.Close()
			}
			cleanly := false
			for lines.Scan() {
				cleanly = cleanly || lines.Text() == "stopped cleanly"
			}
			_ = cmd.Wait()
			if cleanly != tc.stops {
				t.Errorf("stopped cleanly: %v", cleanly)
			}
			if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(stderr.String(), tc.stderr) || tc.stderr == "" && stderr.Len() > 0 {
				t.Errorf("exit %d, stderr %q; want %d and %q", code, stderr.String(), tc.code, tc.stderr)
			}
		})
	}
}

// nohup starts a program with SIGHUP ignored, and it stays so: what ends it is
// the signal after.
func TestHangUpIsIgnored(t *testing.T) {
	cmd := exec.CommandContext(patient(t), "sh", "-c", `trap "" HUP; exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=signals", "PD_CLI_TEST_TIMEOUT=1h")
	lines := started(t, cmd)
	lines.Scan() // it runs
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	lines.Scan()
	if got := lines.Text(); got != "terminated" {
		t.Errorf("it stopped because it was told %q", got)
	}
	_ = cmd.Wait()
}

// One signal that comes twice at once is one.
func TestSignalTwiceAtOnce(t *testing.T) {
	ch := make(chan os.Signal, 2)
	ch <- syscall.SIGTERM
	ch <- syscall.SIGTERM
	done := make(chan struct{})
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		watchSignals(ch, done, cancel, 0) // it would end the test
		close(ended)
	}()
	<-ctx.Done()
	for len(ch) > 0 {
		time.Sleep(time.Millisecond)
	}
	close(done)
	<-ended
}

func TestNotInterrupted(t *testing.T) {
	ctx, stop := Signals(context.Background(), time.Second)
	stop()
	if err := Interrupted(ctx); err != nil {
		t.Error(err)
	}
}
