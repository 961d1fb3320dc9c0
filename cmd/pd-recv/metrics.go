package main

import (
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/metrics"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/reservation"
)

// openMetrics serves --metrics, from before the receiver is made: it can be
// asked whether that hangs. It returns nil where it is off.
func (o *serveOptions) openMetrics(app *urfave.App, log *cli.Log) (*metrics.Server, error) {
	if o.metrics == "" {
		return nil, nil
	}
	if o.Asks == nil {
		o.Asks = monitor.NewAsks(nil) // the receiver says how it is woken
	}
	times := metrics.NewTimes(app.Name, "batch")
	told := o.Told
	o.Told = func(at time.Time, rec *reservation.Record) {
		if told != nil {
			told(at, rec)
		}
		switch rec.Kind {
		case reservation.Admitted:
			times.Admitted(rec.Waited)
		case reservation.Ready:
			times.Ready(rec.Wrote, rec.Took)
		}
	}
	return metrics.Open(metrics.Config{Addr: o.metrics, Program: app.Name, Version: app.Version, Ask: o.Asks.Add, Times: times}, log.Printf)
}
