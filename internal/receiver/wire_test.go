package receiver

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/wire"
)

// "Every message gets exactly one answer, with every frame up to and including
// the empty delimiter carried back."
func TestFrameShapes(t *testing.T) {
	r := start(t, nil)
	good := wire.Append(nil, &wire.StatRequest{})
	f := func(frames ...string) (out [][]byte) {
		for _, one := range frames {
			out = append(out, []byte(one))
		}
		return out
	}
	many := f("a", "b")
	for len(many) < 3*maxFrames {
		many = append(many, []byte("c"))
	}
	for _, tc := range []struct {
		name    string
		frames  [][]byte
		carried [][]byte
		bad     bool
	}{
		{"no delimiter", [][]byte{good}, nil, false},
		{"LMCache", [][]byte{nil, good}, f(""), false},
		{"ours", [][]byte{[]byte("8 bytes."), nil, good}, f("8 bytes.", ""), false},
		{"through devices", [][]byte{[]byte("x"), []byte("y"), nil, good}, f("x", "y", ""), false},
		{"empty message", f(""), f(""), true},
		{"empty payload", f("", ""), f(""), true},
		{"two frames", [][]byte{[]byte("x"), good}, nil, true},
		{"seven frames", f("1", "2", "3", "4", "5", "6", "7"), nil, true},
		{"too many frames", many, nil, true},
		{"many with a delimiter", append(f("corr", ""), many...), f("corr", ""), true},
		{"HTTP", f("GET / HTTP/1.1"), nil, true},
		{"an integer", f("\x07"), nil, true},
		{"unknown type", f("\x81\xa4type\xa4What"), nil, true},
		{"a message for somebody else", [][]byte{nil, wire.Append(nil, &wire.ProxyNotif{ReqID: "A"})}, f(""), true},
		{"trailing bytes", [][]byte{append(bytes.Clone(good), 0)}, nil, true},
		{"random", [][]byte{randomBytes(1024)}, nil, true},
	} {
		p := r.dial(peertest.Options{})
		if err := p.SendFrames(tc.frames...); err != nil {
			t.Fatal(err)
		}
		got, err := p.RecvFrames(soon)
		if err != nil || len(got) != len(tc.carried)+1 {
			t.Fatalf("%s: answer %q, %v; want %d frames carried back", tc.name, got, err, len(tc.carried))
		}
		for i := range tc.carried {
			if !bytes.Equal(got[i], tc.carried[i]) {
				t.Errorf("%s: frame %d is %q, want %q", tc.name, i, got[i], tc.carried[i])
			}
		}
		m, err := wire.Decode(got[len(got)-1])
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if !tc.bad {
			as[*wire.Snapshot](p, m, nil)
			continue
		}
		wantCode(t, as[*wire.AllocResponse](p, m, nil), wire.CodeBadRequest, 1)
		p.attach("good") // F8: between each, one good request
		r.stat("it counted", func(s *wire.Snapshot) bool { return s.Counters.BadFrames > 0 })
	}
	s := r.stat("all bad frames", func(s *wire.Snapshot) bool { return s.Counters.BadFrames == 12 })
	if s.Slots.Free != 10 {
		t.Errorf("slots: %+v", s.Slots)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.warned) == 0 {
		t.Error("nothing was said of bad messages")
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return b
}

// A REQ socket gets its answers, bad_request included, and goes on.
func TestREQ(t *testing.T) {
	r := start(t, nil)
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	s, err := ctx.Dial(zmq4.REQ, r.Endpoint(), sock.Options{Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	poller := testkit.Poller(t, s, zmq4.POLLIN)
	for _, payload := range []string{"", "nonsense", string(wire.Append(nil, &wire.StatRequest{}))} {
		if err := sock.Send(s, []byte(payload)); err != nil {
			t.Fatal(err)
		}
		if answered, err := poller.Wait(soon); err != nil || !answered {
			t.Fatalf("no answer to %q: %v", payload, err)
		}
		frames, err := sock.Recv(s, 4)
		if err != nil || len(frames) != 1 {
			t.Fatalf("answer %q, %v", frames, err)
		}
	}
}

// LMCache's sender: frames ["", payload], one request at a time. Its request is
// ready when its last batch is allocated.
func TestLegacySender(t *testing.T) {
	r := start(t, func(c *Config) { c.Reservation.LegacyLease = time.Hour })
	p := r.dial(peertest.Options{Legacy: true, Identity: "lmcache"})
	wantSlots(t, p.alloc("A", 4, false, keys("A", 0, 2)...), 2)
	resp := p.alloc("A", 4, true, keys("A", 2, 2)...)
	wantSlots(t, resp, 2)
	if resp.Epoch != 0 || resp.Regions != nil {
		t.Errorf("fields of ours to a peer that did not attach: %+v", resp)
	}
	if e := r.event("ready", "A"); e.Sender != "lmcache" || e.Chunks != 4 {
		t.Errorf("ready: %+v", e)
	}
	resp = call[*wire.AllocResponse](p, &wire.CancelNotif{ReqID: "A"})
	if len(resp.RemoteIndexes) != 0 || resp.Code != "" {
		t.Errorf("acknowledgement of a cancel: %+v", resp)
	}
	r.free(10)
}

// A restarted LMCache with its old identity is heard at once, though its old
// connection still stands.
func TestHandover(t *testing.T) {
	r := start(t, func(c *Config) { c.Reservation.LegacyLease = time.Hour })
	old := r.dial(peertest.Options{Legacy: true, Identity: "lmcache"})
	wantSlots(t, old.alloc("A", 4, true, keys("A", 0, 4)...), 4)
	young := r.dial(peertest.Options{Legacy: true, Identity: "lmcache"})
	wantSlots(t, young.alloc("B", 4, true, keys("B", 0, 4)...), 4)
	wantSlots(t, young.alloc("C", 2, true, keys("C", 0, 2)...), 2)
	r.free(0)
}

// Every code that refuses a batch, over the wire, to a sender of either sort.
func TestCodes(t *testing.T) {
	change := func(m *wire.AllocRequest, f func(*wire.AllocRequest)) *wire.AllocRequest {
		f(m)
		return m
	}
	for _, tc := range []struct {
		code  wire.Code
		name  string
		setup func(r *running, p *peer)
		msg   *wire.AllocRequest
	}{
		{wire.CodeBadRequest, "no req_id", nil, batch("", 4, false, "k")},
		{wire.CodeBadRequest, "a key twice", nil, batch("A", 4, false, "k", "k")},
		{wire.CodeBadRequest, "a chunk larger than a slot", nil, peertest.Alloc("A", 4, false, testSlot+1, "k")},
		{wire.CodeBadRequest, "unknown dtype", nil, change(batch("A", 4, false, "k"), func(m *wire.AllocRequest) { m.Dtype = "complex" })},
		{wire.CodeBadRequest, "unknown fmt", nil, change(batch("A", 4, false, "k"), func(m *wire.AllocRequest) { m.Fmt = wire.I(99) })},
		{wire.CodeBadRequest, "negative total", nil, batch("A", -1, false, "k")},
		{wire.CodeBadRequest, "empty first and last", nil, batch("A", 4, true)},
		{wire.CodeBadRequest, "a long req_id", nil, batch(string(make([]byte, wire.MaxReqID+1)), 4, false, "k")},
		{wire.CodeBadRequest, "a long key", nil, batch("A", 4, false, string(make([]byte, wire.MaxKey+1)))},
		{wire.CodeStaleEpoch, "another epoch", nil, change(batch("A", 4, false, "k"), func(m *wire.AllocRequest) { m.Epoch = 78 })},
		{wire.CodeDuplicateRequest, "another's req_id", func(r *running, _ *peer) {
			wantSlots(r.t, r.dial(peertest.Options{}).alloc("A", 4, false, "k"), 1)
		}, batch("A", 4, false, "k")},
		{wire.CodeTooLarge, "more than the buffer", nil, batch("A", 11, false, "k")},
		{wire.CodeRolledBack, "a request that ended", func(_ *running, p *peer) {
			call[*wire.AllocResponse](p, &wire.CancelNotif{ReqID: "A"})
		}, batch("A", 4, false, "k")},
		{wire.CodeNoTotal, "no total", nil, batch("A", 0, false, "k")},
		{wire.CodeProtocolViolation, "more than declared", func(r *running, p *peer) {
			wantSlots(r.t, p.alloc("A", 2, false, "1", "2"), 2)
		}, batch("A", 2, false, "3")},
		{wire.CodeQueueFull, "the queue is full", func(r *running, p *peer) {
			other := r.dial(peertest.Options{})
			wantSlots(r.t, other.alloc("first", 10, false, "k"), 1)
			other.ask(batch("second", 1, false, "k"))
			r.event("queued", "second")
		}, batch("A", 4, false, "k")},
	} {
		for _, attached := range []bool{false, true} {
			r := start(t, func(c *Config) { c.Reservation.QueueLimit = 1 })
			p := r.dial(peertest.Options{Legacy: !attached})
			if attached {
				p.attach("sender")
			}
			if tc.setup != nil {
				tc.setup(r, p)
			}
			resp := call[*wire.AllocResponse](p, tc.msg)
			if resp.Code != tc.code {
				t.Errorf("%s, attached %v: code %q (%s), want %q", tc.name, attached, resp.Code, resp.Error, tc.code)
			}
			wantCode(t, resp, resp.Code, max(len(tc.msg.Keys), 1))
			r.end()
		}
	}
}

// An admission_timeout comes by the clock, and says need, free and place.
func TestAdmissionTimeout(t *testing.T) {
	r := start(t, func(c *Config) { c.Reservation.AdmitTimeout = 100 * time.Millisecond })
	p := r.dial(peertest.Options{})
	wantSlots(t, p.alloc("A", 8, false, "k"), 1)
	b := p.ask(peertest.Alloc("B", 4, false, testSlot, "k", "l"))
	wantCode(t, p.wait(b), wire.CodeAdmissionTimeout, 2)
	if e := r.event("timed_out", "B"); e.WaitedMS < 100 || e.Code != "admission_timeout" || e.Reason == "" || e.Free != 2 {
		t.Errorf("timed_out: %+v", e)
	}
}

// An undecodable batch of a live request ends it: its sender is told so in the
// words of the decoder.
func TestUndecodableBatchEndsItsRequest(t *testing.T) {
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	p.attach("sender")
	wantSlots(t, p.alloc("A", 4, false, "1"), 1)
	bad := peertest.Alloc("A", 4, false, testSlot, "2", "3")
	bad.Dtype = string(make([]byte, wire.MaxName+1))
	wantCode(t, call[*wire.AllocResponse](p, bad), wire.CodeBadRequest, 2)
	r.event("rolled_back", "A")
}

func TestAttachMismatch(t *testing.T) {
	r := start(t, offering(testEngine, otherEngine))
	foreign := map[string]string{wire.LittleEndian: wire.BigEndian, wire.BigEndian: wire.LittleEndian}[hostOrder]
	p := r.dial(peertest.Options{})
	for _, tc := range []struct {
		req  wire.AttachRequest
		want string
	}{
		{wire.AttachRequest{Version: 2, Engines: []string{testEngine}}, "sender speaks protocol version 2, receiver 1: run the same version of pd-tools on both"},
		{wire.AttachRequest{Version: 1, SlotSize: 128, Engines: []string{testEngine}}, "sender's slots are 128 bytes, receiver's 64: give all receivers of a sender one --chunk-size, and start a sender anew when it changes"},
		{wire.AttachRequest{Version: 1, ByteOrder: "middle", Engines: []string{testEngine}}, `sender's byte order is "middle", which is unknown, receiver's ` + hostOrder},
		{wire.AttachRequest{Version: 1, ByteOrder: foreign, Engines: []string{testEngine}}, "sender's byte order is " + foreign + ", receiver's " + hostOrder + ": chunks are not converted, use hosts of one kind"},
		{wire.AttachRequest{Version: 1, Engines: []string{"ofi", "ucx"}}, "sender writes with ofi, ucx, receiver with fake, other"},
		{wire.AttachRequest{Version: 1}, "sender writes with no engine, receiver with fake, other"},
	} {
		resp := call[*wire.AttachResponse](p, &tc.req)
		if resp.Code != wire.CodeBadRequest || resp.Error != tc.want || len(resp.Token) > 0 {
			t.Errorf("answer %+v, want %s", resp, tc.want)
		}
	}
	good := call[*wire.AttachResponse](p, &wire.AttachRequest{Version: 1, SlotSize: testSlot, ByteOrder: hostOrder, Engines: []string{testEngine}})
	if good.Code != "" {
		t.Errorf("answer %+v", good)
	}
}

func TestEpochOfAStrangerIsStale(t *testing.T) {
	r := start(t, nil)
	p := r.dial(peertest.Options{})
	resp := call[*wire.AllocResponse](p, &wire.Heartbeat{Epoch: 77})
	if resp.Code != wire.CodeStaleEpoch {
		t.Errorf("heartbeat of a stranger: %+v", resp)
	}
	if resp := p.attach("a"); resp.Epoch != r.cfg.Reservation.Epoch {
		t.Errorf("epoch %d", resp.Epoch)
	}
	if resp := call[*wire.AllocResponse](p, &wire.Heartbeat{Epoch: 77}); resp.Code != "" || resp.Epoch != 77 {
		t.Errorf("heartbeat: %+v", resp)
	}
}
