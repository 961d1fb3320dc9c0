// Command pd-proxy prints the id of each request that is ready to be decoded.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/metrics"
	"github.com/pd-tools/pd-tools/internal/proxy"
)

func main() { os.Exit(cli.Main(app())) }

// fewFiles is a limit of open files worth a warning.
const fewFiles = 1024

const notes = `Plain output is the id of each ready request, one a line, once; failures go to
stderr. What is not printable in an id stands as \n, \x1b or \u202e; --json has
ids exactly. A failed request is never ready. What it remembers is bounded: the
last 65,536 requests that ended (an older one's notification counts anew) and
65,536 that wait for more notifications (over that the oldest is forgotten).
A notification is lost with the pd-proxy that took it: with --recover the next
one asks. With --expect N, N receivers that say ready are as good as N notifications.

Exit: 0 after a signal or COUNT requests, 1 if one of these failed or TIME
passed first, 2 wrong usage.

Example:
  pd-proxy --listen tcp://127.0.0.1:7700 | while read -r id; do echo "decode $id"; done`

// options are the flags.
type options struct {
	run      proxy.Config
	json     bool
	monitor  string
	metrics  string
	curve    cli.Curve
	shutdown time.Duration
}

func app() *urfave.App {
	o := options{curve: cli.Curve{Listens: true}}
	return &urfave.App{
		Name:        "pd-proxy",
		Usage:       "print the id of each request that is ready to be decoded",
		UsageText:   "pd-proxy [flags]",
		Description: notes,
		Flags: append([]urfave.Flag{
			cli.Var(&o.run.Listen, "listen", "ENDPOINT", "tcp://127.0.0.1:7700", "where notifications come in; port * is a free one", cli.ListenEndpoint),
			cli.Bool(&o.json, "json", "print a JSON object for each request, ready or failed"),
			cli.Var(&o.run.Expect, "expect", "N", "1", "notifications that make a request ready: one a tensor-parallel rank", cli.Int(1, 1<<20)),
			cli.Var(&o.run.Count, "n", "COUNT", "", "end when COUNT requests are ready or failed; what came with the last is printed, too", cli.Int(1, 1<<30)),
			cli.List(&o.run.Recover, "recover", "ENDPOINT", "ask this pd-recv for what is ready, at start and every 5s; given again for each receiver", cli.DialEndpoint),
			cli.Var(&o.run.Timeout, "timeout", "TIME", "", "end with exit 1 when TIME has passed; 0 or inf: never", cli.Limit),
			cli.Var(&o.shutdown, "shutdown-timeout", "TIME", "5s", "how long a clean stop may take; 0 or inf: no limit", cli.Limit),
			cli.Var(&o.monitor, "monitor", "ENDPOINT", "", "publish what happens, for pd-top", cli.ListenEndpoint),
			cli.Var(&o.metrics, "metrics", "ADDR", "", "serve metrics and health over HTTP on HOST:PORT; port * is a free one", cli.HTTPAddress),
		}, o.curve.Flags()...),
		Action: func(c *urfave.Context) error {
			if _, err := cli.Args(c); err != nil {
				return err
			}
			for i, endpoint := range o.run.Recover {
				if slices.Contains(o.run.Recover[:i], endpoint) {
					return cli.Usagef("--recover %s is given twice: each receiver counts once", endpoint)
				}
			}
			return serve(c, o)
		},
	}
}

func serve(c *urfave.Context, o options) error {
	ctx, stop := cli.Signals(c.Context, o.shutdown)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	log := cli.NewLog(c.App.ErrWriter, c.App.Name)
	cfg := o.run
	cfg.Warn = log.Warn
	var monitor *publisher
	var served *metrics.Server
	var err error
	if cfg.Keys, err = o.curve.Keys(cfg.Warn, cfg.Recover...); err == nil {
		monitor, err = publish(&cfg, o.monitor, log)
	}
	if err == nil {
		served, err = openMetrics(&cfg, o.metrics, c.App, log)
	}
	if err != nil {
		monitor.close()
		_ = log.Close(ctx)
		return err
	}
	out, tell := printer(c, o.json, fail, log)
	cfg.Tell = func(o proxy.Outcome) {
		tell(o)
		monitor.tell(o)
	}
	cfg.Note = func(text string) { log.Printf("%s", cli.Escape(text)) }
	log.CheckFiles(fewFiles, "each sender and each receiver takes one")
	go log.WatchFiles(ctx)
	listened := false
	cfg.Listening = func(endpoint string) {
		listened = true
		log.Printf("listening on %s", endpoint)
		log.Public(endpoint, "report requests to", cfg.Keys)
	}
	summary, err := proxy.Run(ctx, cfg)
	monitor.close()
	served.Close()
	if listened {
		log.Printf("%v", summary)
	}
	cli.Flush(ctx, out, log)
	return verdict(ctx, cfg, summary, err)
}

// printer returns the writer of stdout and what tells it an outcome.
func printer(c *urfave.Context, asJSON bool, fail func(error), log *cli.Log) (*cli.Lines, func(proxy.Outcome)) {
	if asJSON {
		out := cli.NewLines(c.App.Writer, fail)
		return out, func(o proxy.Outcome) { out.JSON(o) }
	}
	out := cli.NewTextLines(c.App.Writer, fail, func(n uint64) string {
		log.Printf("dropped %d ids: stdout was not read", n)
		return ""
	})
	return out, func(o proxy.Outcome) {
		if o.Status == proxy.Failed {
			log.Printf("%s failed: %s", cli.Escape(o.ReqID), cli.Escape(o.Reason))
			return
		}
		out.Text(cli.Escape(o.ReqID))
	}
}

// verdict decides how the program ends.
func verdict(ctx context.Context, cfg proxy.Config, s proxy.Summary, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(err, proxy.ErrTimeout):
		return fmt.Errorf("%v have passed: %s", cfg.Timeout, progress(cfg, s))
	case err != nil:
		return err
	case cause != nil && cli.Interrupted(ctx) == nil:
		return cause // stdout is broken
	case cfg.Count > 0 && s.Failed > 0:
		return fmt.Errorf("%d of %d requests failed", s.Failed, s.Ready+s.Failed)
	}
	return nil
}

func progress(cfg proxy.Config, s proxy.Summary) string {
	if cfg.Count == 0 {
		return fmt.Sprintf("%d requests have ended", s.Ready+s.Failed)
	}
	return fmt.Sprintf("%d of %d requests have ended", s.Ready+s.Failed, cfg.Count)
}
