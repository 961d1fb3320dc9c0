package shm

import "unsafe"

const (
	streamBlock = 16 << 10 // bytes copied by one turn of stream
	streamAlign = 16       // bytes that stream's stores must be aligned to
)

// streamCopy is copy with stores that go past the caches: the writer does not
// read what it has written, and the line need not be fetched before it is
// overwritten. Cold, it copied 1.5 times as fast as copy, at 64 KiB as at 8 MiB.
func streamCopy(dst, src []byte) {
	if uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%streamAlign == 0 {
		if n := len(src) / streamBlock; n > 0 {
			stream(&dst[:len(src)][0], &src[0], n)
			dst, src = dst[n*streamBlock:], src[n*streamBlock:]
		}
	}
	copy(dst, src)
}

// stream copies blocks of streamBlock bytes. It needs SSE2, which every amd64
// has; wider registers gained a few percent.
//
//go:noescape
func stream(dst, src *byte, blocks int)
