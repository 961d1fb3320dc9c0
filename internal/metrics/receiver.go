package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pd-tools/pd-tools/wire"
)

// stalledAfter is the silence after which a request that is not written whole
// counts as stalled, as in pd-top.
const stalledAfter = 2 * time.Second

var receiver = receiverReadings()

func receiverReadings() readings[wire.Snapshot] {
	type snap = wire.Snapshot
	r := readings[snap]{prefix: prefix("pd-recv")}

	r.add(prometheus.GaugeValue, "slots", "Slots of the buffer, each in one state; their sum is the buffer.", []string{"state"}, slotStates)
	r.gauge("slot_size_bytes", "Size of a slot.", func(s *snap) float64 { return float64(s.Slots.Bytes) })
	r.gauge("slots_peak", "Most slots that were not free at one time since the start.", func(s *snap) float64 { return float64(s.Slots.Peak) })
	r.gauge("requests", "Live requests, waiting ones included.", func(s *snap) float64 { return float64(s.Totals.Requests) })
	r.gauge("stalled_requests", "Admitted requests that are not written whole and of which nothing was heard for 2 s.", stalled)
	r.gauge("draining", "1 from a stop by signal until the end: no request is let in any more.", draining)
	r.gauge("senders", "Senders that are attached or have requests.", func(s *snap) float64 { return float64(s.Totals.Senders) })

	r.gauge("queue_requests", "Requests that wait for admission.", func(s *snap) float64 { return float64(s.Totals.Queue) })
	r.gauge("queue_oldest_wait_seconds", "How long the first in the queue has waited; 0 when nobody waits.", func(s *snap) float64 { return seconds(oldest(s).WaitedMS) })
	r.gauge("queue_first_need_slots", "Slots that the first in the queue needs, of those whose sender is within its share; 0 when none waits.", func(s *snap) float64 { return float64(first(s).Need) })
	r.gauge("queue_first_lacks_slots", "Slots still to be freed until that one is admitted.", func(s *snap) float64 { return float64(first(s).Lacks) })

	r.gauge("queue_limit_requests", "Requests that may wait (--queue-limit); 0 is no limit.", func(s *snap) float64 { return float64(s.Limits.QueueLimit) })
	r.gauge("admit_timeout_seconds", "Longest wait for admission (--admit-timeout); 0 is no limit.", func(s *snap) float64 { return seconds(s.Limits.AdmitTimeoutMS) })
	r.gauge("ready_ttl_seconds", "How long a ready request waits for its decoder (--ready-ttl); 0 is for ever.", func(s *snap) float64 { return seconds(s.Limits.ReadyTTLMS) })

	r.counter("requests_admitted_total", "Requests that were admitted.", func(s *snap) int64 { return s.Counters.Admitted })
	r.counter("requests_ready_total", "Requests that became ready.", func(s *snap) int64 { return s.Counters.Ready })
	r.counter("requests_released_total", "Requests that a decoder has consumed.", func(s *snap) int64 { return s.Counters.Released })
	r.counter("requests_cancelled_total", "Requests that their sender gave up.", func(s *snap) int64 { return s.Counters.Cancelled })
	r.counter("requests_rejected_total", "Requests that were refused at their first batch.", func(s *snap) int64 { return s.Counters.Rejected })
	r.counter("requests_duplicate_total", "Rejected requests whose id was another sender's.", func(s *snap) int64 { return s.Counters.Duplicates })
	r.counter("requests_timed_out_total", "Requests that waited for admission as long as they may.", func(s *snap) int64 { return s.Counters.TimedOut })
	r.counter("requests_rolled_back_total", "Requests that an error of their sender ended, or a stop by signal before they were ready.", func(s *snap) int64 { return s.Counters.RolledBack })
	r.counter("requests_expired_total", "Requests that ended before they were ready since their sender was silent.", func(s *snap) int64 { return s.Counters.Expired })
	r.counter("requests_expired_unread_total", "Ready requests for which no decoder came.", func(s *snap) int64 { return s.Counters.ExpiredUnread })
	r.add(prometheus.CounterValue, "batches_refused_total", "Batches that were refused, by code.", []string{"code"}, refusals)
	r.counter("stale_writes_total", "Commits for requests that had ended.", func(s *snap) int64 { return s.Counters.StaleWrites })
	r.counter("bad_frames_total", "Messages that could not be decoded.", func(s *snap) int64 { return s.Counters.BadFrames })
	r.counter("refused_peers_total", "Peers that had no key that is allowed, each time they came.", func(s *snap) int64 { return s.Counters.Refused })
	r.counter("undeliverable_answers_total", "Answers whose peer was gone.", func(s *snap) int64 { return s.Counters.Undeliverable })
	r.counter("written_chunks_total", "Chunks that were written and committed.", func(s *snap) int64 { return s.Counters.WrittenChunks })
	r.counter("written_bytes_total", "Bytes of the chunks that were written and committed.", func(s *snap) int64 { return s.Counters.WrittenBytes })
	r.counter("shared_chunks_total", "Chunks that were not sent since they were there already.", func(s *snap) int64 { return s.Counters.SharedChunks })
	return r
}

func draining(s *wire.Snapshot) float64 {
	if s.Draining {
		return 1
	}
	return 0
}

// slotStates takes the ledger apart: there Written is part of Held and Ready
// of Written.
func slotStates(s *wire.Snapshot, put put) {
	l := &s.Slots
	put(float64(l.Free), "free")
	put(float64(l.Promised), "promised")
	put(float64(l.Held-l.Written), "allocated")
	put(float64(l.Written-l.Ready), "written")
	put(float64(l.Ready), "ready")
	put(float64(l.Quarantined), "quarantined")
}

func oldest(s *wire.Snapshot) wire.SnapshotWaiter {
	if len(s.Queue) == 0 {
		return wire.SnapshotWaiter{}
	}
	return s.Queue[0]
}

func first(s *wire.Snapshot) wire.SnapshotWaiter {
	if w := s.FirstInLine(); w != nil {
		return *w
	}
	return wire.SnapshotWaiter{}
}

// stalled counts among the requests that the Snapshot lists: the oldest.
func stalled(s *wire.Snapshot) float64 {
	n := 0
	for i := range s.Requests {
		r := &s.Requests[i]
		admitted := r.State == "admitted" || r.State == "allocated"
		if admitted && r.Written < r.TotalChunks && r.IdleMS >= stalledAfter.Milliseconds() {
			n++
		}
	}
	return float64(n)
}

// codes are those by which a batch is refused: each has a series from the
// start, so that its first increase can be seen.
var codes = []wire.Code{
	wire.CodeBadRequest, wire.CodeStaleEpoch, wire.CodeDuplicateRequest, wire.CodeTooLarge, wire.CodeRolledBack, wire.CodeNoTotal,
	wire.CodeProtocolViolation, wire.CodeQueueFull, wire.CodeAdmissionTimeout, wire.CodeInternal, wire.CodeShuttingDown,
}

func refusals(s *wire.Snapshot, put put) {
	for _, code := range codes {
		put(float64(s.Refusals[string(code)]), string(code))
	}
	for code, n := range s.Refusals {
		if !slices.Contains(codes, wire.Code(code)) {
			put(float64(n), code)
		}
	}
}
