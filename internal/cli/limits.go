package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// CheckFiles warns where fewer files than enough can be open at once; each says
// what takes how many.
func (l *Log) CheckFiles(enough uint64, each string) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < enough {
		l.Printf("warning: at most %d files can be open, and %s: raise the limit (ulimit -n)", limit.Cur, each)
	}
}

// CheckLocked warns where less memory can be locked than a provider that locks
// what it writes would lock; what says which memory that is.
func (l *Log) CheckLocked(provider, what string, bytes int64) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && !mayLockAll() {
		if text := lockedTooLittle(limit.Cur, provider, what, bytes); text != "" {
			l.Printf("warning: %s", text)
		}
	}
}

func lockedTooLittle(limit uint64, provider, what string, bytes int64) string {
	if limit >= uint64(bytes) {
		return ""
	}
	return fmt.Sprintf("at most %s of memory can be locked, %s locks what it writes, and %s has %s: raise the limit (ulimit -l)",
		humanize.IBytes(limit), provider, what, humanize.IBytes(uint64(bytes)))
}

// mayLockAll reports whether no limit of locked memory is ours: root's usually is
// none.
func mayLockAll() bool {
	caps := [2]unix.CapUserData{}
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}

// WatchFiles says when no more files can be opened, until ctx ends. ZeroMQ tells
// nobody that it cannot accept a connection, and whoever is connected is served
// all the same.
func (l *Log) WatchFiles(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			fd, err := syscall.Dup(int(os.Stderr.Fd()))
			if errors.Is(err, syscall.EMFILE) {
				l.Limitf("files", "no more files can be opened, so nobody else can connect: raise the limit (ulimit -n)")
			} else if err == nil {
				syscall.Close(fd)
			}
		}
	}
}
