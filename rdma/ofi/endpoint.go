//go:build !noofi

package ofi

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include <rdma/fi_errno.h>
#include "endpoint.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxName is the longest address of an endpoint, in bytes.
const maxName = 256

// endpoint is one endpoint of libfabric in a domain of its own.
type endpoint struct {
	c    *C.pd_endpoint
	news *os.File // an eventfd: pd_take has something to say
	done [4 * Window]C.pd_done
}

// fault is an error of libfabric's.
type fault struct {
	what string
	err  C.int
}

func (f *fault) Error() string {
	return fmt.Sprintf("%s: %s", f.what, C.GoString(C.pd_strerror(f.err)))
}

func check(what string, err C.int) error {
	if err == 0 {
		return nil
	}
	return &fault{what, err}
}

// openEndpoint makes an endpoint of the provider. addr is the address of this
// host that it shall have, "" for any.
func openEndpoint(provider, addr string) (*endpoint, error) {
	if why := C.pd_load(); why != nil {
		return nil, fmt.Errorf("libfabric is not to be had: %s: install it (Debian: libfabric1)", C.GoString(why))
	}
	cProvider, cAddr := C.CString(provider), C.CString(addr)
	defer C.free(unsafe.Pointer(cProvider))
	defer C.free(unsafe.Pointer(cAddr))
	news, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	e := &endpoint{news: os.NewFile(uintptr(news), "eventfd")}
	var what *C.char
	if err := C.pd_open(cProvider, cAddr, Window, C.int(news), &e.c, &what); err != 0 {
		e.news.Close()
		f := &fault{C.GoString(what), err}
		if err == C.FI_ENODATA {
			return nil, fmt.Errorf("libfabric has no provider %q that can do remote writes here: take one of %s (see fi_info)", provider, providers())
		}
		if err == C.FI_EADDRNOTAVAIL || err == C.FI_EADDRINUSE {
			return nil, fmt.Errorf("provider %q: %w: is %q an address of this host, and a port free between FI_TCP_PORT_LOW_RANGE and FI_TCP_PORT_HIGH_RANGE?", provider, f, addr)
		}
		return nil, fmt.Errorf("provider %q: %w", provider, f)
	}
	return e, nil
}

// providers names those that would do.
func providers() string {
	names := (*C.char)(C.calloc(1, 4096))
	defer C.free(unsafe.Pointer(names))
	C.pd_providers(names, 4096)
	return C.GoString(names)
}

// shut ends the endpoint, whose run is over: nothing lands and nothing is read
// after it. Meanwhile regions may still come and go.
func (e *endpoint) shut() { C.pd_shut(e.c) }

// close shuts the endpoint, if it is not, and gives up the regions, which must be
// all that are left.
func (e *endpoint) close(left ...*region) {
	e.shut()
	for _, r := range left {
		r.close()
	}
	C.pd_close(e.c)
	e.news.Close()
}

// name is the address at which peers find it.
func (e *endpoint) name() ([]byte, error) {
	name := make([]byte, maxName)
	n := C.size_t(len(name))
	err := C.pd_name(e.c, unsafe.Pointer(&name[0]), &n)
	return name[:min(n, maxName)], check("fi_getname", err)
}

// peer says where this endpoint's writes go.
func (e *endpoint) peer(name []byte) error {
	padded := make([]byte, maxName) // the library reads as much as an address takes
	copy(padded, name)
	return check("fi_av_insert", C.pd_peer(e.c, unsafe.Pointer(&padded[0])))
}

// region is registered memory.
type region struct{ c C.pd_region }

// register lets the peer write mem, which is not Go's, with the key that comes
// with it.
func (e *endpoint) register(mem []byte) (*region, error) {
	var key [8]byte
	_, _ = rand.Read(key[:]) // it never fails
	return e.registerAs(mem, 1, binary.NativeEndian.Uint64(key[:]))
}

func (e *endpoint) registerAs(mem []byte, remote C.int, key uint64) (*region, error) {
	r := new(region)
	err := C.pd_register(e.c, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), remote, C.uint64_t(key), &r.c)
	if err != 0 {
		return nil, fmt.Errorf("register %d bytes of memory: %w", len(mem), &fault{"fi_mr_reg", err})
	}
	return r, nil
}

// access is what a peer needs to write it.
func (r *region) access() access { return access{uint64(r.c.key), uint64(r.c.base)} }

func (r *region) close() { C.pd_unregister(&r.c) }

// source registers the memory that writes are read from.
func (e *endpoint) source(mem []byte) (*region, error) {
	r, err := e.registerAs(mem, 0, 0)
	if err == nil {
		C.pd_source(e.c, &r.c)
	}
	return r, err
}

// write is one write. The memory of local stays where it is.
type write struct {
	id    uint64
	local []byte
	access
}

// post hands a write over to run.
func (e *endpoint) post(w write) error {
	c := C.pd_write{
		id: C.uint64_t(w.id), buf: unsafe.Pointer(unsafe.SliceData(w.local)), len: C.size_t(len(w.local)),
		key: C.uint64_t(w.key), addr: C.uint64_t(w.addr),
	}
	return check("post a write", C.pd_post(e.c, &c, 1))
}

// run makes the endpoint work until stop, and calls done for each write that is
// over. It may be called once.
func (e *endpoint) run(done func(id uint64, err error)) error {
	if err := C.pd_start(e.c); err != 0 {
		return fmt.Errorf("start a thread: %w", syscall.Errno(err))
	}
	defer C.pd_join(e.c)
	var news [8]byte
	for {
		n := C.pd_take(e.c, &e.done[0], C.int(len(e.done)))
		if n < 0 {
			return nil
		}
		if n == 0 {
			_, _ = e.news.Read(news[:]) // what there is to know pd_take says
		}
		for _, d := range e.done[:n] {
			done(uint64(d.id), check("fi_write", d.err))
		}
	}
}

// stop ends run.
func (e *endpoint) stop() { C.pd_stop(e.c) }
