package monitor

import "time"

const (
	// period is how often a Snapshot is sent, and an Event at most; longPeriod
	// is for Snapshots with more than manyEntries in their lists.
	period      = 250 * time.Millisecond
	longPeriod  = time.Second
	manyEntries = 1000

	// gap is the least time between two messages of any sort: at most ten a
	// second.
	gap = 100 * time.Millisecond
)

// pace says when what is sent.
type pace struct {
	sent       time.Time // the message before
	snapshotAt time.Time // when the next Snapshot is due
	eventAt    time.Time // when the next Event may go
	wanted     bool      // somebody came after the last Snapshot was asked for
}

type due int

const (
	sendNothing due = iota
	sendSnapshot
	sendEvent
)

// joined notes a new subscriber, who gets a Snapshot at once.
func (p *pace) joined(now time.Time) {
	p.wanted = true
	if now.Before(p.snapshotAt) {
		p.snapshotAt = now
	}
}

// next is what to do now or, if that is nothing, in how long there may be
// something. Of two that are due the one goes first that has been for longer.
func (p *pace) next(now time.Time, events bool) (what due, in time.Duration) {
	what, at := sendSnapshot, p.snapshotAt
	if events && p.eventAt.Before(at) {
		what, at = sendEvent, p.eventAt
	}
	if from := p.sent.Add(gap); from.After(at) {
		at = from
	}
	if in = at.Sub(now); in > 0 {
		return sendNothing, in
	}
	return what, 0
}

// asked notes that a Snapshot has been asked for.
func (p *pace) asked() { p.wanted = false }

func (p *pace) snapshotSent(now time.Time, entries int) {
	p.sent = now
	switch {
	case p.wanted:
		p.snapshotAt = now
	case entries > manyEntries:
		p.snapshotAt = now.Add(longPeriod)
	default:
		p.snapshotAt = now.Add(period)
	}
}

func (p *pace) eventSent(now time.Time) {
	p.sent = now
	p.eventAt = now.Add(period)
}
