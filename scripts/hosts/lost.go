package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const (
	lostChunks = 4   // of 1 MiB, of each request: small ones, to see the rate closely
	lostSlots  = 128 // more than a second of the link: it is cut in mid-transfer on a busy machine too

	// lostWithin bounds how long a request may hang at a receiver that does not
	// answer: pd-send's --timeout, and as much again to notice and to tell.
	lostTimeout = 4 * time.Second
	lostWithin  = 2 * lostTimeout
)

// lost cuts the link to one of two receivers of a sender in mid-transfer. What
// was on its way there fails in bounded time and says why; the other receiver
// keeps its rate meanwhile; and when the link is back, so is the receiver.
func (l *lab) lost(b *bed) error {
	prefill, err := b.host("prefill")
	if err != nil {
		return err
	}
	var links []*link
	var recvs []*receiver // of which the second is never cut off
	for i := range 2 {
		decode, err := b.host(fmt.Sprintf("decode%d", i+1))
		if err != nil {
			return err
		}
		link, err := b.link(prefill, decode, l.mbits)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := l.unreachableFabric(link); err != nil {
				return err
			}
		}
		recv, err := decode.receive(lostSlots, mib, "--lease", "2s")
		if err != nil {
			return err
		}
		links, recvs = append(links, link), append(recvs, recv)
	}
	if err := l.unreachable(prefill, links[1], recvs[1]); err != nil {
		return err
	}
	sender, err := prefill.send("--to", links[0].receiver(), "--to", links[1].receiver(), "--timeout", lostTimeout.String())
	if err != nil {
		return err
	}
	steady := &steady{sender: sender, recv: recvs[1], stop: make(chan struct{}), checked: make(chan error, 1)}
	if err := steady.start(); err != nil {
		return err
	}
	if _, err := recvs[1].happened("ready", steady.id(50)); err != nil { // its rate before
		return err
	}
	var doomed []*manifest.Batch
	for i := range lostSlots / lostChunks {
		doomed = append(doomed, lostRequest(0, fmt.Sprintf("lost%d", i)))
	}
	if err := sender.give(doomed...); err != nil {
		return err
	}
	if _, err := recvs[0].happened("ready", "lost0"); err != nil {
		return err
	}
	if err := links[0].cut(); err != nil {
		return err
	}
	cut := time.Now()
	failed := 0
	var last result
	for _, r := range doomed {
		end, err := sender.ended(r.ReqID, lostWithin)
		if err != nil {
			return err
		}
		if end.Status == "failed" {
			failed++
			last = end
		}
		if end.Status == "failed" && end.Error == "" {
			return sender.failure(fmt.Sprintf("request %s failed without a reason", r.ReqID))
		}
	}
	noticed := time.Now()
	if failed == 0 {
		return errors.New("no request was on its way when the link was cut")
	}
	l.say("the link was cut: %d of %d requests failed within %s, the last one: %s %s", failed, len(doomed), seconds(noticed.Sub(cut)), last.Code, last.Error)
	if err := links[0].mend(); err != nil {
		return err
	}
	back := lostRequest(0, "back")
	if err := transfer(sender, recvs[0], back); err != nil {
		return err
	}
	l.say("the link was mended: the next request was ready %s after that", seconds(time.Since(noticed)))
	close(steady.stop)
	if err := <-steady.checked; err != nil {
		return err
	}
	before, during := recvs[1].rate(steady.began, cut), recvs[1].rate(cut, noticed)
	r := row{
		name: "a receiver while another is cut off : before", ours: mbitsText(during), ref: mbitsText(before),
		ratio: during / before, least: 0.9,
	}
	l.table.add(r)
	l.say("%s: %.2f (%s : %s)", r.name, r.ratio, r.ours, r.ref)
	for _, e := range all[event](recvs[0].process) {
		if e.Event == "ready" && e.ReqID != "back" {
			// It may be gone: retire sees to it that nothing is left.
			_, _ = recvs[0].host.output(nil, "pd-recv", "drop", recvs[0].endpoint(), e.ReqID)
		}
	}
	sender.stdin.Close()
	if err := sender.wait(patience); err == nil {
		return errors.New("pd-send ended with 0 though requests have failed")
	}
	return errors.Join(recvs[0].retire(), recvs[1].retire())
}

// lostRequest is one for the receiver at a position.
func lostRequest(to int, id string) *manifest.Batch {
	r := request(id, lostChunks, mib)
	r.To = to
	return r
}

// steady keeps the second receiver of a sender busy, and has all of it
// compared.
type steady struct {
	sender  *sender
	recv    *receiver
	began   time.Time
	stop    chan struct{} // closed to end it
	checked chan error    // its result
}

const (
	steadyAhead = 6 // requests that are under way at a time: they fit the buffer
	steadyMost  = 5000
)

func (*steady) id(i int) string { return fmt.Sprintf("steady%d", i) }

func (s *steady) start() error {
	var requests []*manifest.Batch
	for i := range steadyMost {
		requests = append(requests, lostRequest(1, s.id(i)))
	}
	checker, err := s.recv.checker(requests)
	if err != nil {
		return err
	}
	s.began = time.Now()
	go func() { s.checked <- s.run(requests, checker) }()
	return nil
}

func (s *steady) run(requests []*manifest.Batch, checker *process) error {
	given := 0
	for done := 0; ; done++ {
		for ; given < min(done+steadyAhead, len(requests)) && !s.stopped(); given++ {
			if err := s.sender.give(requests[given]); err != nil {
				return err
			}
		}
		if done == given {
			break
		}
		if err := s.sender.ready(s.id(done)); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(checker.stdin, s.id(done)); err != nil {
			return checker.failure(err.Error())
		}
	}
	checker.stdin.Close()
	return checker.wait(patience)
}

func (s *steady) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// rate is what became ready between two times, 10^6 bits a second.
func (r *receiver) rate(from, to time.Time) float64 {
	var first, last time.Time
	var bits float64
	for _, e := range all[event](r.process) {
		if e.Event != "ready" || e.Time.Before(from) || e.Time.After(to) {
			continue
		}
		if first.IsZero() {
			first = e.Time // what it brought was sent before
			continue
		}
		last = e.Time
		bits += float64(e.Bytes) * 8
	}
	return bits / 1e6 / last.Sub(first).Seconds()
}

func mbitsText(v float64) string { return fmt.Sprintf("%.0f Mbit/s", v) }

// unreachableFabric sends to a receiver that answers and whose memory cannot be
// reached, since its fabric is another network.
func (l *lab) unreachableFabric(link *link) error {
	recv, err := link.far.receive(lostSlots, mib, "--fabric-addr", "127.0.0.1")
	if err != nil {
		return err
	}
	send, err := link.from.send("--to", link.receiver(), "--timeout", lostTimeout.String())
	if err != nil {
		return err
	}
	if err := send.give(request("elsewhere", lostChunks, mib)); err != nil {
		return err
	}
	r, err := send.failed("elsewhere", lostWithin)
	if err != nil {
		return err
	}
	l.say("another network: %s %s", r.Code, r.Error)
	send.kill()
	return recv.retire()
}

// unreachable sends to an address where nobody is, and to one which no route
// leads to; a receiver of the same sender that can be reached gets its own.
func (l *lab) unreachable(prefill *host, link *link, recv *receiver) error {
	nobody := "tcp://" + link.fromAddr + "00:" + recvPort // 198.18.N.100
	noRoute := "tcp://192.0.2.1:" + recvPort              // for documentation: RFC 5737
	sender, err := prefill.send("--to", nobody, "--to", noRoute, "--to", link.receiver(), "--timeout", lostTimeout.String())
	if err != nil {
		return err
	}
	for i, id := range []string{"nobody", "noroute", "somebody"} {
		r := request(id, lostChunks, mib)
		r.To = i
		if err := sender.give(r); err != nil {
			return err
		}
	}
	if err := sender.ready("somebody"); err != nil {
		return err
	}
	if err := recv.check(request("somebody", lostChunks, mib)); err != nil {
		return err
	}
	for _, id := range []string{"nobody", "noroute"} {
		r, err := sender.failed(id, lostWithin)
		if err != nil {
			return err
		}
		l.say("%s: %s %s", id, r.Code, r.Error)
	}
	sender.stdin.Close()
	if err := sender.wait(patience); err == nil {
		return errors.New("pd-send ended with 0 though requests have failed")
	}
	return nil
}
