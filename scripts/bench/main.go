// Command bench measures the tools against plain references, side by side in
// one run: what a reference and ours did in the same round makes one ratio,
// and a row of the table is the median over the rounds. Absolute figures
// depend on the machine and its load; the ratios are what counts.
//
// The servers are real processes: the built programs of -bin, and this binary
// started again in a role (role.go) for the references. Start reading at
// sections, then at control.go; table.go has the floors' rules.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	_ "github.com/pd-tools/pd-tools/internal/slack" // as the programs that it plays have it
)

// bench is one run.
type bench struct {
	ctx   context.Context
	bin   string // directory of the built programs
	dir   string // scratch, removed at the end
	quick bool
	log   io.Writer
	table table
}

type section struct {
	name string
	run  func(*bench) error
}

// sections in the order in which they run.
var sections = append([]section{
	{"control", (*bench).control},
	{"keys", (*bench).withKeys},
	{"wait", (*bench).waiting},
	{"outstanding", (*bench).outstanding},
	{"data", (*bench).data},
	{"e2e", (*bench).endToEnd},
	{"monitor", (*bench).watched},
}, across...)

func main() {
	if len(os.Args) > 2 && os.Args[1] == roleArg {
		exit(runRole(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	missed, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		exit(err)
	}
	if missed {
		os.Exit(1)
	}
}

func exit(err error) {
	switch {
	case err == nil:
		os.Exit(0)
	case errors.Is(err, errUsage):
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	os.Exit(1)
}

var errUsage = errors.New("wrong usage")

// run reports whether a floor was missed; a quick run misses none.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (missed bool, err error) {
	b := &bench{ctx: ctx, log: stderr}
	chosen, err := b.parse(args, stderr)
	if err != nil {
		return false, err
	}
	if b.dir, err = os.MkdirTemp("", "pd-bench-"); err != nil {
		return false, err
	}
	defer os.RemoveAll(b.dir)
	for _, s := range sections {
		if !chosen[s.name] {
			continue
		}
		start := time.Now()
		b.say("== %s", s.name)
		if err := s.run(b); err != nil {
			return false, fmt.Errorf("%s: %w", s.name, err)
		}
		b.say("== %s took %.1fs", s.name, time.Since(start).Seconds())
	}
	fmt.Fprint(stdout, b.table.markdown())
	return b.table.missed() && !b.quick, nil
}

func (b *bench) parse(args []string, stderr io.Writer) (chosen map[string]bool, err error) {
	names := make([]string, len(sections))
	for i, s := range sections {
		names[i] = s.name
	}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&b.bin, "bin", "bin", "`directory` of the built programs")
	fs.BoolVar(&b.quick, "quick", false, "only see that all of it runs: too short to tell ratios, floors are not held against it")
	only := fs.String("only", strings.Join(names, ","), "`sections` to run, with commas between")
	if err := fs.Parse(args); err != nil {
		return nil, errUsage
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "bench: %q: there are only flags\n", fs.Arg(0))
		return nil, errUsage
	}
	chosen = make(map[string]bool)
	for _, name := range strings.Split(*only, ",") {
		if !slices.Contains(names, name) {
			fmt.Fprintf(stderr, "bench: there is no section %q: choose of %s\n", name, strings.Join(names, ", "))
			return nil, errUsage
		}
		chosen[name] = true
	}
	return chosen, nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, format+"\n", args...)
}

// pick is the value for a full run or for a quick one.
func pick[T any](b *bench, full, quick T) T {
	if b.quick {
		return quick
	}
	return full
}
