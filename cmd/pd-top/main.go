// Command pd-top will show live reservations, the admission queue and blocked
// allocators of running pd-recv, pd-send and pd-proxy.
package main

import (
	"errors"
	"os"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
)

func main() { os.Exit(cli.Main(app())) }

func app() *urfave.App {
	return &urfave.App{
		Name:      "pd-top",
		Usage:     "watch reservations, the admission queue and blocked allocators",
		UsageText: "pd-top [flags] ENDPOINT...",
		Description: `The monitor is not there yet: pd-top checks its ENDPOINTs and says so. Until then
  pd-recv stat tcp://127.0.0.1:7600
prints what a receiver holds and who waits.`,
		Action: func(c *urfave.Context) error {
			endpoints := c.Args().Slice()
			if len(endpoints) == 0 {
				return cli.Usagef("missing ENDPOINT")
			}
			for _, endpoint := range endpoints {
				if _, err := cli.DialEndpoint(endpoint); err != nil {
					return cli.Usagef("%v", err)
				}
			}
			return errors.New("the monitor is not there yet: 'pd-recv stat' prints what a receiver holds and who waits")
		},
	}
}
