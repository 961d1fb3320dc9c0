package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

// The receiver's buffer.
const (
	slotBytes = 4096
	slots     = 4096
)

const (
	warmUp    = 2 * time.Second
	settle    = 3 * time.Second // until what the flood left has expired
	goodPeers = 2
	beat      = 50 * time.Millisecond // between two questions of the bystander
	sampled   = 100 * time.Millisecond
)

// flood is one run.
type flood struct {
	bin, engines string
	rate, count  int
	before       time.Duration
	ratio        float64
	growth       int // MiB
	kinds        []*tally
	log          io.Writer

	recv, proxy service
	id          string // of the receiver
	fabric      string // where ofi's writers introduce themselves, if anywhere
	goods       []*good
	admitted    recent
}

// recent has the newest requests of the good ones that pd-recv has admitted: a name
// that is taken before its owner comes would be another matter.
type recent struct {
	mu   sync.Mutex
	ids  [goodWindow]string
	next int
}

var admittedLine = regexp.MustCompile(`^{"event":"admitted".*"req_id":"(good[^"]+)"`)

func (r *recent) line(b []byte) {
	if m := admittedLine.FindSubmatch(b); m != nil {
		r.mu.Lock()
		r.ids[r.next%goodWindow] = string(m[1])
		r.next++
		r.mu.Unlock()
	}
}

func (r *recent) some(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.ids[n%goodWindow], "good")
}

// service is a program that peers can reach.
type service struct {
	*program
	endpoint, monitor, metrics string
	start                      int64 // bytes of memory it had then
}

// tally is what became of one kind.
type tally struct {
	kind
	sent, cut, answers atomic.Int64
}

// result is what is printed as JSON.
type result struct {
	Kinds       int                `json:"kinds"`
	Rate        int                `json:"rate"` // bad messages a second, as wanted
	Sent        int64              `json:"sent"`
	Answers     int64              `json:"answers"`
	Cut         int64              `json:"cut"` // times that a program ended a connection, or did not take one
	Seconds     float64            `json:"seconds"`
	GoodBefore  float64            `json:"good_before"` // requests a second
	GoodDuring  float64            `json:"good_during"`
	GoodRatio   float64            `json:"good_ratio"`
	GoodReady   int64              `json:"good_ready"`
	GoodFailed  int                `json:"good_failed"`
	BystanderMS map[string]float64 `json:"bystander_ms"` // how long a Heartbeat's answer took under the flood
	Receiver    taken              `json:"receiver"`
	Proxy       taken              `json:"proxy"`
	Counters    wire.Counters      `json:"counters"`
	Wrong       []string           `json:"wrong"`
}

// taken is what a program took, bytes and seconds.
type taken struct {
	Start  int64   `json:"start"` // when it had started
	Before int64   `json:"before"`
	Peak   int64   `json:"peak"`
	After  int64   `json:"after"`
	CPU    float64 `json:"cpu_s"` // under the flood
}

func (f *flood) offers(engine string) bool {
	return slices.Contains(strings.Split(f.engines, ","), engine)
}

func (f *flood) say(format string, args ...any) { fmt.Fprintf(f.log, "flood: "+format+"\n", args...) }

func (f *flood) run(ctx context.Context) (*result, error) {
	defer f.kill()
	if err := f.startPrograms(); err != nil {
		return nil, err
	}
	bystander, err := f.newBystander()
	if err != nil {
		return nil, err
	}
	r := &result{Kinds: len(f.kinds), Rate: f.rate}
	if err := f.wait(ctx, warmUp); err != nil {
		return nil, err
	}
	if r.GoodBefore, err = f.goodRate(ctx, func(ctx context.Context) error { return f.wait(ctx, f.before) }); err != nil {
		return nil, err
	}
	if r.GoodBefore == 0 && f.ratio > 0 {
		return nil, fmt.Errorf("not one good request became ready in %v, undisturbed: the machine is too busy to tell anything", f.before)
	}
	f.say("undisturbed: %.0f good requests a second", r.GoodBefore)

	recv, proxy := watch(f.recv), watch(f.proxy)
	var took time.Duration
	r.GoodDuring, err = f.goodRate(ctx, func(ctx context.Context) error {
		stop := bystander.ask()
		defer func() { r.BystanderMS = stop() }()
		began := time.Now()
		err := f.attack(ctx)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.Seconds = took.Seconds()
	if r.GoodBefore > 0 {
		r.GoodRatio = r.GoodDuring / r.GoodBefore
	}
	if err := f.wait(ctx, settle); err != nil {
		return nil, err
	}
	if r.Receiver, err = recv(); err != nil {
		return nil, err
	}
	if r.Proxy, err = proxy(); err != nil {
		return nil, err
	}
	s, err := bystander.stat()
	if err != nil {
		return nil, err
	}
	r.Counters = s.Counters
	for _, k := range f.kinds {
		r.Sent += k.sent.Load()
		r.Answers += k.answers.Load()
		r.Cut += k.cut.Load()
	}
	return r, f.judge(r, bystander)
}

// judge ends the good ones and says what is wrong.
func (f *flood) judge(r *result, b *bystander) error {
	wrong := func(format string, args ...any) { r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...)) }
	for _, g := range f.goods {
		failed, err := g.finish()
		if err != nil {
			wrong("%v", err)
		}
		for _, line := range failed {
			wrong("a good request failed: %s", line)
		}
		r.GoodFailed += len(failed)
		r.GoodReady += g.ready.Load()
	}
	if b.failed != nil {
		wrong("a good peer's question: %v", b.failed)
	}
	if r.GoodRatio < f.ratio {
		wrong("good requests: %.0f a second undisturbed, %.0f under the flood", r.GoodBefore, r.GoodDuring)
	}
	for _, p := range []struct {
		name string
		taken
	}{{"pd-recv", r.Receiver}, {"pd-proxy", r.Proxy}} {
		if grown := p.Peak - p.Start; grown > int64(f.growth)<<20 {
			wrong("%s grew by %d MiB", p.name, grown>>20)
		}
	}
	s, err := b.empty()
	if err != nil {
		return err
	}
	if s.Slots.Free != s.Slots.Total {
		wrong("slots are left: %+v", s.Slots)
	}
	for _, p := range []*program{f.recv.program, f.proxy.program} {
		began := time.Now()
		if err := p.stop(); err != nil {
			wrong("%v", err)
		}
		f.say("%s ended %.1f s after it was told to", p.name, time.Since(began).Seconds())
	}
	return nil
}

// startPrograms starts what is attacked, and the good ones. Leases are short, so
// that what bad peers leave does not pile up until the end.
func (f *flood) startPrograms() (err error) {
	first := make(chan []byte, 1) // takes the first line and no other
	f.recv.program, err = start(f.bin, "pd-recv", f.events(first), "serve", "--listen", "tcp://127.0.0.1:*", "--monitor", "tcp://127.0.0.1:*",
		"--metrics", "127.0.0.1:0", "--engine", f.engines, "--chunk-size", fmt.Sprint(slotBytes), "--buffer-size", fmt.Sprint(slotBytes*slots),
		"--sink", "--lease", "5s", "--legacy-lease", "2s", "--ready-ttl", "2s", "--admit-timeout", "2s")
	if err != nil {
		return err
	}
	var l struct{ Endpoint, Monitor string }
	select {
	case line := <-first:
		if err := json.Unmarshal(line, &l); err != nil || l.Endpoint == "" {
			return fmt.Errorf("pd-recv's first line is %q", line)
		}
	case <-f.recv.done:
		return f.recv.alive()
	}
	f.recv.endpoint, f.recv.monitor = l.Endpoint, l.Monitor
	if f.recv.metrics, err = f.recv.says(`metrics on http://([^/]+)/`); err != nil {
		return err
	}
	f.proxy.program, err = start(f.bin, "pd-proxy", func([]byte) {}, "--listen", "tcp://127.0.0.1:*", "--monitor", "tcp://127.0.0.1:*", "--metrics", "127.0.0.1:0")
	if err != nil {
		return err
	}
	for _, say := range []struct {
		where   *string
		pattern string
	}{{&f.proxy.endpoint, `listening on (tcp://\S+)`}, {&f.proxy.monitor, `pd-top (tcp://\S+)`}, {&f.proxy.metrics, `metrics on http://([^/]+)/`}} {
		if *say.where, err = f.proxy.says(say.pattern); err != nil {
			return err
		}
	}
	if err := f.introduce(); err != nil {
		return err
	}
	for _, s := range []*service{&f.recv, &f.proxy} {
		if s.start, err = s.memory(); err != nil {
			return err
		}
	}
	for i := range goodPeers {
		g, err := f.startGood(i)
		if err != nil {
			return err
		}
		f.goods = append(f.goods, g)
	}
	return nil
}

// events takes pd-recv's lines.
func (f *flood) events(first chan []byte) func([]byte) {
	return func(line []byte) {
		select {
		case first <- slices.Clone(line):
		default:
			f.admitted.line(line)
		}
	}
}

// says waits for something on stderr.
func (p *program) says(pattern string) (string, error) {
	want := regexp.MustCompile(pattern)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if m := want.FindStringSubmatch(p.said()); m != nil {
			return m[1], nil
		}
		if err := p.alive(); err != nil {
			return "", err
		}
	}
	return "", p.failure(fmt.Errorf("never said %s", pattern))
}

// introduce learns what any sender is told: the receiver's id, and where ofi's
// writers introduce themselves.
func (f *flood) introduce() error {
	for engine := range strings.SplitSeq(f.engines, ",") {
		p, err := peertest.Dial(f.recv.endpoint, peertest.Options{})
		if err != nil {
			return err
		}
		resp, err := p.Attach("scout", engine)
		p.Kill()
		if err != nil {
			return err
		}
		f.id = resp.ReceiverID
		var desc struct{ Host, Port string }
		if len(resp.Regions) > 0 && json.Unmarshal(resp.Regions[0].Desc, &desc) == nil && desc.Port != "" {
			f.fabric = cmp.Or(desc.Host, "127.0.0.1") + ":" + desc.Port
		}
	}
	return nil
}

func (f *flood) kill() {
	programs := []*program{f.recv.program, f.proxy.program}
	for _, g := range f.goods {
		programs = append(programs, g.program)
	}
	for _, p := range programs {
		if p != nil {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
}

// wait lets time pass, unless something ends that should not.
func (f *flood) wait(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(sampled, time.Until(end))):
		}
		if err := f.alive(); err != nil {
			return err
		}
	}
	return nil
}

func (f *flood) alive() error {
	err := f.recv.alive()
	if err == nil {
		err = f.proxy.alive()
	}
	for _, g := range f.goods {
		if err == nil {
			err = g.alive()
		}
	}
	return err
}

// goodRate is how many good requests become ready a second, meanwhile.
func (f *flood) goodRate(ctx context.Context, meanwhile func(context.Context) error) (float64, error) {
	count := func() (n int64) {
		for _, g := range f.goods {
			n += g.ready.Load()
		}
		return n
	}
	first, began := count(), time.Now()
	err := meanwhile(ctx)
	return float64(count()-first) / time.Since(began).Seconds(), err
}

// watch samples a program's memory until it is asked for.
func watch(p service) func() (taken, error) {
	u := taken{Start: p.start}
	var err error
	u.Before, err = p.memory()
	u.Peak = u.Before
	cpu := p.cpu()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if now, e := p.memory(); e == nil {
				u.Peak = max(u.Peak, now)
			}
			select {
			case <-quit:
				return
			case <-time.After(sampled):
			}
		}
	}()
	return func() (taken, error) {
		close(quit)
		<-done
		u.CPU = (p.cpu() - cpu).Seconds()
		if err == nil {
			u.After, err = p.memory()
		}
		return u, err
	}
}

// attack sends all bad messages, each kind from a goroutine of its own at its
// share of the rate.
func (f *flood) attack(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	total := 0.0
	for _, k := range f.kinds {
		total += k.share()
	}
	var all sync.WaitGroup
	for i, k := range f.kinds {
		a := &attacker{flood: f, tally: k, rng: rand.New(rand.NewPCG(1, uint64(i)))}
		share := k.share() / total
		all.Go(func() { a.run(ctx, int(math.Ceil(float64(f.count)*share)), float64(f.rate)*share) })
	}
	go func() {
		if err := f.wait(ctx, time.Hour); err != nil {
			cancel(err)
		}
	}()
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return f.alive()
}

// bystander is a good peer that asks every now and then.
type bystander struct {
	*peertest.Peer
	engine, metrics string
	failed          error
}

func (f *flood) newBystander() (*bystander, error) {
	p, err := peertest.Dial(f.recv.endpoint, peertest.Options{})
	if err != nil {
		return nil, err
	}
	return &bystander{Peer: p, engine: strings.Split(f.engines, ",")[0], metrics: f.recv.metrics}, nil
}

// ask attaches and heartbeats, and looks at /healthz, until stop says how long the
// answers to heartbeats took.
func (b *bystander) ask() (stop func() map[string]float64) {
	quit, done := make(chan struct{}), make(chan struct{})
	var took []time.Duration
	go func() {
		defer close(done)
		resp, err := b.Attach("bystander", b.engine)
		b.failed = err
		for b.failed == nil {
			began := time.Now()
			m, err := b.Call(&wire.Heartbeat{Epoch: resp.Epoch})
			took = append(took, time.Since(began))
			if resp, ok := m.(*wire.AllocResponse); err != nil || !ok || resp.Code != "" {
				b.failed = fmt.Errorf("a heartbeat is answered %+v, %v", m, err)
			}
			if len(took)%20 == 0 && b.failed == nil {
				b.failed = healthy(b.metrics)
			}
			select {
			case <-quit:
				return
			case <-time.After(beat):
			}
		}
	}()
	return func() map[string]float64 {
		close(quit)
		<-done
		slices.Sort(took)
		at := func(q float64) float64 {
			return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000
		}
		return map[string]float64{"p50": at(0.5), "p99": at(0.99), "max": at(1)}
	}
}

func healthy(addr string) error {
	client := http.Client{Timeout: patience}
	resp, err := client.Get("http://" + addr + "/healthz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/healthz says %s", resp.Status)
	}
	return nil
}

func (b *bystander) stat() (*wire.Snapshot, error) {
	m, err := b.Call(&wire.StatRequest{})
	if err != nil {
		return nil, err
	}
	s, ok := m.(*wire.Snapshot)
	if !ok {
		return nil, fmt.Errorf("stat is answered with a %T", m)
	}
	return s, nil
}

// empty asks until all slots are free, or gives up.
func (b *bystander) empty() (s *wire.Snapshot, err error) {
	for end := time.Now().Add(patience / 4); time.Now().Before(end); time.Sleep(sampled) {
		if s, err = b.stat(); err != nil || s.Slots.Free == s.Slots.Total {
			return s, err
		}
	}
	return s, nil
}

// table prints what was done, for people.
func (f *flood) table(w io.Writer, r *result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "kind\tsent\tanswers\tcut")
	for _, k := range f.kinds {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", k.name, k.sent.Load(), k.answers.Load(), k.cut.Load())
	}
	t.Flush()
	const mib = 1 << 20
	fmt.Fprintf(w, "\n%d bad messages of %d kinds in %.1f s, %.0f a second; %d answers, %d connections cut\n",
		r.Sent, r.Kinds, r.Seconds, float64(r.Sent)/r.Seconds, r.Answers, r.Cut)
	fmt.Fprintf(w, "good requests: %.0f a second undisturbed, %.0f under the flood: %.2f; %d ready, %d failed\n",
		r.GoodBefore, r.GoodDuring, r.GoodRatio, r.GoodReady, r.GoodFailed)
	fmt.Fprintf(w, "a bystander's heartbeat: p50 %.1f ms, p99 %.1f ms, max %.1f ms\n", r.BystanderMS["p50"], r.BystanderMS["p99"], r.BystanderMS["max"])
	for _, p := range []struct {
		name string
		taken
	}{{"pd-recv", r.Receiver}, {"pd-proxy", r.Proxy}} {
		fmt.Fprintf(w, "%s: %.1f MiB at its start, %.1f before the flood, %.1f at most, %.1f after; %.1f s of a processor\n",
			p.name, float64(p.Start)/mib, float64(p.Before)/mib, float64(p.Peak)/mib, float64(p.After)/mib, p.CPU)
	}
}
