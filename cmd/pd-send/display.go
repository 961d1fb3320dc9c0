package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"github.com/pd-tools/pd-tools/internal/sender"
)

// progressEvery is how often the progress line is drawn.
const progressEvery = 200 * time.Millisecond

// clearLine takes back what stands on the terminal's last line.
const clearLine = "\r\x1b[K"

// display is stderr: messages, and on a terminal a progress line below them.
// The line is drawn by a goroutine of its own, so that a terminal that is held
// (^S) holds nothing else.
type display struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex
	drawn bool
	next  chan string // the newest progress line
	done  chan struct{}
}

func newDisplay(w io.Writer) *display {
	f, ok := w.(*os.File)
	d := &display{w: w, terminal: ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb", next: make(chan string, 1), done: make(chan struct{})}
	go d.run()
	return d
}

// Write writes messages, above the progress line.
func (d *display) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drawn {
		d.drawn = false
		if _, err := io.WriteString(d.w, clearLine); err != nil {
			return 0, err
		}
	}
	return d.w.Write(p)
}

func (d *display) run() {
	defer close(d.done)
	for line := range d.next {
		d.draw(line)
	}
}

func (d *display) draw(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drawn = true
	_, _ = io.WriteString(d.w, clearLine+line) // the next one may succeed
}

// progress shows how far things are.
func (d *display) progress(p sender.Progress) {
	line := progressLine(&p)
	select {
	case d.next <- line:
	default: // the terminal is held
	}
}

func progressLine(p *sender.Progress) string {
	line := fmt.Sprintf("%d ready, %d failed, %d under way; %s; staging %d/%d",
		p.Ready, p.Failed, p.Live, humanize.IBytes(uint64(p.Bytes)), p.Staging.Used, p.Staging.Total)
	if n := len(p.Staging.Blocked); n > 0 {
		line += fmt.Sprintf(", %d batches blocked", n)
	}
	return line
}

// close takes the progress line away. It does not wait for a terminal that is
// held.
func (d *display) close() {
	close(d.next)
	if !d.terminal {
		return
	}
	select {
	case <-d.done:
		_, _ = d.Write(nil) // clears the line
	case <-time.After(progressEvery):
	}
}
