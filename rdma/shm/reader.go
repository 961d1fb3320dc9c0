package shm

import (
	"context"
	"errors"
	"fmt"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
)

// Reader is a local decoder's view of the buffer, which it cannot write.
type Reader struct {
	layout  buffer.Layout
	regions map[int][]byte
}

// OpenReader maps the regions of at, whose token must come from GrantRead. The
// memory stays readable until Close, whatever becomes of the receiver; what is
// in a slot is only meant for the reader while its take lasts.
func OpenReader(ctx context.Context, at rdma.Attachment) (_ *Reader, err error) {
	l, err := buffer.NewLayout(at.Slots, at.SlotSize)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("open for reading: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	r := &Reader{l, make(map[int][]byte)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open for reading: %w", err), r.Close())
		}
	}()
	for _, reg := range at.Regions {
		if r.regions[reg.ID] != nil {
			continue
		}
		if err := ask(conn, reg.ID); err != nil {
			return nil, err
		}
		a, err := readAnswer(conn)
		if err != nil {
			return nil, err
		}
		base, _, err := mapAnswer(a, l, true)
		if err != nil {
			return nil, err
		}
		r.regions[reg.ID] = base
	}
	return r, nil
}

// Slot is the memory of a slot in a region, good until Close.
func (r *Reader) Slot(region, slot int) ([]byte, error) {
	base := r.regions[region]
	if base == nil {
		return nil, fmt.Errorf("slot %d in region %d: %w", slot, region, rdma.ErrUnknownRegion)
	}
	if err := r.layout.Check(slot); err != nil {
		return nil, err
	}
	return r.layout.Cut(base, slot), nil
}

// Close unmaps the buffer.
func (r *Reader) Close() error {
	var errs []error
	for id, base := range r.regions {
		errs = append(errs, buffer.Unmap(base))
		delete(r.regions, id)
	}
	return errors.Join(errs...)
}
