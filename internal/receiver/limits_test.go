package receiver

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// The limits of the contract (§8), and where each is tested at it and just beyond:
//
//	bytes of a request message   here; wire's TestDecodeErrors
//	keys of a batch              here; wire's TestDecodeErrors
//	bytes of a key               here; wire's TestDecodeErrors
//	bytes of a req_id            here; wire's TestDecodeErrors
//	--queue-limit                here
//	--queue-bytes                here
//	requests of one sender       here, of 65,536 reservation's TestSenderRequests; its queue
//	                             and share in reservation's testdata/quotas.txt
//	backlog, answers and bytes   TestBacklogLimits
//	backlogs of all peers        TestBacklogsTogether
//
// TestLimits is at each through a socket: what is at it is taken; what is beyond
// is refused and changes nothing.
func TestLimits(t *testing.T) {
	const senderRequests = 64
	// What one batch counts for: its bytes, its sender's identity, its correlation.
	one := len(bytesOf(batch("B0", 1, false, "k"))) + 5 + 8
	for _, tc := range []struct {
		name       string
		set        func(*reservation.Config)
		before     func(r *running, p *peer) // until it is near the limit
		at, beyond []byte
		waits      bool // what is at it waits
		beyondLast bool // what is at it brings it there
		code       wire.Code
	}{
		{
			name: "bytes of a message", code: "", // ZeroMQ ends the connection: no answer
			at: padded(batch("A", 1, false, "k"), wire.MaxMessage), beyond: padded(batch("A2", 1, false, "k"), wire.MaxMessage+1),
		},
		{
			name: "keys of a batch", code: wire.CodeBadRequest, set: func(c *reservation.Config) { c.Slots = wire.MaxKeys + 1 },
			at:     bytesOf(batch("A", wire.MaxKeys, false, keys("k", 0, wire.MaxKeys)...)),
			beyond: bytesOf(batch("A2", wire.MaxKeys+1, false, keys("k", 0, wire.MaxKeys+1)...)),
		},
		{
			name: "bytes of a key", code: wire.CodeBadRequest,
			at: bytesOf(batch("A", 1, false, strings.Repeat("k", wire.MaxKey))), beyond: bytesOf(batch("A2", 1, false, strings.Repeat("k", wire.MaxKey+1))),
		},
		{
			name: "bytes of a req_id", code: wire.CodeBadRequest,
			at: bytesOf(batch(strings.Repeat("A", wire.MaxReqID), 1, false, "k")), beyond: bytesOf(batch(strings.Repeat("A", wire.MaxReqID+1), 1, false, "k")),
		},
		{
			name: "requests that wait", code: wire.CodeQueueFull, waits: true, beyondLast: true,
			set: func(c *reservation.Config) { c.QueueLimit = 3 },
			before: func(r *running, p *peer) {
				wantSlots(r.t, p.alloc("holder", 10, false, "k"), 1)
				p.waiting(r, batch("B0", 1, false, "k"), batch("B1", 1, false, "k"))
			},
			at: bytesOf(batch("A", 1, false, "k")), beyond: bytesOf(batch("A2", 1, false, "k")),
		},
		{
			name: "bytes that wait", code: wire.CodeQueueFull, waits: true,
			set: func(c *reservation.Config) { c.QueueBytes = int64(2 * one) },
			before: func(r *running, p *peer) {
				wantSlots(r.t, p.alloc("holder", 10, false, "k"), 1)
				p.waiting(r, batch("B0", 1, false, "k"))
			},
			at: bytesOf(batch("A0", 1, false, "k")), beyond: bytesOf(batch("A00", 1, false, "k")),
		},
		{
			name: "requests of one sender", code: wire.CodeQueueFull, beyondLast: true,
			set: func(c *reservation.Config) { c.Slots, c.SenderRequests = senderRequests+1, senderRequests },
			before: func(r *running, p *peer) {
				for i := range senderRequests - 1 {
					wantSlots(r.t, p.alloc(fmt.Sprint(i), 1, false), 0)
				}
			},
			at: bytesOf(batch("A", 1, false)), beyond: bytesOf(batch("A2", 1, false)),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, func(c *Config) {
				if tc.set != nil {
					tc.set(&c.Reservation)
				}
			})
			p := r.dial(peertest.Options{})
			if tc.before != nil {
				tc.before(r, p)
			}
			beyond := func() {
				before := r.essence()
				if tc.code == "" {
					r.dial(peertest.Options{}).nothingFor(r, tc.beyond)
				} else {
					corr, err := p.SendPayload(tc.beyond)
					if err != nil {
						t.Fatal(err)
					}
					if resp := p.wait(corr); resp.Code != tc.code {
						t.Errorf("beyond it: %+v, want %s", resp, tc.code)
					}
				}
				if after := r.essence(); !reflect.DeepEqual(before, after) {
					t.Errorf("what is beyond it changes %+v to %+v", before, after)
				}
			}
			if !tc.beyondLast {
				beyond()
			}
			queued, requests := r.essence().Totals.Queue, r.essence().Totals.Requests
			corr, err := p.SendPayload(tc.at)
			if err != nil {
				t.Fatal(err)
			}
			if tc.waits {
				r.stat("one more that waits", func(s *wire.Snapshot) bool { return s.Totals.Queue == queued+1 })
			} else if resp := p.wait(corr); resp.Code != "" {
				t.Fatalf("at it: %+v", resp)
			}
			if got := r.essence().Totals.Requests; got != requests+1 {
				t.Errorf("at it: %d requests, there were %d", got, requests)
			}
			if tc.beyondLast {
				beyond()
			}
		})
	}
}

func batch(id string, total int64, last bool, keys ...string) *wire.AllocRequest {
	return peertest.Alloc(id, total, last, testSlot, keys...)
}

func bytesOf(m wire.Message) []byte { return wire.Append(nil, m) }

// padded is a message with a field more that nobody knows, so that it has n bytes.
func padded(m wire.Message, n int) []byte {
	b := bytesOf(m)
	b[0]++ // a map with one field more
	b = append(b, "\xa3pad\xdb"...)
	b = binary.BigEndian.AppendUint32(b, uint32(n-len(b)-4))
	return append(b, make([]byte, n-len(b))...)
}

// waiting sends batches that must wait, until they do.
func (p *peer) waiting(r *running, batches ...*wire.AllocRequest) {
	p.t.Helper()
	for _, b := range batches {
		p.ask(b)
		r.event("queued", b.ReqID)
	}
}

// nothingFor sends what ZeroMQ does not let through: it ends the connection, and
// no answer comes.
func (p *peer) nothingFor(r *running, payload []byte) {
	p.t.Helper()
	_ = p.attach("large")
	if _, err := p.SendPayload(payload); err != nil {
		p.t.Fatal(err)
	}
	p.nothing(r)
	p.kill()
}

// essence is what a refusal must not change.
func (r *running) essence() wire.Snapshot {
	r.t.Helper()
	asked := time.Now()
	s := r.stat("of now", func(s *wire.Snapshot) bool { return s.Time.After(asked) })
	e := wire.Snapshot{Slots: s.Slots, Totals: s.Totals, Counters: s.Counters}
	e.Counters.Rejected, e.Counters.BadFrames, e.Totals.Senders = 0, 0, 0
	return e
}

// deaf are peers that take nothing.
type deaf struct{}

func (deaf) send(...[]byte) error { return sock.ErrAgain }
func (deaf) look()                {}

// TestBacklogLimits: so many answers, or so many bytes with their frames, wait for
// a peer that does not read; one more and it is over.
func TestBacklogLimits(t *testing.T) {
	env := &envelope{sender: "slow", frames: [][]byte{[]byte("slow"), nil}}
	const half = maxBacklogBytes/2 - len("slow")
	for _, tc := range []struct {
		name   string
		fits   []int // bytes of each answer
		beyond int
	}{
		{"answers", slices.Repeat([]int{10}, maxBacklog), 10},
		{"bytes", []int{half, half}, 1},
		{"one byte", []int{half}, half + 1},
	} {
		o := newOutbox(deaf{})
		o.pause = func(time.Duration) {}
		for i, n := range tc.fits {
			if !o.send(env, make([]byte, n)) {
				t.Fatalf("%s: over with answer %d", tc.name, i+1)
			}
		}
		if o.send(env, make([]byte, tc.beyond)) || o.undeliverable != int64(len(tc.fits)) {
			t.Errorf("%s: not over with %d answers, %d given up", tc.name, len(tc.fits)+1, o.undeliverable)
		}
	}
}

// TestBacklogsTogether: thousands that do not read cannot have more than
// maxBacklogs together, but for their newest answer; one that is slow beside them
// still has some room, and what they had is had again.
func TestBacklogsTogether(t *testing.T) {
	o := newOutbox(deaf{})
	o.pause = func(time.Duration) {}
	peer := func(i int) *envelope {
		id := fmt.Sprintf("%4d", i)
		return &envelope{sender: id, frames: [][]byte{[]byte(id), nil}}
	}
	const peers = 5000
	for range 2 {
		kept := 0
		for i := range peers {
			for range 100 {
				o.send(peer(i), make([]byte, 10<<10))
			}
			kept += len(o.slow[peer(i).sender].answers)
		}
		if most := maxBacklogs/(10<<10) + peers; kept > most {
			t.Errorf("%d answers are kept, want at most %d", kept, most)
		}
		for _, b := range o.slow {
			o.drop(b)
		}
		if o.cost != 0 {
			t.Fatalf("nobody has anything, and it counts %d bytes", o.cost)
		}
	}
	for i := range 3 { // as much as each may have
		for range maxBacklogBytes / (64 << 10) {
			if !o.send(peer(i), make([]byte, 64<<10-len("1234"))) {
				t.Fatalf("peer %d has %d bytes, and it is over", i, o.slow[peer(i).sender].bytes)
			}
		}
	}
	if !o.send(peer(4), nil) || !o.send(peer(4), make([]byte, 1<<20)) {
		t.Error("no room for one more")
	}
}
