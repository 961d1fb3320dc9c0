package buffer

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// seals keep everybody who holds a region's descriptor from shrinking it under
// those who map it, which would fault them.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// memfd makes a sealed memory file of size bytes, all of it a hole.
func memfd(size int64) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate("pd-tools-slots", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("pd-tools-slots", flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("size memfd to %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("seal memfd: %w", err)
	}
	return fd, nil
}

// Map maps a region whose descriptor came from a receiver, for reading only or
// for writing too, after a check that this is safe: that it is a region of the
// layout, and sealed. The descriptor stays the caller's; Unmap ends it.
func Map(fd int, l Layout, readOnly bool) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size != l.Length() {
		return nil, fmt.Errorf("region of %d bytes, expected %d", st.Size, l.Length())
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("region is not sealed against shrinking")
	}
	prot := unix.PROT_READ | unix.PROT_WRITE
	if readOnly {
		prot = unix.PROT_READ
	}
	view, err := unix.Mmap(fd, 0, int(st.Size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", st.Size, err)
	}
	return view, nil
}

// Unmap ends what Map began.
func Unmap(view []byte) error { return os.NewSyscallError("munmap", unix.Munmap(view)) }

// punch gives the memory of a part of fd back; it reads as zeros from then on.
func punch(fd int, off, n int64) error {
	for {
		err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err != unix.EINTR {
			return os.NewSyscallError("fallocate", err)
		}
	}
}

const prefaultPiece = 4 << 20 // bytes populated by one system call

// Prefault makes every page of a shared mapping present and writable, for a
// first touch costs several times the copy. It changes no byte, so others may
// write there meanwhile.
func Prefault(b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), prefaultPiece)]
		switch err := unix.Madvise(piece, unix.MADV_POPULATE_WRITE); err {
		case nil:
		case unix.EINTR, unix.EAGAIN:
			continue
		case unix.EINVAL: // before Linux 5.14
			touch(piece)
		default:
			return fmt.Errorf("prefault %d bytes: %w", len(piece), err)
		}
		b = b[len(piece):]
	}
	return nil
}

// prefaultWide is Prefault on all processors: to zero the pages is work.
func prefaultWide(b []byte) error {
	pieces := (len(b) + prefaultPiece - 1) / prefaultPiece
	workers := min(pieces, runtime.GOMAXPROCS(0))
	errs := make([]error, workers)
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= pieces {
					return
				}
				errs[w] = Prefault(b[i*prefaultPiece : min((i+1)*prefaultPiece, len(b))])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// touch reads a byte of every page, which maps it, and writable, as long as the
// kernel keeps no dirty marks for memory files; Linux keeps none.
func touch(b []byte) {
	var sum byte
	for i := 0; i < len(b); i += os.Getpagesize() {
		sum += b[i]
	}
	runtime.KeepAlive(sum)
}

// available returns the memory the system can still give, in bytes, and false
// where it does not say.
func available() (int64, bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(s.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, true
		}
	}
	return 0, false
}
