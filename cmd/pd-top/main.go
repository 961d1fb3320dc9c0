// Command pd-top shows live reservations, the admission queue and blocked
// allocators of running pd-recv, pd-send and pd-proxy. Here are flags, the
// terminal and the refreshes; internal/monitor reads what is published, and
// internal/top draws it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/noquery"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/top"
)

func main() {
	noquery.Restore()
	os.Exit(cli.Main(app()))
}

// leastDelay is how often a publisher sends.
const leastDelay = 250 * time.Millisecond

// options are what the flags say.
type options struct {
	delay, stall time.Duration
	refreshes    int // 0: no limit
	once, batch  bool
	json, wait   bool
	sort, filter string
	reverse      bool
	units, color string
	ascii        bool
	curve        cli.Curve
	keys         *sock.Keys
	endpoints    []string
}

func (o *options) flags() []urfave.Flag {
	return append([]urfave.Flag{
		cli.Var(&o.delay, "delay", "TIME", "1s", "between refreshes, at least 250ms", delay).Short("d"),
		cli.Var(&o.refreshes, "count", "COUNT", "inf", "end after so many refreshes", cli.Count).Short("n"),
		cli.Bool(&o.batch, "batch", "print plain text instead of drawing a screen", "b"),
		cli.Bool(&o.once, "once", "print plain text once; so it does where stdout is no terminal"),
		cli.Bool(&o.json, "json", "print each snapshot as a line of JSON"),
		cli.Bool(&o.wait, "wait", "wait for endpoints where nobody publishes yet"),
		cli.Var(&o.stall, "stall", "TIME", "2s", "without a write, after which a request counts as stalled", cli.Duration),
		cli.Var(&o.sort, "sort", "COLUMN", "", "of requests: "+strings.Join(top.SortKeys(), ", "), cli.OneOf(top.SortKeys()...)),
		cli.Bool(&o.reverse, "reverse", "sort the other way round"),
		cli.Var(&o.filter, "filter", "TEXT", "", "only rows that have it; !TEXT: only others", cli.Text),
		cli.Var(&o.units, "units", "UNITS", "auto", "auto (KiB, MiB, k, M) or raw (bytes and counts in full)", cli.OneOf("auto", "raw")),
		cli.Var(&o.color, "color", "WHEN", "auto", "auto, always or never", cli.OneOf("auto", "always", "never")),
		cli.Bool(&o.ascii, "ascii", "draw with ASCII only"),
	}, o.curve.Flags()...)
}

func delay(s string) (time.Duration, error) {
	d, err := cli.Duration(s)
	if err == nil && d < leastDelay {
		err = fmt.Errorf("is less than %v: nothing is published more often", leastDelay)
	}
	return d, err
}

func app() *urfave.App {
	o := &options{}
	return &urfave.App{
		Name:      "pd-top",
		Usage:     "watch reservations, the admission queue and blocked allocators",
		UsageText: "pd-top [flags] ENDPOINT...",
		Description: `An ENDPOINT is what a pd-recv, pd-send or pd-proxy was given as --monitor. Press ? on the screen for its keys.

  pd-top tcp://127.0.0.1:7602
  pd-top --json tcp://127.0.0.1:7602 | jq -c 'select(.queue != []) | .queue'`,
		Flags: o.flags(),
		Action: func(c *urfave.Context) error {
			o.endpoints = c.Args().Slice()
			if len(o.endpoints) == 0 {
				return cli.Usagef("missing ENDPOINT")
			}
			for _, endpoint := range o.endpoints {
				if _, err := cli.DialEndpoint(endpoint); err != nil {
					return cli.Usagef("%v", err)
				}
			}
			var err error
			if o.keys, err = o.curve.KeysToAsk(c.App, o.endpoints...); err != nil {
				return err
			}
			return o.run(c)
		},
	}
}

func (o *options) run(c *urfave.Context) error {
	dumb := os.Getenv("TERM") == "dumb"
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	switch {
	case o.once:
		o.refreshes = 1
	case !terminal && !o.batch && !o.json && o.refreshes == 0:
		o.refreshes = 1
	}
	screen := terminal && !dumb && !o.batch && !o.once && !o.json
	ctx, stop := signals(c.Context)
	defer stop()
	f, err := dial(ctx, o, c.App.ErrWriter, !screen)
	if err == nil {
		defer f.w.Close()
		if screen {
			err = o.draw(ctx, f)
		} else {
			err = o.print(ctx, f, c.App.Writer, c.App.ErrWriter)
		}
	}
	if signal := cli.Interrupted(ctx); signal != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return signal
	}
	return err
}

// look is how the screen is to look, as flags and environment say.
func (o *options) look(color bool) top.Options {
	return top.Options{
		Endpoints: o.endpoints, Delay: o.delay, Stall: o.stall,
		ASCII: o.ascii || !utf8Locale(), Color: color,
		Sort: o.sort, Reverse: o.reverse, Filter: o.filter, Raw: o.units == "raw",
	}
}

// colored says whether a screen is to have colours.
func (o *options) colored() bool {
	if o.color != "auto" {
		return o.color == "always"
	}
	return os.Getenv("NO_COLOR") == ""
}

// utf8Locale says whether the terminal is likely to know more than ASCII.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToLower(os.Getenv(name)); value != "" {
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}
