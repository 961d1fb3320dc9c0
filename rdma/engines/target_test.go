package engines

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

func TestOpenRefuses(t *testing.T) {
	leavesNothing(t)
	withFake(t, errors.New("no such provider"))
	for _, tt := range []struct {
		slots int
		names []string
		err   string
	}{
		{1, nil, "no engine to offer"},
		{1, []string{"shm", "fake", "shm"}, `engine "shm" is offered twice`},
		{0, []string{"shm"}, "buffer of 0 slots"},
		{1, []string{"shm", "fake"}, "engine fake: no such provider"},
	} {
		_, err := Open(Config{ReceiverID: t.Name(), Slots: tt.slots, SlotSize: 1, Engines: tt.names})
		testkit.WantError(t, err, tt.err)
	}
	open(t, 1, 1, "shm") // nothing of the refused ones is left in its way
	_, err := Open(Config{ReceiverID: t.Name(), Slots: 1, SlotSize: 1, Engines: []string{"shm"}})
	testkit.WantError(t, err, fmt.Sprintf("a receiver with the id %q runs on this host already", t.Name()))
}

// What each engine's initiators are told, and that a writer has one engine.
func TestEnginesAreApart(t *testing.T) {
	withFake(t, nil)
	target := open(t, 2, 100, "fake", "shm")
	if got := target.Engines(); !slices.Equal(got, []string{"fake", "shm"}) {
		t.Errorf("engines are %q", got)
	}
	testkit.Must[int](t)(target.Revoke([]int{1}))
	for engine, desc := range map[string]string{"fake": "fake region", "shm": ""} {
		regions := target.Regions(engine)
		if len(regions) != 2 || regions[1].ID != 1 || string(regions[0].Desc) != desc || regions[1].Desc != nil {
			t.Errorf("regions of %s are %v", engine, regions)
		}
	}
	if got := target.Regions("ucx"); got != nil {
		t.Errorf("an engine not offered has regions %v", got)
	}
	token := testkit.Must[[]byte](t)(target.Grant(1, "fake"))
	if again := testkit.Must[[]byte](t)(target.Grant(1, "fake")); string(token) != "writer 1" || string(again) != "writer 1" {
		t.Errorf("tokens %q and %q", token, again)
	}
	_, err := target.Grant(1, "shm")
	testkit.WantError(t, err, "writer 1 has a grant under fake already")
	_, err = target.Grant(2, "ucx")
	testkit.WantError(t, err, `engine "ucx" is not offered`)
}

// Local decoders read whatever engine the writers have.
func TestReadersOfAnotherEngine(t *testing.T) {
	withFake(t, nil)
	target := open(t, 1, 100, "fake")
	_, err := target.Grant(1, "shm")
	testkit.WantError(t, err, `engine "shm" is not offered`)
	copy(target.Slot(0), "landed")
	at := rdma.Attachment{
		ReceiverID: t.Name(), Token: testkit.Must[[]byte](t)(target.GrantRead()), Regions: target.Regions("fake"), SlotSize: 100, Slots: 1,
	}
	reader := testkit.Must[*shm.Reader](t)(shm.OpenReader(t.Context(), at))
	defer reader.Close()
	if got := string(testkit.Must[[]byte](t)(reader.Slot(0, 0))[:6]); got != "landed" {
		t.Errorf("the reader sees %q", got)
	}
}

// A place is used again when the writers of all engines that were granted access
// before are gone, connected or withdrawn, whoever the slots were taken from.
// What late writers left there is given back.
func TestRevokedPlacesAreUsedAgain(t *testing.T) {
	const size = 1 << 20
	fake := withFake(t, nil)
	target := open(t, 2, size, "shm", "fake")
	first := attach(t, target, 1)
	testkit.Must[[]byte](t)(target.Grant(2, "fake"))
	fake.connect(2)
	testkit.Must[[]byte](t)(target.Grant(3, "shm"))  // never connects
	testkit.Must[[]byte](t)(target.Grant(4, "fake")) // nor does this one
	revoke := func(want int) {
		t.Helper()
		if got := testkit.Must[int](t)(target.Revoke([]int{0})); got != want {
			t.Fatalf("slot 0 moved to region %d, want %d", got, want)
		}
	}
	revoke(1)
	revoke(2)
	late := bytes.Repeat([]byte{1}, size)
	if err := first.Write(t.Context(), []rdma.Op{{Local: late}}); err != nil {
		t.Fatal(err)
	}
	if n := used(t, target, 0); n != 2*size {
		t.Fatalf("region 0 takes %d bytes after a late write", n)
	}
	fake.disconnect(2)
	wantGone(t, target, 2)
	revoke(3)
	first.Close()
	wantGone(t, target, 1)
	revoke(4)
	target.Withdraw(3)
	revoke(5)
	target.Withdraw(4)
	testkit.Eventually(t, patience, "the late write's memory is given back", func() bool { return used(t, target, 0) == size })
	testkit.Must[[]byte](t)(target.Grant(5, "fake"))
	revoke(0)
	if !bytes.Equal(target.Slot(0), make([]byte, size)) {
		t.Error("the slot is not zero in memory used again")
	}
	revoke(1)
}

// A slot is open to one writer, of whatever engine, and to none once it is shut
// or revoked.
func TestOpenShutsToTheOneBefore(t *testing.T) {
	fake := withFake(t, nil)
	target := open(t, 3, 100, "shm", "fake")
	attach(t, target, 1)
	for _, w := range []rdma.Writer{2, 3} {
		testkit.Must[[]byte](t)(target.Grant(w, "fake"))
		fake.connect(w)
	}
	wantOpen := func(slot int, want rdma.Writer) {
		t.Helper()
		if w, open := fake.openTo(slot); w != want || open != (want != 0) {
			t.Errorf("slot %d is open to writer %d: %v; want writer %d", slot, w, open, want)
		}
	}
	for slot := range 3 {
		if access := testkit.Must[[]byte](t)(target.Open(2, slot)); string(access) != fmt.Sprintf("writer 2 slot %d", slot) {
			t.Errorf("access %q", access)
		}
	}
	testkit.Must[[]byte](t)(target.Open(3, 1))
	wantOpen(1, 3)
	if access := testkit.Must[[]byte](t)(target.Open(1, 1)); access != nil {
		t.Errorf("shm needs access %q", access)
	}
	wantOpen(1, 0)
	target.Shut(0)
	wantOpen(0, 0)
	wantOpen(2, 2)
	testkit.Must[int](t)(target.Revoke([]int{2}))
	wantOpen(2, 0)

	testkit.Must[[]byte](t)(target.Grant(4, "fake"))
	_, err := target.Open(4, 0)
	testkit.WantError(t, err, "open slot 0 to writer 4: not connected")
	fake.disconnect(2)
	_, err = target.Open(2, 0)
	testkit.WantError(t, err, "open slot 0 to writer 2: "+rdma.ErrGone.Error())
}

func TestWithdraw(t *testing.T) {
	fake := withFake(t, nil)
	target := open(t, 1, 100, "shm", "fake")
	r := attach(t, target, 1)
	testkit.Must[[]byte](t)(target.Grant(2, "fake"))
	fake.connect(2)
	testkit.Must[[]byte](t)(target.Grant(3, "shm"))
	testkit.Must[[]byte](t)(target.Grant(4, "fake"))
	for w, want := range map[rdma.Writer]bool{1: true, 2: true, 3: false, 4: false, 99: false} {
		if got := target.Withdraw(w); got != want {
			t.Errorf("writer %d counts as connected: %v", w, got)
		}
	}
	r.Close()
	wantGone(t, target, 1)
	fake.disconnect(2)
	wantGone(t, target, 2)
	for w := range rdma.Writer(5) {
		if target.Withdraw(w) {
			t.Errorf("writer %d is gone and counts as connected", w)
		}
	}
}

// Ends are told once each, however late somebody asks, and the target goes on.
func TestGoneIsNeverLost(t *testing.T) {
	const writers = 100
	fake := withFake(t, nil)
	target := open(t, 1, 100, "shm", "fake")
	for w := range rdma.Writer(writers) {
		if w%2 == 0 {
			attach(t, target, w).Close()
			continue
		}
		testkit.Must[[]byte](t)(target.Grant(w, "fake"))
		fake.connect(w)
		fake.disconnect(w)
	}
	var told [writers]int
	for range writers {
		told[<-target.Gone()]++
	}
	for w, n := range told {
		if n != 1 {
			t.Errorf("the end of writer %d was told %d times", w, n)
		}
	}
	target.Close()
	if _, open := <-target.Gone(); open {
		t.Error("Gone is open after Close")
	}
}

func TestUseAfterClose(t *testing.T) {
	fake := withFake(t, nil)
	target := open(t, 1, 100, "shm", "fake")
	testkit.Must[[]byte](t)(target.Grant(1, "fake"))
	fake.connect(1) // and is told gone by Close, which nobody reads
	testkit.Must[[]byte](t)(target.Grant(2, "fake"))
	target.Close()
	_, err := target.Grant(3, "shm")
	testkit.WantError(t, err, "closed")
	_, err = target.GrantRead()
	testkit.WantError(t, err, "closed")
	_, err = target.Revoke([]int{0})
	testkit.WantError(t, err, "closed")
	if target.Withdraw(2) {
		t.Error("a writer that never connected counts as connected")
	}
}
