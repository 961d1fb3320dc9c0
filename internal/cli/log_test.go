package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLogLimitsEachKind(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	l := NewLog(&out, "pd-test")
	l.now = func() time.Time { return now }
	for i := range 100 {
		l.Limitf("bad frames", "bad frame %d", i)
	}
	l.Limitf("other", "of another kind")
	now = now.Add(window)
	l.Limitf("bad frames", "bad frame again")
	for range 10 {
		l.Limitf("other", "of another kind")
	}
	l.Printf("two\nlines")
	if err := l.Close(patient(t)); err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`pd: bad frame 0
pd: bad frame 1
pd: bad frame 2
pd: bad frame 3
pd: bad frame 4
pd: of another kind
pd: 95 more messages like that (bad frames)
pd: bad frame again
pd: of another kind
pd: of another kind
pd: of another kind
pd: of another kind
pd: of another kind
pd: two lines
pd: 5 more messages like that (other)
`, "pd:", "pd-test:")
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                  "",
		"req-1 a\\b \"c\"":  "req-1 a\\b \"c\"",
		"日本 😀 e\u0301":      "日本 😀 e\u0301",
		"a\nb\r\tc":         `a\nb\r\tc`,
		"\x1b]0;x\x07":      `\x1b]0;x\a`,
		"\u009b31m\x7f":     `\u009b31m\x7f`,
		"\u202eabc":         `\u202eabc`,
		"\U000e0001":        `\U000e0001`,
		"\xff\xfea":         `\xff\xfea`,
		"\ufffd":            "\ufffd",
		"\x00":              `\x00`,
		"zero\u200bwidth'a": `zero\u200bwidth'a`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %s, want %s", in, got, want)
		}
	}
}

// What Escape returns is one line of printable text, whatever came in.
func FuzzEscape(f *testing.F) {
	f.Add("a\n\x1b\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Escape(s) {
			if !printable(r) {
				t.Fatalf("Escape(%q) = %q", s, Escape(s))
			}
		}
	})
}

// After a signal a reader of stdout that pauses is waited for until flushBy, and
// no longer.
func TestFlushAfterASignal(t *testing.T) {
	for name, tt := range map[string]struct{ grace, pause time.Duration }{
		"it reads in time": {patienceOfTests, flushGrace + 200*time.Millisecond},
		"it does not":      {50 * time.Millisecond, patienceOfTests},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(context.Background())
			r, w := io.Pipe()
			defer r.Close()
			var stderr strings.Builder
			out, log := NewLines(w, func(error) {}), NewLog(&stderr, "pd-test")
			out.JSON(1)
			cancel(&SignalError{Signal: syscall.SIGTERM, flushBy: time.Now().Add(tt.grace)})
			timer := time.AfterFunc(tt.pause, func() { _, _ = io.Copy(io.Discard, r) })
			defer timer.Stop()
			began := time.Now()
			Flush(ctx, out, log)
			if lost := strings.Contains(stderr.String(), "left unwritten"); lost != (tt.grace < tt.pause) {
				t.Errorf("it gave up: %v, after %v", lost, time.Since(began))
			}
		})
	}
}

const patienceOfTests = 30 * time.Second
