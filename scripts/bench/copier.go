package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// span is when work began and ended, in nanoseconds of the clock that all
// processes share.
type span struct {
	Start, End int64
}

func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // this clock is always there
	}
	return t.Nano()
}

// pages returns memory of its own that is there already, not at first touch.
func pages(size int) []byte {
	b := make([]byte, size)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return b
}

// copyOrder: copy Walk bytes, in pieces of Piece, from one end of the memory
// to the other. Memory grows to what is asked.
type copyOrder struct {
	Walk, Piece int
}

// copier is the reference of the data plane: Go's copy within one process.
func copier(stdin io.Reader, stdout io.Writer) error {
	var src, dst []byte
	return serve(stdin, stdout, func(o copyOrder) (span, error) {
		if len(src) < o.Walk {
			src, dst = pages(o.Walk), pages(o.Walk)
		}
		s := span{Start: now()}
		for at := 0; at < o.Walk; at += o.Piece {
			copy(dst[at:at+o.Piece], src[at:at+o.Piece])
		}
		s.End = now()
		return s, nil
	})
}

// writeOrder: write one piece into each of Count slots from First on. The
// first order attaches, later ones need no Attachment.
type writeOrder struct {
	Engine       string
	Attachment   *rdma.Attachment
	Piece        int
	First, Count int
}

// writer is a sender: it attaches to a target in another process and writes,
// each piece from memory of its own.
func writer(stdin io.Reader, stdout io.Writer) error {
	var remote rdma.Remote
	var src []byte
	ctx := context.Background()
	return serve(stdin, stdout, func(o writeOrder) (span, error) {
		if o.Attachment != nil {
			var err error
			if remote, err = engines.Attach(ctx, o.Engine, *o.Attachment); err != nil {
				return span{}, err
			}
			src = pages(o.Piece * o.Count)
			for i := range o.Count {
				stamp(src[i*o.Piece:(i+1)*o.Piece], o.First+i)
			}
		}
		s := span{Start: now()}
		op := make([]rdma.Op, 1)
		for i := range o.Count {
			op[0] = rdma.Op{Local: src[i*o.Piece : (i+1)*o.Piece], Slot: o.First + i}
			if err := remote.Write(ctx, op); err != nil {
				return span{}, err
			}
		}
		s.End = now()
		return s, nil
	})
}

// stamp marks both ends of a piece as the one for a slot, and stamped sees the
// mark.
func stamp(piece []byte, slot int) {
	mark := fmt.Appendf(nil, "slot %08d", slot)
	copy(piece, mark)
	copy(piece[len(piece)-len(mark):], mark)
}

func stamped(piece []byte, slot int) bool {
	mark := fmt.Sprintf("slot %08d", slot)
	return string(piece[:len(mark)]) == mark && string(piece[len(piece)-len(mark):]) == mark
}

// maxOrder is the longest order or answer there is, in bytes: what opens
// 16,384 slots.
const maxOrder = 4 * mib

// serve carries out orders, a line of JSON each, until stdin ends.
func serve[T, A any](stdin io.Reader, stdout io.Writer, do func(T) (A, error)) error {
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, maxOrder)
	for lines.Scan() {
		var order T
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			return err
		}
		done, err := do(order)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(stdout).Encode(done); err != nil {
			return err
		}
	}
	return lines.Err()
}
