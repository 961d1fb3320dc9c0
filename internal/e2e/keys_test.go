package e2e

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// ring is a folder of keys, as pd-recv keygen makes them.
type ring struct {
	t   *testing.T
	dir string
}

func newRing(t *testing.T, names ...string) *ring {
	t.Helper()
	k := &ring{t, t.TempDir()}
	for _, name := range names {
		var made struct {
			PublicKey  string `json:"public_key"`
			KeyFile    string `json:"key_file"`
			PublicFile string `json:"public_file"`
		}
		file := filepath.Join(k.dir, name)
		out := output(t, 0, "pd-recv", "keygen", file)
		if err := json.Unmarshal([]byte(out), &made); err != nil || made.KeyFile != file || made.PublicFile != file+".pub" || !strings.HasPrefix(k.pub(name), made.PublicKey+" ") {
			t.Fatalf("keygen says %s, %v", out, err)
		}
	}
	return k
}

// pub is a name's line for an allow file.
func (k *ring) pub(name string) string {
	k.t.Helper()
	text, err := os.ReadFile(filepath.Join(k.dir, name) + ".pub")
	if err != nil {
		k.t.Fatal(err)
	}
	return string(text)
}

// at is the same for whom others connect to.
func (k *ring) at(name, endpoint string) string {
	key, _, _ := strings.Cut(k.pub(name), " ")
	return key + " " + endpoint + "\n"
}

// allows writes a name's allow file as a whole.
func (k *ring) allows(name string, lines ...string) {
	k.t.Helper()
	file := filepath.Join(k.dir, name) + ".allow"
	if err := os.WriteFile(file+".new", []byte(strings.Join(lines, "")), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		k.t.Fatal(err)
	}
}

func (k *ring) flags(name string) []string {
	file := filepath.Join(k.dir, name)
	return []string{"--curve-key", file, "--curve-allow", file + ".allow"}
}

// statAs is a snapshot, asked for with a name's keys.
func (k *ring) statAs(name string, r *receiver) (s snapshot) {
	k.t.Helper()
	if err := json.Unmarshal([]byte(output(k.t, 0, "pd-recv", append(append([]string{"stat", "--timeout", patience.String()}, k.flags(name)...), r.endpoint)...)), &s); err != nil {
		k.t.Fatal(err)
	}
	return s
}

func (k *ring) settles(name string, r *receiver, what string, ok func(snapshot) bool) (s snapshot) {
	k.t.Helper()
	eventually(k.t, what, func() bool { s = k.statAs(name, r); return ok(s) })
	return s
}

// One key for each program: a request goes through all four.
func TestKeys(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "proxy", "send", "ops")
	k.allows("proxy", k.pub("send"), k.pub("recv"))
	proxy := start(t, nil, "pd-proxy", append(k.flags("proxy"), "--json", "--listen", "tcp://127.0.0.1:*", "--monitor", "tcp://127.0.0.1:*")...)
	notify := listening(proxy)
	k.allows("recv", k.pub("send"), k.pub("ops"), k.pub("proxy"), k.at("proxy", notify))
	r := receive(t, 8, append(k.flags("recv"), "--proxy", notify, "--lease", "3s", "--monitor", "tcp://127.0.0.1:*")...)
	k.allows("send", k.at("recv", r.endpoint), k.at("proxy", notify))
	k.allows("ops", k.pub("recv"))

	s := send(t, r, append(k.flags("send"), "--proxy", notify)...)
	s.write(batch("A", 2, 0, 2))
	s.result("A", "ready")
	proxy.event("req_id", "A", "status", "ready")
	if got := output(t, 0, "pd-recv", append(append([]string{"take"}, k.flags("ops")...), r.endpoint, "A")...); got != pattern(chunkSize, keys("A", 0, 2)...) {
		t.Errorf("A has %d bytes of other things", len(got))
	}
	watch := r.event("event", "listening").str("monitor")
	if got := output(t, 0, "pd-top", append(k.flags("ops"), "--json", "-n", "1", watch)...); !strings.Contains(got, `"kind":"receiver"`) {
		t.Errorf("pd-top prints %s", got)
	}
	// The sender of B dies: pd-recv tells the proxy so, with its own key.
	dies := send(t, r, k.flags("send")...)
	dies.write(batch("B", 2, 0, 1))
	r.happens("admitted", "B")
	dies.kill(unix.SIGKILL)
	proxy.event("req_id", "B", "status", "failed")
	s.write(batch("C", 2, 0, 2))
	proxy.event("req_id", "C", "status", "ready")
	output(t, 0, "pd-recv", append(append([]string{"drop"}, k.flags("ops")...), r.endpoint, "C")...)
	s.ends(0)
	k.allows("proxy", k.pub("send"), k.at("recv", r.endpoint))
	s = send(t, r, k.flags("send")...)
	s.write(batch("D", 2, 0, 2))
	s.result("D", "ready")
	anew := start(t, nil, "pd-proxy", append(k.flags("proxy"), "--json", "--listen", "tcp://127.0.0.1:*", "--recover", r.endpoint)...)
	anew.event("req_id", "D", "status", "ready")
	s.ends(0)
	if n := k.statAs("ops", r).Counters["refused"]; n != 0 {
		t.Errorf("%d were refused", n)
	}
}

// Who has no key that is allowed gets nothing but a refusal, whatever program it
// is, and leaves nothing behind.
func TestKeysRefuse(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "proxy", "good", "wrong", "revoked")
	k.allows("recv", k.pub("good"), k.pub("revoked"))
	k.allows("proxy", k.pub("good"), k.pub("revoked"))
	r := receive(t, 8, append(k.flags("recv"), "--monitor", "tcp://127.0.0.1:*")...)
	watch := r.event("event", "listening").str("monitor")
	proxy := start(t, nil, "pd-proxy", append(k.flags("proxy"), "--json", "--listen", "tcp://127.0.0.1:*")...)
	notify := listening(proxy)
	for _, name := range []string{"good", "wrong", "revoked"} {
		k.allows(name, k.at("recv", r.endpoint), k.at("recv", watch), k.at("proxy", notify))
	}
	s := send(t, r, k.flags("good")...)
	s.write(batch("A", 2, 0, 2))
	s.result("A", "ready")
	k.statAs("revoked", r) // lets it in
	k.allows("recv", k.pub("good"))
	k.allows("proxy", k.pub("good"))
	r.says("1 peers may connect, 1 are revoked")
	proxy.says("1 peers may connect, 1 are revoked")

	for name, word := range map[string]string{"": "asks for a key", "wrong": "refused our key", "revoked": "refused our key"} {
		var flags []string
		if name != "" {
			flags = k.flags(name)
		}
		refused := func(words string, program string, args ...string) {
			t.Helper()
			p := start(t, strings.NewReader(batch("bad", 2, 0, 2)), program, args...)
			if code := p.exits(); code != 1 || !strings.Contains(p.stderr(), words) {
				t.Errorf("%s with key %q ends with %d and says %s", program, name, code, p.stderr())
			}
			for _, l := range p.lines() {
				if program != "pd-send" || l.str("status") != "failed" {
					t.Errorf("%s with key %q prints %v", program, name, l)
				}
			}
		}
		for _, command := range [][]string{{"stat"}, {"take"}, {"drop"}} {
			args := append(append(command, flags...), "--timeout", "3s", r.endpoint)
			if command[0] != "stat" {
				args = append(args, "A")
			}
			refused(word, "pd-recv", args...)
		}
		refused("", "pd-top", append(flags, "--once", watch)...)
		refused("", "pd-send", append(flags, "--timeout", "5s", "--to", r.endpoint)...)
		// To the proxy, by a PUSH of whoever likes.
		keys := keysOf(t, k, name)
		push(t, keys, notify)
		// To the receiver, raw.
		p, err := peertest.Dial(r.endpoint, peertest.Options{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		if _, err := p.Send(&wire.StatRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, m, err := p.Recv(time.Second); !errors.Is(err, peertest.ErrTimeout) {
			t.Errorf("a raw peer with key %q reads %v, %v", name, m, err)
		}
	}
	// Which of the two sees first that keys do not fit is by chance, and only if it is the receiver does it know.
	eventually(t, "the receiver knows that somebody has no key", func() bool {
		start(t, nil, "pd-recv", "stat", "--timeout", "3s", r.endpoint).exits()
		return strings.Contains(r.stderr(), "it has no key")
	})
	after := k.statAs("good", r)
	if len(after.Requests) != 1 || after.Counters["admitted"] != 1 || after.Counters["ready"] != 1 || after.Counters["released"] != 0 ||
		after.Counters["bad_frames"] != 0 || after.Counters["refused"] < 3 {
		t.Errorf("%+v", after)
	}
	s.ends(0)
	proxy.kill(unix.SIGTERM)
	if code := proxy.exits(); code != 0 || len(proxy.stdout()) > 0 || !strings.Contains(proxy.stderr(), "0 ready, 0 failed, 0 pending, 0 duplicates, 0 late failures, 0 forgotten, 0 bad frames, ") || !strings.Contains(proxy.stderr(), "peers refused ") {
		t.Errorf("the proxy ends with %d, prints %q and says %s", code, proxy.stdout(), proxy.stderr())
	}
	r.kill(unix.SIGTERM)
	r.exits()
	for _, why := range []string{"it has no key", " is not in ", " was taken out of ", "peers refused "} {
		if !strings.Contains(r.stderr(), why) {
			t.Errorf("the receiver does not say %q: %s", why, r.stderr())
		}
	}
}

// keysOf loads a name's, nil for "".
func keysOf(t *testing.T, k *ring, name string) *sock.Keys {
	t.Helper()
	if name == "" {
		return nil
	}
	flags := k.flags(name)
	keys, err := sock.LoadKeys(flags[1], flags[3], func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// push reports a request as ready, to whom that is not let do it.
func push(t *testing.T, keys *sock.Keys, endpoint string) {
	t.Helper()
	ctx, err := sock.NewContext(keys)
	if err != nil {
		t.Fatal(err)
	}
	s, h, err := ctx.DialFollowed(zmq4.PUSH, endpoint, sock.Options{Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		h.Close()
		ctx.Close()
	})
	if err := sock.Send(s, wire.Append(nil, &wire.ProxyNotif{ReqID: "bad"})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the proxy refuses", func() bool { return h.Read() || h.Why() != nil })
}

// A sender whose key is revoked while it sends is told so and ends; what it had
// goes with its lease.
func TestKeyRevokedWhileInUse(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "good", "bad")
	k.allows("recv", k.pub("good"), k.pub("bad"))
	k.allows("good", k.pub("recv"))
	k.allows("bad", k.pub("recv"))
	r := receive(t, 9, append(k.flags("recv"), "--lease", "1s")...)
	good, bad := send(t, r, append(k.flags("good"), "--name", "good")...), send(t, r, append(k.flags("bad"), "--name", "bad")...)
	bad.write(batch("ready", 1, 0, 1))
	bad.result("ready", "ready")
	bad.write(batch("B", 4, 0, 2))
	good.write(batch("A", 4, 0, 2))
	k.settles("good", r, "both have something", func(s snapshot) bool { return s.Slots.Held == 5 })
	k.allows("recv", k.pub("good"))
	if l := bad.result("B", "failed"); !strings.Contains(l.str("error"), "refused our key") {
		t.Errorf("the revoked sender reads %v", l)
	}
	bad.ends(1)
	r.event("event", "expired", "req_id", "B")
	good.write(batch("A", 4, 2, 2))
	good.result("A", "ready")
	good.ends(0)
	if s := k.statAs("good", r); s.Slots.Free != 4 || s.Slots.Ready != 5 || s.Counters["refused"] < 1 {
		t.Errorf("what is ready stays, and there is %+v", s)
	}
}

// A pd-top whose key is revoked while it watches says so, and not only that
// nothing comes any more.
func TestTopKeyRevoked(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "top", "other")
	k.allows("recv", k.pub("top"), k.pub("other"))
	k.allows("top", k.pub("recv"))
	_, one := watched(t, 8, k.flags("recv")...)
	_, two := watched(t, 8, k.flags("recv")...)
	single := watch(t, 120, 24, append(k.flags("top"), one)...)
	both := watch(t, 160, 24, append(k.flags("top"), one, two)...)
	lines := start(t, nil, "pd-top", append(k.flags("top"), "--json", "-d", "250ms", one)...)
	single.shows("it is live", has("LIVE"))
	eventually(t, "it is printed", func() bool { return len(lines.stdout()) > 0 })
	both.shows("both are live", has("2 LIVE"))
	k.allows("recv", k.pub("other"))
	single.shows("that the key is refused", has("REFUSED", "refused our key: add the line"))
	both.shows("that the key is refused", has("REFUSED", "refused our key: add"))
	eventually(t, "it is said that the key is refused", func() bool { return lineWith(lines.stderr(), one, "REFUSED", "refused our key: add the line") })
	waits := start(t, nil, "pd-top", append(k.flags("top"), "--wait", "--once", one)...)
	waits.says("refused our key: add the line")
	k.allows("recv", k.pub("top"), k.pub("other"))
	single.shows("it is live again", has("LIVE"))
	if code := waits.exits(); code != 0 || len(waits.stdout()) == 0 || strings.Count(waits.stderr(), one) != 1 {
		t.Errorf("who waited ends with %d; stderr: %s", code, waits.stderr())
	}
}

// Keys at one end only: both say so, within the time-out.
func TestKeysAtOneEnd(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "send")
	k.allows("recv", k.pub("send"))
	k.allows("send", k.pub("recv"))
	for name, tt := range map[string]struct {
		recv, send []string
		word       string
	}{
		"receiver": {k.flags("recv"), nil, "give --curve-key and --curve-allow"},
		"sender":   {nil, k.flags("send"), "start it with --curve-key, or do without them here"},
	} {
		t.Run(name, func(t *testing.T) {
			r := receive(t, 8, tt.recv...)
			began := time.Now()
			s := send(t, r, append(tt.send, "--timeout", "20s")...)
			s.write(batch("A", 2, 0, 2))
			if l := s.result("A", "failed"); !strings.Contains(l.str("error"), r.endpoint) || !strings.Contains(l.str("error"), tt.word) {
				t.Errorf("%v does not say %s", l, tt.word)
			}
			s.ends(1)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			proxy := start(t, nil, "pd-proxy", append(append([]string{}, tt.recv...), "--listen", "tcp://127.0.0.1:*")...)
			open := receiveWithKeysOf(t, k, tt.send)
			s = send(t, open, append(tt.send, "--proxy", listening(proxy), "--timeout", "3s")...)
			s.write(batch("B", 2, 0, 2))
			if l := s.result("B", "failed"); !strings.Contains(l.str("error"), "took no notification within 3s") {
				t.Errorf("%v", l)
			}
			s.ends(1)
		})
	}
}

// receiveWithKeysOf is a receiver that gets on with a sender of these flags.
func receiveWithKeysOf(t *testing.T, k *ring, send []string) *receiver {
	t.Helper()
	if send == nil {
		return receive(t, 8)
	}
	return receive(t, 8, k.flags("recv")...)
}

// What only keys stop: connections without end that are left, and messages
// without end, of whoever has none. They cost little, and not for long.
func TestStrangersCostAReceiverWithKeysLittle(t *testing.T) {
	t.Parallel()
	const strangers, files = 160, 128
	k := newRing(t, "recv", "send")
	k.allows("recv", k.pub("send"))
	k.allows("send", k.pub("recv"))
	r := receive(t, 8, k.flags("recv")...)
	limit := unix.Rlimit{Cur: files, Max: files}
	if err := unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	s := send(t, r, k.flags("send")...)
	s.write(batch("A", 2, 0, 2))
	s.result("A", "ready")
	before, open := r.uses().Anon, len(openFiles(r.program))

	address := strings.TrimPrefix(r.endpoint, "tcp://")
	endless := dialTCP(t, address)
	for range strangers {
		go func() { // one that finds no room waits, and may not get in
			if conn, err := net.DialTimeout("tcp", address, patience); err == nil {
				t.Cleanup(func() { conn.Close() })
			}
		}()
	}
	// A peer that has no key, and a message of parts without end.
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, append([]byte("NULL"), make([]byte, 16+32)...)...)
	ready := []byte("\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00")
	part := append([]byte{3, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 64<<10)...)
	_, err := endless.Write(append(greeting, ready...))
	for sent := 0; err == nil && sent < 1<<30; sent += len(part) {
		_, err = endless.Write(part)
	}
	if err == nil {
		t.Error("a message without end is taken")
	}
	// Who was there is served meanwhile, and others come in again.
	s.write(batch("B", 2, 0, 2))
	s.result("B", "ready")
	r.says("did not say who it is within 5s and was disconnected")
	k.statAs("send", r)
	eventually(t, "the strangers are gone", func() bool { return len(openFiles(r.program)) <= open })
	s.ends(0)
	if grown := r.uses().Anon - before; grown > 64<<20 {
		t.Errorf("the receiver has grown by %d MiB", grown>>20)
	}
}

func dialTCP(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A key that others may read is not used; flags come together; endpoints are
// known.
func TestKeyFilesAndFlags(t *testing.T) {
	t.Parallel()
	k := newRing(t, "mine", "other", "third")
	k.allows("mine", k.pub("mine"), k.pub("other"))
	k.allows("one", k.pub("other"))
	k.allows("bound", k.at("other", "tcp://127.0.0.1:2"))
	k.allows("two", k.at("other", "tcp://127.0.0.1:1"), k.at("third", "tcp://127.0.0.1:01/"))
	pipe := filepath.Join(k.dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	key := k.flags("mine")[1]
	names := strings.NewReplacer("--curve-key KEY", "--curve-key "+key, "--curve-allow KEY", "--curve-allow "+key, "keygen KEY", "keygen "+key, "ALLOW", k.flags("mine")[3],
		"ONE", k.flags("one")[3], "BOUND", k.flags("bound")[3], "TWO", k.flags("two")[3], "PIPE", pipe)
	for _, tt := range []struct {
		mode os.FileMode
		args string
		code int
		word string
	}{
		{0o644, "pd-recv serve --curve-key KEY --curve-allow ALLOW", 1, "chmod 600"},
		{0o660, "pd-recv stat --curve-key KEY --curve-allow ALLOW tcp://127.0.0.1:1", 1, "chmod 600"},
		{0o604, "pd-proxy --curve-key KEY --curve-allow ALLOW", 1, "chmod 600"},
		{0o640, "pd-send --to tcp://127.0.0.1:1 --curve-key KEY --curve-allow ALLOW", 1, "chmod 600"},
		{0o640, "pd-top --curve-key KEY --curve-allow ALLOW tcp://127.0.0.1:1", 1, "chmod 600"},
		{0o600, "pd-recv serve --curve-key KEY", 2, "--curve-key needs --curve-allow"},
		{0o600, "pd-recv take --curve-allow ALLOW -o - tcp://127.0.0.1:1 A", 2, "--curve-allow needs --curve-key"},
		{0o600, "pd-proxy --curve-key KEY", 2, "--curve-key needs --curve-allow"},
		{0o600, "pd-send --to tcp://127.0.0.1:1 --curve-key KEY", 2, "--curve-key needs --curve-allow"},
		{0o600, "pd-top --curve-allow ALLOW tcp://127.0.0.1:1", 2, "--curve-allow needs --curve-key"},
		{0o600, "pd-send --to tcp://127.0.0.1:1 --curve-key KEY --curve-allow ALLOW", 2, "add the line KEY tcp://127.0.0.1:1"},
		{0o600, "pd-recv serve --proxy tcp://127.0.0.1:1 --curve-key KEY --curve-allow ALLOW", 2, "add the line KEY tcp://127.0.0.1:1"},
		{0o600, "pd-recv stat --curve-key KEY --curve-allow BOUND tcp://127.0.0.1:1", 2, "no key without an endpoint: add the line KEY tcp://127.0.0.1:1"},
		{0o600, "pd-recv stat --timeout 1ms --curve-key KEY --curve-allow BOUND TCP://127.0.0.1:02/", 1, "no answer from"},
		{0o600, "pd-top --once --curve-key KEY --curve-allow BOUND tcp://127.0.0.1:1", 2, "add the line KEY tcp://127.0.0.1:1"},
		// Who connects to pd-recv and pd-proxy is not whom they connect to.
		{0o600, "pd-recv serve --proxy tcp://127.0.0.1:1 --curve-key KEY --curve-allow ONE", 2, "add the line KEY tcp://127.0.0.1:1"},
		{0o600, "pd-proxy --recover tcp://127.0.0.1:1 --curve-key KEY --curve-allow ONE", 2, "add the line KEY tcp://127.0.0.1:1"},
		{0o600, "pd-recv stat --timeout 1ms --curve-key KEY --curve-allow ONE tcp://127.0.0.1:1", 1, "no answer from"},
		// One endpoint has one key.
		{0o600, "pd-recv stat --timeout 1ms --curve-key KEY --curve-allow TWO tcp://127.0.0.1:1", 1, "TWO has several keys for tcp://127.0.0.1:1, in lines 1 and 2: the last is used, that of line 2"},
		{0o600, "pd-send --to tcp://127.0.0.1:1 --timeout 1ms --curve-key KEY --curve-allow TWO", 0, "in lines 1 and 2: the last is used"},
		{0o600, "pd-top --once --curve-key KEY --curve-allow TWO tcp://127.0.0.1:1", 1, "in lines 1 and 2: the last is used"},
		{0o600, "pd-recv serve --curve-key KEY --curve-allow PIPE", 1, "PIPE is a pipe: name a regular file, or a symbolic link to one"},
		{0o600, "pd-proxy --curve-key PIPE --curve-allow ALLOW", 1, "PIPE is a pipe: name a regular file"},
		{0o600, "pd-recv serve --curve-key KEY --curve-allow KEY", 1, "line 4"},
		{0o600, "pd-recv keygen KEY", 1, "is there already"},
	} {
		if err := os.Chmod(key, tt.mode); err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(names.Replace(tt.args))
		p := start(t, nil, words[0], words[1:]...)
		if code, word := p.exits(), names.Replace(tt.word); code != tt.code || !strings.Contains(p.stderr(), word) {
			t.Errorf("%s ends with %d and says %s; want %d and %s", tt.args, code, p.stderr(), tt.code, word)
		}
	}
}

// The key of a server is exchanged by a line more in the allow files of who
// connects to it, and a restart of it: they go on without one. That of a client
// by a line more at the server and a restart of the client.
func TestKeysAreExchanged(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "recv2", "proxy", "proxy2", "send", "send2", "ops")
	k.allows("proxy", k.pub("send"), k.pub("recv"))
	proxy := start(t, nil, "pd-proxy", append(k.flags("proxy"), "--json", "--listen", "tcp://127.0.0.1:*")...)
	notify := listening(proxy)
	k.allows("recv", k.pub("send"), k.pub("ops"), k.at("proxy", notify))
	r := receive(t, 8, append(k.flags("recv"), "--proxy", notify, "--ready-ttl", "1s")...)
	k.allows("send", k.at("recv", r.endpoint), k.at("proxy", notify))
	k.allows("ops", k.pub("recv"))
	s := send(t, r, append(k.flags("send"), "--proxy", notify)...)
	s.write(batch("A", 2, 0, 2))
	s.result("A", "ready")
	proxy.event("req_id", "A", "status", "ready")

	// The proxy's: pd-send and pd-recv connect to it.
	k.allows("send", k.at("recv", r.endpoint), k.at("proxy", notify), k.at("proxy2", notify))
	k.allows("recv", k.pub("send"), k.pub("ops"), k.at("proxy", notify), k.at("proxy2", notify))
	s.says("in lines 2 and 3: the last is used")
	r.says("in lines 3 and 4: the last is used")
	s.write(batch("B", 2, 0, 2)) // a connection stays
	s.result("B", "ready")
	proxy.event("req_id", "B", "status", "ready")
	proxy.kill(unix.SIGTERM)
	proxy.exits()
	k.allows("proxy2", k.pub("send"), k.pub("recv"))
	proxy = start(t, nil, "pd-proxy", append(k.flags("proxy2"), "--json", "--listen", notify)...)
	listening(proxy)
	s.write(batch("C", 2, 0, 2))
	s.result("C", "ready")
	proxy.event("req_id", "C", "status", "ready")
	proxy.says("C") // it expires, which the receiver tells

	// The receiver's.
	k.allows("send", k.at("recv", r.endpoint), k.at("recv2", r.endpoint), k.at("proxy2", notify))
	s.says(r.endpoint + ", in lines 1 and 2: the last is used")
	r.kill(unix.SIGTERM)
	r.exits()
	k.allows("recv2", k.pub("send"), k.pub("ops"))
	k.allows("ops", k.pub("recv2"))
	r2 := receiveAt(t, r.endpoint, 8, k.flags("recv2")...)
	s.write(batch("D", 2, 0, 2))
	s.result("D", "ready")
	k.statAs("ops", r2)

	// The sender's.
	k.allows("recv2", k.pub("send"), k.pub("ops"), k.pub("send2"))
	k.allows("proxy2", k.pub("send"), k.pub("send2"))
	r2.says("3 peers may connect")
	proxy.says("2 peers may connect")
	k.allows("send2", k.at("recv2", r.endpoint), k.at("proxy2", notify))
	s2 := send(t, r2, append(k.flags("send2"), "--proxy", notify)...)
	s2.write(batch("E", 2, 0, 2))
	s2.result("E", "ready")
	s.ends(0)
	k.allows("recv2", k.pub("ops"), k.pub("send2"))
	r2.says("1 are revoked")
	s2.write(batch("F", 2, 0, 2))
	s2.result("F", "ready")
	s2.ends(0)
}

// An allow file whose file system hangs keeps neither peers out nor a program
// from ending.
func TestAllowFileHangs(t *testing.T) {
	t.Parallel()
	k := newRing(t, "recv", "ops")
	k.allows("recv", k.pub("ops"))
	k.allows("ops", k.pub("recv"))
	r := receive(t, 8, k.flags("recv")...)
	proxy := start(t, nil, "pd-proxy", append(k.flags("recv"), "--listen", "tcp://127.0.0.1:*")...)
	listening(proxy)
	k.allows("recv", k.pub("ops"), "\n") // another file
	waiting := hang(t, k.flags("recv")[3])
	eventually(t, "both wait for the file", func() bool { return waiting() == 2 })
	k.statAs("ops", r)
	for _, p := range []*program{r.program, proxy} {
		p.kill(unix.SIGTERM)
		if code := p.exits(); code != 0 {
			t.Errorf("%s ends with %d and says %s", p.name, code, p.stderr())
		}
	}
	late := start(t, nil, "pd-recv", append([]string{"--listen", "tcp://127.0.0.1:*"}, k.flags("recv")...)...)
	if code := late.exits(); code != 1 || !strings.Contains(late.stderr(), "could not be read within 3s: does its file system hang?") {
		t.Errorf("a start ends with %d and says %s", code, late.stderr())
	}
}

// hang has everybody wait who opens the file, until the end of the test. Only
// root may. It returns how many there have been.
func hang(t *testing.T, file string) (waiting func() int) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, file)
	}
	if err != nil {
		t.Skipf("no file of this host can be made to hang: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	asked := 0
	event := make([]byte, unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	return func() int {
		for {
			if n, err := unix.Read(fd, event); err != nil || n != len(event) {
				return asked
			}
			asked++
			unix.Close(int((*unix.FanotifyEventMetadata)(unsafe.Pointer(&event[0])).Fd))
		}
	}
}
