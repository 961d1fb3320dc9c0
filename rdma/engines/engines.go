// Package engines lists the write engines there are, best first, one line an
// engine, and makes one rdma.Target of a buffer and the engines that a receiver
// offers for it. It knows nothing of how they work. Start reading at engines;
// target.go is the target.
package engines

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
	"github.com/pd-tools/pd-tools/rdma/shm"
)

// The engines across hosts are in ofi.go, which a build tag leaves out.
var engines = append([]engine{{shm.Name, nil, shm.Attach}}, across...)

type engine struct {
	name string
	// serve lets initiators write into b. Nil for shm, whose server is there
	// whatever a receiver offers: local decoders read by it.
	serve  func(b *buffer.Buffer, receiverID string, f rdma.Fabric, gone func(rdma.Writer)) (rdma.Server, error)
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

// Attach connects to a target by the named engine.
func Attach(ctx context.Context, name string, at rdma.Attachment) (rdma.Remote, error) {
	e, err := find(name)
	if err != nil {
		return nil, err
	}
	return e.attach(ctx, at)
}

func find(name string) (engine, error) {
	i := slices.IndexFunc(engines, func(e engine) bool { return e.name == name })
	if i < 0 {
		return engine{}, fmt.Errorf("engine %q is not known: take one of %s", name, strings.Join(Names(), ", "))
	}
	return engines[i], nil
}
