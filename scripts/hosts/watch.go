package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const pageSize = 4096

// watch looks for a chunk's bytes in the memory of a receiver, as only root
// can: it proves that a write has begun and is not finished.
type watch struct {
	recv    *receiver
	regions []*os.File // all the memory there is now
	want    []byte
}

func (r *receiver) watch(key string, chunkSize int) (*watch, error) {
	w := &watch{recv: r, want: make([]byte, chunkSize)}
	manifest.Pattern(w.want, key)
	dir := fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		name := filepath.Join(dir, fd.Name())
		if to, err := os.Readlink(name); err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		region, err := os.Open(name)
		if err != nil {
			w.close()
			return nil, err
		}
		w.regions = append(w.regions, region)
	}
	return w, nil
}

func (w *watch) close() {
	for _, region := range w.regions {
		region.Close()
	}
}

// begins waits until the first page of the chunk is there.
func (w *watch) begins() error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if n, err := w.pages(pageSize); n > 0 || err != nil {
			return err
		}
		if err := w.recv.host.bed.ctx.Err(); err != nil {
			return err
		}
	}
	return w.recv.failure("nothing of the chunk has come")
}

// landed counts the pages of the chunk that are there.
func (w *watch) landed() (int, error) { return w.pages(len(w.want)) }

// pages counts those of the chunk's first bytes in the slot that has most.
func (w *watch) pages(first int) (int, error) {
	counts := []int{0}
	got := make([]byte, first)
	for _, region := range w.regions {
		info, err := region.Stat()
		if err != nil {
			return 0, err
		}
		for at := int64(0); at < info.Size(); at += int64(len(w.want)) {
			if _, err := region.ReadAt(got, at); err != nil {
				return 0, errors.Join(errors.New("the receiver's memory cannot be read"), err)
			}
			n := 0
			for page := 0; page < first; page += pageSize {
				if bytes.Equal(got[page:][:pageSize], w.want[page:][:pageSize]) {
					n++
				}
			}
			counts = append(counts, n)
		}
	}
	return slices.Max(counts), nil
}
