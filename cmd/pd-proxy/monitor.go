package main

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/proxy"
	"github.com/pd-tools/pd-tools/wire"
)

// publisher is what --monitor opens; nil without it.
type publisher struct{ *monitor.Publisher }

// publish opens the endpoint, if any, and says on stderr where it is.
func publish(cfg *proxy.Config, endpoint string, log *cli.Log) (*publisher, error) {
	if endpoint == "" {
		return nil, nil
	}
	cfg.Asks = monitor.NewAsks(nil) // the run says how it is woken
	cfg.ID = rand.Text()
	// Grows from start to start, and a float64, as in JSON, holds it exactly.
	cfg.Epoch = uint64(time.Now().UnixMicro())
	p, err := monitor.Listen(monitor.Config{
		Endpoint: endpoint,
		Kind:     wire.KindProxy,
		ID:       cfg.ID,
		Epoch:    cfg.Epoch,
		Ask:      cfg.Asks.Add,
		Warn:     log.Warn,
		Keys:     cfg.Keys,
	})
	if err != nil {
		return nil, fmt.Errorf("--monitor: %w", err)
	}
	log.Watch(p.Endpoint(), cfg.Keys)
	return &publisher{p}, nil
}

// tell tells who watches how a request ended.
func (p *publisher) tell(o proxy.Outcome) {
	if p == nil || !p.Watched() {
		return
	}
	p.Event(wire.EventEntry{
		Time:   wire.StampOf(o.Time),
		Event:  string(o.Status),
		ReqID:  o.ReqID,
		TookMS: float64(o.Took.Microseconds()) / 1000,
		Reason: o.Reason,
	})
}

func (p *publisher) close() {
	if p != nil {
		p.Close()
	}
}
