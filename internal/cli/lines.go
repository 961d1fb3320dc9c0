package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"
)

// maxQueued is how much a Lines keeps for a reader that pauses, bytes. As much
// again may be in the hands of the writing goroutine.
const maxQueued = 8 << 20

// Lines writes lines, each at once, from a goroutine of its own: a reader that
// pauses never blocks who writes. What then finds no room is dropped and
// counted, and the count is written where the dropped lines would have stood.
// All methods are for any goroutine.
type Lines struct {
	w       io.Writer
	fail    func(error)
	dropped func(n uint64) []byte
	limit   int

	mu     sync.Mutex
	queue  []byte
	drops  uint64 // since the last line that was queued
	broken bool   // writing failed: nothing is kept any more
	closed bool

	wake chan struct{}
	done chan struct{} // closed when all is written, or broken
}

// NewLines writes JSON lines to w. The first error of w is told to fail, once;
// a closed pipe on stdout ends the process instead, as Go does by itself.
// Dropped lines become {"event":"dropped","dropped":N}.
func NewLines(w io.Writer, fail func(error)) *Lines {
	return newLines(w, fail, maxQueued, func(n uint64) []byte {
		return fmt.Appendf(nil, `{"event":"dropped","dropped":%d}`+"\n", n)
	})
}

// NewTextLines is NewLines for output that is not JSON: onDrop is told how many
// lines were dropped, and returns the text, if any, to stand in their place.
func NewTextLines(w io.Writer, fail func(error), onDrop func(n uint64) string) *Lines {
	return newLines(w, fail, maxQueued, func(n uint64) []byte { return []byte(onDrop(n)) })
}

func newLines(w io.Writer, fail func(error), limit int, dropped func(uint64) []byte) *Lines {
	l := &Lines{w: w, fail: fail, limit: limit, dropped: dropped, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.run()
	return l
}

// JSON queues v as one line of JSON.
func (l *Lines) JSON(v any) {
	line, err := JSONLine(v)
	if err != nil {
		l.fail(fmt.Errorf("cannot write %T as JSON: %w", v, err))
		return
	}
	l.Raw(line)
}

// Text queues one line; it must not hold a newline.
func (l *Lines) Text(line string) { l.Raw(append([]byte(line), '\n')) }

// Raw queues bytes that end in a newline. They are copied.
func (l *Lines) Raw(line []byte) { l.Batch(line, 1) }

// Batch queues n lines at a time, or drops them. They are copied.
func (l *Lines) Batch(lines []byte, n int) {
	l.mu.Lock()
	switch {
	case l.broken || l.closed:
	case l.drops > 0 || len(l.queue)+len(lines) > l.limit:
		l.drops += uint64(n)
	default:
		l.queue = append(l.queue, lines...)
	}
	l.mu.Unlock()
	l.kick()
}

func (l *Lines) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close writes what is queued and ends the goroutine; it waits for the reader
// until ctx is done. Lines queued after Close are lost.
func (l *Lines) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.kick()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("output was left unwritten: its reader does not read")
	}
}

func (l *Lines) run() {
	defer close(l.done)
	var spare []byte
	for range l.wake {
		batch, last := l.take(spare[:0])
		if len(batch) > 0 {
			if _, err := l.w.Write(batch); err != nil {
				l.breakOff(err)
				return
			}
		}
		if last {
			return
		}
		if spare = batch; cap(spare) > 1<<20 {
			spare = nil // a pause is over: give its memory back
		}
	}
}

// take swaps the queue for an empty one. The drops come behind what was queued
// before them.
func (l *Lines) take(empty []byte) (batch []byte, last bool) {
	l.mu.Lock()
	batch, drops, last := l.queue, l.drops, l.closed
	l.queue, l.drops = empty, 0
	l.mu.Unlock()
	if drops > 0 {
		batch = append(batch, l.dropped(drops)...)
	}
	return batch, last
}

func (l *Lines) breakOff(err error) {
	l.mu.Lock()
	l.broken, l.queue = true, nil
	l.mu.Unlock()
	l.fail(writeError(err))
}

// Write writes b, however large it is: for a command that prints one thing and
// ends. It does not outlast ctx, whatever the reader does.
func Write(ctx context.Context, w io.Writer, b []byte) error {
	done := make(chan error, 1)
	go func() {
		_, err := w.Write(b)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return writeError(err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func writeError(err error) error { return fmt.Errorf("cannot write output: %w", err) }

// JSONLine is v as one line of JSON. It keeps <, > and & as they are, and writes as escapes what a
// terminal could take for a command: JSON allows DEL and the controls from
// U+0080 to U+009F as they are.
func JSONLine(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(b.Bytes()), nil
}

func escapeJSON(line []byte) []byte {
	if !bytes.ContainsAny(line, "\x7f") && isASCII(line) {
		return line
	}
	out := make([]byte, 0, len(line)+16)
	for len(line) > 0 {
		r, n := utf8.DecodeRune(line)
		if r == '\n' || printable(r) {
			out = append(out, line[:n]...)
		} else {
			out = appendJSONEscape(out, r)
		}
		line = line[n:]
	}
	return out
}

func appendJSONEscape(out []byte, r rune) []byte {
	if r > 0xffff {
		r -= 0x10000
		return fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
	}
	return fmt.Appendf(out, `\u%04x`, r)
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
