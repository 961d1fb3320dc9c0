package main

import (
	"os"
	"strings"
	"time"
)

// strike injects the faults, each at its time.
func (w *world) strike(faults []fault) {
	began := time.Now()
	w.strikes.Go(func() {
		for _, f := range faults {
			select {
			case <-time.After(time.Until(began.Add(f.at))):
			case <-w.feeding.Done():
				return
			}
			w.strikes.Go(func() { w.one(f) })
		}
	})
}

// one is one fault, counted if there was something for it to hit.
func (w *world) one(f fault) {
	s := w.senders[int(f.pick)%len(w.senders)]
	r := w.receivers[int(f.pick)%len(w.receivers)]
	p := w.proxies[int(f.pick)%len(w.proxies)]
	switch f.kind {
	case "sender killed":
		w.hit(f, &s.seat, (*process).kill)
	case "sender terminated":
		w.hit(f, &s.seat, (*process).terminate)
	case "sender stopped", "sender stopped beyond its lease":
		w.hit(f, &s.seat, func(p *process) { p.stop(f.long) })
	case "receiver killed":
		w.hit(f, &r.seat, (*process).kill)
	case "receiver terminated":
		w.hit(f, &r.seat, (*process).terminate)
	case "receiver stopped", "receiver stopped beyond the lease":
		w.hit(f, &r.seat, func(p *process) { p.stop(f.long) })
	case "proxy killed":
		w.hit(f, &p.seat, (*process).kill)
	case "proxy killed after it received":
		p.mu.Lock()
		p.afterNext = func() { w.hit(f, &p.seat, (*process).kill) }
		p.mu.Unlock()
	case "proxy terminated":
		w.hit(f, &p.seat, (*process).terminate)
	case "proxy stopped":
		w.hit(f, &p.seat, func(p *process) { p.stop(f.long) })
	case "sender cut off", "sender unheard", "proxy cut off", "proxy unheard":
		w.separate(f, s, r)
	case "disk slow":
		w.count(f, "every read of a source")
		w.disk.slowFor(f.long)
	case "decoder slow":
		w.count(f, r.name)
		r.decoders.change(func() { r.decoders.slow = f.long })
	case "decoder died while it took":
		w.count(f, r.name)
		r.decoders.change(func() { r.decoders.die++ })
	case "take killed":
		w.count(f, r.name)
		r.decoders.change(func() { r.decoders.kill++; r.decoders.grace = f.long })
	case "producer slow":
		w.count(f, s.name)
		w.add(func() { s.slow = time.Now().Add(f.long) })
	case "source gone":
		w.hideSource(f)
	case "signals that mean nothing":
		all := append(w.seats(), nil)
		w.hit(f, all[int(f.pick)%(len(all)-1)], func(p *process) { p.harmless(f.long) })
	case "stdout not read":
		all := w.seats()
		w.hit(f, all[int(f.pick)%len(all)], func(p *process) { p.unread.Store(time.Now().Add(f.long).UnixNano()) })
	default:
		w.violated("there is no fault %q", f.kind)
	}
}

// separate cuts a sender off from a receiver or its proxy; one that has a host
// of its own from all.
func (w *world) separate(f fault, s *sender, r *receiver) {
	from := time.Now()
	switch {
	case s.plug != nil:
		f.kind = "link down"
		w.count(f, s.name)
		if err := s.plug.cut(f.long); err != nil {
			w.violated("%v", err)
		}
	case f.kind == "sender cut off":
		w.count(f, s.name+" from "+r.name)
		s.toRecv[r.index].cut(f.long)
		return
	case f.kind == "sender unheard":
		w.count(f, s.name+" by "+r.name)
		s.toRecv[r.index].silence(f.long)
		return
	case f.kind == "proxy cut off":
		w.count(f, s.name+" from its proxy")
		s.toTell.cut(f.long)
	case f.kind == "proxy unheard":
		w.count(f, s.name+" by its proxy")
		s.toTell.silence(f.long)
		return
	}
	w.add(func() {
		if s.life != nil {
			s.life.cuts = append(s.life.cuts, span{from, time.Now()})
		}
	})
}

func (w *world) seats() (all []*seat) {
	for _, s := range w.senders {
		all = append(all, &s.seat)
	}
	for _, r := range w.receivers {
		all = append(all, &r.seat)
	}
	for _, p := range w.proxies {
		all = append(all, &p.seat)
	}
	return all
}

func (w *world) count(f fault, whom string) {
	w.say("%s: %s for %v", f.kind, whom, f.long)
	w.add(func() { w.faults[f.kind]++ })
}

// hit does something to who has a seat now, if anybody has.
func (w *world) hit(f fault, s *seat, do func(*process)) {
	p := s.current()
	if p == nil || p.ended() || p.doomed.Load() {
		return
	}
	// Told twice it ends at once, and before it is up as any program does.
	if strings.HasSuffix(f.kind, "terminated") && (p.asked.Load() || !p.up.Load()) {
		return
	}
	w.count(f, p.name)
	s.leave(f.long)
	do(p)
}

// received is called when a sender has handed a notice to this proxy.
func (p *proxy) received() {
	p.mu.Lock()
	then := p.afterNext
	p.afterNext = nil
	p.mu.Unlock()
	if then != nil {
		then()
	}
}

// hideSource takes a file of chunks' bytes away and puts it back.
func (w *world) hideSource(f fault) {
	name := w.source(int(f.pick) % sources)
	if os.Rename(name, name+".hidden") != nil {
		return // it is hidden already
	}
	w.count(f, name)
	time.Sleep(f.long)
	if err := os.Rename(name+".hidden", name); err != nil {
		w.violated("%v", err)
	}
}
