package proxy

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// FuzzCollect has anybody push anything, and receivers say that anything is ready:
// each request is told once, and every message is counted as what it was.
func FuzzCollect(f *testing.F) {
	var cases []struct{ Hex string }
	b, err := os.ReadFile("../../wire/testdata/golden.json")
	if err == nil {
		err = json.Unmarshal(b, &cases)
	}
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		payload, err := hex.DecodeString(c.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(1), append([]byte{0, byte(len(payload)), byte(len(payload) >> 8)}, payload...))
	}
	f.Add(byte(1), []byte{2, 1, 3, 1, 2, 1, 3, 1, 2, 2, 4, 0, 1})
	f.Add(byte(2), []byte{2, 1, 4, 0, 1, 5, 0, 4, 1, 1, 3, 2, 1, 0})
	f.Fuzz(func(t *testing.T, expect byte, input []byte) {
		told := map[string]Outcome{}
		handled, bad, started := 0, 0, len(input)
		c := &collector{tally: NewTally(1 + int(expect%3)), started: time.Now()}
		c.cfg = Config{
			Recover: []string{"r0", "r1"},
			Tell: func(o Outcome) {
				if _, again := told[o.ReqID]; again || o.ReqID == "" {
					t.Fatalf("%q is told again: %+v", o.ReqID, o)
				}
				told[o.ReqID] = o
			},
			Warn: func(kind, text string) {
				if text == "" {
					t.Fatal("a warning that says nothing")
				}
				if kind == "bad frames" {
					bad++
				}
			},
			Note: func(string) {},
		}
		next := func() (b byte) {
			if len(input) > 0 {
				b, input = input[0], input[1:]
			}
			return b
		}
		take := func(n int) []byte {
			n = min(n, len(input))
			b := input[:n:n]
			input = input[n:]
			return b
		}
		handle := func(frames [][]byte, err error) {
			handled++
			c.handle(frames, err)
		}
		for len(input) > 0 {
			switch next() % 6 {
			case 0:
				handle([][]byte{take(int(next()) | int(next())<<8)}, nil)
			case 1:
				handle([][]byte{take(int(next() % 4)), take(int(next()))}, nil)
			case 2:
				handle([][]byte{wire.Append(nil, &wire.ProxyNotif{ReqID: fmt.Sprint(next() % 8)})}, nil)
			case 3:
				handle([][]byte{nil, wire.Append(nil, &wire.FailNotif{ReqID: fmt.Sprint(next() % 8), Reason: string(take(3))})}, nil)
			case 4:
				p := page{source: int(next() % 2)}
				for range next() % 4 {
					p.entries = append(p.entries, wire.ReadyEntry{ReqID: fmt.Sprint(next() % 8)})
				}
				c.hear(p)
			case 5:
				c.hear(page{source: int(next() % 2), anew: true})
				handle([][]byte{{}, {}}, sock.ErrFrames)
			}
			n := c.tally.Counters
			if int(n.Ready+n.Failed) != len(told) || int(n.BadFrames) != bad || c.tally.Pending() > 3*started ||
				int(n.Ready+n.Failed-n.Recovered+n.Duplicates+n.LateFailures+n.BadFrames) > handled || n.Recovered > n.Ready {
				t.Fatalf("%d messages, %d told, %+v", handled, len(told), n)
			}
		}
		s := c.snapshot().(*wire.ProxySnapshot)
		if s.Pending != c.tally.Pending() || len(s.Waiting) != s.Pending {
			t.Fatalf("%d pending, the snapshot has %d, %d of them listed", c.tally.Pending(), s.Pending, len(s.Waiting))
		}
	})
}
