package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// Fifty senders are killed in the middle of a write, one after the other: what
// each had is free, nothing of them piles up in the receiver, and the next is
// served whole.
func TestKilledWriters(t *testing.T) {
	t.Parallel()
	const (
		deaths = tries // each has a chunk of its own
		first  = 10    // after so many the receiver is as large as it gets
		ahead  = 3     // senders that start while others die
		slots  = 2 * ahead
		few    = 8 // files or threads that the receiver needs from its first sender on
	)
	// One arena: how many of them malloc makes, and when, is no measure of what
	// is in use.
	r := receiveWith(t, with{env: []string{"MALLOC_ARENA_MAX=1"}}, slots, wholeChunk, "--engine", "ofi")
	mem, src := spy(t, r, slots*wholeChunk), newSource(t)
	id := func(i int) string { return fmt.Sprint("A", i) }
	// Each asks for a small chunk first: when it is admitted it is attached.
	begin := func(i int) *fed {
		s := send(t, r, "--engine", "ofi")
		s.write(batchOf(id(i), 2, false, []string{"small"}))
		return s
	}
	halves := 0
	die := func(s *fed, i int) {
		r.happens("admitted", id(i))
		w := &halfWritten{reqID: id(i), image: src.image(i)}
		s.write(src.line(w.reqID, 2, false, i))
		w.begins(t, s, mem)
		s.kill(syscall.SIGKILL)
		if code := s.exits(); code != -int(syscall.SIGKILL) {
			t.Errorf("sender %d ends with %d", i, code)
		}
		if l := r.happens("expired", id(i)); !strings.Contains(l.str("reason"), "connection closed") {
			t.Errorf("%v", l)
		}
		// Nothing lands any more, and nobody else has the slot.
		if landed := w.image.landed(w.slot); landed > 0 && landed < wholeChunk {
			halves++
		}
	}
	round := func(from, to int) {
		var line []*fed
		for i := from; i < to; i++ {
			for from+len(line) < min(i+ahead, to) {
				line = append(line, begin(from+len(line)))
			}
			die(line[i-from], i)
		}
		r.empty()
	}
	idle := takes(t, r)
	round(0, first)
	eventually(t, "the receiver to close what the dead senders had", func() bool { return takes(t, r).files <= idle.files+few })
	before := takes(t, r)
	round(first, deaths)
	eventually(t, "the receiver to close what the dead senders had", func() bool { return takes(t, r).files <= before.files })
	after := takes(t, r)
	t.Logf("%d of %d died in the middle of a write; the receiver after %d: %+v, after %d: %+v", halves, deaths, first, before, deaths, after)
	if halves < deaths*3/4 {
		t.Errorf("%d of %d died in the middle of a write", halves, deaths)
	}
	if after.threads > before.threads+few || after.memory > before.memory+(32<<20) {
		t.Errorf("the receiver grew from %+v to %+v", before, after)
	}
	s := send(t, r, "--engine", "ofi")
	s.write(src.batch("last", 0, deaths-1))
	s.result("last", "ready")
	if r.take("last") != string(src.image(0))+string(src.image(deaths-1)) {
		t.Error("the bytes of the sender after them are not its own")
	}
	s.ends(0)
	r.empty()
}

// used is what a program uses.
type used struct {
	files, threads int
	memory         int // bytes of its own, without the buffer
}

func takes(t *testing.T, r *receiver) used {
	t.Helper()
	u := r.uses()
	return used{len(openFiles(r.program)), u.Threads, int(u.Anon)}
}
