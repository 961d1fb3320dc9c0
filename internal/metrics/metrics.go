// Package metrics serves a program's state over HTTP: /metrics for Prometheus
// and /healthz for whoever starts it again when it hangs. Numbers come from a
// Snapshot that the control loop is asked for, so that they agree with pd-top
// and pd-recv stat; only the histograms (Times) are kept here. What is served
// of each kind of Snapshot stands in receiver.go, sender.go and proxy.go.
//
// It uses client_golang rather than VictoriaMetrics/metrics, which is smaller:
// that one has no help texts, and its types of metrics are switched on for a
// whole process.
package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pd-tools/pd-tools/wire"
)

const (
	// patience is how long the control loop may take to answer.
	patience = 2 * time.Second

	// What one connection may take. There is one for each request: Prometheus
	// comes every few seconds, and what is kept open must be bounded.
	headerTime = 2 * time.Second
	writeTime  = patience + 3*time.Second
	maxHeader  = 8 << 10
	maxConns   = 64

	// resolveTime bounds the look-up of a host name.
	resolveTime = 5 * time.Second
	// closeTime is how long requests under way have at the end.
	closeTime = 100 * time.Millisecond
)

// errDraining is for load balancers: they are to send nobody any more.
var errDraining = errors.New("draining")

// Config is what a Server is made of.
type Config struct {
	Addr    string // HOST:PORT, as cli.HTTPAddress gives it
	Program string // pd-recv, pd-send or pd-proxy
	Version string
	Ask     func(func(wire.Message)) // monitor.Asks.Add
	Times   *Times                   // nil: none

	headerTime time.Duration // tests: instead of headerTime
}

// Server is one program's metrics.
type Server struct {
	listener net.Listener
	http     *http.Server
	cancel   context.CancelFunc
	done     chan struct{}
	loop     *loop
	constant *prometheus.Registry // what is not in a Snapshot
}

// Open is Listen, and says where on stderr. It returns nil without an address.
func Open(cfg Config, say func(format string, args ...any)) (*Server, error) {
	if cfg.Addr == "" {
		return nil, nil
	}
	s, err := Listen(cfg)
	if err != nil {
		return nil, err
	}
	say("metrics on http://%s/metrics", s.Addr())
	if s.IsPublic() {
		say("warning: other hosts can reach http://%s, and nothing asks who they are", s.Addr())
	}
	return s, nil
}

// Listen serves from now on, before the control loop turns as well.
func Listen(cfg Config) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTime)
	defer cancel()
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics on %s: %w: name another port with --metrics", cfg.Addr, cause(err))
	}
	s := &Server{listener: listener, done: make(chan struct{}), loop: newLoop(cfg.Ask), constant: constant(cfg)}
	s.serve(cmp.Or(cfg.headerTime, headerTime))
	return s, nil
}

// cause is the error without the address, which is named already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

func constant(cfg Config) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix(cfg.Program) + "build_info", Help: "Always 1; its labels say what runs.",
		ConstLabels: prometheus.Labels{"version": cfg.Version, "goversion": runtime.Version()},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if cfg.Times != nil {
		r.MustRegister(cfg.Times.wait, cfg.Times.write, cfg.Times.ready)
	}
	return r
}

// Addr is where it listens: HOST:PORT.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// IsPublic says whether other hosts can reach it.
func (s *Server) IsPublic() bool { return !s.listener.Addr().(*net.TCPAddr).IP.IsLoopback() }

func (s *Server) serve(headerTime time.Duration) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /healthz", s.healthz)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.http = &http.Server{
		Handler:           noteAsked(mux),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withConn,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       headerTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       headerTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0), // a peer's faults, as many as it likes
	}
	s.http.SetKeepAlivesEnabled(false)
	go func() {
		defer close(s.done)
		_ = s.http.Serve(&conns{Listener: s.listener, most: maxConns}) // it ends by Close
	}()
}

// Close ends it. What is under way is answered, but for who does not read.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	<-s.done
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	m, err := s.loop.state(r.Context())
	if err != nil {
		unavailable(w, err)
		return
	}
	current := prometheus.NewRegistry()
	current.MustRegister(collector{m})
	all := prometheus.Gatherers{s.constant, current}
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	m, err := s.loop.state(r.Context())
	if recv, ok := m.(*wire.Snapshot); ok && recv.Draining {
		err = errDraining
	}
	if err != nil {
		unavailable(w, err)
		return
	}
	_, _ = io.WriteString(w, "ok\n") // the peer may be gone
}

func unavailable(w http.ResponseWriter, err error) {
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
