package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pd-tools/pd-tools/wire"
)

var sender = senderReadings()

func senderReadings() readings[wire.SenderSnapshot] {
	type snap = wire.SenderSnapshot
	r := readings[snap]{prefix: prefix("pd-send")}

	r.gauge("requests", "Requests that have begun and not ended.", func(s *snap) float64 { return float64(s.Totals.Requests) })
	r.gauge("staging_slots", "Slots of the staging buffer.", func(s *snap) float64 { return float64(s.Staging.Total) })
	r.gauge("staging_used_slots", "Slots of the staging buffer that are in use.", func(s *snap) float64 { return float64(s.Staging.Used) })
	r.gauge("staging_slot_size_bytes", "Size of a slot of the staging buffer.", func(s *snap) float64 { return float64(s.Staging.Bytes) })
	r.gauge("staging_blocked_batches", "Batches that wait for slots of the staging buffer.", func(s *snap) float64 { return float64(s.Totals.Blocked) })
	r.gauge("staging_blocked_seconds", "How long the longest waiting of them got no slot; 0 when none waits.", blockedFor)

	r.counter("requests_ready_total", "Requests that became ready.", func(s *snap) int64 { return s.Counters.Ready })
	r.counter("requests_failed_total", "Requests that failed.", func(s *snap) int64 { return s.Counters.Failed })
	r.counter("requests_cancelled_total", "Requests that were cancelled.", func(s *snap) int64 { return s.Counters.Cancelled })
	r.counter("sent_chunks_total", "Chunks that were written and committed.", func(s *snap) int64 { return s.Counters.SentChunks })
	r.counter("sent_bytes_total", "Bytes of the chunks that were written and committed.", func(s *snap) int64 { return s.Counters.SentBytes })
	r.counter("shared_chunks_total", "Chunks that were not sent since the receiver had them already.", func(s *snap) int64 { return s.Counters.SharedChunks })
	r.counter("input_faults_total", "Faults of the input that name no request.", func(s *snap) int64 { return s.Counters.Faults })
	r.counter("undelivered_notices_total", "Notices that the proxy did not get.", func(s *snap) int64 { return s.Counters.Undelivered })
	r.counter("refused_peers_total", "Peers that had no key that is allowed, each time they came.", func(s *snap) int64 { return s.Counters.Refused })

	// Receivers are those of --to: by position as well, for one may be there twice.
	links := func(kind prometheus.ValueType, name, help string, value func(*wire.SenderLink) float64) {
		r.add(kind, name, help, []string{"receiver", "endpoint"}, func(s *snap, put put) {
			for i := range s.Receivers {
				put(value(&s.Receivers[i]), strconv.Itoa(i), s.Receivers[i].Endpoint)
			}
		})
	}
	links(prometheus.GaugeValue, "receiver_attached", "1 while this receiver can be written to, else 0.", attached)
	links(prometheus.GaugeValue, "receiver_requests", "Requests begun at this receiver and not ended.", func(l *wire.SenderLink) float64 { return float64(l.Requests) })
	links(prometheus.GaugeValue, "receiver_staging_used_slots", "Slots of the staging buffer that are used for this receiver.", func(l *wire.SenderLink) float64 { return float64(l.Staging) })
	links(prometheus.GaugeValue, "receiver_blocked_batches", "Batches for this receiver that wait for slots of the staging buffer.", func(l *wire.SenderLink) float64 { return float64(l.Blocked) })
	links(prometheus.GaugeValue, "receiver_silence_seconds", "How long nothing has come from this receiver; -1 before the first.", silence)
	links(prometheus.CounterValue, "receiver_sent_bytes_total", "Bytes written to this receiver and committed.", func(l *wire.SenderLink) float64 { return float64(l.Bytes) })
	return r
}

func blockedFor(s *wire.SenderSnapshot) float64 {
	var longest int64
	for _, b := range s.Staging.Blocked {
		longest = max(longest, b.WaitingMS)
	}
	return seconds(longest)
}

func attached(l *wire.SenderLink) float64 {
	if l.State == "attached" {
		return 1
	}
	return 0
}

func silence(l *wire.SenderLink) float64 {
	if l.HeardMS < 0 {
		return -1
	}
	return seconds(l.HeardMS)
}
