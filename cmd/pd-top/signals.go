package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/pd-tools/pd-tools/internal/cli"
)

// stopWithin is how long the screen may take to be restored after a signal: a
// terminal that was stopped with ^S takes nothing.
const stopWithin = time.Second

// settings are those of the terminal before there was a screen.
type settings struct {
	fd    int
	state *term.State
}

// before is what a process that cannot wait puts back.
var before atomic.Pointer[settings]

func keepSettings(fd int) {
	if state, err := term.GetState(fd); err == nil {
		before.Store(&settings{fd, state})
	}
}

func restoreSettings() {
	if s := before.Load(); s != nil {
		_ = term.Restore(s.fd, s.state)
	}
}

// signals is as cli.Signals, with SIGHUP, and the terminal restored even when
// what it shows cannot be.
func signals(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		var first *cli.SignalError
		select {
		case s := <-ch:
			first = &cli.SignalError{Signal: s.(syscall.Signal)}
			cancel(first)
		case <-done:
			return
		}
		select {
		case <-ch:
		case <-time.After(stopWithin):
		case <-done:
			return
		}
		restoreSettings()
		os.Exit(first.Code())
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		cancel(nil)
	}
}
