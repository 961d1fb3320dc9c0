package reservation

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// attach makes a sender an attached one. "Idempotent: asked again, it keeps
// requests". What it had before it attached is from now on an attached
// sender's: to be committed, under the sender's lease, and fenced.
func (m *Machine) attach(ev Attach) {
	s := m.senderOf(ev.Sender)
	if !s.attached {
		s.attached = true
		for r := range s.requests {
			r.legacy = false
			m.rearm(r)
		}
	}
	s.name, s.engine = ev.Name, ev.Engine
	if m.writers[ev.Writer] != s {
		m.fx.Ended = append(m.fx.Ended, s.grants...) // superseded
		s.grants = append(s.grants, ev.Writer)
		m.writers[ev.Writer] = s
		m.reopen(s)
	}
	s.heard = m.now
	if m.cfg.Lease > 0 {
		m.arm(&s.timer, m.now+m.cfg.Lease)
	}
}

// heard renews a lease: "any message of it renews what it has".
func (m *Machine) heard(identity string) {
	if s := m.senders[identity]; s != nil {
		s.heard = m.now
	}
}

// heartbeat: "renews the lease of everything this sender has; answered by an
// AllocResponse with the epoch". Once all has ended there is nothing to renew, and
// this is where a sender that asks for nothing else hears why.
func (m *Machine) heartbeat(ev Heartbeat) {
	m.heard(ev.Sender)
	resp := &wire.AllocResponse{RemoteIndexes: []int64{}, AlreadySentIndexes: []int64{}}
	s := m.senders[ev.Sender]
	no := m.checkEpoch(ev.Sender, ev.Epoch)
	switch {
	case no != nil:
	case s == nil || !s.attached:
		no = refusef(wire.CodeStaleEpoch, "heartbeat from a sender that is not attached: attach anew")
	case m.closed:
		no = refusef(wire.CodeShuttingDown, "the receiver has stopped: what was not written in time has ended")
	}
	if no != nil {
		resp.Error, resp.Code = no.reason, no.code
	}
	if s != nil && s.attached {
		resp.Epoch = m.cfg.Epoch
	}
	m.answer(ev.Tag, resp)
}

// expire lets go by the clock what is due: "Expiry goes by the clock, whether
// or not traffic comes; messages already received are handled first".
func (m *Machine) expire() {
	m.ended.forgetBefore(m.now - m.cfg.Memory)
	for len(m.timers) > 0 && m.timers[0].at <= m.now {
		t := m.timers[0]
		m.disarm(t)
		t.fire.due(m)
		m.admitWaiting() // what one lets go may still save the next
	}
}

// NextDue is how long after the last Step something may be due, if anything
// is: the time for a Tick.
func (m *Machine) NextDue() (in time.Duration, ok bool) {
	if len(m.timers) == 0 {
		return 0, false
	}
	return max(m.timers[0].at-m.now, 0), true
}

// due ends a silent sender: "--lease of silence ends all of it".
func (s *sender) due(m *Machine) {
	if at := s.heard + m.cfg.Lease; at > s.timer.at {
		m.arm(&s.timer, at)
		return
	}
	m.endSender(s, fmt.Sprintf("its sender was silent for %v: lease expired", m.cfg.Lease), true)
}

// endSender ends a sender and all it has, ready requests excepted: "A ready
// request of an attached sender is the decoder's: it outlives its sender, up to
// --ready-ttl".
func (m *Machine) endSender(s *sender, reason string, fence bool) {
	for _, r := range s.inOrder() {
		if !r.ready {
			m.end(r, ending{kind: Expired, no: &refusal{code: wire.CodeExpired, reason: reason}, fence: fence})
		}
	}
	if s.attached {
		s.attached, s.engine = false, ""
		m.disarm(&s.timer)
		for _, w := range s.grants {
			delete(m.writers, w)
		}
		m.fx.Ended = append(m.fx.Ended, s.grants...)
		s.grants = nil
	}
	m.forgetIdle(s)
}

// overrun ends a sender that does not read its answers: "answers for a slow
// peer wait in a bounded backlog, over it that sender ends".
func (m *Machine) overrun(ev Overrun) {
	if s := m.senders[ev.Sender]; s != nil {
		m.endSender(s, "its sender does not read its answers", true)
	}
}

// deadline is when r is due, whatever it is that it waits for.
func (m *Machine) deadline(r *request) (at Time, ok bool) {
	from, limit := r.named, m.cfg.LegacyLease
	switch {
	case r.place.waits:
		from, limit = r.place.since, m.cfg.AdmitTimeout
	case r.taker != "":
		from, limit = r.takenAt, m.cfg.Lease
	case r.legacy:
		// "For a sender that never attached each request has its own
		// --legacy-lease, renewed by messages that name it and by its answers,
		// standing still while its batch waits, and lasting until the request
		// is taken."
	case r.ready:
		from, limit = r.readyAt, m.cfg.ReadyTTL
	default:
		return 0, false // its sender's lease is its own
	}
	return from + limit, limit > 0
}

// rearm follows a change of what r waits for.
func (m *Machine) rearm(r *request) {
	if at, ok := m.deadline(r); ok {
		m.arm(&r.timer, at)
	} else {
		m.disarm(&r.timer)
	}
}

func (r *request) due(m *Machine) {
	if at, _ := m.deadline(r); at > r.timer.at {
		m.arm(&r.timer, at)
		return
	}
	switch {
	case r.place.waits:
		m.timeOut(r)
	case r.taker != "":
		m.untake(r)
	case r.ready:
		m.end(r, ending{kind: Expired, no: refusef(wire.CodeExpired, "ready for %v and not taken", (m.now - r.readyAt).Round(time.Millisecond))})
	default:
		m.end(r, ending{kind: Expired, no: refusef(wire.CodeExpired, "silent for %v: lease expired", (m.now - r.named).Round(time.Millisecond))})
	}
}

// timeOut: admission_timeout: "waited longer than --admit-timeout (in mode
// none: each batch)". It "rolls its request back".
func (m *Machine) timeOut(r *request) {
	why := m.heldBack(r)
	if why == "" {
		why = fmt.Sprintf("number %d in the queue, %d free: raise --admit-timeout or --buffer-size", m.queue.position(r), m.ledger.free())
	} else {
		why += ": raise --admit-timeout or --sender-share"
	}
	no := refusef(wire.CodeAdmissionTimeout, "waited %v for %s, %s",
		(m.now - r.place.since).Round(time.Millisecond), plural(r.place.need, "slot"), why)
	m.end(r, ending{kind: TimedOut, no: no, answer: no.code, fence: true})
}
