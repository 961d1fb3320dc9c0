package sock

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

// told is what Keys told people, by kind.
type told struct {
	mu    sync.Mutex
	texts []string
}

func (w *told) warn(kind, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, kind+": "+text)
}

func (w *told) has(text string) bool { return w.count(text) > 0 }

func (w *told) count(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(strings.Join(w.texts, "\n"), text)
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("waited %v until %s", patience, what)
		}
	}
}

// party is a program with keys.
type party struct {
	*Context
	*told
	keys       *Keys
	public     string
	key, allow string // files
}

// newParty makes keys; who it allows is said later, in its allow file.
func newParty(t *testing.T, name string) *party {
	t.Helper()
	p := &party{told: &told{}, key: filepath.Join(t.TempDir(), name)}
	p.allow = p.key + ".allow"
	var err error
	if p.public, _, err = MakeKeys(p.key); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *party) allows(t *testing.T, lines ...string) {
	t.Helper()
	if err := os.WriteFile(p.allow, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *party) open(t *testing.T, lines ...string) {
	t.Helper()
	p.allows(t, lines...)
	var err error
	if p.keys, err = LoadKeys(p.key, p.allow, p.warn); err != nil {
		t.Fatal(err)
	}
	if p.Context, err = NewContext(p.keys); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
}

func (p *party) listen(t *testing.T, kind zmq4.Type, o Options) (*zmq4.Socket, string) {
	t.Helper()
	s, endpoint, err := p.Listen(kind, "tcp://127.0.0.1:*", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, endpoint
}

// dial returns a socket and what becomes of its handshakes.
func dialed(t *testing.T, c *Context, kind zmq4.Type, endpoint string) (*zmq4.Socket, *Connection) {
	t.Helper()
	s, h, err := c.DialFollowed(kind, endpoint, Options{Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		h.Close()
	})
	return s, h
}

// pairs of sockets as the programs have them.
var kinds = []struct{ bound, other zmq4.Type }{{zmq4.ROUTER, zmq4.DEALER}, {zmq4.PULL, zmq4.PUSH}, {zmq4.XPUB, zmq4.SUB}}

// say has a peer send one message.
func say(t *testing.T, s *zmq4.Socket, text string) {
	t.Helper()
	var err error
	if kind, _ := s.GetType(); kind == zmq4.SUB {
		err = s.SetSubscribe(text)
	} else {
		err = Send(s, []byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hears waits for a message that ends so.
func (p *party) hears(t *testing.T, s *zmq4.Socket, text string) {
	t.Helper()
	until(t, "it hears "+text, func() bool {
		frames, err := p.Recv(s, 4)
		return err == nil && strings.HasSuffix(string(frames[len(frames)-1]), text)
	})
}

// hearsNothing is after whatever could come has come.
func (p *party) hearsNothing(t *testing.T, s *zmq4.Socket) {
	t.Helper()
	if frames, err := p.Recv(s, 4); err == nil {
		t.Errorf("heard %q", frames)
	}
}

func TestPeersWithKeysAreHeard(t *testing.T) {
	for _, k := range kinds {
		server, client := newParty(t, "server"), newParty(t, "client")
		server.open(t, client.public+" # a client")
		client.open(t, server.public)
		s, endpoint := server.listen(t, k.bound, Options{MaxFrame: 256}) // less than the handshake takes
		c, h := dialed(t, client.Context, k.other, endpoint)
		for i := range 3 {
			say(t, c, fmt.Sprint("hello", i))
			server.hears(t, s, fmt.Sprint("hello", i))
		}
		if h.Read() || h.Why() != nil || server.keys.Refused() != 0 {
			t.Errorf("%v: %v, %d refused", k.bound, h.Why(), server.keys.Refused())
		}
	}
}

func TestPeersWithoutTheRightKeysAreRefused(t *testing.T) {
	for _, k := range kinds {
		server, known, stranger := newParty(t, "server"), newParty(t, "known"), newParty(t, "stranger")
		server.open(t, known.public)
		s, endpoint := server.listen(t, k.bound, Options{})

		stranger.open(t, server.public)
		c, h := dialed(t, stranger.Context, k.other, endpoint)
		say(t, c, "stranger")
		until(t, "a stranger is refused", h.Read)
		if why := h.Why().Error(); !strings.Contains(why, endpoint+" refused our key") || !strings.Contains(why, stranger.key+".pub") {
			t.Errorf("%v: a stranger reads %s", k.bound, why)
		}
		until(t, "it is told", func() bool {
			return server.has("unknown key: refused 127.0.0.1: its key " + stranger.public + " is not in " + server.allow)
		})

		// Who has no key is always told so itself, and we know of it unless it is the first to see it.
		until(t, "it is known that somebody has no key", func() bool {
			c, h := dialed(t, newContext(t), k.other, endpoint)
			say(t, c, "keyless")
			until(t, "who has no key is refused", func() bool { return h.Read() || server.has(": it has no key") })
			if why := h.Why(); why != nil && !(strings.HasPrefix(why.Error(), endpoint) && strings.Contains(why.Error(), " asks for a key")) {
				t.Errorf("%v: who has no key reads %s", k.bound, why)
			}
			return server.has(": it has no key")
		})

		// A peer that has another key of ours.
		known.open(t, stranger.public)
		c, h = dialed(t, known.Context, k.other, endpoint)
		say(t, c, "mistaken")
		until(t, "who takes us for another gives up", h.Read)
		if why := h.Why().Error(); !strings.Contains(why, endpoint+" broke off") || !strings.Contains(why, known.allow) {
			t.Errorf("%v: who takes us for another reads %s", k.bound, why)
		}
		until(t, "it is told", func() bool { return server.has("it takes us for another") })
		if server.keys.Refused() < 3 {
			t.Errorf("%v: %d refused", k.bound, server.keys.Refused())
		}
		server.hearsNothing(t, s)
	}
}

// A peer with keys does not talk to one without.
func TestServerWithoutKeys(t *testing.T) {
	client := newParty(t, "client")
	client.open(t, client.public)
	c := newContext(t)
	s, endpoint, err := c.Listen(zmq4.PULL, "tcp://127.0.0.1:*", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, h := dialed(t, client.Context, zmq4.PUSH, endpoint)
	until(t, "it gives up", h.Read)
	if why := fmt.Sprint(h.Why()); !strings.Contains(why, endpoint) || !strings.Contains(why, "start it with --curve-key, or do without them here") {
		t.Error(why)
	}
}

// A peer that breaks off is told of at most, and not counted; one that is known
// to have no key is.
func TestWhoBreaksOffIsNotRefused(t *testing.T) {
	server := newParty(t, "server")
	server.open(t, server.public)
	_, endpoint := server.listen(t, zmq4.ROUTER, Options{})
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, append([]byte("NULL"), make([]byte, 16+32)...)...)
	greet := func(bytes int) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(greeting[:bytes]); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 200 { // as pd-top looks whether anybody is there
		if err := Reach(t.Context(), endpoint); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "it is told that somebody broke off", func() bool { // unless it was too fast to be looked at
		greet(11).Close()
		return server.has("broke off: 127.0.0.1 broke off before it said who it is")
	})
	conn := greet(len(greeting))
	defer conn.Close()
	until(t, "it is told that one has no key", func() bool { return server.has(": it has no key") })
	if n := server.keys.Refused(); n != 1 {
		t.Errorf("%d were refused, not 1", n)
	}
}

// Whose a message is is known by its key, even where identities are taken over
// and the keys of all are asked for anew.
func TestKeyOf(t *testing.T) {
	server, a, b := newParty(t, "server"), newParty(t, "a"), newParty(t, "b")
	server.open(t, a.public, b.public)
	a.open(t, server.public)
	b.open(t, server.public)
	s, endpoint := server.listen(t, zmq4.ROUTER, Options{Prepare: func(s *zmq4.Socket) error { return s.SetRouterHandover(true) }})
	dial := func(p *party, identity string) *zmq4.Socket {
		c, err := p.Dial(zmq4.DEALER, endpoint, Options{Linger: -1, Prepare: func(s *zmq4.Socket) error { return s.SetIdentity(identity) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	n := 0
	says := func(c *zmq4.Socket, want string) {
		t.Helper()
		n++
		text := fmt.Sprint("message ", n)
		say(t, c, text)
		until(t, "it is heard", func() bool {
			frames, err := server.Recv(s, 2)
			if err != nil {
				return false
			}
			if key := server.KeyOf(s, string(frames[0])); key != want || string(frames[1]) != text {
				t.Errorf("%q of %q has key %s, want %s", frames[1], frames[0], key, want)
			}
			return true
		})
	}
	one, two := dial(a, "one"), dial(a, "two")
	says(one, a.public)
	says(two, a.public)
	says(one, a.public)
	says(dial(b, "three"), b.public)
	says(two, a.public)
	says(dial(b, "one"), b.public) // takes the name of another
	says(two, a.public)
	if key := (&Context{}).KeyOf(s, "one"); key != "" {
		t.Errorf("without keys it is %q", key)
	}
}

// A key that is taken out of the allow file counts no more, for whoever is
// connected either; the others notice nothing. A file that cannot be used
// changes nothing.
func TestRevoked(t *testing.T) {
	for _, k := range kinds {
		server, good, bad := newParty(t, "server"), newParty(t, "good"), newParty(t, "bad")
		server.open(t, good.public, bad.public)
		s, endpoint := server.listen(t, k.bound, Options{})
		good.open(t, server.public)
		bad.open(t, server.public)
		a, h := dialed(t, good.Context, k.other, endpoint)
		b, _ := dialed(t, bad.Context, k.other, endpoint)
		lost, err := bad.monitor(b, zmq4.EVENT_DISCONNECTED)
		if err != nil {
			t.Fatal(err)
		}
		defer lost.Close()
		say(t, a, "good")
		server.hears(t, s, "good")
		say(t, b, "bad")
		server.hears(t, s, "bad")

		server.allows(t, "no key")
		until(t, "it is said that the file cannot be used", func() bool { return server.has("line 1") })
		say(t, b, "still bad")
		server.hears(t, s, "still bad")

		server.allows(t, good.public)
		until(t, "the change is seen", func() bool { return server.has("1 peers may connect, 1 are revoked") })
		until(t, "the connection is cut", func() bool { _, err := recvEvent(lost, zmq4.DONTWAIT); return err == nil })
		until(t, "it comes again", func() bool {
			return server.has("refused 127.0.0.1: its key " + bad.public + " was taken out of " + server.allow)
		})
		if k.bound == zmq4.XPUB { // which tells who has left
			for _, left := range []string{"bad", "still bad"} {
				server.hears(t, s, left)
			}
		}
		server.hearsNothing(t, s)
		say(t, a, "still good")
		server.hears(t, s, "still good")
		if h.Read() {
			t.Error(h.Why())
		}

		server.allows(t, good.public, bad.public)
		until(t, "the change is seen", func() bool { return server.has("2 peers may connect, 0 are revoked") })
		b, _ = dialed(t, bad.Context, k.other, endpoint)
		say(t, b, "again")
		server.hears(t, s, "again")
	}
}

// What a revoked peer sent before its connection is cut is passed over.
func TestMessagesOfARevokedPeerArePassedOver(t *testing.T) {
	for _, k := range kinds[:2] {
		server, bad := newParty(t, "server"), newParty(t, "bad")
		server.open(t, bad.public)
		s, endpoint := server.listen(t, k.bound, Options{})
		bad.open(t, server.public)
		b, _ := dialed(t, bad.Context, k.other, endpoint)
		say(t, b, "first")
		server.hears(t, s, "first")
		for range 10 {
			say(t, b, "more")
		}
		wait(t, s, zmq4.POLLIN)
		server.keys.allow.list.Store(&allowList{}) // as if it had been read this instant
		server.keys.generation.Add(1)
		until(t, "it is cut off", func() bool {
			server.hearsNothing(t, s)
			return server.has("cut off who has key " + bad.public)
		})
		server.hearsNothing(t, s)
	}
}

// Who connects and says nothing, or stops half way, is disconnected, with keys
// and without. It is not refused: a good one that is held up does the same.
func TestSlowConnections(t *testing.T) {
	server := newParty(t, "server")
	server.open(t, server.public)
	_, guarded := server.listen(t, zmq4.ROUTER, Options{})
	open, endpoint, err := newContext(t).Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	half := []byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3}
	var conns []net.Conn
	for _, endpoint := range []string{guarded, endpoint} {
		for _, said := range [][]byte{nil, half} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
			if err == nil {
				defer conn.Close()
				_, err = conn.Write(said)
			}
			if err == nil {
				err = conn.SetReadDeadline(time.Now().Add(patience))
			}
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
	}
	for _, conn := range conns {
		if _, err := io.Copy(io.Discard, conn); os.IsTimeout(err) {
			t.Errorf("%v keeps who is slow for %v", conn.RemoteAddr(), patience)
		}
	}
	const text = "too slow: 127.0.0.1 did not say who it is within 5s"
	until(t, "both are told of", func() bool { return server.count(text) == 2 })
	if n := server.keys.Refused(); n != 0 {
		t.Errorf("%d were refused", n)
	}
}

func TestKeyFilesThatAreNotTaken(t *testing.T) {
	p := newParty(t, "mine")
	other := newParty(t, "other")
	p.allows(t, p.public)
	text, err := os.ReadFile(p.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		mode  os.FileMode
		text  string
		words []string // none: it is taken
	}{
		{"good", 0o600, string(text), nil},
		{"of pyzmq", 0o600, "#   ****  Generated on 2026-11-30 by pyzmq  ****\n\nmetadata\n" + string(text[strings.Index(string(text), "curve"):]), nil},
		{"without the public key", 0o600, strings.Replace(string(text), "public-key", "x", 1), nil},
		{"of a group", 0o640, string(text), []string{"mode 0640", "0600", "chmod 600"}},
		{"of all", 0o644, string(text), []string{"mode 0644", "chmod 600"}},
		{"read only", 0o400, string(text), []string{"mode 0400", "chmod 600"}},
		{"empty", 0o600, "", []string{"no secret-key", "pd-recv keygen"}},
		{"public", 0o600, p.public + " # mine\n", []string{"no secret-key"}},
		{"cut", 0o600, string(text[:len(text)-3]), []string{"no secret-key"}},
		{"mixed", 0o600, strings.Replace(string(text), p.public, other.public, 1), []string{"not that of its secret-key"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "k")
			if err := os.WriteFile(name, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(name, tt.mode); err != nil {
				t.Fatal(err)
			}
			k, err := LoadKeys(name, p.allow, p.warn)
			if tt.words == nil {
				if err != nil || k.public != p.public {
					t.Errorf("%v", err)
				}
				return
			}
			for _, word := range append(tt.words, name) {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Errorf("error %v does not say %q", err, word)
				}
			}
		})
	}
	if _, err := LoadKeys(p.key+".pub", p.allow, p.warn); err == nil || !strings.Contains(err.Error(), "the secret one is "+p.key) {
		t.Errorf("the public key for the secret one: %v", err)
	}
	if err := os.Chmod(p.allow, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKeys(p.key, p.allow, p.warn); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Errorf("an allow file that everybody can write: %v", err)
	}
	for _, missing := range [][2]string{{"nowhere", p.allow}, {p.key, "nowhere"}} {
		if _, err := LoadKeys(missing[0], missing[1], p.warn); err == nil {
			t.Errorf("%q are taken", missing)
		}
	}
}

func TestMakeKeys(t *testing.T) {
	name := filepath.Join(t.TempDir(), "send.key")
	public, publicFile, err := MakeKeys(name)
	if err != nil || publicFile != name+".pub" {
		t.Fatal(publicFile, err)
	}
	for file, mode := range map[string]os.FileMode{name: 0o600, publicFile: 0o644} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	line, err := os.ReadFile(publicFile)
	if err != nil || string(line) != public+" # send\n" {
		t.Errorf("%q, %v", line, err)
	}
	before, _ := os.ReadFile(name)
	if _, _, err := MakeKeys(name); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("made again: %v", err)
	}
	if after, _ := os.ReadFile(name); string(after) != string(before) {
		t.Error("the key was written over")
	}
	// Where the public file cannot be written, no key is left that nobody knows.
	name = filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(name+".pub", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := MakeKeys(name); err == nil {
		t.Error("the public file was written over")
	}
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("a key is left: %v", err)
	}
}

// A key that stands in the file for an endpoint only is there, and still lets
// nobody in: who looks for it has to be told.
func TestKeyOfAnEndpointIsRefusedWithAReason(t *testing.T) {
	const public = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7" // of ZeroMQ's manual
	list, err := parseAllow(public + " tcp://127.0.0.1:7600\n")
	if err != nil {
		t.Fatal(err)
	}
	var told string
	k := &Keys{allow: &allowFile{name: "p.allow"}, warn: func(_, text string) { told = text }}
	k.allow.list.Store(list)
	answer := k.verdict([][]byte{[]byte("1.0"), []byte("1"), nil, []byte("127.0.0.1"), nil, []byte("CURVE"), []byte(zmq4.Z85decode(public))})
	if string(answer[2]) != "400" || !strings.Contains(told, "is in p.allow with an endpoint only") || !strings.Contains(told, "add a line without one") {
		t.Errorf("answer %q, told %q", answer, told)
	}
}
