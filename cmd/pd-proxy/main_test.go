package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"github.com/rogpeppe/go-internal/testscript"

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
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"notify": notify, "occupy": occupy},
	})
}

// notify ENDPOINT NOTIFICATION...: waits until somebody listens there, and
// sends in order A (ready), A!REASON (failed) or =BYTES (as they are; escapes
// as in Go).
func notify(ts *testscript.TestScript, _ bool, args []string) {
	zctx, err := sock.NewContext()
	ts.Check(err)
	s, err := zctx.Dial(zmq4.PUSH, args[0], sock.Options{
		Linger:  patience,
		Prepare: func(s *zmq4.Socket) error { return s.SetImmediate(true) },
	})
	ts.Check(err)
	poller := zmq4.NewPoller()
	poller.Add(s, zmq4.POLLOUT)
	for _, arg := range args[1:] {
		polled, err := sock.Wait(poller, patience)
		ts.Check(err)
		if len(polled) == 0 {
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

// occupy NAME: takes a free TCP port until the script ends, and sets $NAME to
// its endpoint.
func occupy(ts *testscript.TestScript, _ bool, args []string) {
	zctx, err := sock.NewContext()
	ts.Check(err)
	s, endpoint, err := zctx.Listen(zmq4.PULL, "tcp://127.0.0.1:*", sock.Options{})
	ts.Check(err)
	ts.Defer(func() { s.Close(); _ = zctx.Close() })
	ts.Setenv(args[0], endpoint)
}
