package receiver

import (
	"strings"

	"github.com/pd-tools/pd-tools/wire"
)

// stat is what a StatRequest is answered with, and the message of which that is
// the encoding.
type stat struct {
	of      wire.Message
	encoded []byte
}

// encodedSnapshot is the state of now, or of a moment ago. Those who ask by a
// message and those who ask by Asks share it.
func (r *Receiver) encodedSnapshot() []byte {
	if m := r.cfg.Asks.Message(r.now, r.snapshot); m != r.stat.of {
		r.stat = stat{of: m, encoded: wire.Append(nil, m)}
	}
	return r.stat.encoded
}

// snapshot is the state of now.
func (r *Receiver) snapshot() wire.Message {
	up := r.now.Sub(r.started)
	s := r.core.Snapshot(up)
	s.Time = wire.StampOf(r.now)
	s.ID = r.cfg.ID
	s.Endpoint = r.endpoint
	s.Engine = strings.Join(r.target.Engines(), ",")
	s.UptimeS = up.Seconds()
	s.Counters.BadFrames = r.badFrames
	s.Counters.Refused = r.cfg.Keys.Refused()
	s.Counters.Undeliverable = r.out.undeliverable
	s.AdmitWait = r.waits.Last(up)
	s.WriteTime = r.writeTime.Last(up)
	s.ReadyTime = r.readyTime.Last(up)
	if r.engineRefused > 0 {
		s.Refusals[string(wire.CodeInternal)] += r.engineRefused
	}
	return &s
}
