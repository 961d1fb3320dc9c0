package monitor

import (
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// FuzzSubscriptions has subscribers say anything, while things happen, Snapshots
// are asked for and time passes: nothing is kept while nobody watches, and no more
// than is allowed while somebody does.
func FuzzSubscriptions(f *testing.F) {
	f.Add([]byte{0, 1, 1, 1, 0, 2, 0, 3, 0, 0, 1, 0})
	f.Add([]byte{0, 5, 1, 't', 'o', 'p', 'c', 1, 200, 0, 1, 1, 4, 0})
	f.Add([]byte{1, 255, 0, 1, 1, 1, 255, 2, 0, 2, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		poller, err := sock.NewPoller()
		if err != nil {
			t.Fatal(err)
		}
		defer poller.Close()
		p := &Publisher{poller: poller}
		asks := NewAsks(poller.Wake)
		now, topics := time.Now(), 0
		for len(input) > 1 {
			what, n := input[0]%5, int(input[1])
			input = input[2:]
			switch what {
			case 0: // a subscriber
				frame := input[:min(n, len(input))]
				input = input[len(frame):]
				if len(frame) > 1 && frame[0] == 1 {
					topics += len(frame)
				}
				if p.heard(frame) != (topics > maxTopics) {
					t.Fatalf("%d bytes of topics", topics)
				}
			case 1: // things happen
				for range n {
					p.Event(wire.EventEntry{ReqID: "A"})
				}
			case 2:
				for range n * 8 {
					asks.Add(p.answer)
				}
				if len(asks.funcs) > maxAsks {
					t.Fatalf("%d wait for an answer", len(asks.funcs))
				}
			case 3: // the loop turns
				now = now.Add(time.Duration(n) * time.Millisecond)
				asks.Answer(now, func() wire.Message { return &wire.Snapshot{Kind: wire.KindReceiver} })
				if len(asks.funcs) != 0 {
					t.Fatal("somebody is not answered")
				}
			case 4:
				if _, in := p.pace.next(now, p.hasEvents()); in < -1 {
					t.Fatalf("waits %v", in)
				}
			}
			if !p.Watched() && len(p.events) > 0 || len(p.events) > maxEvents {
				t.Fatalf("%d events are kept, watched %v", len(p.events), p.Watched())
			}
		}
		p.takeEvents()
	})
}
