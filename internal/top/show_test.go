package top

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

var start = time.Date(2026, 11, 29, 20, 33, 7, 0, time.UTC)

// golden compares what is drawn with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	got += "\n"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; see it with -update and git diff. It is now\n%s", path, got)
	}
}

// chunk is the size of a slot in the snapshots of the tests.
const chunk = 2 << 20

// req is a request of a snapshot; what is not given follows from it.
func req(id, sender, state string, total, allocated, written int, age, idle int64) wire.SnapshotRequest {
	r := wire.SnapshotRequest{
		ReqID: id, Sender: sender, State: state, TotalChunks: total, Allocated: allocated, Written: written,
		Bytes: int64(allocated) * chunk, AgeMS: age, IdleMS: idle, AdmittedMS: 2, FirstWriteMS: -1, LastWriteMS: -1, ReadyMS: -1,
	}
	if written > 0 {
		r.FirstWriteMS = 12
	}
	if written == total {
		r.LastWriteMS = age * 3 / 4
	}
	if state == "ready" {
		r.ReadyMS = age*3/4 + 1
	}
	return r
}

// busy is a receiver whose numbers add up: 256 slots, of which the requests
// hold and were promised 219, and 5 requests that wait for 108.
func busy() *wire.Snapshot {
	s := &wire.Snapshot{
		Time: wire.StampOf(start), Kind: wire.KindReceiver, ID: "recv-0", Epoch: 7, Endpoint: "tcp://127.0.0.1:7600",
		Engine: "shm", Admission: "reserve", UptimeS: 2*3600 + 14*60,
		Requests: []wire.SnapshotRequest{
			req("7f3a91", "pd-send-3", "allocated", 16, 16, 15, 4820, 20),
			req("7f3a8e", "pd-send-1", "allocated", 16, 16, 6, 3100, 2600),
			req("7f3ab0", "pd-send-4", "admitted", 32, 7, 0, 1600, 130),
			req("7f3aa2", "pd-send-2", "allocated", 12, 12, 11, 1440, 8),
			req("7f3aa7", "pd-send-1", "ready", 8, 8, 8, 1210, 300),
			req("7f3ab1", "pd-send-2", "admitted", 24, 24, 20, 610, 3),
			req("7f3ab2", "pd-send-3", "admitted", 40, 40, 31, 400, 2),
			req("7f3ab3", "pd-send-4", "admitted", 32, 21, 13, 220, 5),
			req("7f3ab5", "pd-send-3", "admitted", 20, 0, 0, 90, 90),
			req("7f3a12", "pd-send-4", "ready", 11, 11, 11, 61_000, 59_000),
			req("7f3ab6", "pd-send-2", "ready", 8, 8, 8, 900, 100),
		},
		Queue: []wire.SnapshotWaiter{
			{Pos: 1, ReqID: "7f3ab4", Sender: "pd-send-3", Need: 48, WaitedMS: 212},
			{Pos: 2, ReqID: "7f3ab8", Sender: "pd-send-1", Need: 16, WaitedMS: 180},
			{Pos: 3, ReqID: "7f3ab7", Sender: "pd-send-4", Need: 16, WaitedMS: 101},
			{Pos: 4, ReqID: "7f3ab9", Sender: "pd-send-4", Need: 8, WaitedMS: 88},
			{Pos: 5, ReqID: "7f3abb", Sender: "pd-send-2", Need: 20, WaitedMS: 12},
		},
		Counters: wire.Counters{
			Admitted: 318_431, Ready: 318_402, Released: 318_397, Expired: 2, WrittenChunks: 5_000_123, WrittenBytes: 5_000_123 * chunk, ExpiredUnread: 1,
		},
		AdmitWait: wire.SnapshotWait{P50: 3.1, P99: 212, Max: 1900}, WriteTime: wire.SnapshotWait{P50: 41, P99: 502, Max: 1400},
		ReadyTime: wire.SnapshotWait{P50: 48, P99: 690, Max: 2100},
		Limits:    wire.SnapshotLimits{AdmitTimeoutMS: 30_000, LeaseMS: 15_000, ReadyTTLMS: 600_000},
		Refusals:  map[string]int64{},
	}
	s.Requests[9].ReadyMS, s.Requests[9].LastWriteMS = 1400, 1390
	return tally(s, 256)
}

// tally fills in what follows from the requests and the queue.
func tally(s *wire.Snapshot, total int) *wire.Snapshot {
	sl := wire.SnapshotSlots{Total: total, Bytes: chunk}
	senders := map[string]*wire.SnapshotSender{}
	names := []string{}
	sender := func(name string) *wire.SnapshotSender {
		if senders[name] == nil {
			senders[name] = &wire.SnapshotSender{Sender: name, Attached: true, Engine: "shm", LeaseLeftMS: 14_200, Ready: 1000, Bytes: 1 << 40}
			names = append(names, name)
		}
		return senders[name]
	}
	for i := range s.Requests {
		r := &s.Requests[i]
		n := sender(r.Sender)
		n.Requests++
		if r.State == "queued" {
			continue
		}
		n.Slots += r.TotalChunks
		sl.Promised += r.TotalChunks - r.Allocated
		sl.Held += r.Allocated
		sl.Written += r.Written
		if r.State == "ready" {
			sl.Ready += r.Written
		}
	}
	sl.Free = total - sl.Promised - sl.Held
	sl.Peak = max(total-sl.Free, total*15/16)
	need := 0
	for i := range s.Queue {
		q := &s.Queue[i]
		need += q.Need
		q.Lacks = max(need-sl.Free, 0)
		n := sender(q.Sender)
		n.Queued++
		n.Requests++
		s.Requests = append(s.Requests, wire.SnapshotRequest{
			ReqID: q.ReqID, Sender: q.Sender, State: "queued", TotalChunks: q.Need, AgeMS: q.WaitedMS, IdleMS: q.WaitedMS,
			AdmittedMS: -1, FirstWriteMS: -1, LastWriteMS: -1, ReadyMS: -1,
		})
	}
	s.Slots = sl
	for _, name := range names {
		s.Senders = append(s.Senders, *senders[name])
	}
	s.Totals = wire.SnapshotTotals{Requests: len(s.Requests), Queue: len(s.Queue), Senders: len(s.Senders)}
	return s
}

// earlier is the snapshot as it was so many seconds before, with so much less
// written and done.
func earlier(s *wire.Snapshot, seconds float64, bytes int64) *wire.Snapshot {
	o := *s
	o.UptimeS -= seconds
	o.Time = wire.StampOf(s.Time.Add(-time.Duration(seconds * float64(time.Second))))
	o.Counters.WrittenBytes -= bytes
	o.Counters.Ready -= int64(39.8*seconds + 0.5)
	o.Counters.Admitted -= int64(41.2*seconds + 0.5)
	o.Requests = append([]wire.SnapshotRequest(nil), s.Requests...)
	for i := range o.Requests {
		r := &o.Requests[i]
		if r.State == "admitted" || r.State == "allocated" {
			r.Written = max(r.Written-int(float64(r.Written)*0.6*seconds), 0)
			if isStalled(r, 2*time.Second) {
				r.Written = s.Requests[i].Written
			}
		}
	}
	o.Senders = append([]wire.SnapshotSender(nil), s.Senders...)
	for i := range o.Senders {
		o.Senders[i].Bytes -= bytes / int64(len(o.Senders))
	}
	return &o
}

// told are events such as a receiver tells.
func told() *wire.Event {
	at := func(s string) wire.Stamp {
		t, _ := time.Parse(time.RFC3339Nano, "2026-11-29T20:33:"+s+"Z")
		return wire.StampOf(t)
	}
	return &wire.Event{Time: wire.StampOf(start), Kind: wire.KindReceiver, ID: "recv-0", Epoch: 7, Events: []wire.EventEntry{
		{Time: at("01.120"), Event: "expired", ReqID: "7f3a52", Sender: "pd-send-1", Chunks: 12, TotalChunks: 12, TookMS: 30_000, Code: "LEASE_EXPIRED", Reason: "nothing was heard for 15s", Free: 30},
		{Time: at("02.500"), Event: "admitted", ReqID: "7f3a91", Sender: "pd-send-3", TotalChunks: 16, Free: 12},
		{Time: at("04.018"), Event: "queued", ReqID: "7f3ab0", Sender: "pd-send-4", TotalChunks: 32, Free: 12},
		{Time: at("05.402"), Event: "released", ReqID: "7f3a77", Sender: "pd-send-2", Chunks: 32, TotalChunks: 32, TookMS: 812, Free: 44},
		{Time: at("05.403"), Event: "admitted", ReqID: "7f3ab0", Sender: "pd-send-4", TotalChunks: 32, WaitedMS: 1385, Free: 12},
		{Time: at("06.310"), Event: "ready", ReqID: "7f3aa7", Sender: "pd-send-1", Chunks: 8, TotalChunks: 8, Bytes: 8 * chunk, TookMS: 908, Free: 12},
	}}
}

// shown is a model of one receiver that has been watched for a while.
func shown(o Options, w, h int) *Model {
	if o.Endpoints == nil {
		o.Endpoints = []string{"tcp://127.0.0.1:7602"}
	}
	m := New(o)
	m.Update(tea.WindowSizeMsg{Width: w, Height: h})
	watch(m, 0, busy())
	return m
}

// watch gives 70 seconds of a receiver that ends as s.
func watch(m *Model, src int, s *wire.Snapshot) {
	sums := make([]int64, 71) // bytes written in the last so many seconds
	for i := 1; i < len(sums); i++ {
		sums[i] = sums[i-1] + (8+int64(i*7%11)-int64(i*3%5))<<30
	}
	for i := 70; i >= 1; i-- {
		m.Update(Report{Source: src, Msg: earlier(s, float64(i), sums[i]), At: start.Add(-time.Duration(i) * time.Second)})
	}
	m.Update(Events{Source: src, Event: told()})
	m.Update(Report{Source: src, Msg: s, At: start})
}

func TestReceiverScreen(t *testing.T) {
	for name, size := range map[string][2]int{"receiver_100x30": {100, 30}, "receiver_80x24": {80, 24}, "receiver_160x50": {160, 50}, "receiver_62x20": {62, 20}, "one_line": {50, 8}} {
		golden(t, name, shown(Options{}, size[0], size[1]).View())
	}
	golden(t, "ascii_100x30", shown(Options{ASCII: true}, 100, 30).View())
}

// press gives the model keys as a terminal does: each a rune or a name.
func press(m *Model, names ...string) tea.Cmd {
	var cmd tea.Cmd
	for _, name := range names {
		msg := tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(name)}
		for k, s := range map[tea.KeyType]string{
			tea.KeyEnter: "enter", tea.KeyEsc: "esc", tea.KeyTab: "tab", tea.KeyShiftTab: "shift+tab", tea.KeyUp: "up", tea.KeyDown: "down",
			tea.KeyPgUp: "pgup", tea.KeyPgDown: "pgdown", tea.KeyHome: "home", tea.KeyEnd: "end", tea.KeyBackspace: "backspace",
			tea.KeyCtrlC: "ctrl+c", tea.KeyCtrlZ: "ctrl+z", tea.KeyCtrlL: "ctrl+l", tea.KeyCtrlU: "ctrl+u",
		} {
			if s == name {
				msg = tea.KeyMsg{Type: k}
			}
		}
		if name == " " {
			msg = tea.KeyMsg{Type: tea.KeySpace, Runes: []rune(" ")}
		}
		_, cmd = m.Update(msg)
	}
	return cmd
}

func TestOverlays(t *testing.T) {
	m := shown(Options{}, 100, 30)
	press(m, "j", "enter")
	golden(t, "detail_100x30", m.View())
	press(m, "esc", "?")
	golden(t, "help_100x30", m.View())
	var b strings.Builder
	if err := m.Plain(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "plain", b.String())
}
