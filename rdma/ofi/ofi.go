//go:build !noofi

// Package ofi is the write engine across hosts, by libfabric (OFI): TCP where
// there is nothing else, RoCE, InfiniBand or EFA by another provider's name. It
// knows nothing of requests or of the wire.
//
// A writer and its target keep two connections. One is libfabric's, on which
// chunks go by fi_write from registered staging memory into registered slots. The
// other is a plain TCP connection, the control connection: the writer shows its
// token there and is told the address of an endpoint that is made for it
// alone; after that its end is how each side learns that the other is gone.
//
// That endpoint has its own domain, hence its own keys, and its own thread. So a
// bad peer harms its own endpoint and no other's, a key is worth nothing to
// anybody else, and closing the endpoint is the one sure end of a writer:
// nothing of what it has sent lands afterwards, while on an endpoint that
// writers share a write may land that was on its way when its writer died.
//
// Completion of a write means that it is visible at the target
// (FI_DELIVERY_COMPLETE). What providers may lack (a descriptor to sleep on, keys
// of our choice, addresses from 0) is seen to in endpoint.c.
//
// Start reading at server.go, the receiver's side; remote.go is the initiator's,
// control.go what goes over the control connection, endpoint.go and endpoint.c
// are all that touches libfabric.
package ofi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Name is the engine's name.
const Name = "ofi"

// DefaultProvider is the provider that every host has.
const DefaultProvider = "tcp;ofi_rxm"

// Window is how many writes of one initiator are in flight at a time: enough to
// keep a link busy while completions travel, few enough that no write waits
// long behind others.
const Window = 16

// Bounds of what is waited for.
const (
	// openTimeout bounds the way to a target, endpoints on both sides included:
	// libfabric takes a quarter of a second to load, much more where many load it.
	openTimeout = 30 * time.Second

	// byeWait is how long an initiator whose write has failed waits to hear on
	// the control connection why.
	byeWait = 100 * time.Millisecond
)

// maxPiece is the longest single fi_write, in bytes; a longer chunk goes in
// several. Over tcp chunks of 4 MiB come to 1.3 times the rate of whole ones with
// pieces of 1 MiB, 1.1 with 512 KiB or 2 MiB, 0.9 with 256 KiB.
const maxPiece = 1 << 20

// access is what an initiator needs to write one slot.
//
// There is a key for each slot, made when the slot is opened to its writer and
// closed when it is shut, and not one for each reservation or for the whole
// buffer: a key is all that the target checks, so what it opens must be what one
// writer may write now, and the slots of a reservation do not lie side by
// side. It can be afforded: over tcp fi_mr_reg took 0.8 to 3.5 µs and fi_close 0.5 to
// 1.1 µs, where 1 MiB takes 400 µs to write (BenchmarkRegister). On hardware
// registering pins pages, some tens of µs a MiB.
type access struct {
	key  uint64
	addr uint64 // of the slot's first byte
}

const accessLen = 16

func (a access) bytes() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, accessLen), a.key)
	return binary.BigEndian.AppendUint64(b, a.addr)
}

func parseAccess(b []byte) (access, error) {
	if len(b) != accessLen {
		return access{}, fmt.Errorf("access has %d bytes and not %d", len(b), accessLen)
	}
	return access{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, nil
}

// checkProvider refuses what is known to do harm.
func checkProvider(name string) error {
	isShm := func(part string) bool { return strings.EqualFold(part, "shm") } // as libfabric reads names
	if slices.ContainsFunc(strings.Split(name, ";"), isShm) {
		return errors.New("libfabric's provider shm hangs on bad peers and leaves files behind: use --engine shm, which is another thing")
	}
	return nil
}
