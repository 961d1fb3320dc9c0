package metrics

import "github.com/pd-tools/pd-tools/wire"

var proxy = proxyReadings()

func proxyReadings() readings[wire.ProxySnapshot] {
	type snap = wire.ProxySnapshot
	r := readings[snap]{prefix: prefix("pd-proxy")}

	r.gauge("pending_requests", "Requests that wait for more notifications.", func(s *snap) float64 { return float64(s.Pending) })
	r.gauge("pending_oldest_seconds", "How long the oldest of them has waited since its first; 0 when none waits.", func(s *snap) float64 {
		if len(s.Waiting) == 0 {
			return 0
		}
		return seconds(s.Waiting[0].AgeMS)
	})
	r.gauge("expected_notifications", "Notifications that make a request ready (--expect).", func(s *snap) float64 { return float64(s.Expect) })

	r.counter("requests_ready_total", "Requests that became ready.", func(s *snap) int64 { return s.Counters.Ready })
	r.counter("requests_recovered_total", "Of the ready requests, those that a receiver told of before there were notifications enough.", func(s *snap) int64 { return s.Counters.Recovered })
	r.counter("requests_failed_total", "Requests that failed.", func(s *snap) int64 { return s.Counters.Failed })
	r.counter("requests_forgotten_total", "Pending requests that were dropped to make room.", func(s *snap) int64 { return s.Counters.Forgotten })
	r.counter("duplicate_notifications_total", "Notifications of requests that had ended.", func(s *snap) int64 { return s.Counters.Duplicates })
	r.counter("late_failures_total", "Failures of requests that were ready already.", func(s *snap) int64 { return s.Counters.LateFailures })
	r.counter("bad_frames_total", "Messages that were no notification.", func(s *snap) int64 { return s.Counters.BadFrames })
	r.counter("refused_peers_total", "Peers that had no key that is allowed, each time they came.", func(s *snap) int64 { return s.Counters.Refused })
	return r
}
