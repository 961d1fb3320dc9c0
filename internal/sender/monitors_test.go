package sender

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// watchers subscribes n monitors, of which some read nothing, and returns how to
// end them.
func watchers(t *testing.T, endpoint string, n, stopped int) (end func()) {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	poller, err := sock.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	var sockets []*zmq4.Socket
	for i := range n {
		s, err := ctx.Dial(zmq4.SUB, endpoint, sock.Options{
			MaxFrame: wire.MaxResponse, RecvQueue: 1,
			Prepare: func(s *zmq4.Socket) error { return s.SetSubscribe("") },
		})
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, s)
		if i >= stopped {
			if err := poller.Watch(s, zmq4.POLLIN); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		messages := 0
		for over := false; !over; {
			if _, err := poller.Wait(-1); err != nil {
				t.Error(err)
			}
			for _, s := range sockets[stopped:] {
				if _, err := sock.Recv(s, 1); err == nil {
					messages++
				}
			}
			select {
			case <-stop:
				over = true
			default:
			}
		}
		poller.Close()
		for _, s := range sockets {
			s.Close()
		}
		done <- messages
	}()
	return func() {
		close(stop)
		poller.Wake()
		if messages := <-done; messages < n-stopped {
			t.Errorf("%d messages for %d monitors", messages, n-stopped)
		}
		ctx.Close()
	}
}

// F54: twenty monitors, some of them stopped, change nothing of the rate.
func TestRateBesideMonitors(t *testing.T) {
	const requests, tries, least = 3000, 10, 0.85
	measure := func(t *testing.T, monitors int) time.Duration {
		r := startReceiver(t, receiverOptions{slots: 64, sink: true})
		in := newPipe(t)
		cfg := Config{Receivers: []string{r.endpoint}, Stdin: in.r, Name: "S"}
		var pub *monitor.Publisher
		if monitors > 0 {
			cfg.Asks = monitor.NewAsks(nil)
			var err error
			pub, err = monitor.Listen(monitor.Config{Endpoint: "tcp://127.0.0.1:*", Kind: wire.KindSender, ID: "S", Ask: cfg.Asks.Add})
			if err != nil {
				t.Fatal(err)
			}
			defer pub.Close()
		}
		s := send(t, cfg)
		defer s.wait()
		defer in.close()
		if monitors > 0 {
			defer watchers(t, pub.Endpoint(), monitors, monitors/4)()
			for end := time.Now().Add(patience); !pub.Watched(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("nobody watches")
				}
			}
		}
		start := time.Now()
		for i := range requests {
			in.write(lineTo(0, fmt.Sprint("A", i), 4))
			if pub != nil {
				pub.Event(wire.EventEntry{ReqID: fmt.Sprint("A", i)})
			}
		}
		for i := range requests {
			wantResult(t, s.result(fmt.Sprint("A", i)), Ready, "")
		}
		return time.Since(start)
	}
	// Whatever else the machine does only adds to a time, and the shortest of
	// some have least of it: of those that were taken in turns.
	measure(t, 0) // the first pays for what is paid for once
	alone, beside := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range tries {
		alone, beside = min(alone, measure(t, 0)), min(beside, measure(t, 20))
		t.Logf("%d requests: %v alone, %v beside 20 monitors", requests, alone, beside)
		if float64(alone)/float64(beside) >= least {
			return
		}
	}
	t.Errorf("beside monitors the rate is %.2f of alone, at least %v is wanted", float64(alone)/float64(beside), least)
}
