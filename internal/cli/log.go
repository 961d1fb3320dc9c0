package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pd-tools/pd-tools/internal/sock"
)

// A kind of message that peers can cause is printed burst times in every
// window; the rest is counted.
const (
	burst  = 5
	window = 10 * time.Second
)

// logQueue is how much a Log keeps for a stderr that is not read, bytes.
const logQueue = 1 << 20

// Log prints messages for people, one a line, with the program's name in
// front. It never blocks. All methods are for any goroutine.
type Log struct {
	lines *Lines
	name  string
	now   func() time.Time

	mu    sync.Mutex
	kinds map[string]*kind
}

// kind is the account of one kind of limited message.
type kind struct {
	since      time.Time // start of the window
	printed    int
	suppressed uint64
}

// NewLog prints to w, which is the process's stderr but in tests.
func NewLog(w io.Writer, program string) *Log {
	dropped := func(n uint64) []byte { return fmt.Appendf(nil, "%s: %d messages were dropped\n", program, n) }
	return &Log{
		lines: newLines(w, func(error) {}, logQueue, dropped),
		name:  program,
		now:   time.Now,
		kinds: map[string]*kind{},
	}
}

// Printf prints one message.
func (l *Log) Printf(format string, args ...any) {
	l.lines.Text(l.name + ": " + strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// Limitf is Printf for what peers can cause at will: of one kind only a few are
// printed every 10 seconds, then their number. There are as many kinds as the
// program has names for them; a peer's text is no kind.
func (l *Log) Limitf(kind, format string, args ...any) {
	pass, suppressed := l.count(kind)
	if suppressed > 0 {
		l.Printf("%d more messages like that (%s)", suppressed, kind)
	}
	if pass {
		l.Printf(format, args...)
	}
}

// count books one message of the kind: whether it may pass, and how many of an
// earlier window did not and were not told yet.
func (l *Log) count(name string) (pass bool, suppressed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	k := l.kinds[name]
	if k == nil || now.Sub(k.since) >= window {
		if k != nil {
			suppressed = k.suppressed
		}
		k = &kind{since: now}
		l.kinds[name] = k
	}
	if k.printed == burst {
		k.suppressed++
		return false, suppressed
	}
	k.printed++
	return true, suppressed
}

// Close tells what was suppressed and waits until all is written or ctx done.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	kinds := l.kinds
	l.kinds = map[string]*kind{}
	l.mu.Unlock()
	for name, k := range kinds {
		if k.suppressed > 0 {
			l.Printf("%d more messages like that (%s)", k.suppressed, name)
		}
	}
	return l.lines.Close(ctx)
}

// flushGrace is how long the last output may take once a program ends by itself,
// and its last messages in any case.
const flushGrace = time.Second

// Flush writes what is queued for stdout and then for stderr. It waits for a
// slow reader of stdout until ctx is done, and then a second longer or, after a
// signal, for most of the time that the stop may take; what is left then is lost,
// and said on stderr.
func Flush(ctx context.Context, out *Lines, log *Log) {
	patience, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	stop := context.AfterFunc(ctx, func() {
		grace := flushGrace
		if s := (*SignalError)(nil); errors.As(context.Cause(ctx), &s) {
			if s.flushBy.IsZero() {
				return // until a second signal
			}
			grace = time.Until(s.flushBy)
		}
		time.AfterFunc(grace, giveUp)
	})
	defer stop()
	if err := out.Close(patience); err != nil {
		log.Printf("%v", err)
	}
	brief, cancel := context.WithTimeout(context.Background(), flushGrace)
	defer cancel()
	_ = log.Close(brief)
}

// Escape makes text from a peer safe for a terminal and for one line: what is
// not printable stands as \n, \x1b or \u202e, as in Go and in JSON strings.
func Escape(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !printable(r) || r == utf8.RuneError }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case printable(r):
			b.WriteRune(r)
		default:
			quoted := fmt.Sprintf("%+q", r) // '\n', '\x1b', '\u202e'
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// printable leaves out controls and what changes the direction or joins of text
// around it, but keeps spaces.
func printable(r rune) bool { return r == ' ' || unicode.IsPrint(r) }

// Warn is what parts of a program tell people by: text of peers may be in it,
// and equal kinds come as often as a peer likes.
func (l *Log) Warn(kind, text string) { l.Limitf(kind, "%s", Escape(text)) }

// Watch says where a program can be watched, and who else can.
func (l *Log) Watch(endpoint string, keys *sock.Keys) {
	l.Printf("to watch it: pd-top %s", endpoint)
	l.Public(endpoint, "watch on", keys)
}

// Public warns of an endpoint at which other hosts can do something unasked.
func (l *Log) Public(endpoint, do string, keys *sock.Keys) {
	if keys == nil && sock.IsPublic(endpoint) {
		l.Printf("warning: other hosts can %s %s, and nothing asks who they are: make keys (pd-recv keygen) and give --curve-key and --curve-allow", do, endpoint)
	}
}
