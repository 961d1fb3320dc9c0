package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// initiatorOrder: the first one attaches, the second says what opens the slots
// and how many workers write, each later one has every slot written once.
type initiatorOrder struct {
	Engine     string
	Attachment *rdma.Attachment
	Access     [][]byte
	Workers    int
}

// initiator is a sender with many writes under way. Each slot is written from
// memory of its own.
func initiator(stdin io.Reader, stdout io.Writer) error {
	var remote rdma.Remote
	var staging []byte
	var size, workers int
	var access [][]byte
	ctx := context.Background()
	return serve(stdin, stdout, func(o initiatorOrder) (s span, err error) {
		switch {
		case o.Attachment != nil:
			size = int(o.Attachment.SlotSize)
			staging = make([]byte, size*o.Attachment.Slots)
			fill(staging, 0)
			o.Attachment.Staging = staging
			remote, err = engines.Attach(ctx, o.Engine, *o.Attachment)
		case o.Access != nil:
			access, workers = o.Access, o.Workers
		default:
			s.Start = now()
			err = writeAll(workers, len(access), func(slot int) error {
				op := rdma.Op{Local: staging[slot*size : (slot+1)*size], Slot: slot, Access: access[slot]}
				return remote.Write(ctx, []rdma.Op{op})
			})
			s.End = now()
		}
		return s, err
	})
}

// writeAll has workers write all slots, in order but for their race.
func writeAll(workers, slots int, write func(slot int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, workers)
	for i := range workers {
		all.Go(func() {
			for slot := int(next.Add(1)) - 1; slot < slots && errs[i] == nil; slot = int(next.Add(1)) - 1 {
				errs[i] = write(slot)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// fill writes into b what belongs at offset at of all memory; filled sees
// whether it is there. No two words of it are alike.
func fill(b []byte, at int) {
	for i := 0; i < len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], word(at+i))
	}
}

func filled(b []byte, at int) bool {
	for i := 0; i < len(b); i += 8 {
		if binary.NativeEndian.Uint64(b[i:]) != word(at+i) {
			return false
		}
	}
	return true
}

func word(at int) uint64 { return uint64(at/8+1) * 0x9e3779b97f4a7c15 }
