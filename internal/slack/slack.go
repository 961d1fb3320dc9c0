// Package slack lets timers be late by a millisecond, for a program that imports
// it: it has nothing to call.
//
// Go's runtime watches its processors from a thread of its own, which looks again
// after 20 µs whenever a program has just gone from idle to busy. A program that
// waits for one transfer after another does that all the time. On a virtual
// machine each look takes some 30 µs: the thread had 10% of a core in pd-send and
// in pd-recv each, and the engine 0.875 of the rate of a loop in C, with the slack
// 0.92 (tcp over loopback, 1 MiB). Nothing of ours counts in less than
// milliseconds. Events are as prompt as ever: only time-outs are late.
package slack

/*
#include <sys/prctl.h>

enum { slack = 1000 * 1000 }; // nanoseconds; Linux has 50,000 if nobody says more

// Before main, for a thread inherits it from the one that starts it, and Go's
// starts first.
__attribute__((constructor)) static void relax(void) {
	if (prctl(PR_GET_TIMERSLACK) < slack)
		prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}
*/
import "C"
