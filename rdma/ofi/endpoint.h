// One endpoint of libfabric, with a domain of its own: what the Go side of this
// package needs of the library, no more. See endpoint.c.
#ifndef PD_ENDPOINT_H
#define PD_ENDPOINT_H

#include <stddef.h>
#include <stdint.h>

typedef struct pd_endpoint pd_endpoint;

// pd_region is memory that is registered.
typedef struct {
	void *mr;
	uint64_t key;
	uint64_t base; // what remote addresses begin at
} pd_region;

// pd_write is one write: to where, from where.
typedef struct {
	uint64_t id; // comes back when it is done
	const void *buf;
	size_t len;
	uint64_t key;
	uint64_t addr;
} pd_write;

// pd_done is a write that is over: err is 0 when all of it is visible at the
// target, else an errno of libfabric's.
typedef struct {
	uint64_t id;
	int err;
} pd_done;

// pd_load loads the library. Nothing else may be called before. It returns why it
// could not, or NULL.
const char *pd_load(void);

const char *pd_strerror(int err);

// pd_open makes an endpoint with at most window writes in flight. addr is the
// address of this host to use, or "". news is an eventfd of the caller's, which is
// told when pd_take has something to say. Returns 0, or an errno of libfabric's, and
// in what the call that failed.
int pd_open(const char *provider, const char *addr, int window, int news, pd_endpoint **out, const char **what);

// pd_shut ends the endpoint: nothing lands and nothing is read after it. No other
// call may be under way, but to register and unregister. What is left is to
// unregister all regions.
void pd_shut(pd_endpoint *e);

// pd_close frees what is left of an endpoint, shut or not. No region may be left.
void pd_close(pd_endpoint *e);

// pd_name writes the endpoint's address; len is the room and then the length.
int pd_name(pd_endpoint *e, void *name, size_t *len);

// pd_peer names the one target of this endpoint's writes.
int pd_peer(pd_endpoint *e, const void *name);

// pd_register registers memory: for the peer to write, or as what writes are
// read from. Any thread may call it, and pd_unregister.
int pd_register(pd_endpoint *e, void *mem, size_t len, int remote, uint64_t key, pd_region *out);
void pd_unregister(pd_region *r);

// pd_source tells the endpoint that writes are read from r.
void pd_source(pd_endpoint *e, const pd_region *r);

// pd_post hands writes over. Any thread may call it. Returns 0 or ENOMEM.
int pd_post(pd_endpoint *e, const pd_write *writes, int n);

// pd_start makes the endpoint work, posted writes and those of the peer, on a
// thread of its own until pd_stop. The thread is none of Go's: it never waits for
// a turn among goroutines, with the wire idle. Returns 0 or an errno.
int pd_start(pd_endpoint *e);

// pd_take gets writes that are done, and returns how many; -1: there are none, and
// the thread is at its end. Once it gave 0 there is nothing until news is told.
int pd_take(pd_endpoint *e, pd_done *done, int max);

// pd_stop ends the thread, now and for good. Any thread may call it.
void pd_stop(pd_endpoint *e);

// pd_join waits until it has ended.
void pd_join(pd_endpoint *e);

// pd_providers writes the names of the providers that would do. It leaves out
// shm, which does harm.
void pd_providers(char *names, size_t size);

#endif
