package main

import (
	"fmt"
	"io"
	"os"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// targetOrder: the first one makes the slots and is answered with an attachment,
// Open with what opens each slot, Clear when it has zeroed them, any other with how
// many do not hold what the initiator writes.
type targetOrder struct {
	Engine          string
	Slots, SlotSize int
	Fabric          rdma.Fabric
	Open, Clear     bool
}

// target is a receiver of one sender.
func target(stdin io.Reader, stdout io.Writer) error {
	const writer rdma.Writer = 1
	var t rdma.Target
	var slots, size int
	return serve(stdin, stdout, func(o targetOrder) (_ any, err error) {
		switch {
		case o.Slots > 0:
			slots, size = o.Slots, o.SlotSize
			id := fmt.Sprintf("bench-%d", os.Getpid())
			t, err = engines.Open(engines.Config{
				ReceiverID: id, Slots: slots, SlotSize: int64(size), Engines: []string{o.Engine}, Fabric: o.Fabric,
			})
			if err != nil {
				return nil, err
			}
			token, err := t.Grant(writer, o.Engine)
			return rdma.Attachment{
				ReceiverID: id, Token: token, Regions: t.Regions(o.Engine), SlotSize: int64(size), Slots: slots,
				Host: o.Fabric.Addr, Fabric: o.Fabric,
			}, err
		case o.Open:
			access := make([][]byte, slots)
			for i := range access {
				if access[i], err = t.Open(writer, i); err != nil {
					return nil, err
				}
			}
			return access, nil
		case o.Clear:
			for i := range slots {
				clear(t.Slot(i))
			}
			return 0, nil
		}
		bad := 0
		for i := range slots {
			if !filled(t.Slot(i), i*size) {
				bad++
			}
		}
		return bad, nil
	})
}
