package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// One buffer is written by shm and by ofi: what one sender has sent the other
// need not, and who takes it reads the same.
func TestTwoEnginesOneBuffer(t *testing.T) {
	t.Parallel()
	r := receive(t, 16, "--engine", "shm,ofi")
	if l := r.event("event", "listening"); l.str("engine") != "shm,ofi" {
		t.Errorf("the first line is %v", l)
	}
	senders := map[string]*fed{"shm": send(t, r, "--engine", "shm"), "ofi": send(t, r, "--engine", "ofi")}
	for engine, says := range map[string]string{"shm": "shm\n", "ofi": "ofi (tcp;ofi_rxm)\n"} {
		first, second := senders[engine], senders["shm"]
		if engine == "shm" {
			second = senders["ofi"]
		}
		common := keys(engine, 0, 3)
		a, b := append(common[:3:3], "A"+engine), append(common[:3:3], "B"+engine)
		first.write(batchOf("A"+engine, 4, true, a))
		first.result("A"+engine, "ready")
		first.says(": writes by " + says)
		second.write(batchOf("B"+engine, 4, true, b))
		if l := second.result("B"+engine, "ready"); l.num("shared") != 3 || l.num("sent") != 1 {
			t.Errorf("after %s had sent it, a common prefix ends as %v", engine, l)
		}
		for id, keys := range map[string][]string{"A": a, "B": b} {
			if r.take(id+engine) != pattern(chunkSize, keys...) {
				t.Errorf("the bytes of %s%s are not its own", id, engine)
			}
		}
	}
	var by []string
	for _, s := range r.stat().Senders {
		by = append(by, s.Engine)
	}
	if len(by) != 2 || by[0] == by[1] {
		t.Errorf("the senders write by %q", by)
	}
	for _, s := range senders {
		s.ends(0)
	}
	r.empty()
}

// auto is shm where it can be, and else what both have; it says which.
func TestAutoSaysWhich(t *testing.T) {
	t.Parallel()
	for offers, says := range map[string]string{"shm": "shm\n", "shm,ofi": "shm\n", "ofi": "ofi (tcp;ofi_rxm)\n"} {
		r := receive(t, 4, "--engine", offers)
		s := send(t, r, "--engine", "auto")
		s.write(batch("A", 4, 0, 4))
		s.result("A", "ready")
		s.ends(0)
		if want := r.endpoint + ": writes by " + says; !strings.Contains(s.stderr(), want) {
			t.Errorf("of %s stderr says %q and not %q", offers, s.stderr(), want)
		}
		if r.take("A") != pattern(chunkSize, keys("A", 0, 4)...) {
			t.Errorf("by %s other bytes are ready", says)
		}
	}
}

// A peer that does not fit is refused when it attaches, and told both values.
func TestMisfits(t *testing.T) {
	t.Parallel()
	r := receive(t, 4, "--engine", "ofi")
	for _, tt := range []struct {
		change func(*wire.AttachRequest)
		says   []string
	}{
		{func(m *wire.AttachRequest) { m.Version = wire.ProtocolVersion + 1 }, []string{
			fmt.Sprint("version ", wire.ProtocolVersion+1), fmt.Sprint("receiver ", wire.ProtocolVersion)}},
		{func(m *wire.AttachRequest) { m.SlotSize = 2 * chunkSize }, []string{fmt.Sprint(2 * chunkSize), fmt.Sprint(chunkSize)}},
		{func(m *wire.AttachRequest) { m.ByteOrder = wire.BigEndian }, []string{wire.BigEndian, wire.LittleEndian}},
		{func(m *wire.AttachRequest) { m.Engines = []string{"shm", "ucx"} }, []string{"shm, ucx", "ofi"}},
	} {
		p := dial(t, r)
		m := &wire.AttachRequest{Name: "misfit", Version: wire.ProtocolVersion, SlotSize: chunkSize, Engines: []string{"ofi"}, ByteOrder: wire.LittleEndian}
		tt.change(m)
		answer, err := p.Call(m)
		if err != nil {
			t.Fatal(err)
		}
		resp, ok := answer.(*wire.AttachResponse)
		if !ok || resp.Code != wire.CodeBadRequest || resp.Token != nil {
			t.Errorf("%+v is answered %+v", m, answer)
			continue
		}
		for _, value := range tt.says {
			if !strings.Contains(resp.Error, value) {
				t.Errorf("%+v is refused with %q, which does not name %q", m, resp.Error, value)
			}
		}
	}
	if s := r.stat(); len(s.Senders) > 0 {
		t.Errorf("senders: %+v", s.Senders)
	}
	// The programs say it too.
	for _, tt := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--engine", "shm"}, "sender writes with shm, receiver with ofi"},
		{[]string{"--engine", "ofi", "--fabric", "udp;ofi_rxd"}, `"udp;ofi_rxd", the receiver takes "tcp;ofi_rxm"`},
	} {
		s := send(t, r, tt.flags...)
		s.write(batch("A", 1, 0, 1))
		if l := s.result("A", "failed"); !strings.Contains(l.str("error"), tt.says) {
			t.Errorf("with %q a request ends as %v", tt.flags, l)
		}
		s.ends(1)
	}
}

// A receiver that answers, but whose fabric does not, fails requests within the
// time-out, and what is said names it.
func TestFabricIsUnreachable(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Second
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts nobody, and the kernel connects all the same
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, tt := range map[string]struct{ addr, says string }{
		"nobody": {"127.0.0.1:9", "connection refused"},
		"silent": {silent.Addr().String(), "within"},
	} {
		host, port, _ := net.SplitHostPort(tt.addr)
		endpoint := answering(t, &wire.AttachResponse{
			Version: wire.ProtocolVersion, Engine: "ofi", Token: make([]byte, tokenLen), SlotSize: chunkSize, SlotCount: 4,
			Regions:    []wire.Region{{Desc: fmt.Appendf(nil, `{"provider":"tcp;ofi_rxm","host":%q,"port":%q}`, host, port)}},
			ReceiverID: "fake", LeaseMS: 60_000, Epoch: 7, MaxMessage: wire.MaxMessage, MaxKeys: wire.MaxKeys,
		})
		s := feed(t, "pd-send", "--to", endpoint, "--engine", "ofi", "--timeout", timeout.String())
		began := time.Now()
		s.write(batch("A", 4, 0, 4))
		l := s.result("A", "failed")
		if took := time.Since(began); took > timeout+soon {
			t.Errorf("%s: it failed after %v", name, took)
		}
		for _, says := range []string{endpoint, "ofi: ", tt.says} {
			if !strings.Contains(l.str("error"), says) {
				t.Errorf("%s: it ends as %v, which does not say %q", name, l, says)
			}
		}
		s.ends(1)
	}
}

// tokenLen is how long the token of a data connection is, bytes.
const tokenLen = 41

// answering is the endpoint of one that answers every message of a pd-send with
// this one.
func answering(t *testing.T, m wire.Message) (endpoint string) {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket, endpoint, err := ctx.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	poller := testkit.Poller(t, socket, zmq4.POLLIN)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer socket.Close()
		for {
			if _, err := poller.Wait(-1); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-quit:
				return
			default:
			}
			frames, err := sock.Recv(socket, 4)
			if err == nil { // identity, correlation, delimiter, payload
				err = sock.Send(socket, frames[0], frames[1], nil, wire.Append(nil, m))
			}
			if err != nil && !errors.Is(err, sock.ErrAgain) {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		close(quit)
		poller.Wake()
		<-ended
		ctx.Close()
	})
	return endpoint
}
