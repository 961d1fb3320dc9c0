// Command hosts is a test bed of hosts: it makes network namespaces joined by
// veth pairs, each link rate-limited, runs the real programs in them, as
// prefill hosts and decode hosts, and removes everything afterwards. It needs
// root, ip and tc.
//
//	make test-hosts
//	sudo bin/hosts -only headline
//	sudo chrt -r 20 bin/hosts       # where other things run at the same time
//
// Start reading at scenarios, then at trace.go; bed.go makes hosts and links,
// process.go runs programs on them, pipeline.go knows our programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// lab is one run.
type lab struct {
	ctx   context.Context
	bin   string // directory of the built programs
	mbits int    // what a prefill host may send on a link, 10^6 bits a second
	log   io.Writer
	table table
}

// scenarios in the order in which they run, each in a bed of its own.
var scenarios = []struct {
	name, what string
	run        func(*lab, *bed) error
}{
	{"trace", "two prefill hosts and a decode host, every byte compared", (*lab).trace},
	{"headline", "reserve and serial, beside each transfer alone", (*lab).headline},
	{"speed", "pd-send to pd-recv beside the engine alone", (*lab).speed},
	{"lost", "a link is cut in mid-transfer, addresses do not answer", (*lab).lost},
	{"fence", "a sender is stopped in mid-write and goes on too late", (*lab).fence},
	{"killed", "senders are killed in mid-write, one after the other", (*lab).killed},
	{"restart", "a receiver is killed and comes back smaller", (*lab).restart},
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == roleArg {
		exit(runRole(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends it at once; the next run cleans up
	exit(runAll(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) {
	switch {
	case err == nil:
		os.Exit(0)
	case errors.Is(err, errUsage):
		os.Exit(2)
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "hosts: interrupted, everything is removed")
		os.Exit(130)
	}
	fmt.Fprintf(os.Stderr, "hosts: %v\n", err)
	os.Exit(1)
}

var errUsage = errors.New("wrong usage")

func runAll(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	l := &lab{ctx: ctx, log: stderr}
	fs := flag.NewFlagSet("hosts", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&l.bin, "bin", "bin", "`directory` of the built programs")
	fs.IntVar(&l.mbits, "rate", 1000, "what a prefill host may send, `Mbit/s`")
	only := fs.String("only", strings.Join(names, ","), "`scenarios` to run, with commas between")
	maySkip := fs.Bool("may-skip", false, "where hosts cannot be made, say so and end with 0")
	mayMiss := fs.Bool("may-miss", false, "where a ratio misses its bound, say so and end with 0: for a machine that does other things too")
	if err := fs.Parse(args); err != nil {
		return errUsage
	}
	chosen := strings.Split(*only, ",")
	for _, name := range chosen {
		if !slices.Contains(names, name) {
			fmt.Fprintf(stderr, "hosts: there is no scenario %q: choose of %s\n", name, strings.Join(names, ", "))
			return errUsage
		}
	}
	bin, err := filepath.Abs(l.bin)
	if err != nil {
		return err
	}
	l.bin = bin
	if err := possible(ctx); err != nil {
		if *maySkip {
			fmt.Fprintf(stderr, banner, err)
			return nil
		}
		return err
	}
	for _, s := range scenarios {
		if !slices.Contains(chosen, s.name) {
			continue
		}
		start := time.Now()
		l.say("== %s: %s", s.name, s.what)
		if err := l.inBed(s.run); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		l.say("== %s took %.1f s", s.name, time.Since(start).Seconds())
	}
	fmt.Fprint(stdout, l.table.markdown())
	if err := l.table.missed(); err != nil && *mayMiss {
		fmt.Fprintf(stderr, "hosts: NOT AS IT SHOULD BE, and let pass: this machine may be busy\nhosts: %v\n", err)
		return nil
	}
	return l.table.missed()
}

const banner = `
************************************************************************
*  THE TESTS ACROSS HOSTS DID NOT RUN: hosts cannot be made here.
*  %v
*  Nothing is known of how the programs work from host to host.
*  To run them: make test-hosts, as root, with iproute2 installed.
************************************************************************

`

// inBed runs something in a new bed, and removes the bed whatever comes.
func (l *lab) inBed(run func(*lab, *bed) error) (err error) {
	b, err := newBed(l.ctx, l.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.remove()) }()
	return run(l, b)
}

// tries is how often something is measured that misses its bounds. The bed
// shares its processors with whatever else runs on the machine, which can spoil
// a run; three in a row are no accident. Each try is printed, the last counts.
const tries = 3

func (l *lab) measure(what func() ([]row, error)) error {
	for try := 1; ; try++ {
		var t table
		rows, err := what()
		if err != nil {
			return err
		}
		for _, r := range rows {
			l.say("try %d: %s: %.2f (%s : %s), to be %s", try, r.name, r.ratio, r.ours, r.ref, r.bounds())
			t.add(r)
		}
		if t.missed() == nil || try == tries {
			l.table.rows = append(l.table.rows, rows...)
			return nil
		}
	}
}

func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.log, format+"\n", args...)
}
