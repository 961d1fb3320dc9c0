package main

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sender"
	"github.com/pd-tools/pd-tools/wire"
)

// publisher is what --monitor opens; nil without it.
type publisher struct {
	*monitor.Publisher
	sender string
}

// publish opens what --monitor names and says on stderr where it is.
func (o *options) publish(log *cli.Log) (*publisher, error) {
	if o.monitor == "" {
		return nil, nil
	}
	o.Asks = monitor.NewAsks(nil) // the run says how it is woken
	// Grows from start to start, and a float64, as in JSON, holds it exactly.
	o.Epoch = uint64(time.Now().UnixMicro())
	p, err := monitor.Listen(monitor.Config{
		Endpoint: o.monitor,
		Kind:     wire.KindSender,
		ID:       o.Name,
		Epoch:    o.Epoch,
		Ask:      o.Asks.Add,
		Warn:     log.Warn,
		Keys:     o.Keys,
	})
	if err != nil {
		return nil, fmt.Errorf("--monitor: %w", err)
	}
	log.Watch(p.Endpoint(), o.Keys)
	return &publisher{p, o.Name}, nil
}

// tell tells who watches how a request ended.
func (p *publisher) tell(r *sender.Result) {
	if p == nil || !p.Watched() {
		return
	}
	p.Event(wire.EventEntry{
		Time:        wire.StampOf(time.Now()),
		Event:       string(r.Status),
		ReqID:       r.ReqID,
		Sender:      p.sender,
		Chunks:      int(r.Sent + r.Shared),
		TotalChunks: uint64(r.Chunks),
		Bytes:       r.Bytes,
		WaitedMS:    r.AdmitMS,
		TookMS:      r.TotalMS,
		Code:        string(r.Code),
		Reason:      r.Error,
	})
}

func (p *publisher) close() {
	if p != nil {
		p.Close()
	}
}
