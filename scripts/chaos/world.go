package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	patience     = 30 * time.Second // with a program that starts, and with what must become quiet
	stopWithin   = 10 * time.Second // a program must end when told, beyond what we hold it stopped
	admitTimeout = 5 * time.Second
	sendTimeout  = 5 * time.Second // pd-send's --timeout
	senderLasts  = 12 * time.Second
)

// world is the programs of one seed.
type world struct {
	config
	*ledger
	bin, dir string
	log      *os.File // what happened when
	began    time.Time
	contents [][]byte // of the source files

	feeding context.Context // its end ends the producers
	living  context.Context // its end ends all

	receivers []*receiver
	proxies   []*proxy
	senders   []*sender
	keys      *sock.Keys // nil without
	keyFlags  []string   // the same for the programs
	disk      *disk      // of the sources; nil where it cannot be made slow

	keepers sync.WaitGroup // of receivers and proxies
	feeders sync.WaitGroup // of senders
	strikes sync.WaitGroup // faults under way
}

// seat is a place in the world which one life of a program after the other has.
type seat struct {
	name string
	mu   sync.Mutex
	life int
	now  *process // nil between two lives
	away time.Duration
}

func (s *seat) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *seat) set(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = p
}

// next names the next life.
func (s *seat) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life++
	return fmt.Sprintf("%s.%d", s.name, s.life)
}

// leave says for how long the seat is to be empty after the life of now.
func (s *seat) leave(away time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *seat) absence() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

type receiver struct {
	seat
	receiverConfig
	index    int
	port     int
	proxy    *proxy
	life     *receiverLife
	idle     int // descriptors that are no memory, of a new life
	decoders *decoders
}

type proxy struct {
	seat
	index int
	port  int
	life  *proxyLife
	// afterNext, if any, is called once the next notice has been handed over.
	afterNext func()
}

type sender struct {
	seat
	index  int
	proxy  *proxy
	life   *senderLife
	toRecv []*relay
	toTell *relay
	plug   *plug     // of its own host, if it has one; the relays are idle then
	slow   time.Time // until when its producer pauses
}

// listen is where a program waits for others.
func (w *world) listen(port int) string {
	if w.hosts {
		return "tcp://0.0.0.0:" + strconv.Itoa(port)
	}
	return endpoint(port)
}

func endpoint(port int) string { return "tcp://127.0.0.1:" + strconv.Itoa(port) }

func newWorld(c config, l *ledger, bin, dir string) (*world, error) {
	w := &world{config: c, ledger: l, bin: bin, dir: dir, began: time.Now()}
	var err error
	if w.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	for i := range c.proxies {
		p := &proxy{index: i}
		p.name = fmt.Sprint("proxy", i)
		if p.port, err = freePort(); err != nil {
			return nil, err
		}
		w.proxies = append(w.proxies, p)
	}
	for i, rc := range c.receivers {
		if c.hosts && rc.engine == "shm" {
			rc.engine = "shm,ofi"
		}
		r := &receiver{receiverConfig: rc, index: i, proxy: w.proxies[i%len(w.proxies)]}
		r.name = fmt.Sprint("recv", i)
		if r.port, err = freePort(); err != nil {
			return nil, err
		}
		r.decoders = newDecoders(w, r)
		w.receivers = append(w.receivers, r)
	}
	if c.keys {
		if err := w.makeKeys(); err != nil {
			return nil, err
		}
	}
	for i := range c.senders {
		s := &sender{index: i, proxy: w.proxies[i%len(w.proxies)]}
		s.name = fmt.Sprint("send", i)
		for _, r := range w.receivers {
			relay, err := newRelay("127.0.0.1:" + strconv.Itoa(r.port))
			if err != nil {
				return nil, err
			}
			s.toRecv = append(s.toRecv, relay)
		}
		if s.toTell, err = newRelay("127.0.0.1:" + strconv.Itoa(s.proxy.port)); err != nil {
			return nil, err
		}
		w.senders = append(w.senders, s)
		if c.hosts && i < c.senders-1 {
			if s.plug, err = newPlug(i); err != nil {
				return w, err
			}
		}
	}
	return w, w.writeSources()
}

// makeKeys makes one pair, which all have.
func (w *world) makeKeys() error {
	key := filepath.Join(w.dir, "key")
	public, _, err := sock.MakeKeys(key)
	if err != nil {
		return err
	}
	lines := public + "\n"
	for _, p := range w.proxies {
		lines += public + " " + endpoint(p.port) + "\n"
	}
	for _, r := range w.receivers {
		lines += public + " " + endpoint(r.port) + "\n"
	}
	allow := key + ".allow"
	if err := os.WriteFile(allow, []byte(lines), 0o600); err != nil {
		return err
	}
	w.keyFlags = []string{"--curve-key", key, "--curve-allow", allow}
	w.keys, err = sock.LoadKeys(key, allow, func(kind, text string) { w.violated("%s: %s", kind, text) })
	return err
}

var lastPort = 15_000 + os.Getpid()%5_000*3

// freePort is one below those that the system gives to who connects, so that it
// is still free when its program comes back.
func freePort() (int, error) {
	for range 1000 {
		if lastPort++; lastPort > 31_000 {
			lastPort = 15_000
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(lastPort))
		if err == nil {
			return lastPort, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port of 1000 up to %d", lastPort)
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.log, "%9.3f %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// run lets everything happen for a while, then waits until all is quiet, and
// sees what is left.
func (w *world) run(ctx context.Context, during time.Duration, faults []fault) error {
	living, end := context.WithCancel(ctx)
	defer end()
	feeding, starve := context.WithTimeout(living, during)
	defer starve()
	w.living, w.feeding = living, feeding
	var watchers sync.WaitGroup
	for _, p := range w.proxies {
		if err := w.startProxy(p); err != nil {
			return err
		}
		w.keepers.Go(func() { w.keepProxy(p) })
	}
	for _, r := range w.receivers {
		if err := w.startReceiver(r); err != nil {
			return err
		}
		w.keepers.Go(func() { w.keepReceiver(r) })
		r.decoders.start()
		watchers.Go(func() { w.watch(r) })
	}
	for _, s := range w.senders {
		w.feeders.Go(func() { w.keepSender(s) })
	}
	w.strike(faults)
	<-feeding.Done()
	if ctx.Err() != nil { // interrupted: nothing is to be proved any more
		for _, s := range w.seats() {
			if p := s.current(); p != nil {
				p.kill()
			}
		}
	}
	quietFrom := time.Now()
	watchers.Wait()
	w.strikes.Wait()
	w.feeders.Wait()
	w.say("all senders have ended")
	for _, r := range w.receivers {
		if ctx.Err() == nil {
			w.becomesQuiet(r)
		}
		r.decoders.stop()
	}
	took := time.Since(quietFrom)
	w.add(func() { w.quiet = max(w.quiet, took) })
	w.say("quiet after %v", took)
	end()
	w.keepers.Wait()
	w.leftovers()
	return ctx.Err()
}

// remove takes everything away but the logs.
func (w *world) remove() error {
	var errs []error
	for _, s := range w.senders {
		for _, r := range append(s.toRecv, s.toTell) {
			errs = append(errs, r.close())
		}
		if s.plug != nil {
			errs = append(errs, s.plug.remove())
		}
	}
	if w.disk != nil {
		w.disk.close()
	}
	return errors.Join(append(errs, w.log.Close())...)
}

// watch adds up a receiver's slots all the time.
func (w *world) watch(r *receiver) {
	conn, err := client.Dial(endpoint(r.port), w.keys)
	if err != nil {
		w.violated("%s: %v", r.name, err)
		return
	}
	defer conn.Close()
	for w.feeding.Err() == nil {
		w.stat(conn, r)
		select {
		case <-time.After(250 * time.Millisecond):
		case <-w.feeding.Done():
		}
	}
}

func (w *world) startProxy(p *proxy) error {
	life := &proxyLife{name: p.next(), proxy: p.index}
	args := append([]string{"--listen", w.listen(p.port), "--json"}, w.keyFlags...)
	if w.config.recover {
		for _, r := range w.receivers {
			args = append(args, "--recover", endpoint(r.port))
		}
	}
	proc, err := start(w.dir, life.name, filepath.Join(w.bin, "pd-proxy"), func(text []byte) {
		o, ok := line[outcome](w.ledger, life.name, text)
		if !ok {
			return
		}
		o.at = time.Now()
		w.add(func() { life.outcomes = append(life.outcomes, o) })
		if o.Status == "ready" {
			w.decode(o.ReqID)
		}
	}, args...)
	if err != nil {
		return err
	}
	w.add(func() { w.ledger.proxies = append(w.ledger.proxies, life); p.life = life })
	p.set(proc)
	return w.comesUp(proc, p.port)
}

// comesUp waits until a program can be reached.
func (w *world) comesUp(p *process, port int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		switch {
		case err == nil:
			p.up.Store(true)
			return c.Close()
		case p.ended():
			if p.doomed.Load() || p.asked.Load() {
				return nil
			}
			return fmt.Errorf("%s ended at its start with code %d, see %s", p.name, p.code(), filepath.Join(w.dir, p.name+".err"))
		case time.Now().After(deadline):
			return fmt.Errorf("%s cannot be reached after %v", p.name, patience)
		}
	}
}

func (w *world) keepProxy(p *proxy) {
	w.keep(&p.seat, func(how ending) {
		w.add(func() { p.life.how = how })
	}, func() error { return w.startProxy(p) })
}

// keep has one life follow the other until all is to end, and ends the last.
func (w *world) keep(s *seat, ended func(ending), again func() error) {
	for {
		p := s.current()
		select {
		case <-p.done:
		case <-w.living.Done():
			how := p.how() // the last fault may have it end already: told twice it would end at once
			if how == byItself {
				p.terminate()
			}
			if !p.endsWithin(stopWithin) {
				w.violated("%s does not end when it is told to", p.name)
				p.kill()
				<-p.done
			}
			if code := p.code(); code != 0 && how != killed {
				w.violated("%s ends with code %d at a clean stop, see its .err", p.name, code)
			}
			if how != byItself {
				ended(how)
			}
			return
		}
		how := p.how()
		if how == byItself || how == terminated && p.code() != 0 {
			w.violated("%s ended %s with code %d, see its .err", p.name, how, p.code())
		}
		w.say("%s ended %s", p.name, how)
		s.set(nil)
		ended(how)
		select {
		case <-time.After(s.absence()):
		case <-w.living.Done():
		}
		if err := again(); err != nil {
			w.violated("%v", err)
			return
		}
	}
}

func (p *process) how() ending {
	switch {
	case p.doomed.Load():
		return killed
	case p.asked.Load():
		return terminated
	}
	return byItself
}

func (w *world) startReceiver(r *receiver) error {
	life := &receiverLife{name: r.next(), receiver: r.index, sink: r.sink}
	listening := make(chan struct{})
	args := []string{
		"--listen", w.listen(r.port), "--engine", r.engine, "--monitor", "none",
		"--buffer-size", strconv.Itoa(r.slots * w.chunk), "--chunk-size", strconv.Itoa(w.chunk),
		"--admission", r.admission, "--overtake", strconv.Itoa(r.overtake),
		"--lease", lease.String(), "--admit-timeout", admitTimeout.String(), "--ready-ttl", r.readyTTL.String(),
		"--proxy", endpoint(r.proxy.port),
	}
	args = append(args, w.keyFlags...)
	if r.sink {
		args = append(args, "--sink="+r.pause.String())
	}
	proc, err := start(w.dir, life.name, filepath.Join(w.bin, "pd-recv"), func(text []byte) {
		e, ok := line[event](w.ledger, life.name, text)
		if !ok {
			return
		}
		if e.Event == "listening" {
			close(listening)
			return
		}
		e.at = time.Now()
		w.add(func() { life.events = append(life.events, e) })
	}, args...)
	if err != nil {
		return err
	}
	w.add(func() { w.ledger.receivers = append(w.ledger.receivers, life); r.life = life })
	r.set(proc)
	select {
	case <-listening:
		w.say("%s listens", life.name)
		proc.up.Store(true)
		open := descriptors(proc.cmd.Process.Pid)
		sockets := unixNames(open.others)
		// Its connection to the proxy may not be there yet, nor those of proxies that ask.
		idle := len(open.others) + 1
		if w.config.recover {
			idle += len(w.proxies)
		}
		w.add(func() { r.idle, life.sockets = idle, sockets })
	case <-proc.done: // keep says what is wrong
	case <-time.After(patience):
		return fmt.Errorf("%s does not listen after %v", life.name, patience)
	}
	return nil
}

func (w *world) keepReceiver(r *receiver) {
	w.keep(&r.seat, func(how ending) {
		w.add(func() { r.life.how, r.life.endedAt = how, time.Now() })
	}, func() error { return w.startReceiver(r) })
}

// becomesQuiet waits until nothing is left in a receiver, and then compares what
// it counted and what it has open.
func (w *world) becomesQuiet(r *receiver) {
	conn, err := client.Dial(endpoint(r.port), w.keys)
	if err != nil {
		w.violated("%s: %v", r.name, err)
		return
	}
	var s *wire.Snapshot
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if s = w.stat(conn, r); s != nil && s.Slots.Free == s.Slots.Total && s.Totals == (wire.SnapshotTotals{}) {
			break
		}
		w.drop(conn, s)
		if time.Now().After(deadline) {
			text, _ := json.Marshal(s)
			w.violated("%s is not empty %v after the end of all senders: %s", r.name, patience, text)
			conn.Close()
			return
		}
	}
	r.decoders.stop()
	conn.Close()
	w.settles(r, s)
}

// drop releases what nobody wants: it is ready, and its sender calls it failed.
func (w *world) drop(conn *client.Conn, s *wire.Snapshot) {
	if s == nil {
		return
	}
	for i := range s.Requests {
		unwanted := false
		w.add(func() {
			q := w.requests[s.Requests[i].ReqID]
			if unwanted = q != nil && s.Requests[i].State == "ready" && (q.said("failed") || q.said("cancelled")); unwanted {
				q.releases = true
			}
		})
		if unwanted {
			_, _ = ask(func(ctx context.Context) (struct{}, error) { return struct{}{}, conn.Release(ctx, s.Requests[i].ReqID) })
		}
	}
}

// stat asks for a receiver's state and adds it up; nil when it did not answer.
func (w *world) stat(conn *client.Conn, r *receiver) *wire.Snapshot {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s, err := conn.Stat(ctx)
	if err != nil {
		return nil
	}
	sl := s.Slots
	if sl.Promised+sl.Held+sl.Quarantined+sl.Free != sl.Total || min(sl.Promised, sl.Held, sl.Quarantined, sl.Free) < 0 || sl.Ready > sl.Written || sl.Written > sl.Held {
		w.violated("%s: its slots do not add up: %+v", r.name, sl)
	}
	w.add(func() { w.snapshots++ })
	return s
}

// settles compares what a quiet receiver counted with its lines, as soon as they
// are read, and what it has open with what it had at its start.
func (w *world) settles(r *receiver, s *wire.Snapshot) {
	var counters map[string]int64
	text, err := json.Marshal(s.Counters)
	if err == nil {
		err = json.Unmarshal(text, &counters)
	}
	if err != nil {
		w.violated("%s: its counters: %v", r.name, err)
	}
	p := r.current()
	var open open // what it has
	// With keys, a receiver looks at who connects for ten seconds.
	for deadline := time.Now().Add(patience / 2); ; time.Sleep(50 * time.Millisecond) {
		lines := int64(0)
		w.add(func() {
			r.life.counters = counters
			for _, e := range r.life.events {
				if e.Event == "released" || e.Event == "cancelled" || e.Event == "expired" || e.Event == "dropped" {
					lines++
				}
			}
		})
		open = descriptors(p.cmd.Process.Pid)
		read := lines >= s.Counters.Released+s.Counters.Cancelled+s.Counters.Expired+s.Counters.ExpiredUnread
		if read && len(open.others) <= r.idle {
			break
		}
		if time.Now().After(deadline) {
			break
		}
	}
	if len(open.others) > r.idle {
		w.violated("%s has %d descriptors open when quiet, %d at its start: %s", r.name, len(open.others), r.idle, strings.Join(open.others, " "))
	}
	// A slot whose memory was replaced has a page to itself; its old memory is gone.
	if most := int64(r.slots*w.chunk) + int64(open.memories)*4096; open.memory > most {
		w.violated("%s holds %d bytes of memory in %d pieces when quiet, its buffer has %d", r.name, open.memory, open.memories, r.slots*w.chunk)
	}
	w.say("%s is quiet: %d descriptors, %d pieces of memory of %d bytes in all", r.name, len(open.others), open.memories, open.memory)
}
