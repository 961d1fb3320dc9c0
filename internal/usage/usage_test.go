package usage

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOf(t *testing.T) {
	const size = 32 << 20
	before, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	own := make([]byte, size)
	for i := range own {
		own[i] = 1
	}
	shared, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(shared)
	for i := range shared {
		shared[i] = 1
	}
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
	}
	after, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(own)
	for _, g := range []struct {
		name  string
		grown int64
	}{{"own", after.Own() - before.Own()}, {"shared", after.Shared - before.Shared}, {"resident", (after.Resident() - before.Resident()) / 2}} {
		if g.grown < size*3/4 || g.grown > size*4 { // the race detector takes as much again, and more
			t.Errorf("%s: %d bytes more, want about %d", g.name, g.grown, size)
		}
	}
	if took := after.CPU - before.CPU; took < 20*time.Millisecond || took > 10*time.Second {
		t.Errorf("it took %v of a processor", took)
	}
	if after.Threads < 1 {
		t.Error("no threads")
	}
}

func TestOfNobody(t *testing.T) {
	if u, err := Of(1 << 30); err == nil {
		t.Errorf("%+v", u)
	}
}
