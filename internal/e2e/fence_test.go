package e2e

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Fence: a sender is stopped in the middle of a write, its slots are given to
// another request, and it goes on. Whatever the way, nobody's bytes change but
// its own. hostile_test.go has the writers that mean harm.

// eachEngine runs a test under each write engine.
func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	t.Helper()
	t.Parallel()
	for _, engine := range []string{"shm", "ofi"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// stage is a receiver of whole chunks, two or more, and two senders.
type stage struct {
	t           *testing.T
	r           *receiver
	mem         []byte // of the receiver's first region
	late, other *fed
	src         *source
}

func setStage(t *testing.T, engine string, flags ...string) *stage {
	t.Helper()
	return setStageOf(t, 2, engine, flags...)
}

func setStageOf(t *testing.T, slots int, engine string, flags ...string) *stage {
	t.Helper()
	r := receiveChunks(t, slots, wholeChunk, append([]string{"--engine", engine}, flags...)...)
	return &stage{t, r, spy(t, r, slots*wholeChunk), send(t, r, "--engine", engine), send(t, r, "--engine", engine), newSource(t)}
}

// Chunks that no attempt to stop a write uses.
const (
	others     = tries - 2
	othersToo  = tries - 1
	afterwards = tries - 3
)

// takes reads a ready request of these chunks and compares it byte for byte.
func (s *stage) takes(reqID string, numbers ...int) {
	s.t.Helper()
	got := s.r.take(reqID)
	for _, i := range numbers {
		chunk := got[:min(len(got), wholeChunk)]
		if chunk != string(s.src.image(i)) {
			s.t.Errorf("the bytes of %s are not its own", reqID)
		}
		got = got[len(chunk):]
	}
}

// goesOn has the late sender send another request, whole.
func (s *stage) goesOn() {
	s.t.Helper()
	s.late.write(s.src.line("C", 1, true, afterwards))
	s.late.result("C", "ready")
	s.takes("C", afterwards)
}

// Its lease expires: the receiver gives it up.
func TestLateWriter(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		s := setStage(t, engine, "--lease", "3s", "--admit-timeout", "10m")
		half := stopInWrite(t, s.late, s.src, s.mem)
		s.other.write(s.src.batch("B", others, othersToo)) // both slots
		s.r.happens("expired", half.reqID)
		s.other.result("B", "ready")
		s.late.kill(syscall.SIGCONT)
		if l := s.late.result(half.reqID, "failed"); !strings.Contains(l.str("error"), "lease") {
			t.Errorf("the late sender says %v", l)
		}
		s.takesAtTheEnd(half)
	})
}

// takesAtTheEnd ends the late sender, which then has written all that it ever
// writes, and reads what the other has sent.
func (s *stage) takesAtTheEnd(half *halfWritten) {
	s.t.Helper()
	s.late.stdin.Close()
	s.late.exits()
	s.takes("B", others, othersToo)
	s.other.ends(0)
	s.r.empty()
	if n := len(s.late.lines("req_id", half.reqID)); n != 1 {
		s.t.Errorf("of %s there are %d lines", half.reqID, n)
	}
}

// It is told to cancel while it stands: it does when its write is over, and not
// before does the receiver give the slots away.
func TestCancelOfAStoppedWriter(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		s := setStage(t, engine, "--lease", "1h", "--admit-timeout", "10m")
		half := stopInWrite(t, s.late, s.src, s.mem)
		s.other.write(s.src.batch("B", others, othersToo))
		s.r.happens("queued", "B")
		s.late.write(cancelLine(half.reqID))
		if s.r.happened("admitted", "B") > 0 || s.r.stat().Slots.Free > 0 {
			t.Errorf("the slot of %s is given away while it may be written", half.reqID)
		}
		s.late.kill(syscall.SIGCONT)
		s.late.result(half.reqID, "cancelled")
		s.other.result("B", "ready")
		s.r.inOrder("queued B", "cancelled "+half.reqID, "admitted B")
		s.takes("B", others, othersToo)
		s.goesOn()
		s.takesNothingMore()
	})
}

// takesNothingMore ends both senders, to which nothing has happened.
func (s *stage) takesNothingMore() {
	s.t.Helper()
	s.r.empty()
	s.late.stdin.Close()
	s.other.stdin.Close()
	s.late.exits()
	s.other.exits()
	s.r.empty()
	if c := s.r.stat().Counters; c["expired"] > 0 {
		s.t.Errorf("counters: %v", c)
	}
}

// The same, and its lease expires meanwhile.
func TestCancelOfALateWriter(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		s := setStage(t, engine, "--lease", "3s", "--admit-timeout", "10m")
		half := stopInWrite(t, s.late, s.src, s.mem)
		s.late.write(cancelLine(half.reqID))
		s.other.write(s.src.batch("B", others, othersToo)) // both slots
		s.r.happens("expired", half.reqID)
		s.other.result("B", "ready")
		s.late.kill(syscall.SIGCONT)
		if l := s.late.event("req_id", half.reqID); l.str("status") == "ready" { // cancelled, or failed with its session
			t.Errorf("the late sender says %v", l)
		}
		s.takesAtTheEnd(half)
	})
}

// It is cancelled through ofi, where it is the receiver's side of the write that stands,
// and the sender does all it can: it says that the request is cancelled, and does
// not tell the receiver so before the write is over. (TestLMCacheFailures has this
// for shm.)
func TestCancelWaitsForTheWrite(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("NOT RUN: the endpoint's thread is found by the number of a system call of amd64")
	}
	t.Parallel()
	s := setStage(t, "ofi", "--lease", "1h", "--admit-timeout", "10m")
	half := stopInWrite(t, s.late, s.src, s.mem)
	// The endpoint's thread is the one in poll(_, 2, 100): see rest in rdma/ofi.
	release := holdThread(t, sleeper(t, s.r.program, "7", "0x2 0x64"))
	s.other.write(s.src.batch("B", others, othersToo))
	s.r.happens("queued", "B")
	s.late.write(cancelLine(half.reqID), s.src.line("C", 1, true, afterwards)) // it asks for C after it has read the cancel
	s.late.kill(syscall.SIGCONT)
	s.late.result(half.reqID, "cancelled")
	s.r.happens("queued", "C")
	if half.image.ended(half.slot) {
		t.Skip("NOT RUN: the write was over before the cancel")
	}
	if s.r.happened("cancelled", half.reqID)+s.r.happened("admitted", "B") > 0 {
		t.Errorf("the slot of %s is given away while it is written", half.reqID)
	}
	release()
	s.other.result("B", "ready")
	s.r.inOrder("queued B", "queued C", "cancelled "+half.reqID, "admitted B")
	s.takes("B", others, othersToo)
	s.late.result("C", "ready")
	s.takes("C", afterwards)
	s.takesNothingMore()
}

// Its request is rolled back while the sender stays attached: its second batch
// has waited too long for a slot, as happens in mode none. The sender's other
// request goes on.
func TestRolledBackWriter(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		const wait = 6 * time.Second
		s := setStageOf(t, 3, engine, "--lease", "1h", "--admission", "none", "--admit-timeout", wait.String())
		s.other.write(s.src.batch("H", afterwards)) // has one of the slots
		s.late.write(s.src.batch("I", afterwards))  // and this another
		s.r.settles("the first chunks are written", func(s snapshot) bool { return s.Slots.Written == 2 })
		half := stopInWriteOf(t, s.late, s.src, s.mem, func(reqID string, i int) string {
			return s.src.batch(reqID, i) + s.src.batch(reqID, others)
		})
		s.r.happens("timed_out", half.reqID)
		s.other.write(s.src.line("B", 1, true, othersToo))
		s.other.result("B", "ready")
		if n := len(memoryFiles(s.r.program)); n != 2 {
			t.Errorf("the receiver has %d regions: were the slots of %s revoked?", n, half.reqID)
		}
		s.late.kill(syscall.SIGCONT)
		if l := s.late.result(half.reqID, "failed"); l.str("code") != "admission_timeout" {
			t.Errorf("the late sender says %v", l)
		}
		eventually(t, "the late write to end in the old memory", func() bool { return half.image.ended(half.slot) })
		s.takes("B", othersToo)
		s.late.write(s.src.line("I", 2, true, others))
		s.late.result("I", "ready")
		s.takes("I", afterwards, others)
		s.other.write(cancelLine("H"))
		s.other.result("H", "cancelled")
		s.takesNothingMore()
	})
}
