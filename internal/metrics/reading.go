package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pd-tools/pd-tools/wire"
)

// reading is one metric that a Snapshot of type S has.
type reading[S any] struct {
	kind   prometheus.ValueType
	desc   *prometheus.Desc
	values func(s *S, put put)
}

// put takes a value and its labels' values.
type put func(value float64, labels ...string)

// readings are those of one program.
type readings[S any] struct {
	prefix string
	list   []reading[S]
}

func (r *readings[S]) add(kind prometheus.ValueType, name, help string, labels []string, values func(*S, put)) {
	r.list = append(r.list, reading[S]{kind, prometheus.NewDesc(r.prefix+name, help, labels, nil), values})
}

func (r *readings[S]) gauge(name, help string, value func(*S) float64) {
	r.add(prometheus.GaugeValue, name, help, nil, func(s *S, put put) { put(value(s)) })
}

func (r *readings[S]) counter(name, help string, value func(*S) int64) {
	r.add(prometheus.CounterValue, name, help, nil, func(s *S, put put) { put(float64(value(s))) })
}

func (r *readings[S]) collect(s *S, out chan<- prometheus.Metric) {
	for _, one := range r.list {
		one.values(s, func(value float64, labels ...string) {
			for i := range labels {
				labels[i] = strings.ToValidUTF8(labels[i], "\ufffd")
			}
			out <- prometheus.MustNewConstMetric(one.desc, one.kind, value, labels...)
		})
	}
}

// collector is one Snapshot as metrics.
type collector struct{ message wire.Message }

// Describe says nothing: what there is depends on the Snapshot.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	switch s := c.message.(type) {
	case *wire.Snapshot:
		receiver.collect(s, out)
	case *wire.SenderSnapshot:
		sender.collect(s, out)
	case *wire.ProxySnapshot:
		proxy.collect(s, out)
	}
}

// prefix is what a program's metrics begin with: pd_recv_.
func prefix(program string) string { return strings.ReplaceAll(program, "-", "_") + "_" }

func seconds(ms int64) float64 { return float64(ms) / 1000 }

// buckets are those of Times, seconds: from a local write to a request that
// waits for as long as anybody lets it.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// Times are the histograms of how long requests took.
type Times struct{ wait, write, ready prometheus.Histogram }

// NewTimes makes those of a program. What from and until mean is for its help.
func NewTimes(program, first string) *Times {
	h := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix(program) + name, Help: help, Buckets: buckets})
	}
	return &Times{
		wait:  h("admission_wait_seconds", "From a request's first "+first+" until it was admitted."),
		write: h("write_seconds", "From a request's admission until all its chunks were written and committed."),
		ready: h("ready_seconds", "From a request's first "+first+" until it was ready."),
	}
}

// Admitted books a request that was admitted after it had waited.
func (t *Times) Admitted(waited time.Duration) { t.wait.Observe(waited.Seconds()) }

// Ready books a request that became ready: how long after its admission, and
// how long after it began.
func (t *Times) Ready(write, took time.Duration) {
	t.write.Observe(write.Seconds())
	t.ready.Observe(took.Seconds())
}
