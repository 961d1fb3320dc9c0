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

// usualWidth is for terminals that do not tell theirs.
const usualWidth = 80

// clearLine takes back what stands on the terminal's last line.
const clearLine = "\r\x1b[K"

// display is stderr: messages, and on a terminal a progress line below them.
// The line is drawn by a goroutine of its own, so that a terminal that is held
// (^S) holds nothing else.
type display struct {
	w        io.Writer
	terminal bool
	width    func() int
	rate     rate

	mu    sync.Mutex
	drawn bool
	next  chan string // the newest progress line
	done  chan struct{}
}

func newDisplay(w io.Writer) *display {
	d := &display{w: w, next: make(chan string, 1), done: make(chan struct{})}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		d.terminal, d.width = true, func() int { return widthOf(f) }
	}
	go d.run()
	return d
}

// widthOf is how many columns the terminal has now.
func widthOf(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return usualWidth // it does not know
	}
	return width
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
	line = line[:min(len(line), d.width()-1)]  // ASCII; in the last column some terminals wrap
	_, _ = io.WriteString(d.w, clearLine+line) // the next one may succeed
}

// progress shows how far things are.
func (d *display) progress(p sender.Progress) {
	line := progressLine(&p, d.rate.add(p.Elapsed, p.SentBytes))
	select {
	case d.next <- line:
	default: // the terminal is held
	}
}

// progressLine has first what matters most: a narrow terminal shows no more.
func progressLine(p *sender.Progress, rate float64) string {
	line := fmt.Sprintf("%d ready, %d failed, %d live, %s/s, staging %d/%d",
		p.Ready, p.Failed, p.Live, humanize.IBytes(uint64(rate)), p.Used, p.Staging)
	if p.Blocked > 0 {
		line += fmt.Sprintf(", %d blocked", p.Blocked)
	}
	if p.Waiting > 0 {
		line += fmt.Sprintf(", %d wait for admission, the oldest for %.1fs", p.Waiting, p.OldestWait.Seconds())
	}
	return line
}

// rate is the bytes a second of the last ratePeriod, from as many samples.
type rate struct {
	samples [ratePeriod]sample
	n       int
}

type sample struct {
	at    time.Duration
	bytes int64
}

// ratePeriod is for how long a rate is taken, in progress lines.
const ratePeriod = 10

// add takes the newest sample and returns the rate since the oldest.
func (r *rate) add(at time.Duration, bytes int64) float64 {
	oldest := r.samples[r.n%ratePeriod] // at the start: nothing, at 0
	r.samples[r.n%ratePeriod] = sample{at, bytes}
	r.n++
	if at <= oldest.at {
		return 0
	}
	return float64(bytes-oldest.bytes) / (at - oldest.at).Seconds()
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
