// Command pd-recv is the decode node's end: serve owns the buffer and admits
// requests to it; stat, take and drop ask a running one; plan says how large the
// buffer must be. Here are flags, output
// and exit codes; the work is done in internal/receiver and internal/client.
package main

import (
	"os"
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
)

func main() { os.Exit(cli.Main(app())) }

func app() *urfave.App {
	o := &serveOptions{curve: cli.Curve{Listens: true}}
	flags := o.flags()
	serve := func(c *urfave.Context) error {
		if _, err := cli.Args(c); err != nil {
			return err
		}
		return serve(c, o)
	}
	return &urfave.App{
		Name:  "pd-recv",
		Usage: "receive KV caches into a buffer, without deadlock",
		UsageText: "pd-recv [serve] [flags]\npd-recv stat [flags] ENDPOINT\n" +
			"pd-recv take [flags] ENDPOINT REQ_ID\npd-recv drop [flags] ENDPOINT REQ_ID\npd-recv plan [flags] [FILE]\npd-recv keygen FILE",
		Description: `stdout has one JSON line for each event, the first of them "listening".

  pd-recv --listen tcp://127.0.0.1:7600 --buffer-size 4GiB --chunk-size 2MiB | jq -c 'select(.event=="ready")'`,
		Flags:  flags,
		Action: serve,
		Commands: []*urfave.Command{
			{Name: "serve", Usage: "own the buffer and admit requests to it; the default", UsageText: "pd-recv serve [flags]", Flags: flags, Action: serve},
			statCommand(),
			takeCommand(),
			dropCommand(),
			planCommand(),
			keygenCommand(),
		},
	}
}

// timeoutFlag bounds what a command waits for the receiver.
func timeoutFlag(dst *time.Duration) urfave.Flag {
	return cli.Var(dst, "timeout", "TIME", "5s", "how long to wait for each answer", cli.Duration)
}
