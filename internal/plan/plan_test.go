package plan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/built"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/testkit"
)

var (
	reserve = Policy{Mode: reservation.Reserve}
	serial  = Policy{Mode: reservation.Serial}
	none    = Policy{Mode: reservation.None}
)

func overtaking(n int) Policy { return Policy{reservation.Reserve, n} }

// small is a world in which a chunk of 100 bytes takes 100 ms to write.
var small = World{Pace: 1, Senders: 1, LinkRate: 1000, AdmitTimeout: 10 * time.Second, Consume: time.Second}

// lines makes a manifest of requests, each "ID chunks seconds", of chunks of
// 100 bytes. Keys with the same first word of KEY:ID are shared by requests.
func lines(requests ...string) string {
	var b strings.Builder
	for _, text := range requests {
		var id string
		var chunks int
		var at float64
		if _, err := fmt.Sscan(text, &id, &chunks, &at); err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, `{"req_id":%q,"total_chunks":%d,"chunks":[`, id, chunks)
		prefix, _, _ := strings.Cut(id, ":")
		for i := range chunks {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, `{"key":"%s-%d","length":100}`, prefix, i)
		}
		fmt.Fprintf(&b, `],"last":true,"at":%g}`+"\n", at)
	}
	return b.String()
}

func read(t *testing.T, text string, batch int) *Load {
	t.Helper()
	l, err := Read(strings.NewReader(text), "test", Options{BytesPerToken: 10, TokensPerChunk: 10, Batch: batch})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// TestByHand compares with what was worked out on paper.
func TestByHand(t *testing.T) {
	three := lines("A 2 0", "B 4 0", "C 1 0")
	slow := small
	slow.RoundTrip = ms(1)
	tokens := small
	tokens.Consume, tokens.ConsumeToken = 0, ms(10)
	two := small
	two.Senders = 2
	shared := two
	shared.IngressRate = 1000
	fast := small
	fast.Pace = 10
	for _, c := range []struct {
		name   string
		load   string
		world  World
		policy Policy
		batch  int
		slots  int
		want   Result
	}{
		// A is written at 0.2 and consumed at 1.2; only then B's four slots are
		// free, which is written at 1.6 and consumed at 2.6; then C.
		{"in order", three, small, reserve, 8, 4, Result{
			Ready: 3, Wait: Spread{ms(1200), ms(2600), ms(2600), ms(2600)}, Large: Spread{ms(1200), ms(1200), ms(1200), ms(1200)},
			ToReady: Spread{ms(1600), ms(2700), ms(2700), ms(2700)}, Span: ms(3700), Peak: 4,
		}},
		// C passes B: it is written behind A, at 0.3, and consumed at 1.3.
		{"overtaking", three, small, overtaking(1), 8, 4, Result{
			Ready: 3, Wait: Spread{0, ms(1300), ms(1300), ms(1300)}, Large: Spread{ms(1300), ms(1300), ms(1300), ms(1300)},
			ToReady: Spread{ms(300), ms(1700), ms(1700), ms(1700)}, Span: ms(2700), Peak: 4,
		}},
		{"room for all", three, small, reserve, 8, 7, Result{
			Ready: 3, ToReady: Spread{ms(600), ms(700), ms(700), ms(700)}, Span: ms(1700), Peak: 7,
		}},
		// Each owns the buffer until it is written.
		{"serial", three, small, serial, 8, 7, Result{
			Ready: 3, Wait: Spread{ms(200), ms(600), ms(600), ms(600)}, Large: Spread{ms(200), ms(200), ms(200), ms(200)},
			ToReady: Spread{ms(600), ms(700), ms(700), ms(700)}, Span: ms(1700), Peak: 7,
		}},
		{"too large", three, small, reserve, 8, 3, Result{
			Ready: 2, TooLarge: 1, ToReady: Spread{ms(200), ms(300), ms(300), ms(300)}, Span: ms(1300), Peak: 3,
		}},
		// Each gets two slots of four and waits for a third; when A's time is up,
		// B gets it, is written 100 ms later and consumed 1 s later.
		{"deadlock", lines("A 3 0", "B 3 0"), slow, none, 2, 4, Result{
			Ready: 1, TimedOut: 1, ToReady: Spread{ms(10102), ms(10102), ms(10102), ms(10102)}, Span: ms(11102), Peak: 4,
			Deadlocks: 1, Deadlock: &Deadlock{At: ms(1), Partial: 2, Held: 4, Waiting: 2, First: "A", Has: 2, Needs: 3},
		}},
		{"no deadlock", lines("A 3 0", "B 3 0"), slow, reserve, 2, 4, Result{
			Ready: 2, Wait: Spread{0, ms(1301), ms(1301), ms(1301)},
			ToReady: Spread{ms(301), ms(1602), ms(1602), ms(1602)}, Span: ms(2602), Peak: 3,
		}},
		// B comes while A's two chunks are there and sends its third only; it
		// must find three slots free all the same.
		{"shared", lines("K:A 2 0", "K:B 3 1"), small, reserve, 8, 5, Result{
			Ready: 2, ToReady: Spread{ms(100), ms(200), ms(200), ms(200)}, Span: ms(2100), Peak: 3,
		}},
		// A ready request is kept 10 ms for each of its tokens, ten a chunk.
		{"tokens", lines("A 2 0", "B 1 0"), tokens, reserve, 8, 2, Result{
			Ready: 2, Wait: Spread{0, ms(400), ms(400), ms(400)},
			ToReady: Spread{ms(200), ms(500), ms(500), ms(500)}, Span: ms(600), Peak: 2,
		}},
		{"two links", lines("A 2 0", "B 2 0"), two, reserve, 8, 4, Result{
			Ready: 2, ToReady: Spread{ms(200), ms(200), ms(200), ms(200)}, Span: ms(1200), Peak: 4,
		}},
		{"two links into one", lines("A 2 0", "B 2 0"), shared, reserve, 8, 4, Result{
			Ready: 2, ToReady: Spread{ms(200), ms(400), ms(400), ms(400)}, Span: ms(1400), Peak: 4,
		}},
		{"pace", lines("A 2 0", "B 2 10"), fast, reserve, 8, 2, Result{
			Ready: 2, Wait: Spread{0, ms(200), ms(200), ms(200)},
			ToReady: Spread{ms(200), ms(400), ms(400), ms(400)}, Span: ms(2400), Peak: 2,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := read(t, c.load, c.batch)
			got := Run(l, c.world, c.policy, c.slots)
			c.want.Policy, c.want.Slots, c.want.Bytes, c.want.Requests = c.policy, c.slots, int64(c.slots)*100, l.Requests()
			// The averages have a test of their own.
			got.Utilisation, got.Promised, got.Goodput, got.Rate = 0, 0, 0, 0
			if c.want.Large == (Spread{}) {
				got.Large = Spread{}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got\n%+v, deadlock %v\nwant\n%+v, deadlock %v", got, got.Deadlock, c.want, c.want.Deadlock)
			}
		})
	}
}

// TestAverages: two slots of four are held for 1.2 s, that is all the time.
func TestAverages(t *testing.T) {
	r := Run(read(t, lines("A 2 0"), 8), small, reserve, 4)
	if r.Utilisation != 0.5 || r.Promised != 0 || fmt.Sprintf("%.3f %.3f", r.Goodput, r.Rate) != "166.667 0.833" {
		t.Errorf("%+v", r)
	}
}

// TestOutput: the decoder keeps a request for as long as it takes to decode.
func TestOutput(t *testing.T) {
	l := read(t, `{"timestamp":0,"input_length":20,"output_length":30,"hash_ids":[]}
{"timestamp":0,"input_length":20,"output_length":3,"hash_ids":[]}`, 8)
	w := small
	w.Consume, w.DecodeRate = ms(100), 10
	r := Run(l, w, reserve, 2)
	if r.Ready != 2 || r.Wait.Max != ms(3300) || r.Span != ms(3900) {
		t.Errorf("%+v", r)
	}
}

// random is a load with shared prefixes and requests that come side by side.
func random(seed uint64, requests int) string {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var list []string
	at := 0.0
	for i := range requests {
		if rnd.IntN(3) == 0 {
			at += rnd.Float64()
		}
		list = append(list, fmt.Sprintf("P%d:%d %d %g", rnd.IntN(8), i, 1+rnd.IntN(12), at))
	}
	return lines(list...)
}

// TestEveryRequestEndsOnce runs many loads under every policy: every request
// ends in one way, the buffer is empty then, only none deadlocks, and a second
// run is the same.
func TestEveryRequestEndsOnce(t *testing.T) {
	deadlocks := 0
	for seed := range uint64(30) {
		l := read(t, random(seed, 60), 3)
		for _, p := range []Policy{reserve, overtaking(3), serial, none} {
			for _, slots := range []int{1, 6, 12, 20, 200} {
				w := small
				w.LinkRate, w.Senders, w.RoundTrip = 10_000, 1+int(seed%3), ms(int(seed%2))
				s := newSim(l, w, p, slots)
				s.run()
				r := s.result(p)
				if n := r.Ready + r.TimedOut + r.TooLarge; n != r.Requests || r.Refused+r.Stuck != 0 {
					t.Fatalf("seed %d, %v, %d slots: %+v %s", seed, p, slots, r, s.tally.why)
				}
				for i := range s.states {
					if !s.states[i].ended {
						t.Fatalf("seed %d, %v, %d slots: %q has not ended", seed, p, slots, s.states[i].id)
					}
				}
				if promised, held, quarantined, free := s.machine.Usage(); free != slots {
					t.Fatalf("seed %d, %v, %d slots: at the end %d promised, %d held, %d quarantined", seed, p, slots, promised, held, quarantined)
				}
				if p != none && r.Deadlocks > 0 {
					t.Fatalf("seed %d, %v, %d slots: deadlock %v", seed, p, slots, r.Deadlock)
				}
				deadlocks += r.Deadlocks
				if again := Run(l, w, p, slots); !reflect.DeepEqual(r, again) {
					t.Fatalf("seed %d, %v, %d slots: %+v, then %+v", seed, p, slots, r, again)
				}
			}
		}
	}
	if deadlocks == 0 {
		t.Error("none never deadlocked")
	}
}

// TestStuck: without a time-out a deadlock is for good.
func TestStuck(t *testing.T) {
	w := small
	w.RoundTrip, w.AdmitTimeout = ms(1), 0
	if r := Run(read(t, lines("A 3 0", "B 3 0"), 2), w, none, 4); r.Stuck != 2 || r.Deadlocks != 1 {
		t.Errorf("%+v", r)
	}
}

func TestSmallest(t *testing.T) {
	l := read(t, random(1, 60), 3)
	w := small
	w.AdmitTimeout = 0
	for _, target := range []time.Duration{0, ms(500), 5 * time.Second} {
		r, ok := Smallest(l, w, reserve, target, 1<<20)
		if !ok || !r.Meets(target) {
			t.Fatalf("%v: %v %+v", target, ok, r)
		}
		if less := Run(l, w, reserve, r.Slots-1); less.Meets(target) {
			t.Errorf("%v: %d slots meet it, but so do %d", target, r.Slots, less.Slots)
		}
	}
	if r, ok := Smallest(l, w, reserve, 0, 13); ok || r.Slots != 13 {
		t.Errorf("with at most 13 slots: %v %+v", ok, r)
	}
}

func TestReadSays(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "has no request with a chunk"},
		{"# nothing\n\n", "has no request with a chunk"},
		{"{", "ends in the middle of a record"},
		{`{"timestamp":0,"input_length":10,"output_length":-1,"hash_ids":[1]}`, "output_length -1 is negative"},
		{`{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","length":1}],"last":false}`, `ends before request "A" does: 1 of its lines`},
		{`{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1}],"last":true,"to":1}`, "is for receiver 1"},
		{lines("A 1 0", "A 1 0"), "has ended on an earlier line"},
		{`{"req_id":"A","total_chunks":99999999,"chunks":[],"last":false}`, "plan takes 16777216 at most"},
	} {
		_, err := Read(strings.NewReader(c.text), "in", Options{BytesPerToken: 10, TokensPerChunk: 10, Batch: 8})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

// traceFile is the real trace: $PD_TRACE, or the one beside the repository.
func traceFile(t *testing.T) []byte {
	t.Helper()
	name := os.Getenv("PD_TRACE")
	if name == "" {
		name = filepath.Join("../../../shared/data/mooncake_conversation_head.jsonl")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Skipf("NOT RUN: no trace: %v; name one with PD_TRACE", err)
	}
	return text
}

func readTrace(t *testing.T, text []byte) *Load {
	t.Helper()
	l, err := Read(bytes.NewReader(text), "trace", Options{BytesPerToken: 131_072, TokensPerChunk: 256, Batch: 8})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTrace replays the real trace: within 2 s for a policy and size.
func TestTrace(t *testing.T) {
	l := readTrace(t, traceFile(t))
	w := World{Pace: 1, Senders: 2, LinkRate: 12_500_000_000, RoundTrip: ms(1), AdmitTimeout: 30 * time.Second, Consume: ms(100)}
	for _, slots := range []int{128, 512, 2048} {
		for _, p := range []Policy{reserve, overtaking(8), serial, none} {
			began := testkit.CPU(t)
			r := Run(l, w, p, slots)
			if took := testkit.CPU(t) - began; took > 2*time.Second && !built.Race {
				t.Errorf("%v with %d slots took %v", p, slots, took)
			}
			if r.Ready+r.TimedOut+r.TooLarge != 4000 || p != none && r.Deadlocks > 0 {
				t.Errorf("%+v", r)
			}
			if slots == 128 && (r.Deadlocks > 0) != (p == none) {
				t.Errorf("%v with %d slots: %d deadlocks", p, slots, r.Deadlocks)
			}
		}
	}
}

// TestReadmeTables makes the tables of the README's "Sizing the buffer" anew from
// the real trace, with the defaults of pd-recv plan. make test-plan runs it.
func TestReadmeTables(t *testing.T) {
	if built.Race {
		t.Skip("takes minutes with the race detector")
	}
	text := traceFile(t)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	l := readTrace(t, text)
	world := World{Pace: 1, Senders: 1, LinkRate: 12_500_000_000, RoundTrip: 200 * time.Microsecond, AdmitTimeout: 30 * time.Second, Consume: ms(100)}
	for _, rows := range [][]func() string{policyRows(l, world), overtakeRows(t, l, text, world), leaseRows(l, world)} {
		for _, row := range rows {
			if line := row(); !strings.Contains(string(readme), "\n"+line+"\n") {
				t.Errorf("the README has not this row: %s", line)
			}
		}
	}
}

func policyRows(l *Load, w World) (rows []func() string) {
	for _, size := range []struct {
		slots    int
		policies []Policy
	}{
		{241, []Policy{reserve, overtaking(8), serial, none}},
		{482, []Policy{reserve, overtaking(8), overtaking(64), serial, none}},
		{964, []Policy{reserve, serial, none}},
		{1928, []Policy{reserve}},
	} {
		for _, p := range size.policies {
			rows = append(rows, func() string {
				r := Run(l, w, p, size.slots)
				return fmt.Sprintf("| %s, %d slots | %v | %d | %s | %s | %s / %s / %s | %s | %.0f%% |", Size(r.Bytes), r.Slots, p, r.Ready,
					count(r.TimedOut), count(r.TooLarge), Time(r.Wait.P50), Time(r.Wait.P99), Time(r.Wait.Max), Time(r.Large.P99), 100*r.Utilisation)
			})
		}
	}
	return rows
}

// overtakeRows have the waits that 99 of 100 do not exceed: of all requests, and
// of the largest tenth.
func overtakeRows(t *testing.T, l *Load, text []byte, w World) (rows []func() string) {
	lines := bytes.SplitAfter(text, []byte("\n"))
	half := len(lines) / 2
	first, second := readTrace(t, bytes.Join(lines[:half], nil)), readTrace(t, bytes.Join(lines[half:], nil))
	for _, row := range []struct {
		name  string
		load  *Load
		pace  float64
		slots int
	}{
		{"as it is", l, 1, 482}, {"its first half", first, 1, 482}, {"its second half", second, 1, 482},
		{"1.5 times as fast", l, 1.5, 482}, {"twice as fast", l, 2, 482},
		{"as it is", l, 1, 964}, {"1.5 times as fast", l, 1.5, 964}, {"twice as fast", l, 2, 964},
	} {
		rows = append(rows, func() string {
			w := w
			w.Pace = row.pace
			line := fmt.Sprintf("| %d | %s |", row.slots, row.name)
			for _, n := range []int{0, 4, 8, 16, 64} {
				r := Run(row.load, w, overtaking(n), row.slots)
				line += fmt.Sprintf(" %s / %s |", Time(r.Wait.P99), Time(r.Large.P99))
			}
			return line
		})
	}
	return rows
}

// leaseRows have the wait that 99 of 100 requests do not exceed, and how many
// wait too long.
func leaseRows(l *Load, w World) (rows []func() string) {
	for _, slots := range []int{482, 964} {
		for _, every := range []int{1000, 100} {
			rows = append(rows, func() string {
				w := w
				w.LostEvery = every
				line := fmt.Sprintf("| %d | 1 of %d |", slots, every)
				for _, lease := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, 30 * time.Second, 60 * time.Second} {
					w.Lease = lease
					r := Run(l, w, reserve, slots)
					line += " " + Time(r.Wait.P99)
					if r.TimedOut > 0 {
						line += fmt.Sprintf(", %d time out", r.TimedOut)
					}
					line += " |"
				}
				return line
			})
		}
	}
	return rows
}

// TestLost: a sender that is lost keeps what its request has reserved until its
// lease is over, and who waits for that waits as long.
func TestLost(t *testing.T) {
	w := small
	w.Senders, w.LostEvery, w.Lease = 2, 2, 5*time.Second
	r := Run(read(t, lines("A 1 0", "B 3 0", "C 2 0"), 2), w, reserve, 4)
	if r.Ready != 2 || r.Lost != 1 || r.Stuck != 0 || r.Wait.Max != 5*time.Second || !r.Meets(5*time.Second) || r.Meets(4*time.Second) {
		t.Errorf("%+v", r)
	}
	l := read(t, random(1, 60), 3)
	for _, p := range []Policy{reserve, overtaking(3), serial, none} {
		w := small
		w.LostEvery, w.Lease = 7, time.Second
		s := newSim(l, w, p, 20)
		s.run()
		r := s.result(p)
		if promised, held, quarantined, free := s.machine.Usage(); free != 20 {
			t.Errorf("%v: at the end %d promised, %d held, %d quarantined", p, promised, held, quarantined)
		}
		if r.Lost == 0 || r.Ready+r.Lost+r.TimedOut+r.TooLarge != r.Requests {
			t.Errorf("%v: %+v", p, r)
		}
	}
}
