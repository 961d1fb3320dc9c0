// Package reservation decides who gets slots of the buffer, and when: the
// admission core of pd-recv. It is a pure state machine: Step takes an event
// and the time and returns effects. It knows nothing of sockets, engines,
// clocks, goroutines or logs, and whoever drives it must not decide anything
// of its own.
//
// A request's life:
//
//	queued ─▶ admitted ─▶ allocated ─▶ ready ─▶ released
//	   └──── rejected / timed_out / cancelled / expired / rolled_back ────┘
//
// What always holds, after every Step (see check_test.go, which recomputes all of
// it from scratch):
//
//	promised + held + quarantined + free = total, none negative
//	no slot belongs to two chunks at once
//	a request that has ended leaves nothing behind
//	a slot whose writer may still write is given to nobody
//	a slot is open to its holder's current grant while it is to be written, else to nobody
//
// Start reading at Step in machine.go. Each rule of the contract stands once:
//
//	Admission, overtaking     admission.go, queue.go
//	Quotas of one sender      quota.go
//	Errors, table in order    batch.go (time-outs in lease.go, stopping in end.go)
//	Ready, Commit             ready.go
//	Shared prefixes           ledger.go (a retried key in admission.go)
//	Full rollback, Cancel     end.go (the memory of ended requests too)
//	Lease, Expiry             lease.go
//	Take, Release             take.go
//	Fence                     fence.go
//	Who may write a slot      door.go
//
// The caller's duties: give Step every message of a peer in the order in which
// it came; Tick only after the messages already received; do what Effects says
// before the next Step, the Doors first; report each Revocation as Revoked or
// RevokeFailed, Doors that could not be opened as AccessFailed, and each writer
// whose connection ends as Gone. At the end it gives Shutdown, goes on for as long as
// it likes, and gives Close: then every request has ended, and been told of, once.
package reservation
