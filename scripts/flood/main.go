// Command flood has hostile peers of many kinds send bad messages, at a fixed
// rate, to a running pd-recv and pd-proxy, on every port they have, while real
// pd-sends go on with their work beside them. It measures what the good ones get
// done, before and meanwhile, and what memory the receiver takes.
//
// Exit code 1: a good request failed, the receiver or the proxy grew by more than
// 64 MiB, or the good ones fell below half of their undisturbed rate.
//
// Start reading at flood.run; kinds.go has the list of kinds, zmtp.go the
// protocol that they misuse, programs.go the real programs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// What must hold.
const (
	mostGrowth = 64  // MiB, unless -growth says otherwise
	leastRate  = 0.5 // of the undisturbed one, unless -ratio says otherwise
	leastTime  = 5   // seconds of flood in which a rate can be told
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "flood: %v\n", err)
		os.Exit(1)
	case !ok:
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

// run reports whether all held.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	f := &flood{log: stderr}
	flags := flag.NewFlagSet("flood", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&f.bin, "bin", "bin", "`directory` of the built programs")
	flags.StringVar(&f.engines, "engine", "shm", "what pd-recv is given as --engine")
	flags.IntVar(&f.rate, "rate", 3000, "bad messages a second")
	flags.IntVar(&f.count, "count", 100_000, "bad messages")
	flags.DurationVar(&f.before, "before", 10*time.Second, "how long the good ones are measured first, undisturbed")
	flags.Float64Var(&f.ratio, "ratio", leastRate, "the good ones must get so much of their undisturbed rate done")
	flags.IntVar(&f.growth, "growth", mostGrowth, "MiB by which a program may grow from its start")
	only := flags.String("kinds", "", "only kinds whose name this regular `expression` matches, and those, too, that nothing but CURVE stops")
	list := flags.Bool("list", false, "print the kinds and end")
	if flags.Parse(args) != nil {
		return false, errUsage
	}
	if flags.NArg() > 0 || f.rate < 1 || f.count < 1 {
		fmt.Fprintln(stderr, "flood: there are only flags, and numbers are more than 0")
		return false, errUsage
	}
	if f.ratio > 0 && !*list && f.count < leastTime*f.rate {
		fmt.Fprintf(stderr, "flood: -count %d at -rate %d is over in %.1f s, too short to compare rates: give -count %d or more, or -ratio 0 to compare none\n",
			f.count, f.rate, float64(f.count)/float64(f.rate), leastTime*f.rate)
		return false, errUsage
	}
	want, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintf(stderr, "flood: -kinds: %v\n", err)
		return false, errUsage
	}
	for _, k := range kinds() {
		if want.MatchString(k.name) && (*only != "" || *list || !k.keysOnly) && (k.engine == "" || f.offers(k.engine)) {
			f.kinds = append(f.kinds, &tally{kind: k})
		}
	}
	if *list {
		for _, k := range f.kinds {
			note := ""
			if k.keysOnly {
				note = " (only CURVE stops it)"
			}
			fmt.Fprintln(stdout, k.name+note)
		}
		return true, nil
	}
	if len(f.kinds) == 0 {
		return false, fmt.Errorf("no kind matches %q", *only)
	}
	r, err := f.run(ctx)
	if err != nil {
		return false, err
	}
	f.table(stdout, r)
	line, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(stdout, "%s\n", line)
	for _, wrong := range r.Wrong {
		fmt.Fprintln(stderr, "flood:", wrong)
	}
	return len(r.Wrong) == 0, nil
}
