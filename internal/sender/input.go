package sender

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

// input is one thing that came of reading: a line, or an error.
type input struct {
	line manifest.Line
	err  error // a *manifest.LineError, or what keeps a file from being read on
}

// Stdin is the name of the standard input among the files.
const Stdin = "-"

// readAll reads the files one after another, line by line, into lines, which it
// closes at the end of the last. It ends early when ctx is done. A line waits
// for its time when pace is not 0.
func readAll(ctx context.Context, files []string, stdin io.Reader, pace float64, lines chan<- input) {
	start := time.Now()
	for _, name := range files {
		if !readFile(ctx, name, stdin, start, pace, lines) {
			return
		}
	}
	close(lines)
}

func readFile(ctx context.Context, name string, stdin io.Reader, start time.Time, pace float64, lines chan<- input) (more bool) {
	r, shown := stdin, "stdin"
	if name != Stdin {
		f, err := os.Open(name)
		if err != nil {
			return put(ctx, lines, input{err: fmt.Errorf("cannot read manifest: %w", err)})
		}
		defer f.Close()
		r, shown = f, name
	}
	reader := manifest.NewReader(r, shown)
	for {
		line, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return true
		}
		if b := line.Batch; b != nil && pace > 0 && !sleep(ctx, time.Until(start.Add(time.Duration(b.At/pace*float64(time.Second))))) {
			return false
		}
		if !put(ctx, lines, input{line, err}) {
			return false
		}
		if bad := (*manifest.LineError)(nil); err != nil && !errors.As(err, &bad) {
			return true
		}
	}
}

func put(ctx context.Context, lines chan<- input, in input) bool {
	select {
	case lines <- in:
		return true
	case <-ctx.Done():
		return false
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
