package receiver

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/internal/window"
	"github.com/pd-tools/pd-tools/wire"
)

// Summary is what the receiver did, in a line for people. It is had after Run.
func (r *Receiver) Summary() string {
	up := time.Since(r.started)
	s := r.core.Snapshot(up)
	s.Counters.Refused = r.cfg.Keys.Refused()
	return summary(up, &s, r.waits.All())
}

func summary(up time.Duration, s *wire.Snapshot, waits wire.SnapshotWait) string {
	n := &s.Counters
	var b strings.Builder
	fmt.Fprintf(&b, "up %v; requests: %s ready, %s released", up.Round(time.Second), humanize.Comma(n.Ready), humanize.Comma(n.Released))
	for _, end := range []struct {
		what string
		n    int64
	}{
		{"cancelled", n.Cancelled},
		{"rejected", n.Rejected},
		{"timed out", n.TimedOut},
		{"rolled back", n.RolledBack},
		{"expired before they were ready", n.Expired},
		{"expired unread", n.ExpiredUnread},
	} {
		if end.n > 0 {
			fmt.Fprintf(&b, ", %s %s", humanize.Comma(end.n), end.what)
		}
	}
	fmt.Fprintf(&b, "; %s chunks written, %s", humanize.Comma(n.WrittenChunks), humanize.IBytes(uint64(n.WrittenBytes)))
	if n.SharedChunks > 0 {
		fmt.Fprintf(&b, ", %s shared", humanize.Comma(n.SharedChunks))
	}
	fmt.Fprintf(&b, "; at most %s of %s slots used", humanize.Comma(int64(s.Slots.Peak)), humanize.Comma(int64(s.Slots.Total)))
	if n.Admitted > 0 {
		fmt.Fprintf(&b, "; admission wait %s", window.Words(waits))
	}
	if n.Refused > 0 {
		fmt.Fprintf(&b, "; peers refused %s times", humanize.Comma(n.Refused))
	}
	return b.String()
}
