package receiver

import (
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		counters wire.Counters
		want     string
	}{
		{wire.Counters{}, "up 1m2s; requests: 0 ready, 0 released; 0 chunks written, 0 B; at most 5 of 1,024 slots used"},
		{
			wire.Counters{
				Admitted: 9, Ready: 1200, Released: 1100, Cancelled: 1, Rejected: 2, TimedOut: 3, RolledBack: 4, Expired: 5,
				ExpiredUnread: 6, WrittenChunks: 2000, WrittenBytes: 3 << 30, SharedChunks: 7,
			},
			"up 1m2s; requests: 1,200 ready, 1,100 released, 1 cancelled, 2 rejected, 3 timed out, 4 rolled back, " +
				"5 expired before they were ready, 6 expired unread; 2,000 chunks written, 3.0 GiB, 7 shared; " +
				"at most 5 of 1,024 slots used; admission wait p50 3.1ms p99 212ms max 1.93s",
		},
	} {
		snap := &wire.Snapshot{Counters: tt.counters, Slots: wire.SnapshotSlots{Total: 1024, Peak: 5}}
		if got := summary(62*time.Second, snap, wire.SnapshotWait{P50: 3.1, P99: 212, Max: 1930}); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
