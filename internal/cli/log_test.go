package cli

import (
	"bytes"
	"strings"
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
