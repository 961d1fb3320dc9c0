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

// flushShare is the part of the time that a stop may take after which a reader
// of stdout is waited for no more.
const flushShare = 0.8

// sameSignal is for how long the first signal is not acted upon: the same one again
// until then is no second one. timeout sends it to a program and then to the group
// that the program is in. Who waits for what the first one does is never as quick.
const sameSignal = 5 * time.Millisecond

// Signals returns a context that the first SIGINT, SIGTERM or, unless it is
// ignored as under nohup, SIGHUP cancels, with a *SignalError as its cause. After
// that a second signal ends the process at once, and so does the passing of
// timeout (0: no limit): both exit with the signal's code. Call stop when there is
// nothing left to stop cleanly.
func Signals(parent context.Context, timeout time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(ch, syscall.SIGHUP)
	}
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
		first = &SignalError{Signal: s.(syscall.Signal)}
	case <-done:
		return
	}
	var late <-chan time.Time
	if timeout > 0 {
		late = time.After(timeout)
		first.flushBy = time.Now().Add(time.Duration(flushShare * float64(timeout)))
	}
	for settled := time.After(sameSignal); settled != nil; {
		select {
		case s := <-ch:
			if s != first.Signal {
				os.Exit((&SignalError{Signal: s.(syscall.Signal)}).Code())
			}
		case <-settled:
			settled = nil
		case <-done:
			return
		}
	}
	cancel(first)
	select {
	case s := <-ch:
		os.Exit((&SignalError{Signal: s.(syscall.Signal)}).Code())
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
