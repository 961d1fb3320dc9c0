#include "endpoint.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

// The interface that this is written to: that of Debian 12, and what Ubuntu
// 22.04 has in common with it.
#define API FI_VERSION(1, 11)

// linger is for how long, in microseconds, an endpoint that was just written to
// looks for more before it sleeps. A sender that paces itself leaves gaps of some
// hundred, and takes an acknowledgement that comes late for a slower path: a
// target that sleeps after 50 gets 0.78 of what one that never sleeps gets, after
// 1000 0.98 (tcp with BBR, 1 MiB). An endpoint that waits for its own writes
// sleeps at once: it gains nothing by looking, and the processor is wanted. For
// the same reason at most every second processor lingers.
enum { linger = 1000 };

static atomic_int lingering; // endpoints of this process that do
static int lingerers = 1;    // that may

// Bounds of one sleep, in milliseconds. Where the provider has a descriptor to
// wait on they are a net that should catch nothing, except that a write which
// waits for its connection is tried again after retry.
enum { nap = 100, retry = 1, blind = 1 };

// slot is a write in flight. Some providers keep notes in the context.
struct slot {
	struct fi_context2 context;
	uint64_t id;
	struct slot *next;
};

struct pd_endpoint {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	int cq_fd; // -1: the provider has none
	int wake_fd;
	int news;
	fi_addr_t peer;
	void *source;

	// Of the thread alone.
	struct slot *slots, *unused; // there are window of them
	int window, flying;
	pd_write *work; // taken from posted, from next on not sent yet
	int work_len, work_cap, work_next;
	int64_t until; // when lingering ends

	pthread_t thread;
	pthread_mutex_t lock; // guards what follows
	pd_write *posted;
	int posted_len, posted_cap;
	pd_done *done; // not taken yet
	int done_len, done_cap;
	int owed; // posted and not taken back as done: done has room for them
	int told; // through news, and pd_take has not emptied done since
	int ended;
	atomic_int wanted; // posted has some
	atomic_int asleep; // until something is posted
	atomic_int stopped;
};

// The library is loaded when it is first needed, and not with the program: to
// load it takes from 0.2 s to a second, for it brings drivers along that look for
// their hardware, and who never writes across hosts need not have it. Of its
// functions these are the ones that are not behind an object's own table.
static struct {
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	void (*freeinfo)(struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	const char *(*strerror)(int);
} lib;

static const char *load_error;

// defaults are what the library reads when it is loaded, unless it is told
// otherwise. ofi_rxm gets ready for thousands of messages of 16 KiB an endpoint,
// with 68 MiB and 40 ms; we send none, and so it takes 1 MiB and 1 ms. The drivers of
// InfiniPath and Omni-Path catch signals, to say where they were and exit.
static const char *const defaults[][2] = {
	{"FI_OFI_RXM_BUFFER_SIZE", "256"},
	{"FI_OFI_RXM_TX_SIZE", "32"},
	{"FI_OFI_RXM_RX_SIZE", "32"},
	{"FI_OFI_RXM_MSG_TX_SIZE", "32"},
	{"FI_OFI_RXM_MSG_RX_SIZE", "16"},
	{"IPATH_NO_BACKTRACE", "1"},
	{"HFI_NO_BACKTRACE", "1"},
};

static void load(void) {
	for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
		setenv(defaults[i][0], defaults[i][1], 0);
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	if (processors > 2)
		lingerers = processors / 2;
	// Signals are Go's, whatever drivers think of them.
	struct sigaction was[NSIG], is;
	for (int s = 1; s < NSIG; s++)
		sigaction(s, NULL, &was[s]);
	void *h = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	for (int s = 1; s < NSIG; s++)
		if (sigaction(s, NULL, &is) == 0 && is.sa_sigaction != was[s].sa_sigaction)
			sigaction(s, &was[s], NULL);
	if (h) {
		lib.getinfo = dlsym(h, "fi_getinfo");
		lib.dupinfo = dlsym(h, "fi_dupinfo");
		lib.freeinfo = dlsym(h, "fi_freeinfo");
		lib.fabric = dlsym(h, "fi_fabric");
		lib.strerror = dlsym(h, "fi_strerror");
	}
	if (!h || !lib.getinfo || !lib.dupinfo || !lib.freeinfo || !lib.fabric || !lib.strerror)
		load_error = h ? "it lacks functions that every version has" : strdup(dlerror()); // the process's only one
}

const char *pd_load(void) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load);
	return load_error;
}

const char *pd_strerror(int err) { return lib.strerror(err); }

static struct fi_info *wish(const char *provider) {
	struct fi_info *h = lib.dupinfo(NULL);
	if (!h)
		return NULL;
	h->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->threading = FI_THREAD_SAFE;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	// Complete is what is visible at the target.
	h->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	if (provider)
		h->fabric_attr->prov_name = strdup(provider);
	return h;
}

// find asks for the provider at addr; one whose addresses are not the host's is
// asked for without.
static int find(const char *provider, const char *addr, struct fi_info **out) {
	struct fi_info *h = wish(provider);
	if (!h)
		return -FI_ENOMEM;
	int err = -FI_ENODATA;
	if (*addr)
		err = lib.getinfo(API, addr, NULL, FI_SOURCE, h, out);
	if (err)
		err = lib.getinfo(API, NULL, NULL, 0, h, out);
	lib.freeinfo(h);
	return err;
}

void pd_providers(char *names, size_t size) {
	struct fi_info *h = wish(NULL), *all = NULL;
	*names = 0;
	if (h && lib.getinfo(API, NULL, NULL, 0, h, &all) == 0) {
		for (struct fi_info *i = all; i; i = i->next) {
			const char *name = i->fabric_attr->prov_name;
			size_t len = strlen(names);
			if (strcmp(name, "shm") && !strstr(names, name) && len + strlen(name) + 3 < size) {
				if (len)
					strcat(names, ", ");
				strcat(names, name);
			}
		}
		lib.freeinfo(all);
	}
	lib.freeinfo(h);
}

static int open_cq(pd_endpoint *e) {
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
	int err = fi_cq_open(e->domain, &attr, &e->cq, NULL);
	if (!err && fi_control(&e->cq->fid, FI_GETWAIT, &e->cq_fd) == 0)
		return 0;
	if (!err)
		fi_close(&e->cq->fid);
	e->cq = NULL;
	e->cq_fd = -1;
	attr.wait_obj = FI_WAIT_NONE;
	return fi_cq_open(e->domain, &attr, &e->cq, NULL);
}

static int set_up(pd_endpoint *e, const char *provider, const char *addr, int window, const char **what) {
	struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 1};
	int err;

	*what = "allocate";
	e->slots = calloc(window, sizeof *e->slots);
	e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!e->slots || e->wake_fd < 0)
		return -errno;
	e->window = window;
	for (int i = 0; i < window; i++) {
		e->slots[i].next = e->unused;
		e->unused = &e->slots[i];
	}
	*what = "fi_getinfo";
	if ((err = find(provider, addr, &e->info)))
		return err;
	*what = "fi_fabric";
	if ((err = lib.fabric(e->info->fabric_attr, &e->fabric, NULL)))
		return err;
	*what = "fi_domain";
	if ((err = fi_domain(e->fabric, e->info, &e->domain, NULL)))
		return err;
	*what = "fi_av_open";
	if ((err = fi_av_open(e->domain, &av, &e->av, NULL)))
		return err;
	*what = "fi_cq_open";
	if ((err = open_cq(e)))
		return err;
	*what = "fi_endpoint";
	if ((err = fi_endpoint(e->domain, e->info, &e->ep, NULL)))
		return err;
	*what = "fi_ep_bind";
	if ((err = fi_ep_bind(e->ep, &e->av->fid, 0)) || (err = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV)))
		return err;
	*what = "fi_enable";
	return fi_enable(e->ep);
}

int pd_open(const char *provider, const char *addr, int window, int news, pd_endpoint **out, const char **what) {
	pd_endpoint *e = calloc(1, sizeof *e);
	*what = "allocate";
	if (!e)
		return FI_ENOMEM;
	e->cq_fd = e->wake_fd = -1;
	e->news = news;
	pthread_mutex_init(&e->lock, NULL);
	int err = set_up(e, provider, addr, window, what);
	if (err) {
		pd_close(e);
		return -err;
	}
	*out = e;
	return 0;
}

static void shut(struct fid *f) {
	if (f)
		fi_close(f);
}

void pd_shut(pd_endpoint *e) {
	shut(e->ep ? &e->ep->fid : NULL);
	e->ep = NULL;
}

void pd_close(pd_endpoint *e) {
	pd_shut(e);
	shut(e->cq ? &e->cq->fid : NULL);
	shut(e->av ? &e->av->fid : NULL);
	shut(e->domain ? &e->domain->fid : NULL);
	shut(e->fabric ? &e->fabric->fid : NULL);
	if (e->info)
		lib.freeinfo(e->info);
	if (e->wake_fd >= 0)
		close(e->wake_fd);
	pthread_mutex_destroy(&e->lock);
	free(e->slots);
	free(e->work);
	free(e->posted);
	free(e->done);
	free(e);
}

int pd_name(pd_endpoint *e, void *name, size_t *len) { return -fi_getname(&e->ep->fid, name, len); }

int pd_peer(pd_endpoint *e, const void *name) {
	int n = fi_av_insert(e->av, name, 1, &e->peer, 0, NULL);
	return n == 1 ? 0 : n < 0 ? -n : FI_EADDRNOTAVAIL;
}

int pd_register(pd_endpoint *e, void *mem, size_t len, int remote, uint64_t key, pd_region *out) {
	struct fid_mr *mr;
	uint64_t mode = e->info->domain_attr->mr_mode;
	size_t room = e->info->domain_attr->mr_key_size;
	if (room && room < sizeof key)
		key &= ((uint64_t)1 << (8 * room)) - 1;
	int err = fi_mr_reg(e->domain, mem, len, remote ? FI_REMOTE_WRITE : FI_WRITE, 0, key, 0, &mr, NULL);
	if (err)
		return -err;
	out->mr = mr;
	out->key = fi_mr_key(mr);
	out->base = mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)mem : 0;
	return 0;
}

void pd_unregister(pd_region *r) {
	shut(&((struct fid_mr *)r->mr)->fid);
	r->mr = NULL;
}

void pd_source(pd_endpoint *e, const pd_region *r) { e->source = fi_mr_desc(r->mr); }

static void wake(int fd) {
	uint64_t one = 1;
	// It fails only when it is awake already for 2^64-1 reasons.
	(void)!write(fd, &one, sizeof one);
}

// room makes room for need elements in a list that has room for cap.
static int room(void *list, int *cap, int need, size_t size) {
	if (need <= *cap)
		return 0;
	void **at = list, *more = realloc(*at, 2 * need * size);
	if (!more)
		return ENOMEM;
	*at = more;
	*cap = 2 * need;
	return 0;
}

int pd_post(pd_endpoint *e, const pd_write *writes, int n) {
	pthread_mutex_lock(&e->lock);
	if (room(&e->posted, &e->posted_cap, e->posted_len + n, sizeof *e->posted) ||
	    room(&e->done, &e->done_cap, e->owed + n, sizeof *e->done)) {
		pthread_mutex_unlock(&e->lock);
		return ENOMEM;
	}
	memcpy(e->posted + e->posted_len, writes, n * sizeof *writes);
	e->posted_len += n;
	e->owed += n;
	atomic_store(&e->wanted, 1);
	pthread_mutex_unlock(&e->lock);
	if (atomic_load(&e->asleep))
		wake(e->wake_fd);
	return 0;
}

void pd_stop(pd_endpoint *e) {
	atomic_store(&e->stopped, 1);
	wake(e->wake_fd);
}

// tell hands over what is done. Who has been told and has not looked yet is not
// told again: so one that is slow to run is told of many at a time.
static void tell(pd_endpoint *e, const pd_done *done, int n, int ended) {
	pthread_mutex_lock(&e->lock);
	memcpy(e->done + e->done_len, done, n * sizeof *done);
	e->done_len += n;
	e->ended = ended;
	int news = !e->told;
	e->told = 1;
	pthread_mutex_unlock(&e->lock);
	if (news)
		wake(e->news);
}

int pd_take(pd_endpoint *e, pd_done *done, int max) {
	pthread_mutex_lock(&e->lock);
	int n = e->done_len < max ? e->done_len : max;
	int ended = e->ended;
	if (n > 0)
		memcpy(done, e->done, n * sizeof *done);
	e->done_len -= n;
	e->owed -= n;
	if (e->done_len > 0)
		memmove(e->done, e->done + n, e->done_len * sizeof *done);
	else
		e->told = 0;
	pthread_mutex_unlock(&e->lock);
	return n == 0 && ended ? -1 : n;
}

// take gets what was posted once all that was taken before is sent.
static void take(pd_endpoint *e) {
	if (e->work_next < e->work_len || !atomic_load(&e->wanted))
		return;
	pthread_mutex_lock(&e->lock);
	pd_write *list = e->work;
	int cap = e->work_cap;
	e->work = e->posted;
	e->work_cap = e->posted_cap;
	e->work_len = e->posted_len;
	e->work_next = 0;
	e->posted = list;
	e->posted_cap = cap;
	e->posted_len = 0;
	atomic_store(&e->wanted, 0);
	pthread_mutex_unlock(&e->lock);
}

// launch sends what the window has room for. It returns how many are done, for
// they failed at once.
static int launch(pd_endpoint *e, pd_done *done, int max) {
	int n = 0;
	take(e);
	while (e->work_next < e->work_len && e->unused && n < max) {
		pd_write *w = &e->work[e->work_next];
		struct slot *s = e->unused;
		struct iovec from = {(void *)w->buf, w->len};
		struct fi_rma_iov to = {w->addr, w->len, w->key};
		struct fi_msg_rma msg = {&from, &e->source, 1, e->peer, &to, 1, &s->context, 0};
		// Not fi_write: the provider net forgets what op_flags says, and a write
		// would be done before it is there.
		ssize_t err = fi_writemsg(e->ep, &msg, FI_DELIVERY_COMPLETE | FI_COMPLETION);
		if (err == -FI_EAGAIN)
			break;
		e->work_next++;
		if (err) {
			done[n++] = (pd_done){.id = w->id, .err = (int)-err};
			continue;
		}
		e->unused = s->next;
		s->id = w->id;
		e->flying++;
	}
	return n;
}

static void land(pd_endpoint *e, struct slot *s, pd_done *done, int err) {
	*done = (pd_done){.id = s->id, .err = err};
	s->next = e->unused;
	e->unused = s;
	e->flying--;
}

// collect reads completions, which is also what makes manual providers work.
static int collect(pd_endpoint *e, pd_done *done, int max) {
	struct fi_cq_entry entries[16];
	if (max > 16)
		max = 16;
	ssize_t n = fi_cq_read(e->cq, entries, max);
	for (ssize_t i = 0; i < n; i++)
		land(e, entries[i].op_context, &done[i], 0);
	if (n != -FI_EAVAIL)
		return n > 0 ? (int)n : 0;
	struct fi_cq_err_entry fault = {0};
	if (fi_cq_readerr(e->cq, &fault, 0) != 1)
		return 0;
	// Without a context of ours it is of something of the peer's: nobody waits for it.
	struct slot *s = fault.op_context;
	if (s < e->slots || s >= e->slots + e->window)
		return 0;
	land(e, s, done, fault.err ? fault.err : FI_EIO);
	return 1;
}

// rest sleeps until something comes or is posted. It reports whether something
// came.
static int rest(pd_endpoint *e) {
	int some = 0;
	int behind = e->work_next < e->work_len; // so what was posted since must wait
	int waiting = behind && e->unused;       // for its connection
	int ms = waiting ? retry : e->cq_fd < 0 ? blind : nap;
	struct fid *fid = &e->cq->fid;
	struct pollfd fds[2] = {{.fd = e->wake_fd, .events = POLLIN}, {.fd = e->cq_fd, .events = POLLIN}};

	atomic_store(&e->asleep, !behind);
	if ((behind || !atomic_load(&e->wanted)) && !atomic_load(&e->stopped)) {
		if (e->cq_fd >= 0 && fi_trywait(e->fabric, &fid, 1) != FI_SUCCESS)
			some = 1;
		else if (poll(fds, e->cq_fd >= 0 ? 2 : 1, ms) > 0)
			some = fds[1].revents != 0;
	}
	atomic_store(&e->asleep, 0);
	if (fds[0].revents) {
		uint64_t n;
		(void)!read(e->wake_fd, &n, sizeof n);
	}
	return some;
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

static void stay(pd_endpoint *e) {
	if (atomic_fetch_add(&lingering, 1) < lingerers)
		e->until = now() + linger;
	else
		atomic_fetch_sub(&lingering, 1);
}

static void leave(pd_endpoint *e) {
	if (e->until)
		atomic_fetch_sub(&lingering, 1);
	e->until = 0;
}

static void *run(void *endpoint) {
	pd_endpoint *e = endpoint;
	enum { most = 64 };
	pd_done done[most];
	while (!atomic_load(&e->stopped)) {
		int n = launch(e, done, most);
		if (n < most)
			n += collect(e, done + n, most - n);
		if (n > 0) {
			tell(e, done, n, 0);
			continue;
		}
		if (e->until && now() < e->until)
			continue;
		leave(e);
		if (rest(e) && e->flying == 0)
			stay(e);
	}
	leave(e);
	tell(e, done, 0, 1);
	return NULL;
}

int pd_start(pd_endpoint *e) {
	// Signals are Go's, and for its threads.
	sigset_t all, was;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int err = pthread_create(&e->thread, NULL, run, e);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return err;
}

void pd_join(pd_endpoint *e) { pthread_join(e->thread, NULL); }
