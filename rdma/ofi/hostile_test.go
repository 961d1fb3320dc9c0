//go:build !noofi

package ofi

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
)

var mangled = flag.Int("ofi.mangled", 20, "how many mangled streams TestMangledStream sends")

// middle stands between a writer and its endpoint and changes bytes of what the
// writer sends: some of the first, where libfabric's own handshakes and headers
// are.
type middle struct {
	t       *testing.T
	rng     *rand.Rand
	control net.Listener // instead of the target's
	fabric  net.Listener // instead of the endpoint
	real    string       // address of the endpoint
}

func between(t *testing.T, seed uint64, at *rdma.Attachment) *middle {
	t.Helper()
	m := &middle{t: t, rng: rand.New(rand.NewPCG(seed, 0)), control: listen(t), fabric: listen(t)}
	var desc descriptor
	if err := json.Unmarshal(at.Regions[0].Desc, &desc); err != nil {
		t.Fatal(err)
	}
	target := net.JoinHostPort(desc.Host, desc.Port)
	_, desc.Port, _ = net.SplitHostPort(m.control.Addr().String())
	at.Regions = []rdma.Region{{Desc: desc.bytes()}}
	go m.relayControl(target)
	return m
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// relayControl passes the control connection on, but names itself as the
// endpoint: in the name of one over TCP the port stands third and fourth.
func (m *middle) relayControl(target string) {
	writer, err := m.control.Accept()
	if err != nil {
		return
	}
	defer writer.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, writer)
		server.Close()
	}()
	in := bufio.NewReader(server)
	line, err := in.ReadBytes('\n')
	var welcome message
	if err != nil || json.Unmarshal(line, &welcome) != nil || len(welcome.Endpoint) < 4 {
		return
	}
	m.real = fmt.Sprintf("127.0.0.1:%d", binary.BigEndian.Uint16(welcome.Endpoint[2:]))
	binary.BigEndian.PutUint16(welcome.Endpoint[2:], uint16(m.fabric.Addr().(*net.TCPAddr).Port))
	go m.relayFabric()
	_ = sendLine(writer, welcome, soon)
	_, _ = io.Copy(writer, in)
}

func (m *middle) relayFabric() {
	for {
		writer, err := m.fabric.Accept()
		if err != nil {
			return
		}
		endpoint, err := net.Dial("tcp", m.real)
		if err != nil {
			writer.Close()
			return
		}
		go func() {
			_, _ = io.Copy(writer, endpoint)
			writer.Close()
		}()
		m.mangle(endpoint, writer)
		endpoint.Close()
		writer.Close()
	}
}

// mangle copies, changing about 1 of 40 bytes in a stretch of 200.
func (m *middle) mangle(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	begin := m.rng.IntN(400) * m.rng.IntN(2)
	for seen := 0; ; {
		n, err := from.Read(buf)
		for i := range buf[:n] {
			if at := seen + i; at >= begin && at < begin+200 && m.rng.IntN(40) == 0 {
				buf[i] = byte(m.rng.IntN(256))
			}
		}
		seen += n
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// What a peer makes of libfabric's own protocol ends its own endpoint at most.
func TestMangledStream(t *testing.T) {
	const size = 256 << 10
	tg := serve(t, 3, size)
	good := tg.attach(1)
	access := tg.open(1, 2)
	for seed := range *mangled {
		w := rdma.Writer(seed + 2)
		at := tg.attachment(w, mmap(t, size))
		m := between(t, uint64(seed), &at)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if r, err := Attach(ctx, at); err == nil {
			a := tg.open(w, 0)
			for range 3 {
				if r.Write(ctx, []rdma.Op{{Local: at.Staging, Access: a}}) != nil {
					break
				}
			}
			r.Close()
		}
		cancel()
		m.control.Close()
		m.fabric.Close()
		if err := good.put(2, access, byte(seed), size); err != nil || !all(tg.buf.Slot(2), byte(seed)) {
			t.Fatalf("seed %d: the other writer suffers: %v", seed, err)
		}
		if !all(tg.buf.Slot(1), 0) {
			t.Fatalf("seed %d: a slot that nobody has was written", seed)
		}
	}
}

// Who has no token but finds an endpoint's port, or that of the control
// connection, and says anything there, harms nobody.
func TestStrangers(t *testing.T) {
	tg := serve(t, 1, 4096)
	w := tg.attach(1)
	a := tg.open(1, 0)
	name, err := tg.peers[1].endpoint.name()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, port := range []string{tg.desc.Port, fmt.Sprint(binary.BigEndian.Uint16(name[2:]))} {
		for range 50 {
			c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
			if err != nil {
				t.Fatal(err)
			}
			junk := make([]byte, rng.IntN(2000))
			for i := range junk {
				junk[i] = byte(rng.IntN(256))
			}
			_, _ = c.Write(junk) // it may have been closed already
			defer c.Close()
		}
	}
	if err := w.put(0, a, 'x', 4096); err != nil || !all(tg.buf.Slot(0), 'x') {
		t.Errorf("the writer suffers: %v", err)
	}
	tg.attach(2)
}
