package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const (
	fenceChunk = 64 * mib
	fenceTries = 5    // to stop the sender in mid-write, which takes 10 ms by shm
	fencePause = "2s" // until the receiver ends what was stopped
)

// fence stops a sender in mid-write and has its slot given to another request,
// in each way that can come to be; then the sender goes on. The other
// request's bytes must be intact, and the late sender must say that its own
// request has failed, and go on to serve the next. What a stopped sender's host
// has taken to send comes all the same, which one host cannot show; internal/e2e
// does this under both engines there.
func (l *lab) fence(b *bed) error {
	decode, links, err := b.star(2, l.mbits)
	if err != nil {
		return err
	}
	for _, c := range fenceCases {
		f := &fenced{decode: decode, late: links[0], other: links[1]}
		err := f.run(c)
		for try := 1; errors.Is(err, errMissed) && try < fenceTries; try++ {
			b.killAll()
			err = f.run(c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		l.say("%s: %d of %d pages had landed; %s", c.name, f.landed, fenceChunk/pageSize, f.verdict)
	}
	return nil
}

var fenceCases = []fenceCase{
	{
		name: "its lease ends", slots: 1, chunks: 1, flags: []string{"--lease", fencePause}, end: "expired", says: "failed",
	},
	{
		name: "a cancel line comes and its lease ends", slots: 1, chunks: 1, flags: []string{"--lease", fencePause}, cancel: true, end: "expired",
	},
	{
		name: "a cancel line comes in time", slots: 1, chunks: 1, cancel: true, says: "cancelled",
	},
	{
		// Without reservations the second chunk waits for a slot that another
		// request keeps, until its time-out ends the whole request.
		name: "it is rolled back", slots: 2, chunks: 2, flags: []string{"--admission", "none", "--admit-timeout", fencePause}, end: "timed_out", says: "failed",
	},
}

type fenceCase struct {
	name   string
	slots  int // of the buffer; all but one are filled before
	chunks int // of the late sender's request
	flags  []string
	cancel bool
	end    string // the event that ends the request before its sender goes on; "": none
	says   string // how it must end, by its sender; "": either way
}

// fenced is one case as it runs.
type fenced struct {
	decode      *host
	late, other *link // of the two senders

	landed  int // pages of the late sender's chunk, when it was stopped
	verdict string
}

func (f *fenced) run(c fenceCase) error {
	recv, err := f.decode.receive(c.slots, fenceChunk, c.flags...)
	if err != nil {
		return err
	}
	other, err := f.other.from.send("--to", f.other.receiver())
	if err != nil {
		return err
	}
	for i := range c.slots - 1 {
		if err := send(other, request(fmt.Sprintf("keeper%d", i), 1, fenceChunk)); err != nil {
			return err
		}
	}
	late, err := f.late.from.send("--to", f.late.receiver(), "--batch", "1", "--staging-size", fmt.Sprint(2*fenceChunk))
	if err != nil {
		return err
	}
	if err := f.stopInMidWrite(recv, late, c.chunks); err != nil {
		return err
	}
	if c.cancel {
		if _, err := late.stdin.Write([]byte(`{"cancel":"late"}` + "\n")); err != nil {
			return err
		}
	}
	next := request("next", 1, fenceChunk)
	if c.end == "" {
		if err := other.give(next); err != nil {
			return err
		}
		if _, err := recv.happened("queued", "next"); err != nil {
			return err
		}
		if err := late.signal(syscall.SIGCONT); err != nil {
			return err
		}
	} else {
		if _, err := recv.happened(c.end, "late"); err != nil {
			return err
		}
		if err := send(other, next); err != nil {
			return err
		}
		if err := late.signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	r, err := late.ended("late", patience)
	if err != nil {
		return err
	}
	f.verdict = strings.TrimSpace(fmt.Sprintf("it says %s %s %s", r.Status, r.Code, r.Error))
	if r.Status != c.says && (c.says != "" || r.Status == "ready") {
		return late.failure("its request should be " + c.says + ", " + f.verdict)
	}
	if err := other.ready("next"); err != nil {
		return err
	}
	kept := []*manifest.Batch{next}
	for i := range c.slots - 1 {
		kept = append(kept, request(fmt.Sprintf("keeper%d", i), 1, fenceChunk))
	}
	if err := recv.check(kept...); err != nil {
		return err
	}
	if err := transfer(late, recv, request("again", 1, fenceChunk)); err != nil {
		return err
	}
	late.stdin.Close()
	<-late.done // its request has failed: so does it
	if err := other.finish(); err != nil {
		return err
	}
	return recv.retire()
}

var errMissed = errors.New("the sender was not stopped in mid-write")

// stopInMidWrite has the sender begin a request and stops it when some of its
// first chunk is in the receiver's memory, and not all.
func (f *fenced) stopInMidWrite(recv *receiver, late *sender, chunks int) error {
	if err := late.give(request("late", chunks, fenceChunk)); err != nil {
		return err
	}
	chunk, err := recv.watch("late-0", fenceChunk)
	if err != nil {
		return err
	}
	defer chunk.close()
	if err := chunk.begins(); err != nil {
		return err
	}
	if err := late.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// What the network has of it already still comes.
	f.landed = 0
	for before := -1; f.landed > before; time.Sleep(50 * time.Millisecond) {
		before = f.landed
		now, err := chunk.landed()
		if err != nil {
			return err
		}
		f.landed = max(f.landed, now)
	}
	if f.landed == 0 || f.landed == fenceChunk/pageSize {
		return fmt.Errorf("%w: %d of %d pages had landed", errMissed, f.landed, fenceChunk/pageSize)
	}
	return nil
}
