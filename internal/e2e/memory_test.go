package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

// wholeChunk is a chunk large enough for its write to be interrupted.
const wholeChunk = 64 << 20

// wholeBatch is a request of two chunks, such a one and a small one, or the
// first batch of it without the small one.
func wholeBatch(reqID string, all bool) string {
	chunks := fmt.Sprintf(`{"key":%q,"length":%d}`, reqID, wholeChunk)
	if all {
		chunks += fmt.Sprintf(`,{"key":"%s-small","length":%d}`, reqID, chunkSize)
	}
	return fmt.Sprintf(`{"req_id":%q,"total_chunks":2,"chunks":[%s],"last":%v}`+"\n", reqID, chunks, all)
}

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

// chunkImage is what a whole chunk looks like.
type chunkImage []byte

func imageOf(key string) chunkImage {
	b := make([]byte, wholeChunk)
	manifest.Pattern(b, key)
	return b
}

// edge is how many bytes at either end of a chunk tell what it is.
const edge = 64

// begun is the slot in which the chunk's write has begun, or nil.
func (c chunkImage) begun(mem []byte) []byte {
	for slot := mem; len(slot) > 0; slot = slot[wholeChunk:] {
		if bytes.Equal(slot[:edge], c[:edge]) {
			return slot[:wholeChunk]
		}
	}
	return nil
}

func (c chunkImage) ended(slot []byte) bool {
	return bytes.Equal(slot[wholeChunk-edge:], c[wholeChunk-edge:])
}

// stopInWrite feeds s the first batch of a request until it is stopped while
// the chunk, as it is to be, lies in a slot in part.
func stopInWrite(t *testing.T, s *fed, mem []byte) (reqID string, image chunkImage, slot []byte) {
	t.Helper()
	const tries = 50
	for i := range tries {
		reqID = fmt.Sprintf("A%d", i)
		image = imageOf(reqID)
		s.write(wholeBatch(reqID, false))
		for began := time.Now(); slot == nil; slot = image.begun(mem) {
			if time.Since(began) > patience {
				t.Fatalf("waited %v for %s to be written; stderr:\n%s", patience, reqID, s.stderr())
			}
			runtime.Gosched()
		}
		s.kill(syscall.SIGSTOP)
		eventually(t, "the sender to stop", func() bool { return state(s.program) == "T" })
		if !image.ended(slot) {
			return reqID, image, slot
		}
		s.kill(syscall.SIGCONT)
		s.write(cancelLine(reqID))
		s.result(reqID, "cancelled")
		slot = nil
	}
	t.Skipf("NOT RUN: in %d writes the sender was never stopped in the middle of one", tries)
	return
}

// state is the letter that the system has for what a process does.
func state(p *program) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}
