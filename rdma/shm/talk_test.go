package shm

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma/buffer"
)

// FuzzTalk has a writer, or a reader, that was let in say anything: each whole
// question is answered, a reader cannot write, and nothing is kept.
func FuzzTalk(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0}, false)
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, true)
	f.Add([]byte{0, 0, 0, 0x80, 0, 0}, true)
	b, err := buffer.New(2, 4096)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { b.Close() })
	if _, err := b.Revoke([]int{1}, 1); err != nil {
		f.Fatal(err)
	}
	s := &Server{buffer: b}
	f.Fuzz(func(t *testing.T, said []byte, readOnly bool) {
		if len(said) > 4000 {
			return
		}
		before := holdings(t)
		a, z := socketPair(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if readOnly {
				s.serveReader(a)
			} else {
				s.serve(a)
			}
			a.Close()
		}()
		if _, err := z.Write(said); err != nil {
			t.Fatal(err)
		}
		_ = z.CloseWrite()
		want := []status{welcome}
		for ask := said; len(ask) >= askLen; ask = ask[askLen:] {
			if binary.LittleEndian.Uint32(ask) < uint32(b.Regions()) {
				want = append(want, region)
			} else {
				want = append(want, noRegion)
			}
		}
		for i, w := range want {
			got, err := readAnswer(z)
			if err != nil || got.status != w || (got.fd >= 0) != (w == region) {
				t.Fatalf("answer %d is %+v, %v, want status %d", i, got, err, w)
			}
			if got.fd >= 0 {
				flags, err := unix.FcntlInt(uintptr(got.fd), unix.F_GETFL, 0)
				if err != nil || readOnly != (flags&unix.O_ACCMODE == unix.O_RDONLY) {
					t.Errorf("reader %v gets a descriptor with flags %o, %v", readOnly, flags, err)
				}
			}
			discard(got)
		}
		if _, err := readAnswer(z); !errors.Is(err, io.EOF) {
			t.Errorf("after the last answer: %v", err)
		}
		z.Close()
		<-done
		if after := holdings(t); after != before {
			t.Errorf("before: %s, after: %s", before, after)
		}
	})
}
