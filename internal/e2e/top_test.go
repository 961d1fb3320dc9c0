package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/pd-tools/pd-tools/internal/cli"
)

// pane is a terminal of tmux, in which a program runs.
type pane struct {
	t      *testing.T
	socket string
}

// tmux starts a server of its own with a pane of so many columns and rows.
func tmux(t *testing.T, w, h int, command ...string) *pane {
	t.Helper()
	p := &pane{t, filepath.Join(t.TempDir(), "tmux")}
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", p.socket, "kill-server").Run() })
	// The pane outlives the program, so that its last words can be read.
	p.run(append([]string{"-f", "/dev/null", "start-server", ";", "set-option", "-g", "remain-on-exit", "on", ";",
		"new-session", "-d", "-x", fmt.Sprint(w), "-y", fmt.Sprint(h), "--"}, command...)...)
	return p
}

// watch runs pd-top in a pane of its own.
func watch(t *testing.T, w, h int, args ...string) *pane {
	t.Helper()
	return tmux(t, w, h, append([]string{filepath.Join(bin, "pd-top")}, args...)...)
}

func (p *pane) run(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-u", "-S", p.socket}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (p *pane) screen() string { p.t.Helper(); return p.run("capture-pane", "-p") }

func (p *pane) keys(keys ...string) { p.t.Helper(); p.run(append([]string{"send-keys"}, keys...)...) }

func (p *pane) resize(w, h int) {
	p.t.Helper()
	p.run("resize-window", "-x", fmt.Sprint(w), "-y", fmt.Sprint(h))
}

// shows waits until the screen is as wanted and returns it.
func (p *pane) shows(what string, ok func(screen string) bool) (screen string) {
	p.t.Helper()
	screen, shown := p.within(patience, ok)
	if !shown {
		p.t.Fatalf("waited %v for %s; the screen is\n%s", patience, what, screen)
	}
	return screen
}

func (p *pane) within(limit time.Duration, ok func(screen string) bool) (screen string, shown bool) {
	p.t.Helper()
	for began := time.Now(); time.Since(began) < limit; time.Sleep(5 * time.Millisecond) { // a terminal tells nobody when it changes
		if screen = p.screen(); ok(screen) {
			return screen, true
		}
	}
	return screen, false
}

// has is for shows: all texts, which are regular expressions, are on the screen.
func has(texts ...string) func(string) bool {
	return func(screen string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !regexp.MustCompile(text).MatchString(screen) })
	}
}

// shot is a snapshot with what pd-top shows of it.
type shot struct {
	Slots    struct{ Total, Promised, Held, Written, Ready, Free, Peak int }
	Requests []shotRequest
	Queue    []struct {
		Pos         int
		ReqID       string `json:"req_id"`
		Sender      string
		Need, Lacks int
		WaitedMS    int64 `json:"waited_ms"`
	}
	Senders []struct {
		Sender                  string
		Requests, Queued, Slots int
	}
}

type shotRequest struct {
	ReqID              string `json:"req_id"`
	Sender, State      string
	TotalChunks        int `json:"total_chunks"`
	Allocated, Written int
	AgeMS              int64 `json:"age_ms"`
}

func (r *receiver) shot() (s shot) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(output(r.t, 0, "pd-recv", "stat", r.endpoint)), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// watched is receive, with a monitor, whose endpoint is returned.
func watched(t *testing.T, slots int, flags ...string) (*receiver, string) {
	t.Helper()
	r := receive(t, slots, append([]string{"--monitor", "tcp://127.0.0.1:*"}, flags...)...)
	return r, r.event("event", "listening").str("monitor")
}

// A full buffer, 192 who wait and ids of all sorts: every figure on the screen is
// the one of `pd-recv stat`, at either size, and the columns are columns.
func TestTopAgreesWithStat(t *testing.T) {
	t.Parallel()
	r, monitor := watched(t, 64, "--admit-timeout", "10m", "--lease", "10m")
	strange := []string{"請求", "👩‍💻", strings.Repeat("x", 300), "\x1b]0;x\a\t\n", "e\u0301"}
	var senders []*fed
	for s := range 4 {
		f := send(t, r, "--name", fmt.Sprintf("send-%d", s))
		senders = append(senders, f)
		for i := range 50 {
			id := fmt.Sprintf("r%d-%d", s, i)
			if i < len(strange) {
				id = strange[i] + fmt.Sprint(s)
			}
			quoted, err := json.Marshal(id)
			if err != nil {
				t.Fatal(err)
			}
			// Three of eight chunks: who has slots keeps them.
			f.write(strings.Replace(batch("ID", 8, 0, 3), `"req_id":"ID"`, `"req_id":`+string(quoted), 1))
		}
		if s == 0 {
			r.settles("the first has all slots", func(s snapshot) bool { return s.Slots.Written == 24 })
		}
	}
	r.settles("all are there", func(s snapshot) bool { return len(s.Requests) == 200 && len(s.Queue) == 192 && s.Slots.Written == 24 })

	p := watch(t, 100, 30, monitor)
	for _, size := range [][2]int{{100, 30}, {80, 24}} {
		p.resize(size[0], size[1])
		screen := p.shows("all that waits", func(s string) bool {
			lines := strings.Split(s, "\n")
			return has(`LIVE`, `queued +192`, `8 STALLED`)(s) && ansi.StringWidth(lines[0]) == size[0] && strings.HasPrefix(lines[size[1]-1], "q quit")
		})
		agrees(t, screen, r.shot(), size[0])
	}

	// Running, it follows: all end, and a refresh later nothing is left.
	held := delays(t)
	for _, f := range senders {
		f.stdin.Close()
	}
	r.settles("all have ended", func(s snapshot) bool { return len(s.Requests) == 0 && s.Slots.Free == 64 })
	ended := time.Now()
	p.shows("an empty receiver", has(`LIVE`, `queued +0`, `free 64`, `RESERVATIONS 0`, `no request waits`))
	late(t, "the end of all", ended, held)
}

// late checks that something was on the screen within a refresh: one of a second
// and one of the publisher's. Half a second more is for programs that share the
// machine with all other tests: still less than a second refresh would take.
func late(t *testing.T, what string, since time.Time, held func() time.Duration) {
	t.Helper()
	took, most := time.Since(since), 1250*time.Millisecond+500*time.Millisecond+held()
	t.Logf("%s: on the screen after %v", what, took)
	if took > most {
		t.Errorf("%s: on the screen after %v, more than %v", what, took, most)
	}
}

// agrees compares what is on a screen of w columns with a snapshot.
func agrees(t *testing.T, screen string, s shot, w int) {
	t.Helper()
	need := 0
	for _, q := range s.Queue {
		need += q.Need
	}
	for text, want := range map[string]int{
		`· free (\d+)`: s.Slots.Free, `█ ready (\d+)`: s.Slots.Ready, `▓ written (\d+)`: s.Slots.Written - s.Slots.Ready,
		`▒ alloc (\d+)`: s.Slots.Held - s.Slots.Written, `░ promised (\d+)`: s.Slots.Promised,
		`queued +(\d+)`: len(s.Queue), `RESERVATIONS (\d+)`: len(s.Requests) - len(s.Queue),
		`ADMISSION QUEUE (\d+)`: len(s.Queue), `QUEUE.*\(([\d,]+) slots\)`: need,
		`SENDERS (\d+)`: len(s.Senders), `BLOCKED (\d+)`: len(s.Queue), `(\d+)% of 64`: 100 * (s.Slots.Total - s.Slots.Free) / s.Slots.Total,
	} {
		m := regexp.MustCompile(text).FindStringSubmatch(screen)
		if m == nil || strings.ReplaceAll(m[1], ",", "") != fmt.Sprint(want) {
			t.Errorf("%s: %q on the screen, want %d", text, m, want)
		}
	}
	lines := strings.Split(screen, "\n")
	part := func(head string) (header string, rows []string) {
		i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, head) })
		if i < 0 {
			t.Fatalf("no %s in\n%s", head, screen)
		}
		for _, l := range lines[i+2:] {
			if strings.ContainsAny(l, "━─") || strings.HasPrefix(l, "q quit") {
				break
			}
			rows = append(rows, l)
		}
		return lines[i+1], rows
	}

	header, rows := part("RESERVATIONS")
	sender, state := strings.Index(header, "SENDER"), strings.Index(header, "STATE")
	for _, row := range rows {
		f := strings.Fields(row[1:])
		i := slices.IndexFunc(s.Requests, func(r shotRequest) bool { return shortened(f[0], r.ReqID) && r.Sender == f[1] })
		if i < 0 {
			t.Errorf("who is %q?", row)
			continue
		}
		q := s.Requests[i]
		if want := fmt.Sprintf("%d %d %d", q.TotalChunks, q.Allocated, q.Written); strings.Join(f[2:5], " ") != want || f[len(f)-1] != "STALLED" {
			t.Errorf("%q: want %s and STALLED", row, want)
		}
		if age := f[len(f)-3]; !closeTo(age, q.AgeMS) {
			t.Errorf("%q: its age is %dms", row, q.AgeMS)
		}
		if at := ansi.StringWidth(row[:strings.Index(row, q.Sender)]); at != sender {
			t.Errorf("%q: its sender is in column %d, not %d", row, at, sender)
		}
		if at := ansi.StringWidth(row[:strings.Index(row, "STALLED")]); at != state {
			t.Errorf("%q: its state is in column %d, not %d", row, at, state)
		}
	}
	if len(rows) < 4 {
		t.Errorf("%d reservations on\n%s", len(rows), screen)
	}

	_, rows = part("ADMISSION QUEUE")
	for i, row := range rows {
		left, right, both := strings.Cut(row, "│")
		f, q := strings.Fields(left), s.Queue[i]
		if want := fmt.Sprintf("%d %d %d", q.Pos, q.Need, q.Lacks); !both || f[0]+" "+strings.Join(f[3:5], " ") != want || !shortened(f[1], q.ReqID) || f[2] != q.Sender {
			t.Errorf("%q: want %s of %q by %s", row, want, q.ReqID, q.Sender)
		}
		f = strings.Fields(right)
		if i >= len(s.Senders) {
			continue
		}
		for _, q := range s.Senders {
			if q.Sender == f[0] && (!slices.Contains(f[1:3], fmt.Sprint(q.Queued)) || f[len(f)-1] != fmt.Sprint(q.Slots)) {
				t.Errorf("%q: want %+v", row, q)
			}
		}
	}
	if len(rows) < 4 {
		t.Errorf("%d places in the queue on\n%s", len(rows), screen)
	}
	for _, l := range lines {
		if width := ansi.StringWidth(l); width > w {
			t.Errorf("%d columns: %q", width, l)
		}
	}
}

// shortened says whether text is an id, escaped and shortened in the middle.
func shortened(text, id string) bool {
	head, tail, cut := strings.Cut(text, "…")
	id = cli.Escape(id)
	return text == id || cut && strings.HasPrefix(id, head) && strings.HasSuffix(id, tail)
}

// closeTo says whether a time on the screen is that of a little later.
func closeTo(text string, ms int64) bool {
	d, err := time.ParseDuration(text)
	if err != nil {
		return false
	}
	ago := time.Duration(ms)*time.Millisecond - d
	return ago > -time.Second && ago < soon
}

// An allocation that is blocked is on the screen within a refresh, at the
// receiver's queue, and gone within one.
func TestTopShowsWhoWaitsForAdmission(t *testing.T) {
	t.Parallel()
	r, monitor := watched(t, 10)
	held := delays(t)
	a, b := send(t, r, "--name", "send-a"), send(t, r, "--name", "send-b")
	a.write(batch("first", 8, 0, 4))
	r.happens("admitted", "first")
	p := watch(t, 100, 30, monitor)
	p.shows("the first", has(`first +send-a +8 +4 +4`, `no request waits`))

	b.write(batch("second", 8, 0, 4))
	r.happens("queued", "second")
	at := time.Now()
	p.shows("the second to wait", has(`1 second +send-b +8 +6 `, `BLOCKED 1 `, `send-b +0 +1 `))
	late(t, "who waits", at, held)

	a.write(cancelLine("first"))
	r.happens("admitted", "second")
	at = time.Now()
	p.shows("nobody to wait", has(`no request waits`, `SENDERS \d `, `second +send-b +8 `))
	late(t, "who waits no more", at, held)
}

// The same at a sender's staging buffer, whose receiver hangs.
func TestTopShowsWhoWaitsForStaging(t *testing.T) {
	t.Parallel()
	const chunk = 32 << 20
	r := receiveChunks(t, 8, chunk, "--engine", "ofi", "--lease", "10m")
	s := send(t, r, "--engine", "ofi", "--staging-size", fmt.Sprint(2*chunk), "--monitor", "tcp://127.0.0.1:*", "--timeout", "10m")
	p := watch(t, 100, 30, monitorOf(s))
	p.shows("an idle sender", has(`LIVE`, `no batch waits for staging`))
	held := delays(t)

	for i := range tries {
		id := fmt.Sprintf("A%d", i)
		var chunks []string
		for k := range 8 {
			chunks = append(chunks, fmt.Sprintf(`{"key":"%s-%d","length":%d}`, id, k, chunk))
		}
		s.write(fmt.Sprintf(`{"req_id":%q,"total_chunks":8,"chunks":[%s],"last":true}`+"\n", id, strings.Join(chunks, ",")))
		r.happens("allocated", id)
		r.kill(syscall.SIGSTOP) // while it is written to
		at := time.Now()
		_, shown := p.within(soon/2, has(`Staging.*2 of 2 slots.*BLOCKED \d`, `BLOCKED BATCHES 1`, id+` +\S+ +8 .*BLOCKED`))
		if shown {
			late(t, "who waits", at, held)
		}
		r.kill(syscall.SIGCONT)
		s.result(id, "ready")
		if !shown {
			r.drop(id) // all was written before the receiver stopped
			continue
		}
		at = time.Now()
		p.shows("nobody to wait", has(`LIVE`, `no batch waits for staging`, `0 of 2 slots`))
		late(t, "who waits no more", at, held)
		s.ends(0)
		return
	}
	t.Errorf("in %d writes the receiver never stopped during one", tries)
}

// F68: a receiver that is killed is STALE within two refreshes, and live again
// by itself, without a figure that is less than nothing.
func TestTopOutlivesAReceiver(t *testing.T) {
	t.Parallel()
	r, monitor := watched(t, 10, "--lease", "10m")
	s := send(t, r)
	for i := range 5 {
		s.write(batch(fmt.Sprintf("old-%d", i), 2, 0, 2))
		s.result(fmt.Sprintf("old-%d", i), "ready")
	}
	p := watch(t, 100, 30, monitor)
	p.shows("what there is", has(`LIVE`, `written|ready 10`, `old-4`))
	held := delays(t)
	r.kill(syscall.SIGKILL)
	r.exits()
	at := time.Now()
	p.shows("it to be gone", has(`STALE for`, `STALE since|since \d\d:\d\d`))
	if took, most := time.Since(at), 2*time.Second+held(); took > most {
		t.Errorf("STALE after %v, more than %v", took, most)
	}
	gone := lasts(10*time.Second, 4*time.Second)
	eventually(t, "it to be gone for a while", func() bool { return time.Since(at) > gone })
	again(t, r, 10, chunkSize, "--monitor", monitor)
	screen := p.shows("it to be back", func(s string) bool {
		if regexp.MustCompile(`[ (]-\d`).MatchString(s) {
			t.Errorf("less than nothing:\n%s", s)
		}
		return has(`RESTARTED|LIVE`, `free 10`, `RESERVATIONS 0`)(s)
	})
	if strings.Contains(screen, "old-4 ") && strings.Contains(screen, "ready 10") {
		t.Errorf("the old figures are still there:\n%s", screen)
	}
	p.shows("it to be live", has(`  LIVE`))
	p.keys("q")
}

// F72: who comes in the middle of a transfer of ten seconds sees it and both who
// wait, each with its true age.
func TestTopComesLate(t *testing.T) {
	t.Parallel()
	r, monitor := watched(t, 10)
	s := send(t, r, "--pace", "1")
	for i := range 9 {
		s.write(batch("A", 10, i, 1, fmt.Sprintf(`"at":%d`, i)))
		if i == 0 {
			s.write(batch("B", 8, 0, 8, `"at":0.5`), batch("C", 8, 0, 8, `"at":0.5`))
		}
	}
	r.happens("queued", "C")
	began := time.Now()
	eventually(t, "the middle of it", func() bool { return time.Since(began) > 4*time.Second })
	before, held, opened := r.shot(), delays(t), time.Now()
	p := watch(t, 100, 30, monitor)
	screen := p.shows("all three", has(`A +\S+ +10 +\d+ +\d+ .*writing`, ` 1 B `, ` 2 C `))
	after := r.shot()
	late(t, "all of it", opened, held)
	age := func(row string, from, to int64) {
		t.Helper()
		m := regexp.MustCompile(`(?m)` + row).FindStringSubmatch(screen)
		if m == nil {
			t.Fatalf("no %s on\n%s", row, screen)
		}
		d, err := time.ParseDuration(m[1])
		if ms := d.Milliseconds(); err != nil || ms < from-10 || ms > to+100 { // it shows hundredths of a second
			t.Errorf("%q is of an age of %d to %d ms", m[0], from, to)
		}
	}
	if len(before.Queue) != 2 || len(after.Queue) != 2 {
		t.Fatalf("who waits: %+v, then %+v", before.Queue, after.Queue)
	}
	age(`^.A .* ([\d.]+s) +[\d.]+m?s +writing`, before.Requests[0].AgeMS, after.Requests[0].AgeMS)
	for i, id := range []string{"B", "C"} {
		age(fmt.Sprintf(`^ *%d %s +\S+ +8 +\d+ +([\d.]+s)`, i+1, id), before.Queue[i].WaitedMS, after.Queue[i].WaitedMS)
	}
	s.write(batch("A", 10, 9, 1, `"at":9`)) // not before: whoever comes late may be late
	s.result("A", "ready")
}

// F73: ^Z gives the terminal back as it was, and fg brings the screen.
func TestTopIsSuspended(t *testing.T) {
	t.Parallel()
	_, monitor := watched(t, 10)
	p := tmux(t, 100, 30, "env", "PS1=prompt> ", "bash", "--norc", "--noprofile")
	p.shows("a prompt", has(`prompt>\s*$`))
	p.keys("stty -g >before; pd-top "+monitor, "Enter")
	p.shows("the screen", has(`LIVE`, `q quit`))
	for range 2 {
		p.keys("C-z")
		p.shows("the shell", has(`Stopped .*pd-top`, `prompt>\s*$`))
		p.keys("fg", "Enter")
		p.shows("the screen again", func(s string) bool { return has(`LIVE`, `free 10`, `q quit`)(s) && !strings.Contains(s, "prompt>") })
	}
	p.keys("q")
	p.shows("the shell at the end", has(`prompt>\s*$`))
	p.keys("clear; stty -g | cmp - before && echo as it was, $?", "Enter")
	p.shows("the terminal as it was", has(`(?m)^as it was, 0`))
}
