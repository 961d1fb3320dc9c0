package slack

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Every thread has it, also those that Go starts later.
func TestAllThreadsHaveIt(t *testing.T) {
	const threads = 20
	var ready, over sync.WaitGroup
	ready.Add(threads)
	for range threads {
		over.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			ready.Done()
			ready.Wait() // so each has one of its own
			if ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || time.Duration(ns) < time.Millisecond {
				t.Errorf("timers of a thread may be late by %v: %v", time.Duration(ns), err)
			}
		})
	}
	over.Wait()
}
