package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/built"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/internal/usage"
	"github.com/pd-tools/pd-tools/wire"
)

// Reported failures that need load: many requests, many peers, many signals, few
// descriptors. Numbers are as in reports_test.go.

// F14: who is alive keeps what it has however slow it is, and waiting costs a
// request nothing of its lease; who is silent is expired.
func TestSlowSenderKeepsItsLease(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	r := receive(t, 4, "--lease", lease.String())
	a, b := send(t, r), send(t, r)
	a.write(batch("A", 4, 0, 1))
	r.happens("admitted", "A")
	b.write(batch("B", 4, 0, 4))
	r.happens("queued", "B")
	for i := range 3 {
		time.Sleep(lease + lease/5) // the pace of the sender is what this is about
		a.write(batch("A", 4, i+1, 1))
	}
	a.result("A", "ready")
	r.drop("A")
	b.result("B", "ready")
	if waited := r.happens("admitted", "B")["waited_ms"].(float64); waited < 3000 {
		t.Errorf("B waited %v ms: less than its lease proves nothing", waited)
	}
	if n := len(r.lines("event", "expired")); n > 0 {
		t.Errorf("%d requests of senders that live expired", n)
	}
	r.drop("B")
	attached(t, r, "silent").alloc("C", 4, false, "C-0")
	r.happens("expired", "C")
	a.ends(0)
	b.ends(0)
	r.empty()
}

// F38: a thousand requests of peers that are gone when they are answered: nothing
// blocks, the slots are back, and it is counted.
func TestGoneBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	const peers, each = 50, 20
	r := receive(t, 4, "--legacy-lease", "500ms", "--admit-timeout", "500ms")
	var all []*peer
	for range peers {
		p := lmcache(t, r)
		p.cancel("none") // it is connected
		all = append(all, p)
	}
	r.kill(syscall.SIGSTOP)
	for i, p := range all {
		for j := range each {
			id := fmt.Sprintf("G%d-%d", i, j)
			p.ask(p.request(id, 4, false, id))
		}
	}
	for _, p := range all {
		p.Close() // what it has sent is on its way
	}
	r.kill(syscall.SIGCONT)
	s := r.settles("all that was asked has ended", func(s snapshot) bool {
		return s.Counters["expired"]+s.Counters["timed_out"] == peers*each && s.Slots.Free == 4
	})
	if s.Counters["undeliverable"] == 0 {
		t.Errorf("counters: %v", s.Counters)
	}
	good := send(t, r)
	good.write(batch("good", 4, 0, 4))
	good.result("good", "ready")
	good.ends(0)
}

// F39: sixteen requests at once of each of two senders, and cancels in between, for
// half a minute, or a quarter of that. Built with the race detector where the tests are.
func TestCancelStorm(t *testing.T) {
	t.Parallel()
	const atOnce = 16
	storm := lasts(30*time.Second, 8*time.Second)
	r := receive(t, 20, "--sink")
	senders := []*fed{send(t, r), send(t, r)}
	rnd := rand.New(rand.NewPCG(1, 2))
	ends := map[string]int{}
	rounds := 0
	for began := time.Now(); time.Since(began) < storm; rounds++ {
		var ids [2][]string
		for i, s := range senders {
			var lines []string
			for n := range atOnce {
				id := fmt.Sprintf("S%d-%d-%d", i, rounds, n)
				ids[i] = append(ids[i], id)
				lines = append(lines, batch(id, 4, 0, 2))
			}
			for _, id := range ids[i] {
				second := batch(id, 4, 2, 2)
				if rnd.IntN(2) == 0 {
					second = cancelLine(id)
				}
				lines = append(lines, second)
			}
			rnd.Shuffle(atOnce, func(a, b int) { lines[atOnce+a], lines[atOnce+b] = lines[atOnce+b], lines[atOnce+a] })
			s.write(lines...)
		}
		for i, s := range senders {
			for _, id := range ids[i] {
				ends[s.event("req_id", id).str("status")]++
			}
		}
	}
	for i, s := range senders {
		if n := len(s.lines()); n != rounds*atOnce {
			t.Errorf("sender %d tells %d ends, had %d requests", i, n, rounds*atOnce)
		}
		s.ends(0)
	}
	c := r.empty().Counters
	if ends["ready"]+ends["cancelled"] != 2*rounds*atOnce || c["released"] != ends["ready"] || ends["cancelled"] == 0 || ends["ready"] == 0 {
		t.Errorf("ends %v, counters %v", ends, c)
	}
	t.Logf("%d requests in %v: %v", 2*rounds*atOnce, storm, ends)
}

// F40: signals that mean nothing, in a tight loop to all four programs under load:
// each request is ready once, nobody ends.
func TestSignalsThatMeanNothing(t *testing.T) {
	t.Parallel()
	const storm = 10 * time.Second
	r, monitor := watched(t, 20, "--sink")
	proxy, to := proxied(t)
	s := send(t, r, "--proxy", to)
	top := start(t, nil, "pd-top", "--json", "-d", "250ms", monitor)
	top.until("a line", func() bool { return len(top.out) > 0 })

	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, p := range []*program{r.program, s.program, proxy, top} {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				for _, sig := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD, syscall.SIGCONT} {
					p.kill(sig)
				}
				time.Sleep(100 * time.Microsecond) // else little else runs where there are few processors
			}
		})
	}
	var ids []string
	for began := time.Now(); time.Since(began) < storm; {
		var lines []string
		for range 10 {
			id := fmt.Sprint("R", len(ids))
			ids = append(ids, id)
			lines = append(lines, batch(id, 4, 0, 2), batch(id, 4, 2, 2))
		}
		s.write(lines...)
		s.until("the ends of all", func() bool { return len(s.out) >= len(ids) })
	}
	close(stop)
	all.Wait()
	s.tells(len(ids), "ready")
	proxy.tells(len(ids), "ready")
	for _, p := range []*program{r.program, proxy, top} {
		if p.within(0, func() bool { return p.ended }) {
			t.Errorf("%s ended with %d: %s", p.name, p.status, tail(p.stderr(), 1000))
		}
	}
	s.ends(0)
	r.empty()
	t.Logf("%d requests", len(ids))
}

// tells waits for the ends of so many requests, which must all be different and
// have this status.
func (p *program) tells(n int, status string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%d ends", n), func() bool { return len(p.out) >= n })
	seen := map[string]bool{}
	for _, l := range p.lines() {
		if id := l.str("req_id"); seen[id] || l.str("status") != status {
			p.t.Errorf("%s tells %v, told %s before: %v", p.name, l, id, seen[id])
		} else {
			seen[id] = true
		}
	}
	if len(seen) != n {
		p.t.Errorf("%s tells %d ends, want %d", p.name, len(seen), n)
	}
}

// limited is a program's name with which it starts under a limit of the shell's.
func limited(t *testing.T, ulimit, name string) string {
	t.Helper()
	f, err := os.CreateTemp(bin, "limited-")
	if err == nil {
		_, err = fmt.Fprintf(f, "#!/bin/sh\nulimit %s && exec %s/%s \"$@\"\n", ulimit, bin, name)
	}
	if err == nil {
		err = f.Chmod(0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return filepath.Base(f.Name())
}

// F41: 64 descriptors and a hundred senders, of which a few dozen have room: who is
// connected is served, the rest is refused aloud, and later ones are served.
func TestMoreSendersThanDescriptors(t *testing.T) {
	t.Parallel()
	crowd := 100
	if built.Race {
		crowd = 40 // a sender takes three times the memory, and time to start
	}
	p := start(t, nil, limited(t, "-n 64", "pd-recv"), "--listen", "tcp://127.0.0.1:*", "--buffer-size", "10KiB", "--chunk-size", "1KiB", "--sink")
	r := &receiver{program: p, endpoint: p.event("event", "listening").str("endpoint")}
	r.says("at most 64 files can be open")
	var senders []*fed
	for i := range crowd {
		s := send(t, r, "--staging-size", "64KiB", "--timeout", "10m")
		s.write(batch(fmt.Sprint("A", i), 4, 0, 4))
		senders = append(senders, s)
	}
	r.says("no more files can be opened")
	ready := func() (ids []int) {
		for i, s := range senders {
			if len(s.lines("req_id", fmt.Sprint("A", i), "status", "ready")) > 0 {
				ids = append(ids, i)
			}
		}
		return ids
	}
	eventually(t, "some to be served", func() bool { return len(ready()) >= 10 })
	for _, i := range ready() { // who is connected is not forgotten
		senders[i].write(batch(fmt.Sprint("B", i), 4, 0, 4))
		senders[i].result(fmt.Sprint("B", i), "ready")
	}
	if n := len(ready()); n > 64/2 {
		t.Errorf("%d senders, of which each takes two, have room in 64 files", n)
	}
	// As they go others come, or have been told that they cannot.
	gone := make([]bool, crowd)
	left := crowd
	eventually(t, "everybody to be served or refused", func() bool {
		for i, s := range senders {
			if l := s.lines("req_id", fmt.Sprint("A", i)); len(l) > 0 && !gone[i] {
				code := 0
				if l[0].str("status") != "ready" {
					code = 1
					if !strings.Contains(l[0].str("error"), r.endpoint) {
						t.Errorf("a sender for which there is no room is told %v", l[0])
					}
				}
				s.ends(code)
				gone[i] = true
				left--
			}
		}
		return left == 0
	})
	t.Logf("%d of %d are served", len(ready()), crowd)
	late := send(t, r)
	late.write(batch("late", 4, 0, 4))
	late.result("late", "ready")
	late.ends(0)
	r.empty()
}

// F41: the same with a hundred bare connections, which take what there is and say
// nothing.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	p := start(t, nil, limited(t, "-n 64", "pd-recv"), "--listen", "tcp://127.0.0.1:*", "--buffer-size", "10KiB", "--chunk-size", "1KiB", "--sink")
	r := &receiver{program: p, endpoint: p.event("event", "listening").str("endpoint")}
	r.says("at most 64 files can be open")
	s := send(t, r)
	transfer := func(s *fed, id string) {
		t.Helper()
		s.write(batch(id, 4, 0, 4))
		s.result(id, "ready")
		r.happens("released", id)
	}
	transfer(s, "A")
	var crowd []*peer
	for range 100 {
		crowd = append(crowd, dial(t, r))
	}
	r.says("no more files can be opened")
	transfer(s, "B")
	for _, p := range crowd {
		p.Kill()
	}
	late := send(t, r)
	transfer(late, "C")
	late.ends(0)
	s.ends(0)
	r.empty()
}

// F41: 5,000 transfers of one sender leave no descriptor and no connection.
func TestManyTransfers(t *testing.T) {
	t.Parallel()
	const transfers = 5000
	r := receive(t, 64, "--sink")
	_, to := proxied(t)
	s := send(t, r, "--proxy", to)
	s.write(batch("first", 1, 0, 1))
	s.result("first", "ready")
	r.happens("released", "first")
	before := [2]int{len(openFiles(r.program)), len(openFiles(s.program))}
	for i := range transfers {
		s.write(batch(fmt.Sprint("R", i), 1, 0, 1))
	}
	s.tells(transfers+1, "ready")
	r.empty()
	eventually(t, "as few files to be open as before", func() bool {
		return len(openFiles(r.program)) <= before[0] && len(openFiles(s.program)) <= before[1]
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(r.endpoint, "tcp://"), ":")
	n, _ := strconv.Atoi(port)
	left := 0
	for line := range strings.Lines(read(t, "/proc/net/tcp")) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "06" && (strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) || strings.HasSuffix(f[2], fmt.Sprintf(":%04X", n))) {
			left++
		}
	}
	if left > 20 { // r.stat and its like leave some
		t.Errorf("%d connections in TIME_WAIT after %d transfers", left, transfers)
	}
	s.ends(0)
}

// F57: who waits is told of once, and neither waiting nor having nothing to do costs
// anything, for a minute, or a tenth of that, in which two heartbeats come.
func TestSaturatedAndQuiet(t *testing.T) {
	t.Parallel()
	measured := lasts(time.Minute, 6*time.Second)
	idle := receive(t, 10, "--lease", "9s")
	r := receive(t, 10, "--admit-timeout", "10m", "--lease", "9s")
	full(t, r)
	bored := send(t, idle)
	bored.write(batch("done", 2, 0, 2))
	bored.result("done", "ready")
	var waiters []*fed
	for i := range 5 {
		s := send(t, r, "--timeout", "10m")
		id := fmt.Sprint("W", i)
		s.write(batch(id, 8, 0, 8))
		r.happens("queued", id)
		waiters = append(waiters, s)
	}
	programs := []*program{r.program, idle.program, bored.program}
	for _, s := range waiters {
		programs = append(programs, s.program)
	}
	for _, s := range append(waiters, bored) {
		s.says("writes by shm")
	}
	idle.happens("ready", "done")
	said := func() (n int) {
		for _, p := range programs {
			n += strings.Count(p.stderr(), "\n") + len(p.stdout())
		}
		return n
	}
	lines := said()
	before := make([]time.Duration, len(programs))
	for i, p := range programs {
		before[i] = p.uses().CPU
	}
	time.Sleep(measured)
	for i, p := range programs {
		share, most := float64(p.uses().CPU-before[i])/float64(measured), 0.05
		if built.Race {
			most = 0.25
		}
		if share > most {
			t.Errorf("%s takes %.1f%% of a core while nothing happens", p.name, 100*share)
		}
	}
	if n := said() - lines; n > 0 {
		t.Errorf("%d lines while nothing happened", n)
	}
}

// uses is what a program uses of the machine.
func (p *program) uses() usage.Usage {
	p.t.Helper()
	u, err := usage.Of(p.cmd.Process.Pid)
	if err != nil {
		p.t.Fatal(err)
	}
	return u
}

// F35: notifications that nobody waits for yet are told when somebody reads; a
// hundred thousand that stay incomplete take bounded memory and are counted.
func TestProxyIsFlooded(t *testing.T) {
	t.Parallel()
	const flood = 100_000
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := startWith(t, with{stdout: w}, "pd-proxy", "--listen", "tcp://127.0.0.1:*", "--expect", "2")
	w.Close()
	notify := notifier(t, listening(p))
	notify("A")
	notify("A")
	notify("B") // whose client leaves: no second one
	for i := range flood {
		notify(fmt.Sprint("nobody asks ", i))
	}
	notify("C")
	notify("C")
	buf := make([]byte, 100)
	for got := ""; got != "A\nC\n"; {
		n, err := out.Read(buf)
		if got += string(buf[:n]); err != nil || len(got) > 4 {
			t.Fatalf("printed %q, %v", got, err)
		}
	}
	if rss := p.uses().Resident(); rss > 200<<20 {
		t.Errorf("it takes %d MiB", rss>>20)
	}
	p.kill(syscall.SIGTERM)
	if code := p.exits(); code != 0 || !strings.Contains(p.stderr(), "2 ready") || !strings.Contains(p.stderr(), "65535 pending") ||
		!strings.Contains(p.stderr(), fmt.Sprintf("%d forgotten", flood+1+1-65_536)) {
		t.Errorf("exit %d; %s", code, p.stderr())
	}
}

// F54: twenty monitors at once, some of them stopped for half a minute or as long as
// it takes until there is no room for more to tell them, and one that asks for
// snapshots and reads none: no request fails, and the rate stays. How little it
// changes is measured by internal/sender's TestRateBesideMonitors.
func TestMonitorsThatStop(t *testing.T) {
	t.Parallel()
	const tops, stopped, requests = 20, 5, 200
	r, monitor := watched(t, 64, "--sink")
	s := send(t, r)
	next := 0
	rate := func() time.Duration {
		began := time.Now()
		from := next
		for ; next < from+requests; next++ {
			s.write(batch(fmt.Sprint("R", next), 4, 0, 4))
		}
		s.until("the ends of all", func() bool { return len(s.out) >= next })
		return time.Since(began)
	}
	rate()
	alone := min(rate(), rate())
	var watching []*program
	for range tops {
		p := start(t, nil, "pd-top", "--json", "-d", "1s", monitor)
		watching = append(watching, p)
	}
	for _, p := range watching {
		p.until("a line", func() bool { return len(p.out) > 0 })
	}
	for _, p := range watching[:stopped] {
		p.kill(syscall.SIGSTOP)
	}
	deaf := dial(t, r)
	for range 500 {
		deaf.ask(&wire.StatRequest{})
	}
	testkit.Subscribe(t, monitor) // and reads nothing of what it subscribes to
	stood, stop := time.Now(), lasts(30*time.Second, 0)
	full := func() bool {
		return slices.ContainsFunc(tcpSockets(t, r.program), func(s tcpSocket) bool {
			return s.unsent > 0 && portOf(t, s.local) == portOf(t, monitor)
		})
	}
	beside := rate()
	for i := 1; i < 3 || time.Since(stood) < stop || !full(); i++ {
		if beside = min(beside, rate()); time.Since(stood) > patience {
			t.Fatal("nobody who does not read is behind: the test proves nothing")
		}
	}
	t.Logf("%d requests take %v, beside %d monitors %v", requests, alone, tops, beside)
	// Twenty programs that draw take the processor, too: what must not happen is
	// that somebody waits for one that is stopped.
	if beside > 10*alone+time.Second {
		t.Errorf("%d requests take %v, beside %d monitors %v", requests, alone, tops, beside)
	}
	s.tells(next, "ready")
	s.ends(0)
	if c := r.empty().Counters; c["ready"] != next || c["expired"]+c["rejected"] > 0 {
		t.Errorf("counters: %v", c)
	}
}

// F60, F62, F63: without flags that say otherwise nothing listens but on this
// host, and a sender without a proxy has no connection but to its receiver.
func TestListensOnThisHostOnly(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--monitor", "tcp://127.0.0.1:*")
	proxy, _ := proxied(t)
	s := send(t, r)
	s.write(batch("A", 1, 0, 1))
	s.result("A", "ready")
	for _, p := range []*program{r.program, proxy, s.program} {
		for _, l := range tcpSockets(t, p) {
			if l.listens && !strings.HasPrefix(l.local, "0100007F:") {
				t.Errorf("%s listens on %s", p.name, l.local)
			}
		}
	}
	if n := len(tcpSockets(t, s.program)); n != 1 {
		t.Errorf("a sender without a proxy has %d connections", n)
	}
	s.ends(0)
	if !strings.Contains(s.stderr(), "notices were off") {
		t.Errorf("the summary: %s", s.stderr())
	}
	for name, endpoints := range map[string][]string{"pd-recv": {"7600", "7602"}, "pd-proxy": {"7700"}} {
		help := output(t, 0, name, "--help")
		for _, port := range endpoints {
			if !strings.Contains(help, "tcp://127.0.0.1:"+port) {
				t.Errorf("%s has another default than 127.0.0.1:%s", name, port)
			}
		}
	}
}

type tcpSocket struct {
	local   string // as the kernel prints it
	listens bool
	unsent  int // bytes that its peer has no room for
}

// portOf is the port of an endpoint, or of an address as the kernel prints it.
func portOf(t *testing.T, address string) int {
	t.Helper()
	base := 16
	if strings.HasPrefix(address, "tcp://") {
		base = 10
	}
	port, err := strconv.ParseUint(address[strings.LastIndexByte(address, ':')+1:], base, 16)
	if err != nil {
		t.Fatal(err)
	}
	return int(port)
}

// tcpSockets are those of a program, of both families.
func tcpSockets(t *testing.T, p *program) (list []tcpSocket) {
	t.Helper()
	files := openFiles(p)
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue // no IPv6 here
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 9 && slices.Contains(files, "socket:["+f[9]+"]") {
				queued, _, _ := strings.Cut(f[4], ":")
				unsent, _ := strconv.ParseInt(queued, 16, 64)
				list = append(list, tcpSocket{f[1], f[3] == "0A", int(unsent)})
			}
		}
	}
	return list
}

// F60: IPv6 addresses in brackets, names, free ports; the endpoint that is told is
// one that a peer can use.
func TestAddresses(t *testing.T) {
	t.Parallel()
	listens := []string{"tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://localhost:*"}
	if fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0); err == nil {
		if unix.Bind(fd, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}) == nil {
			listens = append(listens, "tcp://[::1]:*")
		}
		unix.Close(fd)
	}
	for _, listen := range listens {
		p := start(t, nil, "pd-recv", "--listen", listen, "--buffer-size", "10KiB", "--chunk-size", "1KiB")
		r := &receiver{program: p, endpoint: p.event("event", "listening").str("endpoint")}
		if strings.HasSuffix(r.endpoint, ":*") || strings.HasSuffix(r.endpoint, ":0") {
			t.Errorf("%s listens on %s", listen, r.endpoint)
		}
		s := send(t, r)
		s.write(batch("A", 2, 0, 2))
		s.result("A", "ready")
		if r.take("A") != pattern(chunkSize, keys("A", 0, 2)...) {
			t.Errorf("other bytes by %s", r.endpoint)
		}
		s.ends(0)
	}
	for listen, says := range map[string]string{
		"tcp://[::1]": "no port", "tcp://::1:7400": "tcp://[::1]:PORT", "tcp://::1": "[", "tcp://127.0.0.1:70000": "0 to 65535",
	} {
		run(t, nil, "pd-recv", "--listen", listen).wrongUsage(t, says)
	}
}
