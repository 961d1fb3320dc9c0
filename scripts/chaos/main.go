// Command chaos runs the real programs while faults befall them, and proves from
// what they print, and from what is taken, that nothing is lost and nothing is
// left. What happens is drawn from a seed: the same seed gives the same
// programs, requests and faults at the same times.
//
//	make chaos SEED=1-20 TIME=30m
//
// Start reading at weights in plan.go, which are the faults, and at check in
// check.go, which are the rules. world.go runs the programs, feed.go gives
// senders their requests, decode.go takes what is ready.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	faultsASecond = 2.2
	quietShare    = 4 // of a seed's time, one part in so many is for becoming quiet
	maxSeeds      = 10_000
	quietMost     = 12 * time.Second // and at most this
)

// figures are what all seeds did together.
type figures struct {
	Seeds     int            `json:"seeds"`
	Requests  int            `json:"requests"`
	Outcomes  map[string]int `json:"outcomes"`
	Faults    int            `json:"faults"`
	Kinds     map[string]int `json:"faults_by_kind"`
	Bytes     int64          `json:"bytes_compared"`
	Takes     int            `json:"takes"`
	Snapshots int            `json:"snapshots"`
	Lives     map[string]int `json:"lives"`
	Quiet     float64        `json:"longest_to_quiet_s"`
	Elapsed   float64        `json:"elapsed_s"`
	Wrong     int            `json:"violations"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once; the next run cleans up
	bin := flag.String("bin", "bin", "`directory` of the built programs")
	seeds := flag.String("seed", "1", "a `seed`, or a range of them: 1-20")
	during := flag.Duration("time", 2*time.Minute, "for how long, all seeds together")
	keep := flag.Bool("keep", false, "keep the logs of seeds that went well, too")
	flag.Parse()
	list, err := parseSeeds(*seeds)
	switch {
	case err != nil:
	case flag.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: there are only flags", flag.Arg(0))
	case *during <= 0:
		err = fmt.Errorf("-time (TIME of make chaos) %v: must be more than 0, as in 2m", *during)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	f := &figures{Outcomes: map[string]int{}, Kinds: map[string]int{}, Lives: map[string]int{}}
	began := time.Now()
	can := abilities(os.Stderr)
	for i, seed := range list {
		share := (*during - time.Since(began)) / time.Duration(len(list)-i) // of what those before have left
		err := runSeed(ctx, f, can, *bin, seed, max(share.Truncate(time.Second), time.Second), *keep)
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "chaos: interrupted")
			os.Exit(130)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos:", err)
			os.Exit(1)
		}
		if f.Wrong > 0 {
			break
		}
	}
	f.Elapsed = time.Since(began).Seconds()
	f.table(os.Stdout)
	text, _ := json.Marshal(f)
	fmt.Println(string(text))
	if f.Wrong > 0 {
		os.Exit(1)
	}
}

// able is what can be done to programs on this machine.
type able struct{ hosts, slow bool }

// abilities finds out, and says what cannot.
func abilities(w io.Writer) (can able) {
	err := hosts()
	if can.hosts = err == nil; !can.hosts {
		fmt.Fprintln(w, "chaos: no sender has a host of its own, links are cut by relays only:", err)
	}
	dir, err := os.MkdirTemp("", prefix+"disk-")
	if err == nil {
		defer os.Remove(dir)
		var d *disk
		if d, err = newDisk(dir); err == nil {
			d.close()
		}
	}
	if can.slow = err == nil; !can.slow {
		fmt.Fprintln(w, "chaos: no disk is slow:", err)
	}
	return can
}

func parseSeeds(s string) (list []uint64, err error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	first, err1 := strconv.ParseUint(from, 10, 32)
	last, err2 := strconv.ParseUint(to, 10, 32)
	if err1 != nil || err2 != nil || first > last || last-first >= maxSeeds {
		return nil, fmt.Errorf("-seed (SEED of make chaos) %q: must be a number from 0, or a range of at most %d as in 1-20", s, maxSeeds)
	}
	for n := first; n <= last; n++ {
		list = append(list, n)
	}
	return list, nil
}

// runSeed runs one world, checks it, and adds its figures.
func runSeed(ctx context.Context, f *figures, can able, bin string, seed uint64, during time.Duration, keep bool) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%sseed%d-", prefix, seed))
	if err != nil {
		return err
	}
	names := []string{"shm"}
	if slices.Contains(engines.Names(), "ofi") {
		names = append(names, "ofi", "shm,ofi")
	}
	c := newConfig(seed, names)
	c.hosts = c.hosts && can.hosts && len(names) > 1
	active := during - min(during/quietShare, quietMost)
	faults := newFaults(seed, active, faultsASecond, func(kind string) bool { return kind != "disk slow" || can.slow })
	plan, err := os.Create(filepath.Join(dir, "plan"))
	if err != nil {
		return err
	}
	c.write(plan, faults)
	plan.Close()
	l := newLedger(c.recover)
	w, err := newWorld(c, l, bin, dir)
	if err == nil {
		err = w.run(ctx, active, faults)
	}
	if w != nil {
		err = errors.Join(err, w.remove())
	}
	if errors.Is(err, context.Canceled) {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("seed %d: %w; logs are in %s", seed, err, dir)
	}
	wrong := l.check()
	if l.takes == 0 {
		wrong = append(wrong, "nothing was taken, so that nothing is proved: a longer TIME is needed")
	}
	f.add(l, wrong)
	for i, text := range wrong {
		if i == 20 {
			fmt.Fprintf(os.Stderr, "… and %d more\n", len(wrong)-i)
			break
		}
		fmt.Fprintf(os.Stderr, "seed %d: %s\n", seed, text)
	}
	fmt.Fprintf(os.Stderr, "seed %d: %d requests, %d faults, %d taken and compared, quiet after %.1f s\n", seed, len(l.requests), total(l.faults), l.takes, l.quiet.Seconds())
	if len(wrong) > 0 {
		fmt.Fprintf(os.Stderr, "seed %d FAILED: logs are in %s; again with: make chaos SEED=%d TIME=%v\n", seed, dir, seed, during)
		return nil
	}
	if keep {
		fmt.Fprintf(os.Stderr, "seed %d: logs are in %s\n", seed, dir)
		return nil
	}
	return os.RemoveAll(dir)
}

func total(of map[string]int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

func (f *figures) add(l *ledger, wrong []string) {
	f.Seeds++
	f.Requests += len(l.requests)
	for _, q := range l.requests {
		switch {
		case len(q.results) > 0:
			f.Outcomes[q.results[0].Status]++
			code := q.results[0].Code
			if code != "" {
				f.Outcomes["failed: "+code]++
			}
			if code == string(wire.CodeInternal) || code == string(wire.CodeBadRequest) { // people should look at it
				fmt.Fprintf(os.Stderr, "request %s of %s failed: %s: %s\n", q.id, q.by.name, code, q.results[0].Error)
			}
		default:
			f.Outcomes["sender "+string(q.by.how)]++
		}
	}
	for kind, n := range l.faults {
		f.Kinds[kind] += n
	}
	f.Faults += total(l.faults)
	f.Bytes += l.bytes
	f.Takes += l.takes
	f.Snapshots += l.snapshots
	f.Lives["pd-send"] += len(l.senders)
	f.Lives["pd-recv"] += len(l.receivers)
	f.Lives["pd-proxy"] += len(l.proxies)
	f.Quiet = max(f.Quiet, l.quiet.Seconds())
	f.Wrong += len(wrong)
}

// table prints the figures for people.
func (f *figures) table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, v any) { fmt.Fprintf(t, "%s\t%v\n", name, v) }
	row("seeds", f.Seeds)
	row("requests", humanize.Comma(int64(f.Requests)))
	for _, k := range slices.Sorted(maps.Keys(f.Outcomes)) {
		row("  "+k, humanize.Comma(int64(f.Outcomes[k])))
	}
	row("faults", humanize.Comma(int64(f.Faults)))
	for _, k := range slices.Sorted(maps.Keys(f.Kinds)) {
		row("  "+k, f.Kinds[k])
	}
	for _, k := range slices.Sorted(maps.Keys(f.Lives)) {
		row("lives of "+k, f.Lives[k])
	}
	row("taken and compared", fmt.Sprintf("%s requests, %s", humanize.Comma(int64(f.Takes)), humanize.IBytes(uint64(f.Bytes))))
	row("snapshots added up", f.Snapshots)
	row("longest time to quiet", fmt.Sprintf("%.1f s", f.Quiet))
	row("violations", f.Wrong)
	t.Flush()
}
