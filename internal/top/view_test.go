package top

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-runewidth"

	"github.com/pd-tools/pd-tools/wire"
)

// check is what holds of every screen: its size, and that nothing but text
// comes out. Both ways to measure agree.
func check(t *testing.T, m *Model, w, h int) {
	t.Helper()
	v := m.View()
	if w <= 0 || h <= 0 {
		if v != "" {
			t.Fatalf("%dx%d draws %q", w, h, v)
		}
		return
	}
	lines := strings.Split(v, "\n")
	if len(lines) > h {
		t.Fatalf("%dx%d: %d lines\n%s", w, h, len(lines), v)
	}
	cells := &runewidth.Condition{StrictEmojiNeutral: true}
	for _, l := range lines {
		byRune := 0
		for _, r := range l {
			byRune += cells.RuneWidth(r)
		}
		if n := ansi.StringWidth(l); n > w || n != byRune {
			t.Fatalf("%dx%d: a line of %d columns, rune by rune %d: %q", w, h, n, byRune, l)
		}
		if !utf8.ValidString(l) || strings.IndexFunc(l, func(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }) >= 0 {
			t.Fatalf("%dx%d: what is no text: %q", w, h, l)
		}
		if m.opts.ASCII && !isPlain(l) {
			t.Fatalf("%dx%d: not ASCII: %q", w, h, l)
		}
	}
	if v != m.View() {
		t.Fatal("the same screen is drawn in two ways")
	}
}

// chaos makes messages and keys of random numbers; nothing in them adds up.
type chaos struct {
	*rand.Rand
	up float64
}

func newChaos(seed uint64) *chaos { return &chaos{Rand: rand.New(rand.NewPCG(seed, 1))} }

var oddTexts = []string{
	"7f3a91", "请求", "👩‍💻", "e\u0301\u0301\u0301\u0301", "\x1b]0;x\a", "\t", "\n\r", "🇩🇪", "❤️", "1️⃣", "क्षत्रिय", "한국어", "ᄒ", "ᅡᆫ", "\u202e", "\xff\xfe", "\u0301", "\u200d",
	"\u0085", "\u00ad", "ﷺ", "กำ", "👍🏽", "\U000e0041", "－", "ｱﾞ", strings.Repeat("long-", 100), "", " ", "a\u1160b", "\U0001f1e9",
	"\x9b31m", "\u0600٣", "\u0e33", "ʰ̃", "𝒳", "\ufffd", "Ａ", "\u2028", "\ue000", "…", "─", "‼️", "☺", "☺️", "⌚", "⏏︎",
}

func (c *chaos) text() string {
	var b strings.Builder
	for range c.IntN(4) + 1 {
		if c.IntN(3) == 0 {
			b.WriteRune(rune(c.IntN(0x20000)))
		} else {
			b.WriteString(oddTexts[c.IntN(len(oddTexts))])
		}
	}
	return b.String()
}

func (c *chaos) n() int {
	switch c.IntN(12) {
	case 0:
		return math.MaxInt - c.IntN(3)
	case 1:
		return -c.IntN(100)
	case 2:
		return c.IntN(math.MaxInt)
	case 3:
		return math.MinInt
	}
	return c.IntN(300)
}

func (c *chaos) ms() int64 { return int64(c.n()) }

func (c *chaos) float() float64 {
	return []float64{0, 1, c.Float64() * 1000, c.Float64() * 1e12, math.NaN(), math.Inf(1), -5, math.MaxFloat64}[c.IntN(8)]
}

func (c *chaos) wait() wire.SnapshotWait {
	return wire.SnapshotWait{P50: c.float(), P99: c.float(), Max: c.float()}
}

func (c *chaos) pick(of ...string) string { return of[c.IntN(len(of))] }

func (c *chaos) uptime() float64 {
	if c.IntN(6) == 0 {
		return c.float()
	}
	c.up += c.Float64() * 3
	return c.up
}

func (c *chaos) stamp() wire.Stamp {
	return wire.StampOf(start.Add(time.Duration(c.n())))
}

func (c *chaos) snapshot() wire.Message {
	few := func() int { return c.IntN(30) }
	switch c.IntN(4) {
	case 0:
		s := &wire.SenderSnapshot{Time: c.stamp(), ID: c.text(), Epoch: uint64(c.IntN(2)), UptimeS: c.uptime(), AdmitWait: c.wait(), WriteTime: c.wait(), ReadyTime: c.wait()}
		s.Staging = wire.Staging{Total: c.n(), Used: c.n(), Bytes: c.ms()}
		s.Totals = wire.SenderTotals{Requests: c.n(), Blocked: c.n()}
		s.Counters = wire.SenderCounters{Ready: c.ms(), Failed: c.ms(), SentChunks: c.ms(), SentBytes: c.ms(), Undelivered: c.ms()}
		for range few() {
			s.Requests = append(s.Requests, wire.SenderRequest{ReqID: c.text(), Receiver: c.n(), State: c.pick("waiting", "writing", c.text()), TotalChunks: c.ms(), Sent: c.ms(), Bytes: c.ms(), AgeMS: c.ms(), AdmittedMS: c.ms()})
			s.Staging.Blocked = append(s.Staging.Blocked, wire.Blocked{ReqID: c.text(), Receiver: c.n(), Chunks: c.n(), WaitingMS: c.ms()})
			s.Receivers = append(s.Receivers, wire.SenderLink{Endpoint: c.text(), State: c.pick("attached", c.text()), Engine: c.text(), Staging: c.n(), Blocked: c.n(), HeardMS: c.ms(), Bytes: c.ms()})
		}
		return s
	case 1:
		s := &wire.ProxySnapshot{Time: c.stamp(), ID: c.text(), Endpoint: c.text(), UptimeS: c.uptime(), Expect: c.n(), Pending: c.n()}
		s.Counters = wire.ProxyCounters{Ready: c.ms(), Failed: c.ms(), Forgotten: c.ms()}
		for range few() {
			s.Waiting = append(s.Waiting, wire.ProxyRequest{ReqID: c.text(), Notifs: c.n(), AgeMS: c.ms()})
		}
		return s
	}
	s := &wire.Snapshot{Time: c.stamp(), ID: c.text(), Epoch: uint64(c.IntN(2)), Endpoint: c.text(), Admission: c.pick("reserve", "none", c.text()), UptimeS: c.uptime(), AdmitWait: c.wait(), WriteTime: c.wait(), ReadyTime: c.wait()}
	s.Slots = wire.SnapshotSlots{Total: c.n(), Promised: c.n(), Held: c.n(), Written: c.n(), Ready: c.n(), Quarantined: c.n(), Free: c.n(), Peak: c.n(), Bytes: c.ms()}
	s.Totals = wire.SnapshotTotals{Requests: c.n(), Queue: c.n(), Senders: c.n()}
	s.Counters = wire.Counters{Admitted: c.ms(), Ready: c.ms(), Rejected: c.ms(), Expired: c.ms(), WrittenBytes: c.ms(), BadFrames: c.ms()}
	s.Refusals = map[string]int64{c.text(): c.ms(), c.text(): c.ms()}
	for range few() {
		s.Requests = append(s.Requests, wire.SnapshotRequest{ReqID: c.text(), Sender: c.text(), State: c.pick("queued", "admitted", "allocated", "ready", c.text()), TotalChunks: c.n(), Allocated: c.n(), Written: c.n(), Shared: c.n(), Bytes: c.ms(), AgeMS: c.ms(), IdleMS: c.ms(), Taken: c.IntN(2) == 0, AdmittedMS: c.ms(), FirstWriteMS: c.ms(), ReadyMS: c.ms()})
		s.Queue = append(s.Queue, wire.SnapshotWaiter{Pos: c.n(), ReqID: c.text(), Sender: c.text(), Need: c.n(), Lacks: c.n(), WaitedMS: c.ms(), AtShare: c.IntN(4) == 0})
		s.Senders = append(s.Senders, wire.SnapshotSender{Sender: c.text(), Requests: c.n(), Queued: c.n(), Attached: c.IntN(2) == 0, LeaseLeftMS: c.ms(), Slots: c.n(), Bytes: c.ms()})
	}
	return s
}

func (c *chaos) events() *wire.Event {
	e := &wire.Event{Time: c.stamp(), Dropped: c.ms()}
	for range c.IntN(10) {
		e.Events = append(e.Events, wire.EventEntry{Time: c.stamp(), Event: c.pick("queued", "admitted", "ready", "released", "expired", c.text()), ReqID: c.text(), Sender: c.text(), Chunks: c.n(), TotalChunks: uint64(c.n()), Bytes: c.ms(), WaitedMS: c.float(), TookMS: c.float(), Code: c.text(), Reason: c.text()})
	}
	return e
}

var allKeys = strings.Fields("k j up down pgup pgdown g G tab shift+tab 1 2 3 4 z enter esc s S / p + - u t c C 0 ? ctrl+l backspace ctrl+u x 请 \x1b")

// step does one thing to the model.
func (c *chaos) step(m *Model) {
	src := c.IntN(len(m.sources)+2) - 1
	now := start.Add(time.Duration(c.IntN(100)) * time.Second)
	switch c.IntN(6) {
	case 0, 1:
		m.Update(Report{Source: src, Msg: c.snapshot(), At: now})
	case 2:
		m.Update(Events{Source: src, Event: c.events()})
	case 3:
		m.Update(Status{Source: src, State: State(c.IntN(4)), Since: start, Retry: c.n(), Err: c.text(), Now: now})
	default:
		press(m, allKeys[c.IntN(len(allKeys))])
	}
}

// run drives a model through random things and looks at each screen.
func (c *chaos) run(t *testing.T, steps int) {
	var endpoints []string
	for range c.IntN(4) {
		endpoints = append(endpoints, c.text())
	}
	m := New(Options{Endpoints: endpoints, ASCII: c.IntN(3) == 0, Filter: c.pick("", "a", "!7")})
	w, h := 0, 0
	for range steps {
		if c.IntN(4) == 0 {
			sizes := []int{0, 1, 2, 10, 59, 60, 61, 75, 76, 80, 100, 127, 200, 500}
			w, h = sizes[c.IntN(len(sizes))], []int{0, 1, 2, 11, 12, 13, 16, 20, 24, 30, 50, 200}[c.IntN(12)]
			m.Update(tea.WindowSizeMsg{Width: w, Height: h})
		}
		c.step(m)
		check(t, m, w, h)
	}
	if err := m.Plain(io.Discard); err != nil {
		t.Fatal(err)
	}
}

// Whatever comes, no line is wider than the terminal and nothing but text is
// drawn.
func TestAnything(t *testing.T) {
	for seed := range uint64(20) {
		c := newChaos(seed)
		c.run(t, 60)
	}
}

func FuzzView(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, "id", 100, 30)
	}
	f.Add(uint64(1), "👩‍💻\x1b[2J", 80, 24)
	f.Fuzz(func(t *testing.T, seed uint64, id string, w, h int) {
		c := newChaos(seed)
		m := shown(Options{ASCII: seed%2 == 1}, w%600, h%300)
		s := busy()
		s.Requests[0].ReqID, s.Queue[0].ReqID, s.Senders[0].Sender, s.ID = id, id, id, id
		s.UptimeS++
		m.Update(Report{Msg: s, At: start.Add(time.Second)})
		check(t, m, max(w%600, 0), max(h%300, 0))
		for range 10 {
			c.step(m)
			check(t, m, max(w%600, 0), max(h%300, 0))
		}
	})
}

// Any rune, alone or between others, is as wide as it is said to be, and what
// is shortened fits.
func TestClean(t *testing.T) {
	c := newChaos(3)
	for range 4000 {
		s := c.text()
		for _, ascii := range []bool{false, true} {
			got := clean(s, ascii)
			if w := width(got); w != ansi.StringWidth(got) {
				t.Fatalf("%q becomes %q: %d columns, not %d", s, got, ansi.StringWidth(got), w)
			}
			for _, n := range []int{0, 1, 3, 4, 7, 12} {
				short := unicodeGlyphs.shorten(got, n)
				if w := ansi.StringWidth(short); w > n || w != width(short) {
					t.Fatalf("%q in %d columns is %q: %d", got, n, short, w)
				}
			}
		}
	}
	for in, want := range map[string]string{
		"plain": "plain", "请求": "请求", "a\x1b[2Jb": `a\x1b[2Jb`, "👩‍💻": `👩\u200d💻`, "e\u0301": "e\u0301", "\u0301e": `\u0301e`, "\xff": `\xff`,
	} {
		if got := clean(in, false); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// Without colour no escape comes out; with it the same text does.
func TestColour(t *testing.T) {
	for _, size := range [][2]int{{100, 30}, {80, 24}, {40, 5}} {
		grey, colourful := shown(Options{}, size[0], size[1]), shown(Options{Color: true}, size[0], size[1])
		press(grey, "j")
		press(colourful, "j")
		if strings.Contains(grey.View(), "\x1b") {
			t.Error("an escape without colour")
		}
		if !strings.Contains(colourful.View(), "\x1b[") {
			t.Error("no colour")
		}
		want, got := strings.Split(grey.View(), "\n"), strings.Split(ansi.Strip(colourful.View()), "\n")
		for i := range want {
			if strings.TrimRight(got[i], " ") != strings.TrimRight(want[i], " ") {
				t.Errorf("in colour line %d is\n%q\nnot\n%q", i, got[i], want[i])
			}
		}
	}
}

// A screen on which nothing happens changes in one line only.
func TestUnchanging(t *testing.T) {
	m := New(Options{Endpoints: endpoints3[:1]})
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	idle := func(i int) string {
		s := tally(&wire.Snapshot{ID: "recv-0", Epoch: 8, Time: wire.StampOf(start.Add(time.Duration(i) * time.Second)), Admission: "reserve", UptimeS: 100 + float64(i)}, 256)
		m.Update(Report{Msg: s, At: start.Add(time.Duration(i) * time.Second)})
		m.Update(Status{State: Live, Since: start, Now: start.Add(time.Duration(i) * time.Second)})
		return m.View()
	}
	for i := range 100 {
		idle(i)
	}
	before, after := strings.Split(idle(100), "\n"), strings.Split(idle(101), "\n")
	for i := range before {
		if (before[i] != after[i]) != (i == 0) {
			t.Errorf("line %d was and is\n%s\n%s", i, before[i], after[i])
		}
	}
}

// crowd is a receiver with so many live requests.
func crowd(n int) *wire.Snapshot {
	s := busy()
	s.Requests, s.Queue, s.Senders = nil, nil, nil
	for i := range n {
		s.Requests = append(s.Requests, req(fmt.Sprintf("request-%08d", i), fmt.Sprintf("pd-send-%d", i%16), "admitted", 16, 8, i%8, int64(n-i), int64(i%100)))
	}
	for i := range n / 10 {
		s.Queue = append(s.Queue, wire.SnapshotWaiter{Pos: i + 1, ReqID: fmt.Sprintf("waiting-%08d", i), Sender: fmt.Sprintf("pd-send-%d", i%16), Need: 16, WaitedMS: int64(n - i)})
	}
	return tally(s, n*20)
}

func BenchmarkRefresh5000(b *testing.B) {
	m := New(Options{Endpoints: endpoints3[:1], Color: true})
	m.Update(tea.WindowSizeMsg{Width: 200, Height: 60})
	s := crowd(5000)
	b.ReportAllocs()
	for b.Loop() {
		next := *s
		s = &next
		s.UptimeS++
		m.Update(Report{Msg: s, At: start})
		m.View()
	}
}

func BenchmarkKey5000(b *testing.B) {
	m := New(Options{Endpoints: endpoints3[:1]})
	m.Update(tea.WindowSizeMsg{Width: 200, Height: 60})
	m.Update(Report{Msg: crowd(5000), At: start})
	for b.Loop() {
		press(m, "j")
		m.View()
	}
}

func BenchmarkView500x200(b *testing.B) {
	m := New(Options{Endpoints: endpoints3[:1], Color: true})
	m.Update(tea.WindowSizeMsg{Width: 500, Height: 200})
	m.Update(Report{Msg: crowd(5000), At: start})
	for b.Loop() {
		m.View()
	}
}
