package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pd-recv": main})
}

// TestScripts runs testdata/*.txt, which have the commands below.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Values[serverKey{}] = &server{ended: make(chan error, 1)}
			return nil
		},
		Condition: func(cond string) (bool, error) { return slices.Contains(engines.Names(), cond), nil },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": serveCmd, "event": eventCmd, "says": saysCmd, "signal": signalCmd, "ends": endsCmd, "send": sendCmd, "spoil": spoilCmd, "take": takeCmd,
			"strangers": strangersCmd, "hangup": hangupCmd,
		},
	})
}

// server is the pd-recv of a script: its stdout is in out, its stderr in err.
type server struct {
	*exec.Cmd
	ended     chan error
	strangers []net.Conn
}

type serverKey struct{}

func serverOf(ts *testscript.TestScript) *server { return ts.Value(serverKey{}).(*server) }

// serve FLAG...: starts pd-recv with 10 slots of 4 KiB on a free port, unless
// the flags say otherwise, and sets $ENDPOINT. It can open $FILES files, if set.
func serveCmd(ts *testscript.TestScript, _ bool, args []string) {
	open := func(name string) *os.File {
		f, err := os.Create(ts.MkAbs(name))
		ts.Check(err)
		return f
	}
	script := `[ -z "$FILES" ] || ulimit -n "$FILES"; exec pd-recv "$@"`
	s := serverOf(ts)
	s.Cmd = exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	s.Dir, s.Stdout, s.Stderr = ts.MkAbs("."), open("out"), open("err")
	s.Env = []string{
		"PATH=" + ts.Getenv("PATH"), "FILES=" + ts.Getenv("FILES"),
		"PD_RECV_LISTEN=tcp://127.0.0.1:*", "PD_RECV_MONITOR=none", "PD_RECV_BUFFER_SIZE=40KiB", "PD_RECV_CHUNK_SIZE=4KiB",
	}
	ts.Check(s.Start())
	go func() { s.ended <- s.Wait() }()
	ts.Defer(func() {
		_ = s.Process.Kill()
		hangupCmd(ts, false, nil)
	})
	var first struct{ Endpoint string }
	ts.Check(json.Unmarshal(await(ts, "out", `"event":"listening".*`), &first))
	ts.Setenv("ENDPOINT", first.Endpoint)
}

// await waits until a file has a line that matches, and returns the line.
func await(ts *testscript.TestScript, file, pattern string) []byte {
	line := regexp.MustCompile(`(?m)^.*` + pattern + `.*\n`)
	for began := time.Now(); ; {
		text, err := os.ReadFile(ts.MkAbs(file))
		ts.Check(err)
		if found := line.Find(text); found != nil {
			return found
		}
		if time.Since(began) > patience {
			ts.Fatalf("no line with %s in %s:\n%s", pattern, file, text)
		}
		time.Sleep(time.Millisecond) // a file tells nobody when it grows
	}
}

// event PATTERN: waits for a line on the server's stdout.
func eventCmd(ts *testscript.TestScript, _ bool, args []string) { await(ts, "out", args[0]) }

// says PATTERN: waits for a line on the server's stderr.
func saysCmd(ts *testscript.TestScript, _ bool, args []string) { await(ts, "err", args[0]) }

// signal NAME: sends the server a signal.
func signalCmd(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(serverOf(ts).Process.Signal(map[string]os.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
	}[args[0]]))
}

// ends CODE: waits for the server's end.
func endsCmd(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	select {
	case <-serverOf(ts).ended:
		if got := serverOf(ts).ProcessState.ExitCode(); got != want {
			ts.Fatalf("exit code %d, want %d", got, want)
		}
	case <-time.After(patience):
		ts.Fatalf("pd-recv does not end")
	}
}

// send REQ_ID CHUNK...: sends a request to $ENDPOINT; it is ready then.
func sendCmd(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(send(ts.Getenv("ENDPOINT"), args[0], args[1:], 0))
}

// spoil REQ_ID CHUNK...: send, with wrong checksums.
func spoilCmd(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(send(ts.Getenv("ENDPOINT"), args[0], args[1:], 1))
}

// send is a sender in small. A chunk that is shorter than the first ends its
// batch.
func send(endpoint, reqID string, chunks []string, spoil uint32) error {
	p, err := peertest.Dial(endpoint, peertest.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	hello, err := p.Attach("script", "shm")
	if err != nil {
		return err
	}
	at := rdma.Attachment{ReceiverID: hello.ReceiverID, Token: hello.Token, SlotSize: hello.SlotSize, Slots: int(hello.SlotCount)}
	for _, r := range hello.Regions {
		at.Regions = append(at.Regions, rdma.Region{ID: int(r.ID), Desc: r.Desc})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	remote, err := engines.Attach(ctx, "shm", at)
	if err != nil {
		return err
	}
	defer remote.Close()
	for i, chunk := range chunks {
		last := i == len(chunks)-1
		m, err := p.Call(peertest.Alloc(reqID, int64(len(chunks)), last, int64(len(chunk)), fmt.Sprint(reqID, i)))
		if err != nil {
			return err
		}
		slot, ok := m.(*wire.AllocResponse)
		if !ok || slot.Code != "" {
			return fmt.Errorf("refused: %+v", m)
		}
		if err := remote.Write(ctx, []rdma.Op{{Local: []byte(chunk), Slot: int(slot.RemoteIndexes[0])}}); err != nil {
			return err
		}
		m, err = p.Call(&wire.CommitRequest{
			ReqID: reqID, Slots: slot.RemoteIndexes, Lengths: []int64{int64(len(chunk))},
			CRCs: []uint32{crc32.Checksum([]byte(chunk), crc32.MakeTable(crc32.Castagnoli)) + spoil}, Epoch: hello.Epoch,
		})
		if err != nil {
			return err
		}
		if done, ok := m.(*wire.CommitResponse); !ok || done.Code != "" || done.Ready != last {
			return fmt.Errorf("commit: %+v", m)
		}
	}
	return nil
}

// take REQ_ID: another decoder takes a request and keeps it, until its lease
// ends.
func takeCmd(ts *testscript.TestScript, _ bool, args []string) {
	p, err := peertest.Dial(ts.Getenv("ENDPOINT"), peertest.Options{})
	ts.Check(err)
	defer p.Close()
	m, err := p.Call(&wire.TakeRequest{ReqID: args[0]})
	ts.Check(err)
	if resp, ok := m.(*wire.TakeResponse); !ok || resp.Code != "" {
		ts.Fatalf("not taken: %+v", m)
	}
}

// strangers N: N connections to $ENDPOINT that say nothing.
func strangersCmd(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	s := serverOf(ts)
	for range n {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(ts.Getenv("ENDPOINT"), "tcp://"), patience)
		ts.Check(err)
		s.strangers = append(s.strangers, c)
	}
}

// hangup: the strangers go.
func hangupCmd(ts *testscript.TestScript, _ bool, _ []string) {
	s := serverOf(ts)
	for _, c := range s.strangers {
		c.Close()
	}
	s.strangers = nil
}
