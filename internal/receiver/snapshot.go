package receiver

import (
	"strings"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// snapshotAge is how old a Snapshot may be that is handed out again: they are
// built at most ten times a second, however many ask.
const snapshotAge = 100 * time.Millisecond

type snapshotCache struct {
	at      time.Time
	encoded []byte
}

// snapshot is the state of now, or of at most snapshotAge ago, encoded.
func (r *Receiver) snapshot() []byte {
	if r.snap.encoded != nil && r.now.Sub(r.snap.at) < snapshotAge {
		return r.snap.encoded
	}
	up := r.now.Sub(r.started)
	s := r.core.Snapshot(up)
	s.Time = wire.StampOf(r.now)
	s.ID = r.cfg.ID
	s.Endpoint = r.endpoint
	s.Engine = strings.Join(r.target.Engines(), ",")
	s.UptimeS = up.Seconds()
	s.Counters.BadFrames = r.badFrames
	s.Counters.Undeliverable = r.out.undeliverable
	s.AdmitWait = r.waits.Last(up)
	r.snap = snapshotCache{at: r.now, encoded: wire.Append(nil, &s)}
	return r.snap.encoded
}
