package top

import (
	"fmt"
	"math"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	restartShown = 3 * time.Second
	rateOver     = 0.9  // seconds that a rate is taken over at least, where so much is known
	averageOver  = 60.0 // seconds
	sparkSeconds = 512
	keptEvents   = 2000 // of a source
	oneByOne     = 5    // events of a kind that come at a time are told so; the rest is counted
)

// source is what is known of one endpoint.
type source struct {
	status    Status
	frame     *frame // of the newest snapshot; nil before the first
	restarted time.Time
	events    []entry // oldest first; what is in it never changes
	seq       int64

	samples []sample // of this life, oldest first, a minute of them
	peak    float64
	axis    float64 // seconds by the source's clock, over all its lives
	spark   spark
	stalled map[string]bool
}

// frame is one snapshot and what was computed from it. It never changes, so a
// paused screen may keep it.
type frame struct {
	came  time.Time // by our clock
	life  life
	recv  *wire.Snapshot
	send  *wire.SenderSnapshot
	proxy *wire.ProxySnapshot

	rates    rates
	reqRate  map[string]float64 // bytes a second
	peerRate map[string]float64
	spark    []float64 // bytes, or requests, in each second that is over, newest last; NaN: not known

	// Of a receiver.
	active  []int              // requests that hold something: positions in its list
	waiting map[string]waiting // by sender
	need    int                // slots, of all who wait
	oldest  int64              // ms, of who waits longest
	stalled int
	unread  int
}

// waiting is what a sender has in the queue.
type waiting struct {
	n      int
	need   int
	oldest int64 // ms
}

// life is one run of one program.
type life struct {
	kind, id string
	epoch    uint64
	up       float64
	time     time.Time
}

// counts are the counters that rates are made of.
type counts struct{ bytes, admitted, ready, failed int64 }

func (c counts) minus(o counts) counts {
	return counts{c.bytes - o.bytes, c.admitted - o.admitted, c.ready - o.ready, c.failed - o.failed}
}

func (c counts) negative() bool { return min(c.bytes, c.admitted, c.ready, c.failed) < 0 }

// sample is what the counters were at one moment.
type sample struct {
	axis  float64
	n     counts
	reqs  map[string]int64 // bytes written, by request
	peers map[string]int64 // and by sender, or by receiver
}

// rates are per second; they are known once there were two snapshots.
type rates struct {
	known, avgKnown                bool
	bytes, admitted, ready, failed float64
	avg, peak                      float64 // bytes, or requests for a proxy
}

// entry is one line of the events.
type entry struct {
	seq  int64
	src  int
	time time.Time
	wire *wire.EventEntry // nil: what pd-top itself has noticed
	req  string
	text string
	bad  bool

	folded bool // one of many of a kind: shown only to who looks for it
}

// newFrame is nil for a message that is no snapshot.
func newFrame(msg wire.Message) *frame {
	switch s := msg.(type) {
	case *wire.Snapshot:
		return &frame{recv: s, life: life{wire.KindReceiver, s.ID, s.Epoch, sane(s.UptimeS), s.Time.Time}}
	case *wire.SenderSnapshot:
		return &frame{send: s, life: life{wire.KindSender, s.ID, s.Epoch, sane(s.UptimeS), s.Time.Time}}
	case *wire.ProxySnapshot:
		return &frame{proxy: s, life: life{wire.KindProxy, s.ID, s.Epoch, sane(s.UptimeS), s.Time.Time}}
	}
	return nil
}

// sane is how long a program can have been up: whatever else it may say.
func sane(up float64) float64 {
	if up >= 0 && up < 1e10 {
		return up
	}
	return 0
}

// sample reads the counters.
func (f *frame) sample() sample {
	s := sample{reqs: map[string]int64{}, peers: map[string]int64{}}
	switch {
	case f.recv != nil:
		c := &f.recv.Counters
		s.n = counts{c.WrittenBytes, c.Admitted, c.Ready, c.Rejected + c.TimedOut + c.Expired + c.ExpiredUnread + c.RolledBack}
		for i := range f.recv.Requests {
			if r := &f.recv.Requests[i]; r.Written > 0 {
				s.reqs[r.ReqID] = writtenBytes(r)
			}
		}
		for i := range f.recv.Senders {
			s.peers[f.recv.Senders[i].Sender] += f.recv.Senders[i].Bytes
		}
	case f.send != nil:
		c := &f.send.Counters
		s.n = counts{c.SentBytes, 0, c.Ready, c.Failed}
		for i := range f.send.Requests {
			s.reqs[f.send.Requests[i].ReqID] = f.send.Requests[i].Bytes
		}
		for i := range f.send.Receivers {
			s.peers[f.send.Receivers[i].Endpoint] += f.send.Receivers[i].Bytes
		}
	case f.proxy != nil:
		c := &f.proxy.Counters
		s.n = counts{0, 0, c.Ready, c.Failed}
	}
	return s
}

// writtenBytes is what was sent of a request: the snapshot has the bytes of all
// chunks with a slot, so their mean is taken.
func writtenBytes(r *wire.SnapshotRequest) int64 {
	if r.Allocated <= 0 {
		return 0
	}
	return int64(float64(r.Bytes) / float64(r.Allocated) * float64(max(r.Written-r.Shared, 0)))
}

// take makes f, which came at a time of our clock, the newest. One that is
// older than what is known changes nothing.
func (s *source) take(src int, f *frame, came time.Time, stall time.Duration) {
	f.came = came
	n := f.sample()
	if old := s.frame; old != nil {
		same := old.life.kind == f.life.kind && old.life.id == f.life.id && old.life.epoch == f.life.epoch
		switch {
		case same && f.life.up < old.life.up:
			return
		case !same || len(s.samples) > 0 && n.n.minus(s.samples[len(s.samples)-1].n).negative():
			s.restart(src, f, came)
		default:
			s.axis += f.life.up - old.life.up
		}
	}
	n.axis = s.axis
	if k := len(s.samples); k > 0 {
		if d := n.n.minus(s.samples[k-1].n); n.axis > s.samples[k-1].axis {
			s.spark.add(s.samples[k-1].axis, n.axis, float64(f.main(d)))
		} else {
			s.samples = s.samples[:k-1] // the same moment, told again
		}
	}
	s.samples = append(s.samples, n)
	s.forget()
	s.measure(f)
	f.spark = s.spark.last(s.axis)
	f.survey(stall)
	s.frame = f
	s.noticeStalled(src, f, stall)
}

// main is the count that the throughput line shows.
func (f *frame) main(c counts) int64 {
	if f.proxy != nil {
		return c.ready
	}
	return c.bytes
}

// restart begins another life: no rate reaches back over it.
func (s *source) restart(src int, f *frame, came time.Time) {
	gap := came.Sub(s.frame.came).Seconds()
	s.axis += min(max(gap, 0), sparkSeconds)
	s.samples, s.peak, s.stalled = nil, 0, nil
	s.restarted = came
	s.note(entry{src: src, time: f.life.time, bad: true, text: fmt.Sprintf("%s restarted: all counters begin again", f.life.id)})
}

// forget drops samples that no rate needs any more, and what only the rate of
// now needs from those that are past it.
func (s *source) forget() {
	last := len(s.samples) - 1
	for len(s.samples) > 2 && s.samples[1].axis <= s.axis-averageOver {
		s.samples = s.samples[1:]
		last--
	}
	for i := s.reference() - 1; i >= 0 && s.samples[i].reqs != nil; i-- {
		s.samples[i].reqs, s.samples[i].peers = nil, nil
	}
	const most = 1024
	if last >= most {
		s.samples = append(s.samples[:1:1], s.samples[last-most/2:]...)
	}
}

// reference is the sample that the rate of now begins at: -1 if there is none.
func (s *source) reference() int {
	i := len(s.samples) - 2
	for i > 0 && s.axis-s.samples[i].axis < rateOver {
		i--
	}
	return i
}

// measure computes the rates up to the newest sample.
func (s *source) measure(f *frame) {
	i := s.reference()
	if i < 0 {
		return
	}
	now, ref, first := &s.samples[len(s.samples)-1], &s.samples[i], &s.samples[0]
	dt := now.axis - ref.axis
	d := now.n.minus(ref.n)
	f.rates = rates{
		known: true, bytes: float64(d.bytes) / dt, admitted: float64(d.admitted) / dt,
		ready: float64(d.ready) / dt, failed: float64(d.failed) / dt,
	}
	s.peak = max(s.peak, float64(f.main(d))/dt)
	f.rates.peak = s.peak
	f.rates.avgKnown = now.axis-first.axis >= rateOver
	f.rates.avg = float64(f.main(now.n.minus(first.n))) / (now.axis - first.axis)
	f.reqRate = perSecond(now.reqs, ref.reqs, dt)
	f.peerRate = perSecond(now.peers, ref.peers, dt)
}

// perSecond is by how much each has grown; what was not there had nothing.
func perSecond(now, before map[string]int64, dt float64) map[string]float64 {
	m := make(map[string]float64, len(now))
	for k, v := range now {
		if d := v - before[k]; d > 0 {
			m[k] = float64(d) / dt
		}
	}
	return m
}

// survey counts what the screens of a receiver show.
func (f *frame) survey(stall time.Duration) {
	s := f.recv
	if s == nil {
		if f.proxy != nil && len(f.proxy.Waiting) > 0 {
			f.oldest = f.proxy.Waiting[0].AgeMS
		}
		if f.send != nil {
			f.surveySender()
		}
		return
	}
	for i := range s.Requests {
		r := &s.Requests[i]
		if r.State == "queued" {
			continue
		}
		f.active = append(f.active, i)
		if isStalled(r, stall) {
			f.stalled++
		}
		if isUnread(r, s.Limits.ReadyTTLMS) {
			f.unread++
		}
	}
	f.waiting = map[string]waiting{}
	for i := range s.Queue {
		q := &s.Queue[i]
		w := f.waiting[q.Sender]
		w.n++
		w.need += q.Need
		w.oldest = max(w.oldest, q.WaitedMS)
		f.waiting[q.Sender] = w
		f.need += q.Need
		f.oldest = max(f.oldest, q.WaitedMS)
	}
}

func (f *frame) surveySender() {
	for i := range f.send.Requests {
		if r := &f.send.Requests[i]; r.State == "waiting" {
			f.need++
			f.oldest = max(f.oldest, r.AgeMS)
		}
	}
	for i := range f.send.Staging.Blocked {
		f.oldest = max(f.oldest, f.send.Staging.Blocked[i].WaitingMS)
	}
}

func isStalled(r *wire.SnapshotRequest, stall time.Duration) bool {
	return (r.State == "admitted" || r.State == "allocated") && r.Written < r.TotalChunks && r.IdleMS >= stall.Milliseconds()
}

// unreadAfter is for how long a request is ready before that is worth a word,
// where its end is not nearer.
const unreadAfter = 30_000 // ms

func isUnread(r *wire.SnapshotRequest, ttl int64) bool {
	if r.State != "ready" || r.Taken || r.ReadyMS < 0 {
		return false
	}
	after := int64(unreadAfter)
	if ttl > 0 {
		after = min(after, ttl/2)
	}
	return r.AgeMS-r.ReadyMS >= after
}

// noticeStalled makes an event of each request that has come to a halt.
func (s *source) noticeStalled(src int, f *frame, stall time.Duration) {
	if f.recv == nil || f.stalled == 0 {
		s.stalled = nil
		return
	}
	now := make(map[string]bool, f.stalled)
	told, more := 0, 0
	for _, i := range f.active {
		r := &f.recv.Requests[i]
		if !isStalled(r, stall) {
			continue
		}
		now[r.ReqID] = true
		if s.stalled[r.ReqID] {
			continue
		}
		if told == oneByOne {
			more++
			continue
		}
		told++
		s.note(entry{src: src, time: f.life.time, req: r.ReqID, bad: true, text: fmt.Sprintf(
			"stalled: nothing for %s, %s of %s chunks unwritten (%s)", whole(r.IdleMS), commas(r.TotalChunks-r.Written), commas(r.TotalChunks), r.Sender)})
	}
	if more > 0 {
		s.note(entry{src: src, time: f.life.time, bad: true, text: commas(more) + " more requests stalled"})
	}
	s.stalled = now
}

// tellStatus takes how it is with the source, and makes an event of it where it
// was lost, or is there again.
func (s *source) tellStatus(now Status) {
	was := s.status
	s.status = now
	if s.frame == nil || was.State == now.State {
		return
	}
	e := entry{src: now.Source, time: s.frame.life.time.Add(now.Now.Sub(s.frame.came)), bad: true}
	switch now.State {
	case Stale:
		e.text = s.frame.life.id + ": nothing comes any more"
		if now.Refused {
			e.text += ": " + now.Err
		}
	case Live:
		if was.State != Stale {
			return
		}
		e.bad, e.text = false, s.frame.life.id+" is heard again"
	default:
		return
	}
	s.note(e)
}

// note adds an event. The list is never written where it was read.
func (s *source) note(e entry) {
	s.seq++
	e.seq = s.seq
	if len(s.events) >= 2*keptEvents {
		s.events = append(make([]entry, 0, 2*keptEvents), s.events[keptEvents:]...)
	}
	s.events = append(s.events, e)
}

// tell adds what the source itself has told.
func (s *source) tell(src int, ev *wire.Event) {
	if ev.Dropped > 0 {
		s.note(entry{src: src, time: ev.Time.Time, text: fmt.Sprintf("%s events are not shown: more happened than the stream carries", commas(ev.Dropped))})
	}
	// What ends a program or a connection ends many requests, each for the same
	// reason.
	type kind struct{ event, code string }
	var last []*wire.EventEntry // of the kinds of which some were folded
	times := map[kind]int{}
	for i := range ev.Events {
		e := &ev.Events[i]
		told := entry{src: src, time: e.Time.Time, wire: e, req: e.ReqID, bad: isBad(e.Event)}
		if told.bad {
			k := kind{e.Event, e.Code}
			times[k]++
			told.folded = times[k] > oneByOne
			if times[k] == oneByOne+1 {
				last = append(last, e)
			}
		}
		s.note(told)
	}
	for _, e := range last {
		more := times[kind{e.Event, e.Code}] - oneByOne
		s.note(entry{src: src, time: ev.Time.Time, bad: true, text: commas(more) + " more requests " + ending(e)})
	}
}

func isBad(event string) bool {
	switch event {
	case "rejected", "timed_out", "rolled_back", "expired", "failed":
		return true
	}
	return false
}

// spark is how much there was in each second of an axis.
type spark struct {
	sums  []float64 // NaN: nothing is known of it
	first int       // the second of sums[0]
}

// add spreads n evenly over from until to.
func (p *spark) add(from, to, n float64) {
	a, b := int(from), int(math.Ceil(to))
	if b-a > sparkSeconds {
		p.sums = nil // so long a gap says nothing of any second
		return
	}
	if len(p.sums) == 0 || a > p.first+len(p.sums)+sparkSeconds {
		p.sums, p.first = nil, a
	}
	for p.first+len(p.sums) < b {
		p.sums = append(p.sums, math.NaN())
	}
	for i := max(a, p.first); i < b; i++ {
		part := min(to, float64(i+1)) - max(from, float64(i))
		sum := &p.sums[i-p.first]
		if math.IsNaN(*sum) {
			*sum = 0
		}
		*sum += n * part / (to - from)
	}
	if len(p.sums) > 2*sparkSeconds {
		extra := len(p.sums) - sparkSeconds
		p.sums = append([]float64(nil), p.sums[extra:]...)
		p.first += extra
	}
}

// last is a copy of the seconds that are over.
func (p *spark) last(axis float64) []float64 {
	done := min(max(int(axis)-p.first, 0), len(p.sums))
	from := max(done-sparkSeconds, 0)
	return append([]float64(nil), p.sums[from:done]...)
}
