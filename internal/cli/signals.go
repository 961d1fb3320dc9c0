package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// Signals returns a context that the first SIGINT or SIGTERM cancels, with a
// *SignalError as its cause. After that a second signal ends the process at
// once, and so does the passing of timeout (0: no limit): both exit with the
// signal's code. Call stop when there is nothing left to stop cleanly.
func Signals(parent context.Context, timeout time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go watchSignals(ch, done, cancel, timeout)
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		cancel(nil)
	}
}

func watchSignals(ch <-chan os.Signal, done <-chan struct{}, cancel context.CancelCauseFunc, timeout time.Duration) {
	var first *SignalError
	select {
	case s := <-ch:
		first = &SignalError{s.(syscall.Signal)}
		cancel(first)
	case <-done:
		return
	}
	var late <-chan time.Time
	if timeout > 0 {
		late = time.After(timeout)
	}
	select {
	case s := <-ch:
		os.Exit((&SignalError{s.(syscall.Signal)}).Code())
	case <-late:
		fmt.Fprintf(os.Stderr, "%s: did not stop within %v: leaving at once\n", filepath.Base(os.Args[0]), timeout)
		os.Exit(first.Code())
	case <-done:
	}
}

// Interrupted is the *SignalError that cancelled ctx, or nil. What is no daemon
// returns it from its Action.
func Interrupted(ctx context.Context) error {
	var s *SignalError
	if errors.As(context.Cause(ctx), &s) {
		return s
	}
	return nil
}
