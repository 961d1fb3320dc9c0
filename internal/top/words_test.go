package top

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/wire"
)

// What is spelt out is never cut in the middle.
func TestShortenSpelt(t *testing.T) {
	g := &asciiGlyphs
	for _, s := range []string{`\u8bf7\u6c42-\u4e03`, `\x1b]0;x\a`, `ab\U0001f469\u200d\U0001f4bb-req`, `tab\there`, `C:\dir\u12`, `\\\\\\\\`} {
		parts := map[string]bool{"": true} // what may stand before or behind the dots
		for i := 0; i < len(s); {
			n, _ := unit(s[i:])
			i += n
			parts[s[:i]], parts[s[i:]] = true, true
		}
		for w := range len(s) {
			short := g.shorten(s, w)
			before, behind, found := strings.Cut(short, g.dots)
			if width(short) > w || !parts[before] || !parts[behind] || found != (w >= 4) {
				t.Errorf("%s in %d columns is %s", s, w, short)
			}
		}
	}
}

// A count is written in one way, wherever it stands.
func TestCountsHaveCommas(t *testing.T) {
	s := crowd(5000)
	for i := range s.Requests {
		s.Requests[i].IdleMS = 10_000
	}
	s.Slots.Quarantined = 1500
	bare := regexp.MustCompile(`\d{4,} [A-Z]|[A-Z(] ?\d{4,}|q\d{4}`)
	for _, size := range [][2]int{{100, 30}, {200, 50}, {58, 11}} {
		for _, endpoints := range [][]string{{"ipc://a"}, {"ipc://a", "ipc://b"}} {
			m := New(Options{Endpoints: endpoints})
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			m.Update(Report{Msg: s, At: start})
			if got := m.View(); bare.MatchString(got) || !strings.Contains(got, "5,000 STALLED") {
				t.Errorf("%v, %d endpoints: %q\n%s", size, len(endpoints), bare.FindString(got), got)
			}
		}
	}
}

// Plain text says by what it is filtered.
func TestPlainNamesFilter(t *testing.T) {
	var b strings.Builder
	m := shown(Options{Filter: "send-3"}, 100, 30)
	if err := m.Plain(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"RESERVATIONS 11  1 STALLED  1 UNREAD  filter send-3: 3", "SENDERS 4 BLOCKED 5  filter send-3: 1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := shown(Options{Filter: "nobody"}, 100, 30).Plain(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "nothing passes the filter") || strings.Contains(b.String(), "idle") {
		t.Errorf("that nothing passes is not said:\n%s", b.String())
	}
}

// A pd-send that has no staging buffer yet says so.
func TestNoStagingYet(t *testing.T) {
	for _, h := range []int{30, 5} {
		m := New(Options{Endpoints: endpoints3[1:2]})
		m.Update(tea.WindowSizeMsg{Width: 100, Height: h})
		m.Update(Report{Msg: &wire.SenderSnapshot{Kind: wire.KindSender, ID: "send", Receivers: []wire.SenderLink{{Endpoint: "tcp://127.0.0.1:7600", State: "connecting", HeardMS: -1}}}, At: start})
		if got := m.View(); strings.Contains(got, "0 of 0") || strings.Contains(got, "0/0") || !strings.Contains(got, "CONNECTING") {
			t.Errorf("height %d:\n%s", h, got)
		}
	}
}

// A pd-send whose receiver is gone lives and writes nothing: it is said why.
func TestReceiverOfSenderIsGone(t *testing.T) {
	m := all(160, 30, endpoints3...)
	m.Update(Status{Source: 0, State: Stale, Since: start, Now: start.Add(5 * time.Second)})
	if got := m.View(); !strings.Contains(got, "127.0.0.1:7600 STALE") {
		t.Errorf("the overview does not say that the receiver is stale:\n%s", got)
	}
	press(m, "2")
	if got := m.View(); !regexp.MustCompile(`127\.0\.0\.1:7600 +STALE`).MatchString(got) || !regexp.MustCompile(`127\.0\.0\.1:7610 +attached`).MatchString(got) {
		t.Errorf("the pd-send's screen does not:\n%s", got)
	}
	// One that is not watched.
	m = New(Options{Endpoints: endpoints3[1:2]})
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 5})
	s := sending()
	s.Receivers[1].HeardMS = 12_000
	m.Update(Report{Msg: s, At: start})
	if got := m.View(); !strings.Contains(got, "1 CONNECTING  1 SILENT") {
		t.Errorf("it does not say that a receiver is silent: %s", got)
	}
}

// A receiver that was told to stop says so on every screen.
func TestReceiverIsDraining(t *testing.T) {
	for _, h := range []int{30, 5} {
		m := New(Options{Endpoints: endpoints3[:1]})
		m.Update(tea.WindowSizeMsg{Width: 120, Height: h})
		m.Update(Report{Msg: &wire.Snapshot{Kind: wire.KindReceiver, ID: "recv", Draining: true}, At: start})
		got := m.View()
		if !strings.Contains(got, "DRAINING") || strings.Contains(got, "LIVE") || h > 5 && !strings.Contains(got, "new ones are refused") {
			t.Errorf("height %d:\n%s", h, got)
		}
	}
	m := all(160, 30, endpoints3...)
	m.Update(Report{Msg: &wire.Snapshot{Kind: wire.KindReceiver, ID: "recv", Draining: true, UptimeS: 1e6}, At: start.Add(time.Second)})
	if got := m.View(); !strings.Contains(got, "2 LIVE  1 DRAINING") {
		t.Errorf("the overview does not say it:\n%s", got)
	}
}

// Who refuses our keys is told from who has ended, on every screen.
func TestReceiverRefuses(t *testing.T) {
	no := Status{State: Stale, Since: start, Err: endpoints3[0] + " refused our key: add the line", Refused: true, Now: start.Add(5 * time.Second)}
	for _, h := range []int{30, 5} {
		m := shown(Options{}, 120, h)
		m.Update(no)
		if got := m.View(); !strings.Contains(got, "REFUSED") || strings.Contains(got, "STALE") || h > 5 && !strings.Contains(got, "refused our key: add the line") {
			t.Errorf("height %d:\n%s", h, got)
		}
	}
	m := all(160, 30, endpoints3...)
	m.Update(no)
	if got := m.View(); !regexp.MustCompile(`REFUSED.* refused our key: add the line`).MatchString(got) || !strings.Contains(got, "2 LIVE  1 REFUSED") {
		t.Errorf("the overview does not say why:\n%s", got)
	}
	m = New(Options{Endpoints: endpoints3[:1]})
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 24})
	no.State = Waiting
	m.Update(no)
	if got := m.View(); !strings.Contains(got, "REFUSED for 5s: "+no.Err) {
		t.Errorf("nothing has come yet:\n%s", got)
	}
}

// What ends many requests at a time is told of a few and counted; who looks for
// one of them finds it.
func TestManyEndAtOnce(t *testing.T) {
	m := New(Options{Endpoints: endpoints3[1:2]})
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 40})
	m.Update(Report{Msg: sending(), At: start})
	ev := &wire.Event{Time: wire.StampOf(start), Kind: wire.KindSender}
	for i := range 2000 {
		ev.Events = append(ev.Events, wire.EventEntry{
			Time: wire.StampOf(start), Event: "failed", ReqID: fmt.Sprintf("req-%04d", i), Code: "UNREACHABLE", Reason: "its process has ended", TookMS: float64(i),
		})
	}
	ev.Events = append(ev.Events, wire.EventEntry{Time: wire.StampOf(start), Event: "failed", ReqID: "other", Code: "TIMEOUT"})
	m.Update(Events{Event: ev})
	press(m, "4", "4")
	got := m.View()
	if strings.Count(got, "req-") != oneByOne || !strings.Contains(got, "1,995 more requests failed UNREACHABLE: its process has ended") || !strings.Contains(got, "other failed TIMEOUT") {
		t.Errorf("of 2,000 that failed it shows\n%s", got)
	}
	press(m, "/", "1", "2", "3", "4", "enter")
	if got := m.View(); !strings.Contains(got, "req-1234 failed after") {
		t.Errorf("looked for, one is not found:\n%s", got)
	}
	press(m, "enter")
	if got := m.View(); !strings.Contains(got, "failed after 1.23s UNREACHABLE") {
		t.Errorf("its end is not shown:\n%s", got)
	}
}
