package top

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/wire"
)

// rows are the request ids of the first pane, from top to bottom, and the one
// that is marked.
func rows(m *Model) (ids []string, chosen string) {
	t, p := m.current[0], &m.screen().panes[0]
	for _, row := range p.order {
		ids = append(ids, t.key(row))
	}
	if p.index < len(p.order) {
		chosen = t.key(p.order[p.index])
	}
	return ids, chosen
}

func wantChosen(t *testing.T, m *Model, want string) {
	t.Helper()
	if _, got := rows(m); got != want {
		t.Errorf("%s is marked, want %s", got, want)
	}
	if want != "" && m.w >= leastWidth && !strings.Contains(m.View(), ">"+want) {
		t.Errorf("%s is not marked on the screen\n%s", want, m.View())
	}
}

func TestMoving(t *testing.T) {
	m := shown(Options{}, 80, 24)
	ids, _ := rows(m)
	wantChosen(t, m, ids[0])
	press(m, "j", "down")
	wantChosen(t, m, ids[2])
	press(m, "k")
	wantChosen(t, m, ids[1])
	press(m, "up", "up", "up")
	wantChosen(t, m, ids[0])
	press(m, "G")
	wantChosen(t, m, ids[len(ids)-1])
	press(m, "pgup")
	wantChosen(t, m, ids[len(ids)-1-5])
	press(m, "g")
	wantChosen(t, m, ids[0])
	press(m, "pgdown", "pgdown", "pgdown", "pgdown")
	wantChosen(t, m, ids[len(ids)-1])
}

// The mark stays on its request while others come, go and change places.
func TestChosenFollows(t *testing.T) {
	m := shown(Options{}, 80, 24)
	press(m, "j", "j", "j")
	_, chosen := rows(m)
	next := func(change func(s *wire.Snapshot)) {
		s := *m.sources[0].frame.recv
		s.Requests = slices.Clone(s.Requests)
		s.UptimeS++
		change(&s)
		m.Update(Report{Msg: &s, At: start})
	}
	next(func(s *wire.Snapshot) {
		s.Requests = append(s.Requests, req("older", "pd-send-1", "admitted", 4, 4, 1, 90_000, 0))
	})
	wantChosen(t, m, chosen)
	next(func(s *wire.Snapshot) { s.Requests = s.Requests[3:] })
	_, now := rows(m)
	if chosen == "7f3ab0" && now == "" {
		t.Error("nothing is marked")
	}
	press(m, "S")
	press(m, "s")
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 14})
	_, again := rows(m)
	wantChosen(t, m, again)
	if again != now {
		t.Errorf("sorting moves the mark from %s to %s", now, again)
	}
	// The request ends: the mark stays at its place.
	index := m.screen().panes[0].index
	next(func(s *wire.Snapshot) {
		s.Requests = slices.DeleteFunc(s.Requests, func(r wire.SnapshotRequest) bool { return r.ReqID == again })
	})
	if p := m.screen().panes[0]; p.index != min(index, len(p.order)-1) {
		t.Errorf("the mark moved from %d to %d", index, p.index)
	}
}

// A random walk agrees with a plain list that is searched anew each time.
func TestMovingModel(t *testing.T) {
	c := newChaos(11)
	m := shown(Options{}, 80, 24)
	at, locked := 0, ""
	for range 500 {
		ids, _ := rows(m)
		n := len(ids)
		page := max(m.paneRows()[0]-1, 1)
		do := c.pick("j", "k", "pgup", "pgdown", "g", "G", "s", "S", "new")
		switch do {
		case "new":
			s := busy()
			s.UptimeS = m.sources[0].frame.life.up + 1
			c.Shuffle(len(s.Requests), func(a, b int) { s.Requests[a], s.Requests[b] = s.Requests[b], s.Requests[a] })
			s.Requests = s.Requests[:4+c.IntN(len(s.Requests)-4)]
			m.Update(Report{Msg: s, At: start})
		default:
			press(m, do)
		}
		after, got := rows(m)
		switch do {
		case "j":
			at = at + 1
		case "k":
			at = at - 1
		case "pgup":
			at -= page
		case "pgdown":
			at += page
		case "G":
			at = n - 1
		case "g":
			at, locked = 0, ""
		}
		if n > 0 && slices.Contains([]string{"j", "k", "pgup", "pgdown", "G"}, do) {
			at = max(min(at, n-1), 0)
			locked = ids[at]
		}
		if locked == "" {
			at = 0
		} else if i := slices.Index(after, locked); i >= 0 {
			at = i
		}
		at = max(min(at, len(after)-1), 0)
		want := ""
		if len(after) > 0 {
			want = after[at]
			if locked != "" {
				locked = want
			}
		}
		if got != want {
			t.Fatalf("after %s %s is marked, want %s of %v", do, got, want, after)
		}
		check(t, m, 80, 24)
	}
}

func TestSorting(t *testing.T) {
	m := shown(Options{}, 160, 50)
	seen := map[string]bool{}
	for range SortKeys() {
		press(m, "s")
		p := m.screen().panes[0]
		name := m.current[0].cols[p.sort].name
		seen[strings.ToLower(name)] = true
		first := "sort " + name + " ▲"
		if m.current[0].cols[p.sort].desc {
			first = "sort " + name + " ▼"
		}
		if !strings.Contains(m.View(), first) {
			t.Errorf("the title does not say %q", first)
		}
		cmp := m.current[0].cols[p.sort].cmp
		sorted := func(a, b int) int {
			if m.current[0].cols[p.sort].desc != m.screen().panes[0].reverse {
				return cmp(b, a)
			}
			return cmp(a, b)
		}
		if !slices.IsSortedFunc(m.screen().panes[0].order, sorted) {
			t.Errorf("not sorted by %s", name)
		}
		press(m, "S")
		if !slices.IsSortedFunc(m.screen().panes[0].order, sorted) {
			t.Errorf("not sorted by %s in reverse", name)
		}
		press(m, "S")
	}
	for _, name := range SortKeys() {
		if !seen[name] {
			t.Errorf("s does not come to %s", name)
		}
	}
}

func TestFilter(t *testing.T) {
	m := shown(Options{}, 100, 30)
	count := func() int { ids, _ := rows(m); return len(ids) }
	all := count()
	press(m, "/", "P", "D", "-", "s", "e", "n", "d", "-", "3")
	if n := count(); n != 3 {
		t.Errorf("%d of pd-send-3 while it is written, want 3", n)
	}
	press(m, "backspace", "backspace")
	if n := count(); n != all {
		t.Errorf("%d after two backspaces, want %d", n, all)
	}
	press(m, "ctrl+u", "!", "s", "t", "a", "l", "l", "enter")
	if n := count(); n != all-1 {
		t.Errorf("%d not stalled, want %d", n, all-1)
	}
	if v := m.View(); !strings.Contains(v, "filter !stall") {
		t.Error("the title does not say the filter")
	}
	press(m, "esc")
	if n := count(); n != all || m.filter != "" {
		t.Errorf("%d after esc, filter %q", n, m.filter)
	}
	// While it is written, keys are text: only ^C still ends.
	if cmd := press(m, "/", "q"); cmd != nil || m.filter != "q" {
		t.Error("q quits while a filter is written")
	}
	press(m, "\x1b[2J", "\n")
	check(t, m, 100, 30)
	press(m, "p", "esc")
	if m.frozen != nil || m.filter != "" || m.typing {
		t.Error("esc does not end it")
	}
	for range 1000 {
		press(m, "/", "x")
	}
	if len(m.filter) > maxFilter {
		t.Errorf("a filter of %d bytes", len(m.filter))
	}
}

// A paused screen stands still, whatever comes; moving, sorting and filtering
// work on what it shows.
func TestPause(t *testing.T) {
	for _, k := range []string{"p", " "} {
		m := shown(Options{}, 100, 30)
		press(m, k)
		before := m.View()
		s := busy()
		s.UptimeS += 10
		s.Requests = s.Requests[:2]
		m.Update(Report{Msg: s, At: start.Add(10 * time.Second)})
		m.Update(Events{Event: told()})
		m.Update(Status{State: Stale, Since: start, Now: start.Add(time.Minute)})
		if m.View() != before || !strings.Contains(before, "PAUSED") {
			t.Error("the screen moves while it is paused")
		}
		press(m, "G")
		if ids, chosen := rows(m); len(ids) != 11 || chosen != ids[10] {
			t.Errorf("%d rows, %s marked", len(ids), chosen)
		}
		press(m, "/", "r", "e", "a", "d", "y", "enter", "s", "enter")
		if m.detail == nil || m.detail.recv == nil {
			t.Error("no detail while paused")
		}
		press(m, "esc", "esc", k)
		if ids, _ := rows(m); len(ids) != 2 || strings.Contains(m.View(), "PAUSED") || !strings.Contains(m.View(), "STALE") {
			t.Errorf("after the pause there are %d rows", len(ids))
		}
	}
}

func TestPanes(t *testing.T) {
	m := shown(Options{}, 100, 30)
	for i, k := range []string{"tab", "tab", "tab", "tab", "shift+tab"} {
		press(m, k)
		if want := []int{1, 2, 3, 0, 3}[i]; m.screen().focus != want {
			t.Errorf("pane %d, want %d", m.screen().focus, want)
		}
	}
	press(m, "2")
	if s := m.screen(); s.focus != 1 || s.zoom {
		t.Error("2 does not go to the queue")
	}
	press(m, "2")
	if v := m.View(); !m.screen().zoom || strings.Contains(v, "RESERVATIONS") || !strings.Contains(v, "7f3abb") {
		t.Errorf("2 again does not zoom\n%s", v)
	}
	press(m, "esc")
	if m.screen().zoom {
		t.Error("esc does not end the zoom")
	}
	press(m, "4", "z", "j", "j")
	if p := m.screen().panes[3]; p.index != 2 {
		t.Errorf("the events' mark is at %d", p.index)
	}
	// More events come: the mark stays on the same one.
	m.Update(Events{Event: told()})
	if p := m.screen().panes[3]; p.index != 8 {
		t.Errorf("the events' mark is at %d, want 8", p.index)
	}
}

func TestEndpoints(t *testing.T) {
	m := all(100, 30, endpoints3...)
	screens := func() string {
		if m.overview {
			return "overview"
		}
		return fmt.Sprint(m.at)
	}
	for _, tt := range [][2]string{{"c", "0"}, {"c", "1"}, {"c", "2"}, {"c", "overview"}, {"C", "2"}, {"C", "1"}, {"0", "overview"}, {"2", "1"}, {"esc", "overview"}, {"j", "overview"}, {"j", "overview"}, {"enter", "2"}, {"o", "overview"}, {"1", "0"}} {
		press(m, tt[0])
		if got := screens(); got != tt[1] {
			t.Errorf("%s goes to %s, want %s", tt[0], got, tt[1])
		}
		check(t, m, 100, 30)
	}
	// From the receiver's senders to that pd-send, and from its receivers back.
	press(m, "3", "j", "k")
	for range 4 {
		if ids := m.current[2].key(m.screen().panes[2].order[m.screen().panes[2].index]); ids == "pd-send-3" {
			break
		}
		press(m, "j")
	}
	press(m, "enter")
	if screens() != "1" {
		t.Fatalf("enter on a sender goes to %s", screens())
	}
	press(m, "3", "enter")
	if screens() != "0" {
		t.Errorf("enter on a receiver goes to %s", screens())
	}
	// One endpoint has no overview.
	m = shown(Options{}, 100, 30)
	press(m, "c", "0", "o", "esc", "C")
	if screens() != "0" {
		t.Errorf("the only endpoint gives way to %s", screens())
	}
}

// The detail stays after the end of its request and says so.
func TestDetailOfEnded(t *testing.T) {
	m := shown(Options{}, 100, 30)
	press(m, "j", "enter")
	s := busy()
	s.UptimeS++
	s.Requests = slices.DeleteFunc(s.Requests, func(r wire.SnapshotRequest) bool { return r.ReqID == "7f3a91" })
	m.Update(Report{Msg: s, At: start.Add(time.Second)})
	m.Update(Events{Event: &wire.Event{Events: []wire.EventEntry{{Time: wire.StampOf(start), Event: "released", ReqID: "7f3a91", Chunks: 16, TookMS: 5100}}}})
	v := m.View()
	for _, want := range []string{"7f3a91", "ended after", "released", "+5.10s"} {
		if !strings.Contains(v, want) {
			t.Errorf("the detail does not say %q\n%s", want, v)
		}
	}
	press(m, "esc")
	if m.detail != nil {
		t.Error("esc does not close the detail")
	}
}

// Counts that are too wide for their column are said in another unit, not cut.
func TestBrief(t *testing.T) {
	for _, tt := range []struct {
		n    int64
		w    int
		want string
	}{{1234, 5, "1,234"}, {12_345, 5, "12345"}, {123_456, 5, "123k"}, {99_999_999, 5, "99M"}, {-1234, 4, "-1k"}, {5, 1, "5"}} {
		if got := brief(tt.n, tt.w); got != tt.want {
			t.Errorf("%d in %d is %q, want %q", tt.n, tt.w, got, tt.want)
		}
	}
}

func TestCommands(t *testing.T) {
	m := shown(Options{}, 100, 30)
	run := func(names ...string) tea.Msg {
		if cmd := press(m, names...); cmd != nil {
			return cmd()
		}
		return nil
	}
	for k, want := range map[string]tea.Msg{"q": tea.QuitMsg{}, "ctrl+c": tea.InterruptMsg{}, "ctrl+z": tea.SuspendMsg{}, "ctrl+l": tea.ClearScreen()} {
		if got := run(k); reflect.TypeOf(got) != reflect.TypeOf(want) {
			t.Errorf("%s makes %T, want %T", k, got, want)
		}
	}
	if got := run("/", "ctrl+c"); got != (tea.InterruptMsg{}) {
		t.Errorf("^C in a filter makes %T", got)
	}
	press(m, "esc")
	for _, tt := range []struct {
		key  string
		want time.Duration
	}{{"+", 2 * time.Second}, {"-", time.Second}, {"-", 500 * time.Millisecond}, {"-", 250 * time.Millisecond}, {"-", 250 * time.Millisecond}} {
		if got := run(tt.key); got != (SetDelay{tt.want}) {
			t.Errorf("%s makes %v, want %v", tt.key, got, tt.want)
		}
	}
	odd := New(Options{Endpoints: endpoints3[:1], Delay: 3 * time.Second})
	if got := press(odd, "-")(); got != (SetDelay{2 * time.Second}) {
		t.Errorf("- from 3s makes %v", got)
	}
	odd = New(Options{Endpoints: endpoints3[:1], Delay: 3 * time.Second})
	if got := press(odd, "+")(); got != (SetDelay{5 * time.Second}) {
		t.Errorf("+ from 3s makes %v", got)
	}
}

// Every key of the map is in the help, and none has two meanings.
func TestHelpHasAllKeys(t *testing.T) {
	var help strings.Builder
	for _, l := range shown(Options{}, 200, 60).helpBody() {
		for _, s := range l {
			help.WriteString(s.text)
		}
		help.WriteByte('\n')
		if w := l.width(); w > 200 {
			t.Errorf("a line of %d columns", w)
		}
	}
	used := map[string]string{}
	v := reflect.ValueOf(&keys).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		b := *(*key.Binding)(v.Field(i).Addr().UnsafePointer())
		if !strings.Contains(help.String(), b.Help().Key) || !strings.Contains(help.String(), b.Help().Desc) {
			t.Errorf("the help lacks %s", name)
		}
		for _, k := range b.Keys() {
			if used[k] != "" {
				t.Errorf("%s is %s and %s", k, used[k], name)
			}
			used[k] = name
		}
	}
}
