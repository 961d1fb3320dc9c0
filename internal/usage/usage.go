// Package usage says what a process takes of its machine, for tests and
// benchmarks. It knows nothing of what the process does. Start at Of.
package usage

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Usage is what a process has used, or has, at one time.
type Usage struct {
	CPU     time.Duration // user and system time so far
	Anon    int64         // resident bytes: its heaps and stacks
	File    int64         // resident bytes of files: its program and libraries
	Shared  int64         // resident bytes of memory shared with others: buffers
	Threads int
}

// Own is the memory that nobody else is meant to have, bytes.
func (u Usage) Own() int64 { return u.Anon + u.File }

// Resident is all memory, bytes.
func (u Usage) Resident() int64 { return u.Own() + u.Shared }

// Of asks for a process by its id. The error names it.
func Of(pid int) (u Usage, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return u, fmt.Errorf("process %d: %w", pid, err)
	}
	stat, err := p.Stat()
	if err != nil {
		return u, fmt.Errorf("process %d: %w", pid, err)
	}
	status, err := p.NewStatus()
	if err != nil {
		return u, fmt.Errorf("process %d: %w", pid, err)
	}
	return Usage{
		CPU: time.Duration(stat.CPUTime() * float64(time.Second)),
		// The kernel counts in KiB, procfs gives bytes.
		Anon: int64(status.RssAnon), File: int64(status.RssFile), Shared: int64(status.RssShmem),
		Threads: stat.NumThreads,
	}, nil
}
