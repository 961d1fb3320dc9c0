package sock

/*
#include <malloc.h>

#ifdef __GLIBC__
// keep_little runs before there are threads: the first to need an arena of its
// own settles how many there may be. One thread takes a message's memory and
// another frees it, so arenas of their own would be as many half empty ones. And
// thresholds that glibc raises by itself would have large frames among the small
// ones, and what is free at the end of all kept.
__attribute__((constructor)) static void keep_little(void) {
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

static size_t unused(void) { return mallinfo2().fordblks; }

static void give_back(void) { malloc_trim(0); }
#else
static size_t unused(void) { return 0; }
static void give_back(void) {}
#endif
*/
import "C"

import "time"

// What was taken for queues and connections that are no more goes back to the
// system every tidyEvery, where it is more than tidyFrom bytes: left alone, C's
// allocator keeps for ever what lies below something that lives.
const (
	tidyEvery = time.Second
	tidyFrom  = 2 << 20
)

// tidy gives memory back until stop.
func tidy(stop <-chan struct{}) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			if C.unused() > tidyFrom {
				C.give_back()
			}
		}
	}
}
