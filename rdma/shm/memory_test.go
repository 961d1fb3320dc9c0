package shm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLayout(t *testing.T) {
	page := int64(os.Getpagesize())
	for _, tt := range []struct {
		slots        int
		size, stride int64
		err          string
	}{
		{slots: 1, size: 1, stride: page},
		{slots: 10, size: page, stride: page},
		{slots: 10, size: page + 1, stride: 2 * page},
		{slots: maxSlots, size: 1, stride: page},
		{slots: 0, size: 1, err: "buffer of 0 slots"},
		{slots: -1, size: 1, err: "buffer of -1 slots"},
		{slots: maxSlots + 1, size: 1, err: "take 1 to 16777216"},
		{slots: 1, size: 0, err: "slots of 0 bytes"},
		{slots: 1, size: 1<<63 - 1, err: "slots of 9223372036854775807 bytes"},
		{slots: 1 << 20, size: 1 << 40, err: "take at most"},
	} {
		l, err := newLayout(tt.slots, tt.size)
		if tt.err != "" {
			wantError(t, err, tt.err)
		} else if err != nil || l.stride != tt.stride {
			t.Errorf("%d slots of %d bytes: stride %d, error %v; want %d", tt.slots, tt.size, l.stride, err, tt.stride)
		}
	}
}

func TestBufferLargerThanMemory(t *testing.T) {
	_, err := NewTarget(t.Name(), 1<<10, 1<<35)
	wantError(t, err, "buffer of 1024 slots of 32 GiB needs 32 TiB of memory, the system has")
}

func newTestMemory(t *testing.T, slots int, size int64) *memory {
	t.Helper()
	leavesNothing(t)
	m := must[*memory](t)(newMemory(must[layout](t)(newLayout(slots, size))))
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// used is the memory that a region takes, in bytes.
func used(t *testing.T, m *memory, region int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(m.now.Load().fds[region], &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// A random walk of revocations and of writers that end, against a plain model:
// a slot never goes where a writer may still write, its memory is zeroed, all
// other slots keep their bytes, and no memory is lost.
func TestRevokeWalk(t *testing.T) {
	const slots, size, steps = 16, 5000, 250
	for seed := range uint64(4) {
		m := newTestMemory(t, slots, size)
		rng := rand.New(rand.NewPCG(seed, 0))
		type at struct{ region, slot int }
		var tick, oldest uint64 = 0, 1
		stale := map[at]uint64{}
		want := make([][]byte, slots)
		where := make([]int, slots)
		for i := range want {
			want[i] = pattern(size, uint64(i))
			copy(m.slot(m.base, i), want[i])
		}
		for step := range steps {
			if rng.IntN(4) == 0 {
				oldest += rng.Uint64N(tick - oldest + 2)
				if err := m.settle(oldest); err != nil {
					t.Fatal(err)
				}
				for p, tk := range stale {
					if tk < oldest {
						delete(stale, p)
					}
				}
				continue
			}
			tick++
			set := rng.Perm(slots)[:1+rng.IntN(slots)]
			region, err := m.revoke(slices.Clone(set), tick)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range set {
				if _, ok := stale[at{region, s}]; ok || where[s] == region {
					t.Fatalf("seed %d step %d: slot %d moves from region %d to %d, where a writer may still write", seed, step, s, where[s], region)
				}
				if !bytes.Equal(m.slot(m.base, s), make([]byte, size)) {
					t.Fatalf("seed %d step %d: slot %d is not zeroed", seed, step, s)
				}
				stale[at{where[s], s}] = tick
				where[s] = region
				want[s] = pattern(size, uint64(step*slots+s))
				copy(m.slot(m.base, s), want[s])
			}
			var total int64
			for r := range m.now.Load().fds {
				total += used(t, m, r)
			}
			if total != m.length() {
				t.Fatalf("seed %d step %d: regions take %d bytes, the buffer has %d", seed, step, total, m.length())
			}
			for s := range slots {
				if !bytes.Equal(m.slot(m.base, s), want[s]) {
					t.Fatalf("seed %d step %d: slot %d has other bytes", seed, step, s)
				}
			}
		}
	}
}

func TestRevokeRefuses(t *testing.T) {
	m := newTestMemory(t, 4, 100)
	for _, tt := range []struct {
		slots []int
		err   string
	}{
		{nil, "no slots"},
		{[]int{4}, "slot 4 of a buffer of 4 slots"},
		{[]int{0, -1}, "slot -1 of a buffer"},
		{[]int{2, 1, 2}, "slot 2 is to be revoked twice"},
	} {
		_, err := m.revoke(tt.slots, 1)
		wantError(t, err, tt.err)
	}
	if n := len(m.now.Load().fds); n != 1 {
		t.Errorf("%d regions after refusals", n)
	}
}

// The number of regions is bounded, a refusal changes nothing, and old regions
// are used again once their writers have ended.
func TestRevokeUpToTheLastRegion(t *testing.T) {
	needFiles(t, maxRegions+100)
	m := newTestMemory(t, 2, 100)
	for i := 1; i < maxRegions; i++ {
		if got := must[int](t)(m.revoke([]int{1}, 7)); got != i {
			t.Fatalf("revocation %d went to region %d", i, got)
		}
	}
	copy(m.slot(m.base, 1), "kept")
	_, err := m.revoke([]int{1}, 7)
	wantError(t, err, "1024 regions", "no more are possible")
	if got := string(m.slot(m.base, 1)[:4]); got != "kept" {
		t.Errorf("the slot has %q after a refused revocation", got)
	}
	if got := must[int](t)(m.revoke([]int{0}, 7)); got != 1 {
		t.Errorf("the other slot went to region %d, where 1 was free", got)
	}
	if err := m.settle(8); err != nil {
		t.Fatal(err)
	}
	if got := must[int](t)(m.revoke([]int{1}, 9)); got != 0 {
		t.Errorf("with all writers gone the slot went to region %d, not 0", got)
	}
}

// A buffer in more pieces than Linux maps is refused before anything changes.
func TestRevokeIntoTooManyPieces(t *testing.T) {
	const slots = 2*maxPieces + 2
	l := must[layout](t)(newLayout(slots, 1))
	fd := must[int](t)(memfd(l.length()))
	m := &memory{layout: l, stale: make(map[place]uint64)}
	m.base = must[[]byte](t)(unix.Mmap(fd, 0, int(l.length()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	m.now.Store(&placement{[]int{fd}, make([]int32, slots)})
	defer m.close()
	var odd []int
	for i := 1; i < slots; i += 2 {
		odd = append(odd, i)
	}
	_, err := m.revoke(odd, 1)
	wantError(t, err, "at most 30000")
	if got := must[int](t)(m.revoke([]int{1, 2, 3, 5}, 1)); got != 1 {
		t.Errorf("went to region %d", got)
	}
}

// A revocation that fails half-way changes nothing.
func TestRevokeFails(t *testing.T) {
	m := newTestMemory(t, 3, 4096)
	short := must[int](t)(memfd(4096)) // holds slot 0; behind it is nothing to populate
	m.now.Store(&placement{append(m.now.Load().fds, short), m.now.Load().where})
	for s := range 3 {
		copy(m.slot(m.base, s), fmt.Sprint("slot ", s))
	}
	_, err := m.revoke([]int{0, 2}, 1)
	wantError(t, err, "prefault 4096 bytes")
	for s := range 3 {
		if got, want := string(m.slot(m.base, s)[:6]), fmt.Sprint("slot ", s); got != want {
			t.Errorf("%q lies in slot %d", got, s)
		}
	}
	if len(m.stale) != 0 || used(t, m, 0) != m.length() {
		t.Error("the old memory counts as taken away")
	}
}

// Where the kernel cannot populate, touching does; neither changes a byte.
func TestPrefault(t *testing.T) {
	const size = 10<<20 + 4096
	for name, fault := range map[string]func([]byte){
		"populate": func(b []byte) {
			if err := prefault(b); err != nil {
				t.Fatal(err)
			}
		},
		"touch": touch,
	} {
		fd := must[int](t)(memfd(size))
		b := must[[]byte](t)(unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
		copy(b[size-3:], "end")
		fault(b)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Blocks*512 != size {
			t.Errorf("%s: %d of %d bytes are there, error %v", name, st.Blocks*512, size, err)
		}
		if !bytes.Equal(b[:size-3], make([]byte, size-3)) || string(b[size-3:]) != "end" {
			t.Errorf("%s changed bytes", name)
		}
		unix.Munmap(b)
		unix.Close(fd)
	}
}
