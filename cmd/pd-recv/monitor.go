package main

import (
	"fmt"
	"time"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// monitored is what is published at --monitor; nil where that is nothing.
type monitored struct{ *monitor.Publisher }

// openMonitor publishes from now on. Where the default endpoint cannot be had,
// as with a second pd-recv on a host, it goes on without.
func (o *serveOptions) openMonitor(log *cli.Log) (*monitored, error) {
	o.Asks = monitor.NewAsks(nil)
	if o.monitor == "" {
		return nil, nil
	}
	p, err := monitor.Listen(monitor.Config{
		Endpoint: o.monitor, Kind: wire.KindReceiver, ID: o.ID, Epoch: o.Reservation.Epoch, Ask: o.Asks.Add, Warn: o.Warn, Keys: o.Keys,
	})
	if err != nil && !o.monitorFlag.IsSet() {
		log.Printf("warning: pd-top cannot watch: --monitor: %v", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--monitor: %w", err)
	}
	m := &monitored{p}
	o.Told = m.told
	return m, nil
}

func (m *monitored) endpoint() string {
	if m == nil {
		return ""
	}
	return m.Endpoint()
}

// say tells people where it is.
func (m *monitored) say(log *cli.Log, keys *sock.Keys) {
	if m != nil {
		log.Watch(m.Endpoint(), keys)
	}
}

func (m *monitored) close() {
	if m != nil {
		m.Close()
	}
}

// told passes on what happened to a request.
func (m *monitored) told(at time.Time, rec *reservation.Record) {
	if m.Watched() {
		m.Event(eventOf(at, rec))
	}
}

func eventOf(at time.Time, rec *reservation.Record) wire.EventEntry {
	e := wire.EventEntry{
		Time: wire.StampOf(at), Event: rec.Kind.String(), ReqID: rec.ReqID, Sender: rec.Sender,
		Chunks: rec.Chunks, TotalChunks: rec.TotalChunks, Bytes: rec.Bytes,
		TookMS: millis(rec.Took), Code: string(rec.Code), Reason: rec.Reason, Free: rec.Free,
	}
	if rec.Kind == reservation.Admitted || rec.Kind == reservation.TimedOut {
		e.WaitedMS = millis(rec.Waited)
	}
	return e
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
