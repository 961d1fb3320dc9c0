package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"golang.org/x/term"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/top"
)

// framesPerSecond bounds what is written to the terminal.
const framesPerSecond = 10

// onRefresh is called before each refresh; a test sets it.
var onRefresh = func() {}

// feeder takes what has come to the screen, once a refresh.
type feeder struct {
	*feed
	program *tea.Program
	delays  chan time.Duration // from the screen
	delay   time.Duration
	left    int // refreshes; negative: no limit
	err     error
	done    chan struct{}
}

// draw shows the screen until somebody ends it.
func (o *options) draw(ctx context.Context, f *feed) error {
	input, closeInput := keyboard()
	defer closeInput()
	r := &feeder{feed: f, delays: make(chan time.Duration, 8), delay: o.delay, left: o.refreshes, done: make(chan struct{})}
	if r.left == 0 {
		r.left = -1
	}
	r.program = tea.NewProgram(top.New(o.look(o.colored())), tea.WithAltScreen(), tea.WithFPS(framesPerSecond),
		tea.WithInput(input), tea.WithOutput(os.Stdout), tea.WithoutSignalHandler(), tea.WithFilter(r.filter))

	ctx, cancel := context.WithCancel(ctx)
	go r.run(ctx)
	_, err := r.program.Run()
	cancel()
	<-r.done
	switch {
	case r.err != nil:
		return r.err
	case errors.Is(err, tea.ErrInterrupted):
		return &cli.SignalError{Signal: syscall.SIGINT}
	case errors.Is(err, tea.ErrProgramPanic):
		return errors.New("the screen has failed, see above: please report it")
	case err != nil && cli.Interrupted(ctx) == nil:
		return fmt.Errorf("the terminal is lost: %w", err)
	}
	return nil
}

// keyboard is where keys come from: stdin if it is a terminal, else the
// terminal that the process has. Without one the screen takes no keys.
func keyboard() (input io.Reader, closeIt func()) {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		keepSettings(int(os.Stdin.Fd()))
		return os.Stdin, func() {}
	}
	if tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		keepSettings(int(tty.Fd()))
		return tty, func() { tty.Close() }
	}
	return nil, func() {}
}

// filter takes what the screen tells the program.
func (r *feeder) filter(_ tea.Model, msg tea.Msg) tea.Msg {
	if d, ok := msg.(top.SetDelay); ok {
		select {
		case r.delays <- max(d.Delay, leastDelay):
		default: // there are enough already
		}
	}
	return msg
}

// run refreshes: at once, then every delay, and when a source has come or gone.
func (r *feeder) run(ctx context.Context) {
	defer close(r.done)
	defer r.caught()
	ticker := time.NewTicker(r.delay)
	defer ticker.Stop()
	for r.refresh(); r.left != 0; {
		select {
		case <-ticker.C:
			r.refresh()
		case <-r.w.Changed():
			if r.turned(r.delay, time.Now()) {
				r.refresh()
			}
		case r.delay = <-r.delays:
			ticker.Reset(r.delay)
		case <-ctx.Done():
			r.program.Quit()
			return
		}
	}
	r.program.Quit()
}

// caught turns a panic into an error and ends the program, so that the terminal
// is restored first.
func (r *feeder) caught() {
	if p := recover(); p != nil {
		r.err = fmt.Errorf("it has failed, please report this: %v\n%s", p, debug.Stack())
		r.program.Kill()
	}
}

func (r *feeder) refresh() {
	onRefresh()
	now := time.Now()
	for i := range r.endpoints {
		msgs, _ := r.read(i, r.delay, now)
		for _, msg := range msgs {
			r.program.Send(msg)
		}
	}
	if r.left > 0 {
		r.left--
	}
}
