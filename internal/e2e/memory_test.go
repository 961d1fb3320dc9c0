package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

// wholeChunk is a chunk large enough for its write to be interrupted.
const wholeChunk = 64 << 20

// tries is how often a test attempts to stop a write half-way.
const tries = 50

// receiveWhole starts a receiver with room for one such request, and maps its
// buffer.
func receiveWhole(t *testing.T, flags ...string) (*receiver, []byte) {
	t.Helper()
	r := receiveChunks(t, 2, wholeChunk, flags...)
	return r, spy(t, r, 2*wholeChunk)
}

// spy maps the first region of a receiver's buffer, which no program shows
// before a request is ready.
func spy(t *testing.T, r *receiver, length int) []byte {
	t.Helper()
	files := memoryFiles(r.program)
	if len(files) != 1 {
		t.Fatalf("the receiver has memory files %q, want one", files)
	}
	_, mem := spyOn(t, files[0], length)
	return mem
}

// spyOn maps a region of a receiver's buffer; inode says which it is.
func spyOn(t *testing.T, file string, length int) (inode uint64, mem []byte) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	mem, err = syscall.Mmap(int(f.Fd()), 0, length, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return stat.Ino, mem
}

// memoryFiles are the memfds that a program has open.
func memoryFiles(p *program) (files []string) {
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	for _, fd := range open {
		if name, err := os.Readlink(fd); err == nil && strings.HasPrefix(name, "/memfd:") {
			files = append(files, fd)
		}
	}
	return files
}

// source is a file of which requests send one whole chunk each, another for
// each attempt.
type source struct {
	file string
	data []byte
}

// shift is how far apart the chunks lie in the file; they overlap, and yet no
// two are alike.
const shift = 4096

// theSource is the one that all tests read.
var theSource = sync.OnceValues(func() (*source, error) {
	s := &source{file: filepath.Join(bin, "source"), data: make([]byte, wholeChunk+tries*shift)}
	manifest.Pattern(s.data, "source")
	return s, os.WriteFile(s.file, s.data, 0o600)
})

func newSource(t *testing.T) *source {
	t.Helper()
	s, err := theSource()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// batch is a manifest line with these chunks of a request of two.
func (s *source) batch(reqID string, numbers ...int) string {
	return s.line(reqID, 2, len(numbers) == 2, numbers...)
}

// line is a manifest line with these chunks of a request of total.
func (s *source) line(reqID string, total int, last bool, numbers ...int) string {
	var chunks []string
	for _, i := range numbers {
		chunks = append(chunks, fmt.Sprintf(`{"key":"%s-%d","file":%q,"offset":%d,"length":%d}`, reqID, i, s.file, i*shift, wholeChunk))
	}
	return fmt.Sprintf(`{"req_id":%q,"total_chunks":%d,"chunks":[%s],"last":%v}`+"\n", reqID, total, strings.Join(chunks, ","), last)
}

// image is what chunk number i looks like.
func (s *source) image(i int) image { return s.data[i*shift:][:wholeChunk] }

// image is what a whole chunk looks like.
type image []byte

// edge is how many bytes at either end of a chunk tell what it is.
const edge = 64

// begun is the slot in which the chunk's write has begun, or nil.
func (c image) begun(mem []byte) []byte {
	for slot := mem; len(slot) > 0; slot = slot[wholeChunk:] {
		if bytes.Equal(slot[:edge], c[:edge]) {
			return slot[:wholeChunk]
		}
	}
	return nil
}

func (c image) ended(slot []byte) bool {
	return bytes.Equal(slot[wholeChunk-edge:], c[wholeChunk-edge:])
}

// landed is how much of a chunk whose write has begun is there, bytes: its
// bytes come in order.
func (c image) landed(slot []byte) int {
	return shift * sort.Search(wholeChunk/shift, func(i int) bool {
		return !bytes.Equal(slot[i*shift:][:edge], c[i*shift:][:edge])
	})
}

// halfWritten is a write that is stopped on its way.
type halfWritten struct {
	reqID string
	image image
	slot  []byte // in the receiver's first region
}

// stopInWrite feeds s the first batch of a request until it is stopped while
// the chunk, as it is to be, lies in a slot in part.
func stopInWrite(t *testing.T, s *fed, src *source, mem []byte) *halfWritten {
	t.Helper()
	return stopInWriteOf(t, s, src, mem, func(reqID string, i int) string { return src.batch(reqID, i) })
}

// stopInWriteOf is stopInWrite for a request whose lines are made for each
// attempt; the first has chunk i, and is what is written.
func stopInWriteOf(t *testing.T, s *fed, src *source, mem []byte, lines func(reqID string, i int) string) *halfWritten {
	t.Helper()
	for i := range tries {
		w := &halfWritten{reqID: fmt.Sprintf("A%d", i), image: src.image(i)}
		s.write(lines(w.reqID, i))
		w.begins(t, s, mem)
		s.kill(syscall.SIGSTOP)
		eventually(t, "the sender to stop", func() bool { return stopped(s.program) })
		w.rests(t)
		if !w.image.ended(w.slot) {
			t.Logf("stopped in write %d with %d of %d bytes landed", i, w.image.landed(w.slot), wholeChunk)
			return w
		}
		s.kill(syscall.SIGCONT)
		s.write(cancelLine(w.reqID))
		s.event("req_id", w.reqID)
	}
	t.Skipf("NOT RUN: in %d writes the sender was never stopped in the middle of one", tries)
	return nil
}

// begins waits until a part of the chunk has landed.
func (w *halfWritten) begins(t *testing.T, s *fed, mem []byte) {
	t.Helper()
	for began := time.Now(); w.slot == nil; w.slot = w.image.begun(mem) {
		if time.Since(began) > patience || len(s.lines("req_id", w.reqID)) > 0 {
			t.Fatalf("waited %v for %s to be written; stderr:\n%s", time.Since(began), w.reqID, s.stderr())
		}
		time.Sleep(100 * time.Microsecond) // who sleeps gets the processor sooner than who spins
	}
}

// rests waits until nothing lands any more of what a stopped sender's sockets
// had taken: nothing has for a while.
func (w *halfWritten) rests(t *testing.T) {
	t.Helper()
	const while = 50 * time.Millisecond
	landed, since := w.image.landed(w.slot), time.Now()
	eventually(t, "the bytes on their way to land", func() bool {
		if now := w.image.landed(w.slot); now != landed {
			landed, since = now, time.Now()
		}
		return time.Since(since) > while
	})
}

// holdBusyThreads has those threads of a stopped program that were not waiting
// for anything stay where they are when the others go on. What it returns lets
// them go. The test is skipped where that cannot be done.
func holdBusyThreads(t *testing.T, p *program) (release func()) {
	t.Helper()
	return hold(t, func() (held []int, err error) {
		for _, tid := range threads(p) {
			syscall, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", p.cmd.Process.Pid, tid))
			if !bytes.HasPrefix(syscall, []byte("-1 ")) {
				continue
			}
			if err := unix.PtraceSeize(tid); err != nil {
				return held, err
			}
			held = append(held, tid)
			if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil {
				return held, err
			}
		}
		return held, nil
	})
}

// holdThread has one thread of a running program stop. What it returns lets it go.
func holdThread(t *testing.T, tid int) (release func()) {
	t.Helper()
	return hold(t, func() (held []int, err error) {
		if err := unix.PtraceSeize(tid); err != nil {
			return nil, err
		}
		if err := unix.PtraceInterrupt(tid); err != nil {
			return []int{tid}, err
		}
		_, err = unix.Wait4(tid, nil, unix.WALL, nil)
		return []int{tid}, err
	})
}

// hold keeps the threads that seize has stopped as their tracer.
func hold(t *testing.T, seize func() ([]int, error)) (release func()) {
	t.Helper()
	held, done := make(chan error), make(chan struct{})
	var once sync.Once
	release = func() { once.Do(func() { close(done); <-held }) }
	go func() {
		defer close(held)
		runtime.LockOSThread() // the tracer is a thread
		defer runtime.UnlockOSThread()
		threads, err := seize()
		held <- err
		<-done
		for _, tid := range threads {
			_ = unix.PtraceDetach(tid) // it may have been killed
		}
	}()
	if err := <-held; err != nil {
		release()
		t.Skipf("NOT RUN: threads of a child cannot be held: %v", err)
	}
	t.Cleanup(release)
	return release
}

func threads(p *program) (tids []int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		tids = append(tids, tid)
	}
	return tids
}

// sleeper is the thread of a program that sleeps in this call, as
// /proc/PID/task/TID/syscall has it without the first argument, again and again.
func sleeper(t *testing.T, p *program, call, args string) (tid int) {
	t.Helper()
	seen := 0
	eventually(t, "one thread to sleep in "+call, func() bool {
		var asleep []int
		for _, tid := range threads(p) {
			syscall, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", p.cmd.Process.Pid, tid))
			if f := strings.Fields(string(syscall)); len(f) > 4 && f[0] == call && f[2]+" "+f[3] == args {
				asleep = append(asleep, tid)
			}
		}
		if len(asleep) != 1 || asleep[0] != tid {
			seen = 0
		}
		if len(asleep) == 1 {
			tid = asleep[0]
			seen++
		}
		return seen == 20
	})
	return tid
}

// stopped says whether every thread of a program has stopped.
func stopped(p *program) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, task := range tasks {
		stat, _ := os.ReadFile(task)
		if _, rest, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return len(tasks) > 0
}
