package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// lease is every receiver's --lease.
const lease = time.Second

// recoverTTL is --ready-ttl where proxies ask for what is ready: within it they
// have, whatever befell them.
const recoverTTL = 20 * time.Second

// config is the world of a seed: which programs, and with which settings.
type config struct {
	seed      uint64
	chunk     int // bytes
	rate      float64
	receivers []receiverConfig
	proxies   int
	senders   int
	recover   bool // proxies ask receivers for what is ready
	keys      bool // all that is said is encrypted, and strangers are refused
	hosts     bool // senders but the last have hosts of their own
}

type receiverConfig struct {
	engine    string // as --engine takes it
	slots     int
	overtake  int
	sink      bool
	admission string
	readyTTL  time.Duration
	decoders  int
	pause     time.Duration // a decoder's, for each request
}

// fault is one thing that goes wrong, at a time of its own. What it hits is
// chosen when it comes, by pick, among those that are there then.
type fault struct {
	at   time.Duration
	kind string
	pick uint32
	long time.Duration
}

// weights are how often each kind of fault comes, relative to the others.
var weights = []struct {
	kind   string
	weight int
	least  time.Duration
	most   time.Duration
}{
	// long is for how long the thing is stopped, cut off, away or slow.
	{"sender killed", 7, 0, 500 * time.Millisecond},
	{"sender terminated", 4, 0, 500 * time.Millisecond},
	{"sender stopped", 10, 20 * time.Millisecond, lease * 7 / 10},
	{"sender stopped beyond its lease", 5, lease * 12 / 10, lease * 5 / 2},
	{"receiver killed", 3, 0, 1500 * time.Millisecond},
	{"receiver terminated", 3, 0, 1500 * time.Millisecond},
	{"receiver stopped", 8, 20 * time.Millisecond, lease * 7 / 10},
	{"receiver stopped beyond the lease", 3, lease * 12 / 10, lease * 2},
	{"proxy killed", 5, 0, time.Second},
	{"proxy killed after it received", 4, 0, time.Second},
	{"proxy terminated", 3, 0, time.Second},
	{"proxy stopped", 6, 50 * time.Millisecond, 2 * time.Second},
	{"sender cut off", 7, 50 * time.Millisecond, lease * 2},
	{"sender unheard", 7, 50 * time.Millisecond, lease * 2},
	{"proxy cut off", 5, 50 * time.Millisecond, 2 * time.Second},
	{"proxy unheard", 5, 50 * time.Millisecond, 2 * time.Second},
	{"decoder slow", 8, 100 * time.Millisecond, lease * 2},
	{"decoder died while it took", 8, 0, 0},
	{"take killed", 4, 0, 300 * time.Millisecond},
	{"producer slow", 7, 200 * time.Millisecond, lease * 2},
	{"disk slow", 6, 300 * time.Millisecond, lease * 2},
	{"source gone", 4, 50 * time.Millisecond, 500 * time.Millisecond},
	{"signals that mean nothing", 7, 50 * time.Millisecond, 500 * time.Millisecond},
	{"stdout not read", 6, 100 * time.Millisecond, 4 * time.Second},
}

// newConfig draws a world.
func newConfig(seed uint64, engines []string) config {
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := config{
		seed:    seed,
		chunk:   (16 << 10) << rnd.IntN(3),
		rate:    130,
		proxies: 1 + rnd.IntN(2),
		senders: 3 + rnd.IntN(3),
		recover: seed%2 == 0,
		keys:    seed%5 == 0,
		hosts:   seed%3 == 0,
	}
	for i := range 2 + rnd.IntN(2) {
		r := receiverConfig{
			engine:    engines[(int(seed)+i)%len(engines)],
			slots:     24 + rnd.IntN(40),
			overtake:  []int{0, 2, 8}[rnd.IntN(3)],
			sink:      i > 0 && rnd.IntN(3) == 0,
			admission: "reserve",
			readyTTL:  []time.Duration{4 * time.Second, 8 * time.Second}[rnd.IntN(2)],
			decoders:  2 + rnd.IntN(4),
			pause:     time.Duration(rnd.IntN(30)) * time.Millisecond,
		}
		if c.recover {
			r.readyTTL = recoverTTL
		}
		if i > 0 && rnd.IntN(8) == 0 {
			r.admission = "serial"
		}
		c.receivers = append(c.receivers, r)
	}
	return c
}

// newFaults draws the faults of a seed, some a second on the mean, of those
// kinds that are possible here.
func newFaults(seed uint64, during time.Duration, aSecond float64, possible func(kind string) bool) []fault {
	rnd := rand.New(rand.NewPCG(seed, 2))
	var kinds []int // each as often as its weight
	for i, w := range weights {
		if possible(w.kind) {
			kinds = append(kinds, slices.Repeat([]int{i}, w.weight)...)
		}
	}
	var list []fault
	for at := time.Second; ; {
		at += time.Duration(rnd.ExpFloat64() / aSecond * float64(time.Second))
		if at >= during {
			return list
		}
		w := weights[kinds[rnd.IntN(len(kinds))]]
		f := fault{at: at, kind: w.kind, pick: rnd.Uint32(), long: w.least}
		if w.most > w.least {
			f.long += time.Duration(rnd.Int64N(int64(w.most - w.least)))
		}
		list = append(list, f)
	}
}

// write prints a plan, for whoever looks into a failure.
func (c *config) write(w io.Writer, faults []fault) {
	fmt.Fprintf(w, "%+v\n", *c)
	for _, f := range faults {
		fmt.Fprintf(w, "%9.3f %s pick %d long %v\n", f.at.Seconds(), f.kind, f.pick, f.long)
	}
}
