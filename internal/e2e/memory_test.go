package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := syscall.Mmap(int(f.Fd()), 0, length, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
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

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{file: filepath.Join(t.TempDir(), "source"), data: make([]byte, wholeChunk+tries*shift)}
	manifest.Pattern(s.data, "source")
	if err := os.WriteFile(s.file, s.data, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// batch is a manifest line with these chunks of a request of two.
func (s *source) batch(reqID string, numbers ...int) string {
	var chunks []string
	for _, i := range numbers {
		chunks = append(chunks, fmt.Sprintf(`{"key":"%s-%d","file":%q,"offset":%d,"length":%d}`, reqID, i, s.file, i*shift, wholeChunk))
	}
	return fmt.Sprintf(`{"req_id":%q,"total_chunks":2,"chunks":[%s],"last":%v}`+"\n", reqID, strings.Join(chunks, ","), len(numbers) == 2)
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
	for i := range tries {
		w := &halfWritten{reqID: fmt.Sprintf("A%d", i), image: src.image(i)}
		s.write(src.batch(w.reqID, i))
		for began := time.Now(); w.slot == nil; w.slot = w.image.begun(mem) {
			if time.Since(began) > patience {
				t.Fatalf("waited %v for %s to be written; stderr:\n%s", patience, w.reqID, s.stderr())
			}
			runtime.Gosched()
		}
		s.kill(syscall.SIGSTOP)
		eventually(t, "the sender to stop", func() bool { return stopped(s.program) })
		if !w.image.ended(w.slot) {
			t.Logf("stopped in write %d", i)
			return w
		}
		s.kill(syscall.SIGCONT)
		s.write(cancelLine(w.reqID))
		s.result(w.reqID, "cancelled")
	}
	t.Skipf("NOT RUN: in %d writes the sender was never stopped in the middle of one", tries)
	return nil
}

// holdBusyThreads has those threads of a stopped program that were not waiting
// for anything stay where they are when the others go on. What it returns lets
// them go. The test is skipped where that cannot be done.
func holdBusyThreads(t *testing.T, p *program) (release func()) {
	t.Helper()
	held, done := make(chan error), make(chan struct{})
	var once sync.Once
	release = func() { once.Do(func() { close(done); <-held }) }
	go func() {
		defer close(held)
		runtime.LockOSThread() // the tracer is a thread
		defer runtime.UnlockOSThread()
		threads, err := seizeBusy(p.cmd.Process.Pid)
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

func seizeBusy(pid int) (threads []int, err error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		syscall, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, tid))
		if !bytes.HasPrefix(syscall, []byte("-1 ")) {
			continue
		}
		if err := unix.PtraceSeize(tid); err != nil {
			return threads, err
		}
		threads = append(threads, tid)
		if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil {
			return threads, err
		}
	}
	return threads, err
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
