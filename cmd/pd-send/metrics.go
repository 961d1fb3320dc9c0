package main

import (
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/metrics"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sender"
)

// openMetrics serves --metrics, if asked for. What it returns books how a
// request ended.
func (o *options) openMetrics(app *urfave.App, log *cli.Log) (*metrics.Server, func(*sender.Result), error) {
	if o.metrics == "" {
		return nil, func(*sender.Result) {}, nil
	}
	if o.Asks == nil {
		o.Asks = monitor.NewAsks(nil) // the run says how it is woken
	}
	times := metrics.NewTimes(app.Name, "line")
	book := func(r *sender.Result) {
		if r.Status == sender.Ready {
			times.Admitted(duration(r.AdmitMS))
			times.Ready(duration(r.WriteMS), duration(r.TotalMS))
		}
	}
	s, err := metrics.Open(metrics.Config{Addr: o.metrics, Program: app.Name, Version: app.Version, Ask: o.Asks.Add, Times: times}, log.Printf)
	return s, book, err
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
