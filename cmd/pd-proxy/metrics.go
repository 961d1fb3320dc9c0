package main

import (
	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/metrics"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/proxy"
)

// openMetrics serves them, if there is an address.
func openMetrics(cfg *proxy.Config, addr string, app *urfave.App, log *cli.Log) (*metrics.Server, error) {
	if addr == "" {
		return nil, nil
	}
	if cfg.Asks == nil {
		cfg.Asks = monitor.NewAsks(nil) // the run says how it is woken
	}
	return metrics.Open(metrics.Config{Addr: addr, Program: app.Name, Version: app.Version, Ask: cfg.Asks.Add}, log.Printf)
}
