package main

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// check says everything in which a run did not hold to the contract. Each rule
// is one function below and says what a fault may excuse:
//
//   - A sender that is killed says no more. What became ready before is the
//     decoder's; all else of it expires.
//   - A sender that loses its receiver, or cannot deliver its notice, calls the
//     request failed, though it may be ready at the receiver, where it is the
//     decoder's then. Only a proxy that asks receivers can tell of such a one.
//   - A receiver that is killed takes all it had with it, the lines that it had
//     not written yet included.
//   - A receiver that is terminated answers who waits, and ends what is still
//     neither written nor taken when it goes: what was ready expires unread.
//   - PUSH has no acknowledgement: a notice that was handed to a connection which
//     then breaks, or to a proxy which then dies, is lost, and the request expires
//     unread. Not where proxies ask receivers for what is ready.
func (l *ledger) check() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &checker{ledger: l, seen: map[string][]*history{}, told: map[string][]outcome{}}
	c.histories()
	c.proxiesTold()
	for _, s := range l.senders {
		c.senderEnded(s)
	}
	for _, id := range slices.Sorted(maps.Keys(l.requests)) {
		q := l.requests[id]
		c.endedOnce(q)
		c.readyIsReady(q)
		c.toldOnlyReady(q)
		c.whole(q)
		c.released(q)
		c.notLost(q)
		c.refusals(q)
	}
	for _, r := range l.receivers {
		c.adds(r)
	}
	c.noticesArrive()
	return append(slices.Clone(l.wrong), c.wrong...)
}

type checker struct {
	*ledger
	wrong []string
	seen  map[string][]*history // of each request, one for each life of a receiver that names it
	told  map[string][]outcome  // by the proxies, of each request
}

// history is what one life of a receiver said of a request.
type history struct {
	life  *receiverLife
	kinds []string
	ready *event
	cut   bool // it expired because its receiver was terminated
}

func (h *history) last() string         { return h.kinds[len(h.kinds)-1] }
func (h *history) has(kind string) bool { return slices.Contains(h.kinds, kind) }

func (c *checker) fault(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// follows are the kinds of events that may come after one; nothing follows the
// end of a request, as long as it is remembered.
var follows = map[string][]string{
	"":          {"queued", "admitted", "rejected"},
	"queued":    {"admitted", "rejected", "timed_out", "cancelled", "expired", "rolled_back"},
	"admitted":  {"allocated", "cancelled", "expired", "rolled_back"},
	"allocated": {"ready", "cancelled", "expired", "rolled_back"},
	"ready":     {"released", "cancelled", "expired", "rolled_back"},
}

var ends = []string{"rejected", "timed_out", "cancelled", "expired", "rolled_back", "released"}

// histories sorts the events, and sees that each request goes through its life
// in order and ends at most once; in a life of a receiver that lasted until all
// was quiet, or was told to end, exactly once.
func (c *checker) histories() {
	for _, life := range c.receivers {
		of := map[string]*history{}
		lossy := false // lines were dropped
		for i := range life.events {
			e := &life.events[i]
			if e.Event == "dropped" {
				lossy = true
				continue
			}
			q := c.requests[e.ReqID]
			// A sender that is not attached any more has no name.
			nameless := e.Event == "rejected" && e.Code == "stale_epoch"
			if q == nil || q.by.name != e.Sender && !nameless || q.to != life.receiver {
				c.fault("%s: %q of request %s from %s, which was never sent there", life.name, e.Event, e.ReqID, e.Sender)
				continue
			}
			h := of[e.ReqID]
			if h == nil {
				h = &history{life: life}
				of[e.ReqID] = h
				c.seen[e.ReqID] = append(c.seen[e.ReqID], h)
			}
			before := ""
			if len(h.kinds) > 0 {
				before = h.last()
			}
			if !lossy && !slices.Contains(follows[before], e.Event) {
				c.fault("%s: request %s is %q after %q", life.name, e.ReqID, e.Event, before)
			}
			h.kinds = append(h.kinds, e.Event)
			if e.Event == "ready" {
				h.ready = e
			}
			h.cut = e.Event == "expired" && e.Code == "shutting_down"
			if h.cut && life.how == alive {
				c.fault("%s: request %s ended because of a stop that there was not", life.name, e.ReqID)
			}
		}
		for id, h := range of {
			if (life.how == alive || life.how == terminated) && !lossy && !slices.Contains(ends, h.last()) {
				c.fault("%s: request %s did not end: %v", life.name, id, h.kinds)
			}
		}
	}
}

// proxiesTold: a life of a proxy tells of a request once.
func (c *checker) proxiesTold() {
	for _, p := range c.proxies {
		once := map[string]bool{}
		for _, o := range p.outcomes {
			if once[o.ReqID] || c.requests[o.ReqID] == nil {
				c.fault("%s tells of request %s twice, or there is none", p.name, o.ReqID)
			}
			once[o.ReqID] = true
			c.told[o.ReqID] = append(c.told[o.ReqID], o)
		}
	}
}

// senderEnded: 0 when nothing failed, 1 when something did, 143 when terminated.
func (c *checker) senderEnded(s *senderLife) {
	failed := slices.ContainsFunc(s.results, func(r result) bool { return r.Status == "failed" })
	switch {
	case s.how == killed:
	case s.how == alive:
		c.fault("%s never ended", s.name)
	case s.code == 143 && s.how == terminated, s.code == 1:
	case s.code == 0 && !failed:
	default:
		c.fault("%s, which ended %s, has exit code %d; a request failed: %v", s.name, s.how, s.code, failed)
	}
}

// endedOnce: a sender that lived to its end says of each request, once, how it
// ended. One that was terminated does so for those that it had begun, which is
// seen at the receivers; what was still in its pipe it never read. One that was
// killed says it at most once.
func (c *checker) endedOnce(q *request) {
	n := len(q.results)
	must := q.by.how == byItself && q.begun || q.by.how == terminated && len(c.seen[q.id]) > 0
	if n > 1 || must && n == 0 {
		c.fault("%s, which ended %s, has %d lines of request %s", q.by.name, q.by.how, n, q.id)
	}
	for _, r := range q.results {
		switch {
		case r.Status == "failed" && (r.Error == "" || r.Code == ""):
			c.fault("%s does not say why request %s failed: %+v", q.by.name, q.id, r)
		case r.Status == "cancelled" && !q.cancelled && !q.by.told:
			c.fault("%s cancelled request %s, which nobody asked for: %+v", q.by.name, q.id, r)
		case r.Status == "ready" && (r.Sent+r.Shared != r.Chunks || r.Chunks != int64(len(q.chunks)) || r.Chunks != q.total):
			c.fault("%s: request %s of %d chunks is ready with %d sent and %d shared", q.by.name, q.id, q.total, r.Sent, r.Shared)
		}
	}
}

func (q *request) said(status string) bool {
	return slices.ContainsFunc(q.results, func(r result) bool { return r.Status == status })
}

// readyIsReady: what a sender or a proxy calls ready its receiver did, too, once
// and in one life only. The lines of a receiver that was killed may be lost.
func (c *checker) readyIsReady(q *request) {
	ready := 0
	for _, h := range c.seen[q.id] {
		if h.ready != nil {
			ready++
		}
	}
	if ready > 1 {
		c.fault("request %s became ready in %d lives of its receiver", q.id, ready)
	}
	if q.total == 0 || ready > 0 {
		return
	}
	for _, o := range c.told[q.id] {
		if o.Status == "ready" && !c.wasKilled(q.to, o.at) {
			c.fault("a proxy calls request %s ready, its receiver never did: %v", q.id, c.kinds(q))
		}
	}
	for _, r := range q.results {
		if r.Status == "ready" && !c.wasKilled(q.to, r.at) {
			c.fault("%s calls request %s ready, its receiver never did: %v", q.by.name, q.id, c.kinds(q))
		}
	}
}

// wasKilled says whether a receiver was, not long before or after.
func (c *checker) wasKilled(receiver int, at time.Time) bool {
	const near = 15 * time.Second
	return slices.ContainsFunc(c.receivers, func(r *receiverLife) bool {
		return r.receiver == receiver && r.how == killed && r.endedAt.Sub(at).Abs() < near
	})
}

func (c *checker) kinds(q *request) (list [][]string) {
	for _, h := range c.seen[q.id] {
		list = append(list, h.kinds)
	}
	return list
}

// toldOnlyReady: a proxy tells of a request once in a life, and calls none ready
// that its sender calls failed or cancelled. A sender that was killed after its
// notice has said nothing; what it told is ready all the same, see readyIsReady.
func (c *checker) toldOnlyReady(q *request) {
	for _, r := range q.results {
		for _, o := range c.told[q.id] {
			if o.Status == "ready" && r.Status != "ready" && !(c.recover && c.saidBy(q, "ready")) {
				c.fault("a proxy calls request %s ready, its sender %s: %s", q.id, r.Status, r.Error)
			}
			if o.Status == "failed" && r.Status == "ready" && !c.saidBy(q, "expired") {
				c.fault("a proxy calls request %s failed (%s), its sender ready", q.id, o.Reason)
			}
		}
	}
}

func (c *checker) saidBy(q *request, kind string) bool {
	return slices.ContainsFunc(c.seen[q.id], func(h *history) bool { return h.has(kind) })
}

// whole: a ready request has all its chunks and bytes.
func (c *checker) whole(q *request) {
	var bytes int64
	for i := range q.chunks {
		bytes += q.chunks[i].Length
	}
	for _, h := range c.seen[q.id] {
		if e := h.ready; e != nil && (e.Chunks != q.total || e.Total != q.total || e.Bytes != bytes) {
			c.fault("%s: request %s of %d chunks and %d bytes is ready with %d of %d chunks and %d bytes",
				h.life.name, q.id, q.total, bytes, e.Chunks, e.Total, e.Bytes)
		}
	}
}

// released: only a decoder releases; where there is a sink, that one.
func (c *checker) released(q *request) {
	for _, h := range c.seen[q.id] {
		if h.has("released") && !h.life.sink && !q.releases {
			c.fault("%s: request %s is released, and no decoder did it", h.life.name, q.id)
		}
	}
}

// notLost: where proxies ask receivers for what is ready, they tell of all of it
// in time, of what its sender calls failed excepted: the proxy was told so. What a
// receiver still had when it was terminated nobody had time for.
func (c *checker) notLost(q *request) {
	if !c.recover || q.said("failed") || q.said("cancelled") {
		return
	}
	for _, h := range c.seen[q.id] {
		if h.ready != nil && h.last() == "expired" && !h.cut {
			c.fault("%s: request %s was ready and expired unread, though proxies ask for what is ready", h.life.name, q.id)
		}
	}
}

// refusals: what was called ready can be taken, unless its receiver has ended
// since, or has said that it expired, or its sender withdrew it.
func (c *checker) refusals(q *request) {
	for _, no := range q.refused {
		ended := slices.ContainsFunc(c.seen[q.id], func(h *history) bool { return slices.Contains(ends, h.last()) })
		restarted := slices.ContainsFunc(c.receivers, func(r *receiverLife) bool {
			return r.receiver == q.to && r.how != alive && r.endedAt.Before(no.at)
		})
		if !ended && !restarted || no.code == "not_ready" {
			c.fault("request %s was called ready and cannot be taken: %s; its receiver said %v", q.id, no.code, c.kinds(q))
		}
	}
}

// adds: the counters of a receiver are the numbers of its lines, but for those
// that it says were dropped.
func (c *checker) adds(r *receiverLife) {
	if r.counters == nil {
		if r.how == alive {
			c.fault("%s was never quiet", r.name)
		}
		return
	}
	lines := map[string]int64{}
	dropped := int64(0)
	for _, e := range r.events {
		lines[e.Event]++
		dropped += e.Dropped
	}
	missing := int64(0)
	for _, kind := range []string{"admitted", "ready", "released", "cancelled", "rejected", "timed_out", "rolled_back", "expired"} {
		count := r.counters[kind]
		if kind == "expired" {
			count += r.counters["expired_unread"]
		}
		lack := count - lines[kind]
		missing += lack
		if lack < 0 || lack > dropped {
			c.fault("%s counts %d %s and has %d lines of them (%d dropped)", r.name, count, kind, lines[kind], dropped)
		}
	}
	if missing > dropped {
		c.fault("%s counts %d events more than it has lines, and says that %d were dropped", r.name, missing, dropped)
	}
}

// noticesArrive: between two notices of one sender that the same life of a proxy
// told of, none is missing there, unless the connection broke in between. Where
// proxies ask receivers they may know of a request without its notice.
func (c *checker) noticesArrive() {
	if c.recover {
		return
	}
	where := map[string]*proxyLife{} // of each ready request that was told
	for _, p := range c.proxies {
		for _, o := range p.outcomes {
			if o.Status == "ready" { // a failure may have been told by the receiver
				where[o.ReqID] = p
			}
		}
	}
	for _, s := range c.senders {
		var before *result // the latest that was told
		var missing []string
		for i := range s.results {
			r := &s.results[i]
			if r.Status != "ready" {
				continue
			}
			if where[r.ReqID] == nil {
				missing = append(missing, r.ReqID)
				continue
			}
			if before != nil && len(missing) > 0 && where[before.ReqID] == where[r.ReqID] && !s.wasCut(before.at, r.at) {
				c.fault("%s has told %s of requests before and after %v, not of these", s.name, where[r.ReqID].name, missing)
			}
			before, missing = r, nil
		}
	}
}

func (s *senderLife) wasCut(from, to time.Time) bool {
	from = from.Add(-5 * time.Second) // its line may have been read late
	return slices.ContainsFunc(s.cuts, func(cut span) bool { return cut.from.Before(to) && cut.to.After(from) })
}
