package main

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disk makes reading the files of one directory slow: the kernel asks us before
// each read. That takes root. When we end, all reads go on.
type disk struct {
	file  *os.File
	reads sync.WaitGroup

	mu   sync.Mutex
	slow time.Time     // until when
	by   time.Duration // each read
}

// newDisk says why it cannot be, where it cannot.
func newDisk(dir string) (*disk, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	d := &disk{file: os.NewFile(uintptr(fd), "fanotify")}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_ACCESS_PERM|unix.FAN_EVENT_ON_CHILD, -1, dir); err != nil {
		return nil, errors.Join(err, d.file.Close())
	}
	go d.answer()
	return d, nil
}

// answer lets each read go on, now or later.
func (d *disk) answer() {
	const size = int(unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	buf := make([]byte, 64*size)
	for {
		n, err := d.file.Read(buf)
		if err != nil {
			return
		}
		for at := 0; at+size <= n; at += size {
			ev := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&buf[at]))
			fd := ev.Fd
			d.reads.Go(func() {
				time.Sleep(d.delay())
				answer := binary.NativeEndian.AppendUint32(nil, uint32(fd))
				d.file.Write(binary.NativeEndian.AppendUint32(answer, unix.FAN_ALLOW))
				unix.Close(int(fd))
			})
		}
	}
}

func (d *disk) delay() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.slow) {
		return d.by
	}
	return 0
}

// slowFor has every read take a third of that time, for that time.
func (d *disk) slowFor(long time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow, d.by = time.Now().Add(long), long/3
}

func (d *disk) close() {
	d.reads.Wait()
	d.file.Close()
}
