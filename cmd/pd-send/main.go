// Command pd-send reads a manifest and sends each request's chunks to a
// pd-recv. Here are its flags, output and exit codes; the work is done in
// internal/sender.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/metrics"
	"github.com/pd-tools/pd-tools/internal/sender"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

func main() { os.Exit(cli.Main(newApp())) }

// Files that are open at once: some of our own, and those of a receiver.
const filesOfOurs, filesOfReceiver = 64, 16

// options are what the flags say.
type options struct {
	sender.Config
	engine  string
	notify  string
	monitor string
	metrics string
	curve   cli.Curve
}

func newApp() *urfave.App {
	o := &options{}
	return &urfave.App{
		Name:      "pd-send",
		Usage:     "send the requests of a manifest to pd-recv",
		UsageText: "pd-send --to ENDPOINT [flags] [FILE...]\npd-send manifest [flags] [FILE]",
		Description: `A FILE, or the standard input without one or for -, has JSON lines. A line is one batch of a request:
  {"req_id":"A","total_chunks":2,"chunks":[{"key":"A-0","file":"kv.bin","offset":0,"length":65536}],"last":false}
Without "file" a chunk's bytes are a pattern made from its key. {"cancel":"A"} aborts A.
One JSON line on stdout says how each request ended.

  pd-send manifest trace.jsonl | pd-send --to tcp://127.0.0.1:7600 --proxy tcp://127.0.0.1:7700`,
		Flags: append([]urfave.Flag{
			cli.List(&o.Receivers, "to", "ENDPOINT", "a receiver; required. Requests that name none go round", cli.DialEndpoint),
			cli.Var(&o.Proxy, "proxy", "ENDPOINT", "", "tell this pd-proxy what is ready or failed", cli.DialEndpoint),
			cli.Var(&o.notify, "notify", "WHAT", "all", "what the proxy is told: all, or ready (LMCache's knows no failure)", cli.OneOf("all", "ready")),
			cli.Var(&o.Staging, "staging-size", "SIZE", "64MiB", "memory in which chunks wait to be written", cli.Size),
			cli.Var(&o.Batch, "batch", "N", "8", "chunks asked for at once, at most", cli.Int(1, wire.MaxKeys)),
			cli.Var(&o.engine, "engine", "NAME", "auto", "how chunks are written: shm on one host, ofi across hosts, auto by the first that reaches the receiver", cli.OneOf("auto", "shm", "ofi")),
			cli.Var(&o.Fabric.Provider, "fabric", "PROVIDER", "tcp;ofi_rxm", "libfabric provider of ofi, as fi_info names it", cli.Provider),
			cli.Var(&o.Fabric.Addr, "fabric-addr", "ADDR", "", "address of this host that ofi writes from; else whatever reaches the receiver", cli.IPAddress),
			cli.Var(&o.Timeout, "timeout", "TIME", "60s", "bounds each wait for a receiver or the proxy; 0 or inf: none", cli.Limit),
			cli.Var(&o.Pending, "pending", "SIZE", "256MiB", "memory for lines read and not finished; 0 or inf: no limit", cli.SizeLimit),
			cli.Var(&o.Pace, "pace", "R", "", "obey the lines' \"at\", R times as fast", cli.Factor),
			cli.Var(&o.Name, "name", "NAME", "", "name of this sender, for people", name),
			cli.Var(&o.monitor, "monitor", "ENDPOINT", "", "publish what happens, for pd-top", cli.ListenEndpoint),
			cli.Var(&o.metrics, "metrics", "ADDR", "", "serve metrics and health over HTTP on HOST:PORT; port * is a free one", cli.HTTPAddress),
			cli.Var(&o.ShutdownTimeout, "shutdown-timeout", "TIME", "5s", "how long a stop by signal may take; 0 or inf: no limit", cli.Limit),
		}, o.curve.Flags()...),
		Action:   func(c *urfave.Context) error { return send(c, o) },
		Commands: []*urfave.Command{manifestCommand()},
	}
}

func name(s string) (string, error) {
	if len(s) > wire.MaxName {
		return "", fmt.Errorf("has %d bytes, at most %d are allowed", len(s), wire.MaxName)
	}
	return s, nil
}

func send(c *urfave.Context, o *options) error {
	if len(o.Receivers) == 0 {
		return cli.Usagef("missing --to: name a receiver, such as --to tcp://127.0.0.1:7600")
	}
	if err := o.complete(c.Args().Slice()); err != nil {
		return err
	}
	ctx, stop := cli.Signals(c.Context, o.ShutdownTimeout)
	defer stop()

	show := newDisplay(c.App.ErrWriter)
	log := cli.NewLog(show, c.App.Name)
	var monitor *publisher
	var err error
	if o.Keys, err = o.curve.Keys(log.Warn, append(o.Receivers, o.Proxy)...); err == nil {
		monitor, err = o.publish(log)
	}
	var served *metrics.Server
	var book func(*sender.Result)
	if err == nil {
		served, book, err = o.openMetrics(c.App, log)
	}
	if err != nil {
		monitor.close()
		show.close()
		_ = log.Close(ctx)
		return err
	}
	var broken atomic.Pointer[error] // why stdout cannot be written
	lines := cli.NewLines(c.App.Writer, func(err error) { broken.Store(&err) })
	o.Result = func(r *sender.Result) {
		lines.JSON(r)
		monitor.tell(r)
		book(r)
	}
	o.Note = func(kind sender.Kind, text string) {
		if kind == sender.OfFailed {
			log.Limitf(string(kind), "%s", cli.Escape(text))
		} else {
			log.Printf("%s", cli.Escape(text)) // each is named
		}
	}
	if show.terminal {
		o.Progress, o.ProgressEvery = show.progress, progressEvery
	}

	o.checkLimits(log)

	summary, err := sender.Run(ctx, o.Config)
	monitor.close()
	served.Close()
	show.close()
	if err == nil {
		log.Printf("%s", summary.String())
		err = outcome(ctx, &summary)
	}
	ending, cancel := o.ending(ctx)
	defer cancel()
	if left := lines.Close(ending); left != nil {
		err = errors.Join(err, left)
	}
	if why := broken.Load(); why != nil {
		err = errors.Join(err, *why)
	}
	_ = log.Close(ending) // stderr is not read: there is nobody to tell
	return err
}

// complete fills in what the flags left open.
func (o *options) complete(files []string) error {
	o.Files, o.Stdin = files, os.Stdin
	if len(files) == 0 {
		o.Files = []string{sender.Stdin}
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("pd-send:%d", os.Getpid())
	}
	o.OnlyReady = o.notify == "ready"
	o.Engines = engines.Names()
	if o.engine == "auto" {
		return nil
	}
	if !slices.Contains(o.Engines, o.engine) {
		return cli.Usagef("--engine %s: this pd-send was built without it (-tags no%[1]s): build it without that tag", o.engine)
	}
	o.Engines = []string{o.engine}
	return nil
}

// checkLimits warns of limits of the system that are too low.
func (o *options) checkLimits(log *cli.Log) {
	log.CheckFiles(filesOfOurs+filesOfReceiver*uint64(len(o.Receivers)), "each receiver takes two, by ofi fourteen")
	if o.engine != "shm" && o.Fabric.Locks() {
		log.CheckLocked(o.Fabric.Provider, "--staging-size", o.Staging)
	}
}

// ending bounds the wait for who reads our output, once we were told to stop.
func (o *options) ending(ctx context.Context) (context.Context, context.CancelFunc) {
	if cli.Interrupted(ctx) == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.Background(), max(o.ShutdownTimeout/10, 10*time.Millisecond))
}

// outcome is the error that decides the exit code.
func outcome(ctx context.Context, s *sender.Summary) error {
	switch err := cli.Interrupted(ctx); {
	case err != nil:
		return err
	case s.Failed > 0:
		return fmt.Errorf("%d of %d requests failed", s.Failed, s.Requests())
	case s.Faults > 0:
		return fmt.Errorf("the input has %d faults", s.Faults)
	}
	return nil
}
