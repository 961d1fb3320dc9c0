package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/proxy"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pd-proxy": main})
}

var scripts atomic.Int32

// TestScripts runs testdata/*.txt. Each has an $ENDPOINT of its own (a unix
// socket without a path), and the commands notify and occupy.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("ENDPOINT", fmt.Sprintf("ipc://@pd-proxy-test-%d-%d", os.Getpid(), scripts.Add(1)))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"notify": notify, "occupy": occupy, "watch": watch},
	})
}

// notify ENDPOINT NOTIFICATION...: waits until somebody listens there, and
// sends in order A (ready), A!REASON (failed) or =BYTES (as they are; escapes
// as in Go).
func notify(ts *testscript.TestScript, _ bool, args []string) {
	zctx, err := sock.NewContext(nil)
	ts.Check(err)
	s, err := zctx.Dial(zmq4.PUSH, args[0], sock.Options{
		Linger:  patience,
		Prepare: func(s *zmq4.Socket) error { return s.SetImmediate(true) },
	})
	ts.Check(err)
	poller, err := sock.NewPoller()
	ts.Check(err)
	defer poller.Close()
	ts.Check(poller.Watch(s, zmq4.POLLOUT))
	for _, arg := range args[1:] {
		room, err := poller.Wait(patience)
		ts.Check(err)
		if !room {
			ts.Fatalf("nobody listens on %s", args[0])
		}
		ts.Check(sock.Send(s, notification(ts, arg)))
	}
	s.Close()
	ts.Check(zctx.Close())
}

func notification(ts *testscript.TestScript, arg string) []byte {
	text, err := strconv.Unquote(`"` + arg + `"`)
	ts.Check(err)
	if raw, ok := strings.CutPrefix(text, "="); ok {
		return []byte(raw)
	}
	if id, reason, ok := strings.Cut(text, "!"); ok {
		return wire.Append(nil, &wire.FailNotif{ReqID: id, Reason: reason})
	}
	return wire.Append(nil, &wire.ProxyNotif{ReqID: text})
}

// watch ENDPOINT TEXT: waits for a message there that has TEXT as JSON.
func watch(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(await(args[0], func(m wire.Message) bool {
		text, err := json.Marshal(m)
		ts.Check(err)
		return strings.Contains(string(text), args[1])
	}))
}

// await waits for a message of a monitor stream.
func await(endpoint string, ok func(wire.Message) bool) error {
	zctx, err := sock.NewContext(nil)
	if err != nil {
		return err
	}
	defer zctx.Close()
	s, err := zctx.Dial(zmq4.SUB, endpoint, sock.Options{Prepare: func(s *zmq4.Socket) error { return s.SetSubscribe("") }})
	if err != nil {
		return err
	}
	defer s.Close()
	poller, err := sock.NewPoller()
	if err != nil {
		return err
	}
	defer poller.Close()
	if err := poller.Watch(s, zmq4.POLLIN); err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err := poller.Wait(time.Until(end)); err != nil {
			return err
		}
		frames, err := sock.Recv(s, 1)
		if err != nil {
			continue
		}
		m, err := wire.Decode(frames[0])
		if err != nil || ok(m) {
			return err
		}
	}
	return fmt.Errorf("%s publishes no such thing", endpoint)
}

// Who watches is told how each request ended.
func TestMonitorEvents(t *testing.T) {
	log := cli.NewLog(io.Discard, "pd-proxy")
	defer log.Close(t.Context())
	cfg := proxy.Config{}
	p, err := publish(&cfg, "tcp://127.0.0.1:*", log)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.tell(proxy.Outcome{ReqID: "unseen", Status: proxy.Ready}) // nobody watches
	stop := make(chan struct{})
	defer close(stop)
	go func() { // the loop
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for told := false; ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			cfg.Asks.Answer(time.Now(), func() wire.Message { return &wire.ProxySnapshot{} })
			if !told && p.Watched() {
				told = true
				p.tell(proxy.Outcome{ReqID: "A", Status: proxy.Failed, Time: time.Now(), Reason: "no room", Took: 1500 * time.Microsecond})
			}
		}
	}()
	err = await(p.Endpoint(), func(m wire.Message) bool {
		e, ok := m.(*wire.Event)
		if !ok {
			return false
		}
		if e.Kind != wire.KindProxy || e.ID != cfg.ID || e.Epoch != cfg.Epoch || len(e.Events) != 1 {
			t.Errorf("%+v", e)
		}
		if got := e.Events[0]; got.ReqID != "A" || got.Event != "failed" || got.Reason != "no room" || got.TookMS != 1.5 {
			t.Errorf("%+v", got)
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}

// occupy NAME: takes a free TCP port until the script ends, and sets $NAME to
// its endpoint.
func occupy(ts *testscript.TestScript, _ bool, args []string) {
	zctx, err := sock.NewContext(nil)
	ts.Check(err)
	s, endpoint, err := zctx.Listen(zmq4.PULL, "tcp://127.0.0.1:*", sock.Options{})
	ts.Check(err)
	ts.Defer(func() { s.Close(); _ = zctx.Close() })
	ts.Setenv(args[0], endpoint)
}
