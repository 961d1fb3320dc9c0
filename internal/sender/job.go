package sender

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// job is one chunk on its way: source to staging slot to remote slot. The core
// makes it, a worker does it, the core gets it back.
type job struct {
	session *session
	batch   *batch
	chunk   *manifest.Chunk
	index   int // among the destinations of its batch
	region  int
	remote  int    // slot at the receiver
	access  []byte // of the slot
	place   int    // in its request's list of jobs

	crc   uint32
	err   error
	state atomic.Uint32
}

// States of a job. A write that has begun cannot be called back; before that
// the core may.
const (
	jobReading uint32 = iota
	jobWriting
	jobAborted
)

// errAborted is what came of a job that the core called back in time.
var errAborted = errors.New("called back before the write began")

// abort calls a job back. It reports false when the write may have begun.
func (j *job) abort() bool { return j.state.CompareAndSwap(jobReading, jobAborted) }

// recalled says whether abort came in time: final once the job is back.
func (j *job) recalled() bool { return j.state.Load() == jobAborted }

// code says what kind of failure err is.
func (j *job) code() wire.Code {
	var failed *writeError
	if errors.As(j.err, &failed) {
		return wire.CodeInternal
	}
	return codeSource
}

// gone says whether the write failed because its session is about to be lost.
func (j *job) gone() bool { return errors.Is(j.err, rdma.ErrGone) }

// run does the work in a slot of the staging buffer; ops is room for one write.
func (j *job) run(ctx context.Context, memory *buffer, ops []rdma.Op) {
	if j.recalled() {
		j.err = errAborted
		return
	}
	select {
	case <-j.session.remote.Done():
		j.err = &writeError{rdma.ErrGone}
		return
	default:
	}
	slot := memory.take()
	defer memory.give(slot)
	local := memory.slot(slot)[:j.chunk.Length]
	if j.crc, j.err = manifest.Fill(local, j.chunk); j.err != nil {
		return
	}
	if !j.state.CompareAndSwap(jobReading, jobWriting) {
		j.err = errAborted
		return
	}
	ops[0] = rdma.Op{Local: local, Region: j.region, Slot: j.remote, Access: j.access}
	if err := j.session.remote.Write(ctx, ops); err != nil {
		j.err = &writeError{err}
	}
}

// writeError tells a failed write from a failed source.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// work runs the jobs of a session until its channel is closed.
func work(ctx context.Context, memory *buffer, jobs <-chan *job, done func(*job)) {
	ops := make([]rdma.Op, 1)
	for j := range jobs {
		j.run(ctx, memory, ops)
		done(j)
	}
}
