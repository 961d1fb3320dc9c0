package buffer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/testkit"
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
		l, err := NewLayout(tt.slots, tt.size)
		if tt.err != "" {
			testkit.WantError(t, err, tt.err)
		} else if err != nil || l.Stride != tt.stride {
			t.Errorf("%d slots of %d bytes: stride %d, error %v; want %d", tt.slots, tt.size, l.Stride, err, tt.stride)
		}
	}
}

func TestBufferLargerThanMemory(t *testing.T) {
	_, err := New(1<<10, 1<<35)
	testkit.WantError(t, err, "buffer of 1024 slots of 32 GiB needs 32 TiB of memory, the system has")
}

func newBuffer(t *testing.T, slots int, size int64) *Buffer {
	t.Helper()
	leavesNothing(t)
	b := testkit.Must[*Buffer](t)(New(slots, size))
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// used is the memory that a region takes, in bytes.
func used(t *testing.T, b *Buffer, region int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(b.FD(region), &st); err != nil {
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
		b := newBuffer(t, slots, size)
		rng := rand.New(rand.NewPCG(seed, 0))
		type at struct{ region, slot int }
		var tick, oldest uint64 = 0, 1
		stale := map[at]uint64{}
		want := make([][]byte, slots)
		where := make([]int, slots)
		for i := range want {
			want[i] = pattern(size, uint64(i))
			copy(b.Slot(i), want[i])
		}
		for step := range steps {
			if rng.IntN(4) == 0 {
				oldest += rng.Uint64N(tick - oldest + 2)
				b.Settle(oldest)
				for p, tk := range stale {
					if tk < oldest {
						delete(stale, p)
					}
				}
				continue
			}
			tick++
			set := rng.Perm(slots)[:1+rng.IntN(slots)]
			region, err := b.Revoke(slices.Clone(set), tick)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range set {
				if _, ok := stale[at{region, s}]; ok || where[s] == region {
					t.Fatalf("seed %d step %d: slot %d moves from region %d to %d, where a writer may still write", seed, step, s, where[s], region)
				}
				if r, _ := b.Where(s); r != region {
					t.Fatalf("seed %d step %d: slot %d lives in region %d, was to move to %d", seed, step, s, r, region)
				}
				if !bytes.Equal(b.Slot(s), make([]byte, size)) {
					t.Fatalf("seed %d step %d: slot %d is not zeroed", seed, step, s)
				}
				stale[at{where[s], s}] = tick
				where[s] = region
				want[s] = pattern(size, uint64(step*slots+s))
				copy(b.Slot(s), want[s])
			}
			var total int64
			for r := range b.Regions() {
				total += used(t, b, r)
			}
			if total != b.layout.Length() {
				t.Fatalf("seed %d step %d: regions take %d bytes, the buffer has %d", seed, step, total, b.layout.Length())
			}
			for s := range slots {
				if !bytes.Equal(b.Slot(s), want[s]) {
					t.Fatalf("seed %d step %d: slot %d has other bytes", seed, step, s)
				}
			}
		}
	}
}

// Whoever holds a slot's memory from before a revocation writes to the old
// place: the slot does not show it, and it is given back when that is safe.
func TestOldMemoryStays(t *testing.T) {
	const size = 8192
	b := newBuffer(t, 3, size)
	_, neighbour := b.Where(0)
	_, old := b.Where(1)
	if got := testkit.Must[int](t)(b.Revoke([]int{1, 2}, 5)); got != 1 {
		t.Fatalf("the slots moved to region %d", got)
	}
	copy(b.Slot(1), pattern(size, 1))
	copy(old, pattern(size, 2)) // late
	copy(neighbour, "neighbour")
	if !bytes.Equal(b.Slot(1), pattern(size, 1)) || !bytes.Equal(old, pattern(size, 2)) || string(b.Slot(0)[:9]) != "neighbour" {
		t.Error("the old place is not apart from the slot")
	}
	if len(old) != size || cap(old) != size {
		t.Errorf("memory of %d bytes, of %d with what follows", len(old), cap(old))
	}
	if a, z := b.Living(0), b.Living(1); !slices.Equal(a, []Span{{0, 1}}) || !slices.Equal(z, []Span{{1, 2}}) {
		t.Errorf("slots %v live in region 0, %v in 1", a, z)
	}
	for _, tt := range []struct {
		oldest uint64
		used   int64
	}{{5, 2 * size}, {6, size}} {
		b.Settle(tt.oldest)
		if n := used(t, b, 0); n != tt.used {
			t.Errorf("region 0 takes %d bytes with writers from tick %d on, want %d", n, tt.oldest, tt.used)
		}
	}
	if !bytes.Equal(old, make([]byte, size)) || !bytes.Equal(b.Slot(1), pattern(size, 1)) {
		t.Error("settling gave back something else")
	}
}

// A region that comes from elsewhere is mapped only if that is safe.
func TestMap(t *testing.T) {
	b := newBuffer(t, 2, 4096)
	view := testkit.Must[[]byte](t)(Map(b.FD(0), b.layout, true))
	copy(b.Slot(1), "shown")
	if got := string(b.layout.Cut(view, 1)[:5]); got != "shown" {
		t.Errorf("the other mapping shows %q", got)
	}
	if err := Unmap(view); err != nil {
		t.Error(err)
	}
	open := testkit.Must[int](t)(unix.MemfdCreate("x", unix.MFD_CLOEXEC))
	defer unix.Close(open)
	if err := unix.Ftruncate(open, 8192); err != nil {
		t.Fatal(err)
	}
	_, err := Map(open, b.layout, false)
	testkit.WantError(t, err, "not sealed against shrinking")
	_, err = Map(b.FD(0), testkit.Must[Layout](t)(NewLayout(3, 4096)), false)
	testkit.WantError(t, err, "region of 8192 bytes, expected 12288")
	_, err = Map(-1, b.layout, false)
	testkit.WantError(t, err, "fstat")
}

// Nobody can shrink or grow a region, nor unseal it.
func TestSeals(t *testing.T) {
	b := newBuffer(t, 1, 8192)
	other := testkit.Must[int](t)(unix.Open(fmt.Sprintf("/proc/self/fd/%d", b.FD(0)), unix.O_RDWR|unix.O_CLOEXEC, 0))
	defer unix.Close(other)
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(other, size); err != unix.EPERM {
			t.Errorf("truncate to %d bytes: error %v, want EPERM", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(other), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EPERM {
		t.Errorf("another seal: error %v, want EPERM", err)
	}
}

func TestUseAfterClose(t *testing.T) {
	b := newBuffer(t, 1, 100)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := b.Revoke([]int{0}, 1)
	testkit.WantError(t, err, "closed")
	b.Settle(9)
}

func TestRevokeRefuses(t *testing.T) {
	b := newBuffer(t, 4, 100)
	for _, tt := range []struct {
		slots []int
		err   string
	}{
		{nil, "no slots"},
		{[]int{4}, "slot 4 of a buffer of 4 slots"},
		{[]int{0, -1}, "slot -1 of a buffer"},
		{[]int{2, 1, 2}, "slot 2 is to be revoked twice"},
	} {
		_, err := b.Revoke(tt.slots, 1)
		testkit.WantError(t, err, tt.err)
	}
	if n := b.Regions(); n != 1 {
		t.Errorf("%d regions after refusals", n)
	}
}

// The number of regions is bounded, a refusal changes nothing, and old regions
// are used again once their writers have ended.
func TestRevokeUpToTheLastRegion(t *testing.T) {
	needFiles(t, MaxRegions+100)
	b := newBuffer(t, 2, 100)
	for i := 1; i < MaxRegions; i++ {
		if got := testkit.Must[int](t)(b.Revoke([]int{1}, 7)); got != i {
			t.Fatalf("revocation %d went to region %d", i, got)
		}
	}
	copy(b.Slot(1), "kept")
	_, err := b.Revoke([]int{1}, 7)
	testkit.WantError(t, err, "1024 regions", "no more are possible")
	if got := string(b.Slot(1)[:4]); got != "kept" {
		t.Errorf("the slot has %q after a refused revocation", got)
	}
	if got := testkit.Must[int](t)(b.Revoke([]int{0}, 7)); got != 1 {
		t.Errorf("the other slot went to region %d, where 1 was free", got)
	}
	b.Settle(8)
	if got := testkit.Must[int](t)(b.Revoke([]int{1}, 9)); got != 0 {
		t.Errorf("with all writers gone the slot went to region %d, not 0", got)
	}
}

// A revocation that fails half-way changes nothing.
func TestRevokeFails(t *testing.T) {
	b := newBuffer(t, 3, 4096)
	fd := testkit.Must[int](t)(memfd(4096)) // holds slot 0; behind it is nothing to populate
	view := testkit.Must[[]byte](t)(unix.Mmap(fd, 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	p := b.now.Load()
	b.now.Store(&placement{append(p.regions, region{fd, view}), p.where})
	for s := range 3 {
		copy(b.Slot(s), fmt.Sprint("slot ", s))
	}
	_, err := b.Revoke([]int{0, 2}, 1)
	testkit.WantError(t, err, "prefault 4096 bytes")
	for s := range 3 {
		if got, want := string(b.Slot(s)[:6]), fmt.Sprint("slot ", s); got != want {
			t.Errorf("%q lies in slot %d", got, s)
		}
	}
	if len(b.stale) != 0 || used(t, b, 0) != b.layout.Length() {
		t.Error("the old memory counts as taken away")
	}
	if n := used(t, b, 1); n != 0 {
		t.Errorf("%d bytes of the new memory are kept", n)
	}
}

// Where the kernel cannot populate, touching does; neither changes a byte.
func TestPrefault(t *testing.T) {
	const size = 10<<20 + 4096
	for name, fault := range map[string]func([]byte){
		"populate": func(b []byte) {
			if err := Prefault(b); err != nil {
				t.Fatal(err)
			}
		},
		"touch": touch,
	} {
		fd := testkit.Must[int](t)(memfd(size))
		b := testkit.Must[[]byte](t)(unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
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

// BenchmarkRevoke takes one MiB away from a writer that has ended.
func BenchmarkRevoke(b *testing.B) {
	buf, err := New(8, 1<<20)
	if err != nil {
		b.Fatal(err)
	}
	defer buf.Close()
	for b.Loop() {
		if _, err := buf.Revoke([]int{3}, 1); err != nil {
			b.Fatal(err)
		}
		buf.Settle(2)
	}
}
