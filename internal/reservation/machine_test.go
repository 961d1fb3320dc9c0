package reservation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/wire"
)

func TestDisplayIdentity(t *testing.T) {
	for identity, want := range map[string]string{
		"sender-1":       "sender-1",
		"größe 7":        "größe 7",
		"\x00\x01\xfe":   "0001fe",
		"a\x1b]0;x\x07":  "611b5d303b7807",
		"tab\tnewline\n": "746162096e65776c696e650a",
	} {
		if got := displayIdentity(identity); got != want {
			t.Errorf("%q is shown as %q, want %q", identity, got, want)
		}
	}
}

// TestName: people see the name with which a sender attached, the newest one.
func TestName(t *testing.T) {
	c := newCrowd(1, 0, 0, 1)
	c.step(Attach{Sender: "s", Name: "prefill-7", Writer: 1})
	id := c.wait(1)
	fx := c.step(Cancel{Sender: "s", ReqID: id, Tag: 1})
	if got := fx.Records[0].Sender; got != "prefill-7" {
		t.Errorf("the record names %q, want prefill-7", got)
	}
	if got := c.m.Snapshot(c.now).Senders[0].Sender; got != "prefill-7" {
		t.Errorf("the snapshot names %q, want prefill-7", got)
	}
}

func TestParseMode(t *testing.T) {
	for _, mode := range []Mode{Reserve, Serial, None} {
		if got, err := ParseMode(mode.String()); got != mode || err != nil {
			t.Errorf("%v is read as %v, %v", mode, got, err)
		}
	}
	if _, err := ParseMode("Reserve"); err == nil || !strings.Contains(err.Error(), "reserve") {
		t.Errorf("error %v, want one that names the modes", err)
	}
}

// TestNewRefuses: what no caller may ask for.
func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{
		{Slots: 0, SlotBytes: 1, Epoch: 1},
		{Slots: 1, SlotBytes: 0, Epoch: 1},
		{Slots: 1, SlotBytes: 1, Epoch: 0},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New(%+v) does not panic", cfg)
				}
			}()
			New(cfg)
		}()
	}
}

// TestSnapshotIsCut: "A list holds at most 10,000 entries"; the totals are true.
func TestSnapshotIsCut(t *testing.T) {
	c := newCrowd(1, 0, 0, 1)
	for i := range wire.MaxSnapshotList + 5 {
		q := &wire.AllocRequest{
			Keys: []string{"k"}, Fmt: wire.I(wire.FmtBinary), Shape: []wire.Int{wire.I(chunkSize)}, Dtype: "uint8",
			LastChunkToks: wire.I(chunkSize), ReqID: fmt.Sprint("r", i), TotalChunks: wire.I(1),
		}
		c.step(Alloc{Sender: fmt.Sprint("sender ", i), Req: q, Tag: i})
	}
	s := c.m.Snapshot(c.now)
	if got, want := [3]int{len(s.Requests), len(s.Queue), len(s.Senders)}, [3]int{wire.MaxSnapshotList, wire.MaxSnapshotList, wire.MaxSnapshotList}; got != want {
		t.Errorf("lists of %v, want %v", got, want)
	}
	if want := (wire.SnapshotTotals{Requests: wire.MaxSnapshotList + 6, Queue: wire.MaxSnapshotList + 5, Senders: wire.MaxSnapshotList + 6}); s.Totals != want {
		t.Errorf("totals %+v, want %+v", s.Totals, want)
	}
	if first := s.Queue[0]; first.Pos != 1 || first.ReqID != "r0" {
		t.Errorf("the queue begins with %+v, want r0", first)
	}
}

// TestReadyPages: what is ready is told page by page, nothing twice, and nothing
// of what has ended meanwhile.
func TestReadyPages(t *testing.T) {
	const n = 2*wire.MaxReadyList + 5
	c := newCrowd(n, 0, 0, 1)
	c.step(Cancel{Sender: "s", ReqID: "holder", Tag: 1})
	for range n {
		c.commit(c.wait(1))
	}
	req := &wire.ReadyRequest{}
	var sizes []int
	told := map[string]bool{}
	for more := true; more; {
		page := c.step(ListReady{Conn: "p", Req: req, Tag: 1}).Answers[0].Msg.(*wire.ReadyResponse)
		for _, e := range page.Entries {
			if told[e.ReqID] || e.Seq <= req.After {
				t.Fatalf("%+v is told again after %d", e, req.After)
			}
			told[e.ReqID] = true
			req.After = e.Seq
		}
		sizes = append(sizes, len(page.Entries))
		req.Epoch, more = page.Epoch, page.More
		if len(sizes) == 1 { // the last of the page and the first two behind it
			for i := range 3 {
				c.step(Release{Conn: "d", ReqID: fmt.Sprint("r", wire.MaxReadyList+i), Tag: 1})
			}
		}
	}
	if want := []int{wire.MaxReadyList, wire.MaxReadyList, 3}; !slices.Equal(sizes, want) {
		t.Errorf("pages of %v, want %v", sizes, want)
	}
}

// What must fit a slot is the chunk, not the shape that it is a part of.
func TestShortChunkOfALargeShape(t *testing.T) {
	m := New(Config{Slots: 2, SlotBytes: 100, Epoch: 1})
	for _, tc := range []struct {
		keys []string
		toks int64
		want wire.Code
	}{
		{[]string{"a"}, 100, ""},
		{[]string{"b"}, 101, wire.CodeBadRequest},
		{[]string{"c", "d"}, 1, wire.CodeBadRequest}, // c is as large as the shape
	} {
		fx := m.Step(0, Alloc{Sender: "s", Req: &wire.AllocRequest{
			ReqID: tc.keys[0], Keys: tc.keys, TotalChunks: wire.I(2), Fmt: wire.I(wire.FmtBinary), Dtype: "uint8",
			Shape: []wire.Int{wire.I(200)}, LastChunkToks: wire.I(tc.toks),
		}})
		if got := fx.Answers[0].Msg.(*wire.AllocResponse).Code; got != tc.want {
			t.Errorf("%d keys, the last of %d bytes: code %q, want %q", len(tc.keys), tc.toks, got, tc.want)
		}
		m.Step(0, Cancel{Sender: "s", ReqID: tc.keys[0]})
	}
}

// TestSenderRequests: so many live requests of one sender, as pd-recv has it, and
// not one more; another sender is not concerned.
func TestSenderRequests(t *testing.T) {
	const most = 65_536
	m := New(Config{Slots: most + 2, SlotBytes: chunkSize, Epoch: testEpoch, SenderRequests: most})
	alloc := func(sender string, i int) wire.Code {
		fx := m.Step(0, Alloc{Sender: sender, Tag: i, Req: &wire.AllocRequest{
			Fmt: wire.I(wire.FmtBinary), Shape: []wire.Int{wire.I(chunkSize)}, Dtype: "uint8",
			LastChunkToks: wire.I(chunkSize), ReqID: fmt.Sprint(sender, i), TotalChunks: wire.I(1),
		}})
		return fx.Answers[0].Msg.(*wire.AllocResponse).Code
	}
	for i := range most {
		if code := alloc("s", i); code != "" {
			t.Fatalf("request %d: %s", i+1, code)
		}
	}
	if code := alloc("s", most); code != wire.CodeQueueFull || len(m.live) != most || m.ledger.free() != 2 {
		t.Errorf("one more: code %q, %d requests, %d free", code, len(m.live), m.ledger.free())
	}
	if code := alloc("t", 0); code != "" {
		t.Errorf("another sender: %s", code)
	}
	if code := alloc("s", most); code != wire.CodeRolledBack { // it is remembered, as any that ended
		t.Errorf("the same again: code %q", code)
	}
	m.Step(0, Cancel{Sender: "s", ReqID: "s0", Tag: 0})
	if code := alloc("s", most+1); code != "" {
		t.Errorf("after one has ended: %s", code)
	}
}
