package sock

/*
#cgo pkg-config: libzmq
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

// What ZeroMQ has of a peer's large frames. It lives until the last of them and
// its owner have let go.
typedef struct {
	atomic_long bytes;
	atomic_long users;
} unsent;

typedef struct {
	unsent *of;
	size_t size;
} counted;

static unsent *unsent_new(void) {
	unsent *u = calloc(1, sizeof *u);
	if (u)
		atomic_store(&u->users, 1);
	return u;
}

static void unsent_drop(unsent *u) {
	if (atomic_fetch_sub(&u->users, 1) == 1)
		free(u);
}

static long unsent_bytes(unsent *u) { return atomic_load(&u->bytes); }

// passed is called by ZeroMQ, in whatever thread, when it has no more use for a
// frame's bytes.
static void passed(void *data, void *hint) {
	counted *c = hint;
	atomic_fetch_sub(&c->of->bytes, (long)c->size);
	unsent_drop(c->of);
	free(c);
	free(data);
}

// send_counted returns 0 or an errno.
static int send_counted(void *socket, const void *body, size_t size, int flags, unsent *u) {
	void *data = malloc(size);
	counted *c = malloc(sizeof *c);
	zmq_msg_t m;
	if (!data || !c) {
		free(data);
		free(c);
		return ENOMEM;
	}
	memcpy(data, body, size);
	c->of = u;
	c->size = size;
	atomic_fetch_add(&u->bytes, (long)size);
	atomic_fetch_add(&u->users, 1);
	if (zmq_msg_init_data(&m, data, size, passed, c)) {
		int err = zmq_errno();
		passed(data, c);
		return err;
	}
	while (zmq_msg_send(&m, socket, flags) < 0) {
		int err = zmq_errno();
		if (err == EINTR)
			continue;
		zmq_msg_close(&m);
		return err;
	}
	return 0;
}
*/
import "C"

import (
	"reflect"
	"syscall"
	"unsafe"

	"github.com/pebbe/zmq4"
)

// Unsent counts the bytes of one peer's frames that ZeroMQ has taken and not
// passed on. ZeroMQ's own limit, SendQueue, counts messages, and those may be
// large.
type Unsent struct{ c *C.unsent }

// NewUnsent counts from 0.
func NewUnsent() *Unsent {
	c := C.unsent_new()
	if c == nil {
		panic("out of memory")
	}
	return &Unsent{c}
}

// Bytes is how many there are now.
func (u *Unsent) Bytes() int { return int(C.unsent_bytes(u.c)) }

// Close lets go of it; it must not be used any more.
func (u *Unsent) Close() { C.unsent_drop(u.c) }

// SendCounted is Send, and counts all frames but the first, which says to whom
// they go, until they are passed on.
func SendCounted(s *zmq4.Socket, u *Unsent, frames ...[]byte) error {
	if err := sendFrame(s, frames[0], zmq4.DONTWAIT|zmq4.SNDMORE); err != nil {
		return err
	}
	for i, frame := range frames[1:] {
		flags := zmq4.DONTWAIT
		if i+1 < len(frames)-1 {
			flags |= zmq4.SNDMORE
		}
		// zmq4 has no messages whose end one is told of, nor shows its handle.
		handle := reflect.ValueOf(s).Elem().FieldByName("soc").UnsafePointer()
		errno := C.send_counted(handle, unsafe.Pointer(unsafe.SliceData(frame)), C.size_t(len(frame)), C.int(flags), u.c)
		if errno != 0 {
			return plain(zmq4.Errno(syscall.Errno(errno)))
		}
	}
	return nil
}
