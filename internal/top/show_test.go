package top

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
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
// written and done. Who had not come yet is not there.
func earlier(s *wire.Snapshot, seconds int, bytes int64) *wire.Snapshot {
	o := *s
	ms := int64(seconds) * 1000
	o.UptimeS -= float64(seconds)
	o.Time = wire.StampOf(s.Time.Add(-time.Duration(seconds) * time.Second))
	o.Counters.WrittenBytes -= bytes
	o.Counters.Ready -= int64(40 * seconds)
	o.Counters.Admitted -= int64(41 * seconds)
	o.Requests, o.Queue, o.Senders = nil, nil, nil
	for _, r := range s.Requests {
		if r.AgeMS -= ms; r.AgeMS < 0 || r.State == "queued" {
			continue
		}
		if r.State != "ready" && !isStalled(&r, 2*time.Second) {
			r.Written -= r.Written * 2 / 3
		}
		r.IdleMS = max(r.IdleMS-ms, 0)
		o.Requests = append(o.Requests, r)
	}
	for _, q := range s.Queue {
		if q.WaitedMS -= ms; q.WaitedMS >= 0 {
			o.Queue = append(o.Queue, q)
		}
	}
	tally(&o, s.Slots.Total)
	for i := range o.Senders {
		o.Senders[i].Bytes -= bytes / 4
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
		sums[i] = sums[i-1] + (8+int64(i*7%11)-int64(i*3%5))<<27
	}
	for i := 70; i >= 1; i-- {
		m.Update(Report{Source: src, Msg: earlier(s, i, sums[i]), At: start.Add(-time.Duration(i) * time.Second)})
	}
	m.Update(Events{Source: src, Event: told()})
	m.Update(Report{Source: src, Msg: s, At: start})
}

// sending is a pd-send whose staging is full.
func sending() *wire.SenderSnapshot {
	s := &wire.SenderSnapshot{
		Time: wire.StampOf(start), Kind: wire.KindSender, ID: "pd-send-3", Epoch: 3, UptimeS: 4000,
		Staging: wire.Staging{Total: 64, Used: 64, Bytes: chunk, Blocked: []wire.Blocked{
			{ReqID: "7f3ab2", Receiver: 0, Chunks: 8, WaitingMS: 140}, {ReqID: "7f3ac0", Receiver: 1, Chunks: 3, WaitingMS: 90},
		}},
		Requests: []wire.SenderRequest{
			{ReqID: "7f3a91", State: "writing", TotalChunks: 16, Sent: 15, Bytes: 15 * chunk, AgeMS: 4830, AdmittedMS: 3},
			{ReqID: "7f3ab2", State: "writing", TotalChunks: 40, Sent: 31, Bytes: 31 * chunk, AgeMS: 410, AdmittedMS: 3},
			{ReqID: "7f3ab4", State: "waiting", TotalChunks: 48, AgeMS: 220, AdmittedMS: -1},
			{ReqID: "7f3ac0", Receiver: 1, State: "writing", TotalChunks: 12, Sent: 2, Shared: 4, Bytes: 2 * chunk, AgeMS: 150, AdmittedMS: 1},
			{ReqID: "7f3abf", Receiver: 1, State: "notifying", TotalChunks: 8, Sent: 8, Bytes: 8 * chunk, AgeMS: 300, AdmittedMS: 1},
		},
		Receivers: []wire.SenderLink{
			{Endpoint: "tcp://127.0.0.1:7600", State: "attached", Engine: "shm", Requests: 3, Staging: 40, Blocked: 1, HeardMS: 12, Bytes: 4 << 40},
			{Endpoint: "tcp://127.0.0.1:7610", State: "attached", Engine: "shm", Requests: 2, Staging: 24, Blocked: 1, HeardMS: 31, Bytes: 1 << 40},
			{Endpoint: "tcp://127.0.0.1:7620", State: "connecting", HeardMS: -1},
		},
		Totals:    wire.SenderTotals{Requests: 5, Blocked: 2},
		Counters:  wire.SenderCounters{Ready: 91_233, Failed: 2, Cancelled: 1, SentChunks: 1_400_000, SharedChunks: 91_000, SentBytes: 5 << 40},
		AdmitWait: wire.SnapshotWait{P50: 3.4, P99: 219, Max: 1910}, WriteTime: wire.SnapshotWait{P50: 40, P99: 500, Max: 1400},
		ReadyTime: wire.SnapshotWait{P50: 49, P99: 700, Max: 2110},
	}
	return s
}

// proxying is a pd-proxy that waits for two ranks.
func proxying() *wire.ProxySnapshot {
	return &wire.ProxySnapshot{
		Time: wire.StampOf(start), Kind: wire.KindProxy, ID: "pd-proxy", Epoch: 2, Endpoint: "tcp://127.0.0.1:7700", UptimeS: 9000, Expect: 2, Pending: 3,
		Waiting:  []wire.ProxyRequest{{ReqID: "7f3a41", Notifs: 1, AgeMS: 2210}, {ReqID: "7f3aa0", Notifs: 1, AgeMS: 400}, {ReqID: "7f3aa7", Notifs: 1, AgeMS: 30}},
		Counters: wire.ProxyCounters{Ready: 318_200, Failed: 4, Duplicates: 1},
	}
}

// watchAll gives a model of three kinds two seconds of each.
func watchAll(m *Model) {
	watch(m, 0, busy())
	s, p := sending(), proxying()
	for i := 2; i >= 0; i-- {
		at := start.Add(-time.Duration(i) * time.Second)
		send, proxy := *s, *p
		send.Time, proxy.Time = wire.StampOf(at), wire.StampOf(at)
		send.UptimeS -= float64(i)
		send.Counters.SentBytes -= int64(i) * 640 << 20
		send.Counters.Ready -= int64(i) * 12
		send.Receivers = append([]wire.SenderLink(nil), s.Receivers...)
		send.Receivers[0].Bytes -= int64(i) * 600 << 20
		send.Receivers[1].Bytes -= int64(i) * 40 << 20
		proxy.UptimeS -= float64(i)
		proxy.Counters.Ready -= int64(i) * 39
		m.Update(Report{Source: 1, Msg: &send, At: at})
		m.Update(Report{Source: 2, Msg: &proxy, At: at})
	}
}

var endpoints3 = []string{"tcp://127.0.0.1:7602", "tcp://127.0.0.1:7612", "tcp://127.0.0.1:7702"}

// all is a model of three programs, one of each kind, and of two that are not there.
func all(w, h int, endpoints ...string) *Model {
	m := New(Options{Endpoints: endpoints})
	m.Update(tea.WindowSizeMsg{Width: w, Height: h})
	watchAll(m)
	return m
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

// wide is a receiver whose ids are of all sorts.
func wide() *wire.Snapshot {
	s := busy()
	for i, id := range []string{
		"请求-七三", "👩‍💻👩‍💻-req", "e\u0301e\u0301\u0301\u0301\u0301", strings.Repeat("0123456789", 30), "\x1b]0;x\a", "tab\there", "line\nbreak",
		"🇩🇪🇯🇵", "❤️1️⃣", "क्षत्रिय", "한국어-요청",
	} {
		s.Requests[i].ReqID = id
		s.Requests[i].Sender = id + "/" + s.Requests[i].Sender
	}
	s.Queue[0].ReqID, s.Queue[0].Sender = "\xff\xfe\u202egnp.exe", "发送者一二三四五六七"
	s.Senders[0].Sender = "发送者一二三四五六七"
	s.ID, s.Endpoint, s.Admission = "接收\x1b[2J", "tcp://\r\n", "reserve\x9b31m"
	return s
}

// The screens, each as a text in testdata.
func TestGolden(t *testing.T) {
	one := func(o Options, w, h int, do ...string) func() string {
		return func() string {
			m := shown(o, w, h)
			press(m, do...)
			return m.View()
		}
	}
	many := func(w, h int, do ...string) func() string {
		return func() string {
			m := all(w, h, endpoints3...)
			press(m, do...)
			return m.View()
		}
	}
	stale := Status{State: Stale, Since: start.Add(2 * time.Second), Retry: 3, Err: "connection refused", Now: start.Add(6 * time.Second)}
	for name, screen := range map[string]func() string{
		"receiver_100x30": one(Options{}, 100, 30),
		"receiver_80x24":  one(Options{}, 80, 24),
		"receiver_160x50": one(Options{}, 160, 50),
		"receiver_62x20":  one(Options{}, 62, 20),
		"receiver_60x12":  one(Options{}, 60, 12),
		"one_line":        one(Options{}, 72, 8),
		"one_line_narrow": one(Options{}, 20, 1),
		"ascii_100x30":    one(Options{ASCII: true}, 100, 30),
		"raw_totals":      one(Options{}, 120, 30, "u", "t"),
		"sort_rate":       one(Options{Sort: "rate"}, 100, 30),
		"filter":          one(Options{}, 100, 30, "/", "s", "e", "n", "d", "-", "3", "enter"),
		"filter_typing":   one(Options{}, 100, 30, "/", "!", "w", "r", "i"),
		"filter_nothing":  one(Options{}, 100, 30, "/", "x", "y", "z", "enter"),
		"zoom_queue":      one(Options{}, 100, 30, "2", "2"),
		"zoom_senders":    one(Options{}, 120, 24, "3", "3"),
		"detail":          one(Options{}, 100, 30, "j", "enter"),
		"detail_ready":    one(Options{}, 100, 30, "j", "j", "j", "j", "j", "enter"),
		"detail_queued":   one(Options{}, 100, 30, "2", "enter"),
		"at_share": func() string {
			m := New(Options{Endpoints: endpoints3[:1]})
			m.Update(tea.WindowSizeMsg{Width: 120, Height: 30})
			s := busy()
			s.Limits.SenderShare = 60
			s.Queue[0].AtShare, s.Queue[0].Lacks = true, 47
			s.Queue[4].AtShare, s.Queue[4].Lacks = true, 4
			watch(m, 0, s)
			press(m, "2")
			return m.View()
		},
		"help":            one(Options{}, 100, 30, "?"),
		"help_80x24_more": one(Options{}, 80, 24, "?", "pgdown"),
		"paused": func() string {
			m := shown(Options{}, 100, 30)
			press(m, "p")
			next := busy()
			next.UptimeS++
			next.Requests = next.Requests[:1]
			m.Update(Report{Msg: next, At: start.Add(time.Second)})
			m.Update(stale)
			return m.View()
		},
		"stale": func() string {
			m := shown(Options{}, 100, 30)
			m.Update(stale)
			return m.View()
		},
		"restarted": func() string {
			m := shown(Options{}, 100, 30)
			s := &wire.Snapshot{ID: "recv-0", Epoch: 8, Time: wire.StampOf(start.Add(10 * time.Second)), Endpoint: "tcp://127.0.0.1:7600", Admission: "reserve", UptimeS: 0.2}
			m.Update(Report{Msg: tally(s, 256), At: start.Add(10 * time.Second)})
			return m.View()
		},
		"waiting": func() string {
			m := New(Options{Endpoints: endpoints3[:1]})
			m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
			m.Update(Status{State: Waiting, Since: start, Retry: 2, Err: "connection refused", Now: start.Add(5 * time.Second)})
			return m.View()
		},
		"empty": func() string {
			m := New(Options{Endpoints: endpoints3[:1]})
			m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
			for i := range 3 {
				s := &wire.Snapshot{ID: "recv-0", Epoch: 8, Time: wire.StampOf(start), Endpoint: "tcp://127.0.0.1:7600", Admission: "reserve", UptimeS: 10 + float64(i)}
				m.Update(Report{Msg: tally(s, 256), At: start})
			}
			return m.View()
		},
		"overview": func() string {
			m := all(100, 30, append(slices.Clone(endpoints3), "tcp://127.0.0.1:7802", "tcp://[::1]:7902")...)
			other := busy()
			other.ID, other.Endpoint = "recv-1", "tcp://127.0.0.1:7800"
			watch(m, 3, other)
			m.Update(Status{Source: 3, State: Stale, Since: start, Retry: 1, Err: "connection refused", Now: start.Add(2 * time.Second)})
			m.Update(Status{Source: 4, State: Waiting, Since: start, Err: "connection refused", Now: start.Add(2 * time.Second)})
			return m.View()
		},
		"overview_80x24":    many(80, 24),
		"overview_one_line": many(58, 10),
		"sender_100x30":     many(100, 30, "2"),
		"sender_80x24":      many(80, 24, "2"),
		"proxy_100x30":      many(100, 30, "3"),
		"staging_100x30":    many(100, 30, "1"),
		"staging_80x24":     many(80, 24, "1"),
		"sender_detail":     many(100, 30, "2", "j", "enter"),
		"wide_100x30": func() string {
			m := New(Options{Endpoints: endpoints3[:1]})
			m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
			m.Update(Report{Msg: wide(), At: start})
			return m.View()
		},
		"wide_ascii": func() string {
			m := New(Options{Endpoints: endpoints3[:1], ASCII: true})
			m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
			m.Update(Report{Msg: wide(), At: start})
			return m.View()
		},
		"plain": func() string {
			var b strings.Builder
			m := all(100, 30, endpoints3...)
			if err := m.Plain(&b); err != nil {
				t.Fatal(err)
			}
			return b.String()
		},
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, screen()) })
	}
}
