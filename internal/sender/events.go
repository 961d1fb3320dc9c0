package sender

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// What the core is told. Besides these a *job comes back when a worker is done
// with it, and the input's lines come as they are.

// attached says that a session with a receiver is open.
type attached struct {
	session *session
	slots   int    // of staging; the same in every session
	engine  string // by which it is written, for people
}

// refused says that a receiver was asked to attach and would not, or that its
// memory cannot be reached.
type refused struct {
	receiver int
	err      error
	code     wire.Code
	heard    bool // something came from it
}

// answered is a receiver's answer.
type answered struct {
	session *session
	id      uint64 // of the flight
	msg     wire.Message
}

// leaving says that the data connection of a session has ended: lost comes of
// it, as soon as the receiver has had the time to say why.
type leaving struct{ session *session }

// lost says that a session is over. Nothing more comes of it.
type lost struct {
	session *session
	err     error
	code    wire.Code
	// alive: only the lease is gone. What was ready is still the decoder's.
	alive bool
}

// noticed is what became of a ProxyNotif.
type noticed struct {
	reqID string
	err   error // nil: handed to a live connection
}

// effects is what the core has done to the world. No method blocks.
type effects interface {
	// attach asks for a session with a receiver that has none: attached or
	// refused comes of it, or nothing as long as the receiver is silent.
	attach(receiver int)
	// send sends a message; an answer to it carries id.
	send(s *session, id uint64, msg wire.Message)
	// abandon ends a session that is no good any more; lost is not told.
	abandon(s *session)
	// gone says that a write found the data connection ended: lost comes of it.
	gone(s *session, err error)
	// write has a chunk copied, summed and written; the job comes back.
	write(j *job)
	// finish gives up a session's memory; no job of it is under way.
	finish(s *session)
	// notify sends a ProxyNotif; noticed comes of it.
	notify(reqID string)
	// withdraw takes a notify back unless it is too late; noticed comes all the same.
	withdraw(reqID string)
	// fail sends a FailNotif.
	fail(reqID, reason string)
	// end tells people and programs how a request ended.
	end(r *Result)
	// note tells people something.
	note(text string)
}

// session is one attachment to one receiver: one identity, one data connection.
// What the core knows of requests at that receiver dies with it.
type session struct {
	receiver int
	engine   string
	remote   rdma.Remote
	ctx      context.Context // ends with it
	epoch    uint64
	slots    int64
	slotSize int64
	heard    atomic.Int64 // when the receiver was last heard, of the core's clock

	// The core's own.
	jobs int  // handed to workers and not back
	over bool // lost or abandoned
	work chan *job
}

func (s *session) lastHeard() time.Duration { return time.Duration(s.heard.Load()) }
