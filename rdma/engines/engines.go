// Package engines lists the write engines there are, best first: one line an
// engine. It knows nothing of how they work.
package engines

import (
	"context"
	"fmt"
	"strings"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

var engines = []engine{
	{shm.Name, shm.NewTarget, shm.Attach},
}

type engine struct {
	name   string
	target func(receiverID string, slots int, slotSize int64) (rdma.Target, error)
	attach func(ctx context.Context, at rdma.Attachment) (rdma.Remote, error)
}

// Names returns the engines' names, best first.
func Names() []string {
	names := make([]string, len(engines))
	for i, e := range engines {
		names[i] = e.name
	}
	return names
}

// Target makes a receiver's buffer of slots of slotSize bytes under the named
// engine. Initiators find it by receiverID.
func Target(name, receiverID string, slots int, slotSize int64) (rdma.Target, error) {
	e, err := find(name)
	if err != nil {
		return nil, err
	}
	return e.target(receiverID, slots, slotSize)
}

// Attach connects to a target of the named engine.
func Attach(ctx context.Context, name string, at rdma.Attachment) (rdma.Remote, error) {
	e, err := find(name)
	if err != nil {
		return nil, err
	}
	return e.attach(ctx, at)
}

func find(name string) (engine, error) {
	for _, e := range engines {
		if e.name == name {
			return e, nil
		}
	}
	return engine{}, fmt.Errorf("engine %q is not known: take one of %s", name, strings.Join(Names(), ", "))
}
