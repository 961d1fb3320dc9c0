package main

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/receiver"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/testkit"
)

func health(t *testing.T, addr string) (int, string) {
	t.Helper()
	return testkit.Get(t, "http://"+addr+"/healthz")
}

// A receiver is unhealthy before its loop turns and while that hangs, and well
// again after.
func TestHealthFollowsTheLoop(t *testing.T) {
	t.Parallel()
	o := &serveOptions{}
	o.flags()
	o.Listen, o.metrics, o.buffer = "tcp://127.0.0.1:*", "127.0.0.1:0", 4<<20
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	hold, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o.Told = func(time.Time, *reservation.Record) {
		once.Do(func() {
			close(hold)
			<-goOn
		})
	}
	o.Events, o.Warn = func([]byte, int) {}, func(string, string) {}
	log := cli.NewLog(io.Discard, "pd-recv")
	served, err := o.openMetrics(app(), log)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	unwell := func(when string) {
		t.Helper()
		if code, body := health(t, served.Addr()); code != 503 || !strings.HasPrefix(body, "the control loop has not answered for ") {
			t.Errorf("%s: %d %s", when, code, body)
		}
	}
	unwell("before it runs")

	r, err := receiver.New(o.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if code, body := health(t, served.Addr()); code != 200 {
		t.Errorf("while it runs: %d %s", code, body)
	}

	p, err := peertest.Dial(r.Endpoint(), peertest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if _, err := p.Send(peertest.Alloc("A", 1, true, 1, "A-0")); err != nil {
		t.Fatal(err)
	}
	<-hold
	unwell("while it hangs")
	close(goOn)
	if code, body := health(t, served.Addr()); code != 200 {
		t.Errorf("when it goes on: %d %s", code, body)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
