// What plain libfabric code gets out of fi_write, without anything of ours: a
// reference of the fabric section (bare.go). Two processes, both polling:
//
//	write target    PROVIDER BYTES PIECE
//	write initiator PROVIDER BYTES PIECE WINDOW
//
// Each obeys the lines of its stdin, words in quotation marks, and answers each
// with a line of JSON. The target first says where it is: {"Addr", "Base",
// "Key"}; those three words are the first line that the initiator must be
// told, with blanks between. Then
//
//	target     "clear" zeroes the memory, "go" polls until "stop", "check"
//	           counts the words that are not as the initiator has them
//	initiator  "go" writes BYTES from end to end, PIECE a write, and answers
//	           when it began and ended by CLOCK_MONOTONIC, in nanoseconds
#include <inttypes.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_mr *mr;
static uint64_t *mem;
static size_t bytes, piece;

static void must(int ret, const char *what) {
	if (ret >= 0) return;
	fprintf(stderr, "%s: %s\n", what, fi_strerror(-ret));
	exit(1);
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// The word that belongs at a place; no two are alike.
static uint64_t word(size_t at) { return (at + 1) * UINT64_C(0x9e3779b97f4a7c15); }

static void open_all(const char *provider, uint64_t access, size_t window) {
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	must(fi_getinfo(FI_VERSION(1, 11), "127.0.0.1", NULL, FI_SOURCE, hints, &info), "fi_getinfo");
	fi_freeinfo(hints);
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 2 * window, .wait_obj = FI_WAIT_NONE};
	must(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 1};
	must(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	must(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	must(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	must(fi_enable(ep), "fi_enable");
	mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	must(mem == MAP_FAILED ? -FI_ENOMEM : 0, "mmap");
	must(fi_mr_reg(domain, mem, bytes, access, 0, 0x2545f4914f6cdd1d, 0, &mr, NULL), "fi_mr_reg");
}

// progress reads completions, at most n; how many it was.
static ssize_t progress(struct fi_cq_entry *done, size_t n) {
	ssize_t got = fi_cq_read(cq, done, n);
	if (got == -FI_EAGAIN) return 0;
	if (got == -FI_EAVAIL) {
		struct fi_cq_err_entry e = {0};
		must(fi_cq_readerr(cq, &e, 0), "fi_cq_readerr");
		must(-e.err, "completion");
	}
	must(got, "fi_cq_read");
	return got;
}

static char line[4096];

static int hear(void) {
	fflush(stdout);
	return fgets(line, sizeof line, stdin) != NULL;
}

static int is(const char *word) { return strncmp(line + 1, word, strlen(word)) == 0; }

static atomic_int polling;

static void *poller(void *unused) {
	struct fi_cq_entry done[16];
	while (atomic_load_explicit(&polling, memory_order_relaxed)) progress(done, 16);
	return unused;
}

static void target(void) {
	unsigned char addr[512];
	size_t n = sizeof addr;
	must(fi_getname(&ep->fid, addr, &n), "fi_getname");
	printf("{\"Addr\": \"");
	for (size_t i = 0; i < n; i++) printf("%02x", addr[i]);
	uint64_t base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)mem : 0;
	printf("\", \"Base\": %" PRIu64 ", \"Key\": %" PRIu64 "}\n", base, fi_mr_key(mr));

	pthread_t thread;
	while (hear()) {
		size_t bad = 0;
		if (is("clear")) memset(mem, 0, bytes);
		if (is("go")) {
			polling = 1;
			must(-pthread_create(&thread, NULL, poller, NULL), "pthread_create");
		}
		if (is("stop")) {
			polling = 0;
			pthread_join(thread, NULL);
		}
		if (is("check"))
			for (size_t i = 0; i < bytes / 8; i++) bad += mem[i] != word(i);
		printf("{\"Bad\": %zu}\n", bad);
	}
}

static void initiator(size_t window) {
	for (size_t i = 0; i < bytes / 8; i++) mem[i] = word(i);
	char hex[1025];
	uint64_t base, key;
	if (!hear() || sscanf(line, "%1024s %" SCNu64 " %" SCNu64, hex, &base, &key) != 3) exit(2);
	unsigned char addr[512];
	for (size_t i = 0; i < strlen(hex) / 2; i++) sscanf(hex + 2 * i, "%2hhx", &addr[i]);
	fi_addr_t peer;
	must(fi_av_insert(av, addr, 1, &peer, 0, NULL) == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
	printf("{}\n");

	struct fi_cq_entry *done = calloc(window, sizeof *done);
	while (hear()) {
		int64_t start = now();
		size_t posted = 0, complete = 0, all = bytes / piece;
		while (complete < all) {
			while (posted < all && posted - complete < window) {
				size_t at = posted * piece;
				ssize_t ret = fi_write(ep, (char *)mem + at, piece, fi_mr_desc(mr), peer, base + at, key, NULL);
				if (ret == -FI_EAGAIN) break;
				must(ret, "fi_write");
				posted++;
			}
			complete += progress(done, window);
		}
		int64_t end = now();
		printf("{\"Start\": %" PRId64 ", \"End\": %" PRId64 "}\n", start, end);
	}
}

int main(int argc, char **argv) {
	int is_target = argc == 5 && !strcmp(argv[1], "target");
	int is_initiator = argc == 6 && !strcmp(argv[1], "initiator");
	if (!is_target && !is_initiator) {
		fprintf(stderr, "usage: write target PROVIDER BYTES PIECE | write initiator PROVIDER BYTES PIECE WINDOW\n");
		return 2;
	}
	bytes = strtoull(argv[3], NULL, 10);
	piece = strtoull(argv[4], NULL, 10);
	size_t window = is_target ? 16 : strtoull(argv[5], NULL, 10);
	open_all(argv[2], is_target ? FI_REMOTE_WRITE : FI_WRITE, window);
	if (is_target)
		target();
	else
		initiator(window);
	return 0;
}
