package sender

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func newClaim(id string, chunks int) *claim {
	return &claim{batch: &batch{req: &request{id: id}}, left: chunks}
}

// serve takes slots until nobody may have one and names who got them.
func serve(s *staging, now time.Duration) string {
	var got []string
	for b := s.next(now); b != nil; b = s.next(now) {
		got = append(got, b.req.id)
	}
	return strings.Join(got, " ")
}

func TestStagingServesInTurn(t *testing.T) {
	type step struct {
		wait     time.Duration // passes before
		claims   string        // receiver and id of claims of 2 chunks: "0a 1b"
		releases []int         // receivers that give a slot back
		end      string        // a request that ends
		want     string
	}
	const stall, quiet = flowing, idleAfter
	for _, tt := range []struct {
		name             string
		total, receivers int
		steps            []step
	}{
		{"one receiver may have all", 3, 1, []step{
			{claims: "0a 0b", want: "a a b"},
			{releases: []int{0}, want: "b"},
			{releases: []int{0, 0}, want: ""},
		}},
		{"in order of its receiver", 2, 1, []step{
			{claims: "0a 0b 0c", want: "a a"},
			{releases: []int{0}, want: "b"},
			{releases: []int{0, 0}, want: "b c"},
		}},
		{"receivers take turns", 4, 2, []step{
			{claims: "0a 0b 1c 1d", want: "a c a c"},
			{releases: []int{0, 1}, want: "b d"},
		}},
		{"one that has ended no write has its share", 6, 2, []step{
			{claims: "0a 0b 0c", want: "a a b"},
			{wait: time.Hour, want: ""},
			{claims: "1d 1e", want: "d d e"},
		}},
		{"one whose writes end has more, but not all", 6, 2, []step{
			{claims: "0a 0b 0c 0d", want: "a a b"},
			{releases: []int{0}, want: "b c c"},
			{claims: "1e", want: "e"},
			{releases: []int{0}, want: "e"},
			{releases: []int{0}, want: ""}, // the other is busy
			{releases: []int{1, 1}, want: ""},
			{wait: quiet - 1, releases: []int{0}, want: "d"},
			{wait: 1, releases: []int{0}, want: "d"},
		}},
		{"one that stalls gets no more than its share", 6, 2, []step{
			{claims: "0a 0b 0c 0d", want: "a a b"},
			{releases: []int{0}, want: "b c c"},
			{wait: stall, releases: []int{0, 0, 0}, want: "d d"},
			{wait: stall, claims: "0e 0f", want: ""},
			{claims: "1x", want: "x x"},
		}},
		{"one that was busy lately keeps its share", 6, 2, []step{
			{claims: "0a 0b 0c 0d 1x", want: "a x a x b"},
			{releases: []int{1, 1, 0}, want: "b"},
			{releases: []int{0}, want: "c"},
			{wait: quiet, releases: []int{0}, want: "c d d"},
		}},
		{"one slot is left for the others", 3, 2, []step{
			{claims: "0a 0b", want: "a"},
			{releases: []int{0}, want: "a b"},
			{claims: "1c", want: "c"},
			{releases: []int{1}, want: "c"},
			{releases: []int{0}, want: "b"},
		}},
		{"of a single slot everybody may have it", 1, 2, []step{
			{claims: "0a 1b", want: "a"},
			{releases: []int{0}, want: "b"},
			{releases: []int{1}, want: "a"},
			{releases: []int{0}, want: "b"},
		}},
		{"a request that ends waits no more", 2, 1, []step{
			{claims: "0a 0b 0c", want: "a a"},
			{end: "b", releases: []int{0}, want: "c"},
		}},
		{"a claim larger than the buffer goes chunk by chunk", 1, 1, []step{
			{claims: "0a", want: "a"},
			{releases: []int{0}, want: "a"},
			{releases: []int{0}, want: ""},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStaging(tt.total, tt.receivers)
			claims := map[string]*claim{}
			now := time.Second
			for i, st := range tt.steps {
				now += st.wait
				for _, c := range strings.Fields(st.claims) {
					claims[c[1:]] = newClaim(c[1:], 2)
					s.add(now, int(c[0]-'0'), claims[c[1:]])
				}
				if st.end != "" {
					claims[st.end].batch.req.stage = ended
				}
				for _, r := range st.releases {
					s.release(now, r)
				}
				if got := serve(s, now); got != st.want {
					t.Fatalf("step %d: served %q, want %q", i, got, st.want)
				}
			}
		})
	}
}

// Contract §6: a receiver has at most all slots but one, and is served in order.
// Whoever has less than its share gets any slot that is free; and while all are
// busy nobody, whatever it does, has slots of another's share.
func TestStagingKeepsItsPromises(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		total, receivers := 1+rnd.IntN(12), 1+rnd.IntN(4)
		s := newStaging(total, receivers)
		share := max(1, total/receivers)
		most := total
		if receivers > 1 {
			most = max(1, total-1)
		}
		used := make([]int, receivers)
		waiting := make([][]*claim, receivers) // the model: who waits, in order
		busy := rnd.IntN(2) == 0               // all are, all the time
		stalled := rnd.IntN(receivers + 1)     // never gives a slot back, unless it is nobody
		inUse, now := 0, time.Second
		for range 400 {
			now += time.Duration(rnd.Int64N(int64(flowing)))
			for i := range receivers {
				if busy {
					s.add(now, i, newClaim("x", 0))
				}
			}
			r := rnd.IntN(receivers)
			if rnd.IntN(2) == 0 {
				c := newClaim("x", rnd.IntN(4))
				s.add(now, r, c)
				if c.left > 0 {
					waiting[r] = append(waiting[r], c)
				}
			} else if used[r] > 0 && r != stalled {
				s.release(now, r)
				used[r]--
				inUse--
			}
			for b := s.next(now); b != nil; b = s.next(now) {
				at := -1
				for i := range waiting {
					if len(waiting[i]) > 0 && waiting[i][0].batch == b {
						at = i
					}
				}
				if at < 0 {
					t.Fatalf("seed %d: served out of turn", seed)
				}
				if waiting[at][0].left == 0 {
					waiting[at] = waiting[at][1:]
				}
				used[at]++
				inUse++
			}
			for i := range waiting {
				if used[i] > most || inUse > total {
					t.Fatalf("seed %d: receiver %d has %d of %d slots, all have %d", seed, i, used[i], total, inUse)
				}
				if others := inUse - used[i]; busy && total >= receivers && others > total-share {
					t.Fatalf("seed %d: of %d slots receiver %d may have %d, and the others have %d", seed, total, i, share, others)
				}
				if len(waiting[i]) > 0 && inUse < total && used[i] < share {
					t.Fatalf("seed %d: receiver %d has %d slots and waits although %d of %d are free", seed, i, used[i], total-inUse, total)
				}
			}
		}
	}
}

// They are listed in the order in which they are served when all may be.
func TestStagingBlockedInTurn(t *testing.T) {
	for _, tt := range []struct {
		claims, ended, want string
		turn                int
	}{
		{claims: "0a 0b 0c", want: "a b c"},
		{claims: "0a 0b 1c 1d", want: "a c b d"},
		{claims: "0a 0b 1c 1d", turn: 1, want: "c a d b"},
		{claims: "0a 0b 0c 1d", ended: "a", want: "b d c"},
		{claims: "", want: ""},
	} {
		s := newStaging(1, 2)
		s.turn = tt.turn
		for _, text := range strings.Fields(tt.claims) {
			c := newClaim(text[1:], 2)
			if text[1:] == tt.ended {
				c.batch.req.stage = ended
			}
			s.add(0, int(text[0]-'0'), c)
		}
		var got []string
		for _, c := range s.blocked() {
			got = append(got, c.batch.req.id)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q, turn of %d: %q, want %q", tt.claims, tt.turn, got, tt.want)
		}
	}
}

func TestStagingSlotGivenBackTwice(t *testing.T) {
	s := newStaging(1, 1)
	s.add(0, 0, newClaim("a", 1))
	s.next(0)
	s.release(0, 0)
	defer func() {
		if recover() == nil {
			t.Error("nothing happened")
		}
	}()
	s.release(0, 0)
}

func TestBufferIsCutOnce(t *testing.T) {
	b := &buffer{bytes: 10_000}
	if err := b.cut(20_000); err == nil || !strings.Contains(err.Error(), "20000") || !strings.Contains(err.Error(), "10000") {
		t.Errorf("a chunk larger than the buffer: %v", err)
	}
	if err := b.cut(4096); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if err := b.cut(4096); err != nil || b.slots() != 2 {
		t.Errorf("asked again: %v, %d slots", err, b.slots())
	}
	if err := b.cut(8192); err == nil || !strings.Contains(err.Error(), "4096") || !strings.Contains(err.Error(), "8192") {
		t.Errorf("another size: %v", err)
	}
	i, j := b.take(), b.take()
	b.slot(i)[0], b.slot(j)[0] = 1, 2
	if i == j || b.slot(i)[0] != 1 || len(b.slot(i)) != 4096 || cap(b.slot(i)) != 4096 {
		t.Errorf("slots %d and %d are one", i, j)
	}
	b.give(i)
	if k := b.take(); k != i {
		t.Errorf("slot %d was given back last, %d was taken", i, k)
	}
}
