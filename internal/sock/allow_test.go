package sock

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

func TestAllowFile(t *testing.T) {
	a, b, c := strings.Repeat("a", keyLen), strings.Repeat("b", keyLen), strings.Repeat("c", keyLen)
	const at = " tcp://127.0.0.1:1"
	for _, tt := range []struct{ text, endpoint, want string }{
		{a, "tcp://127.0.0.1:1", a},
		{a + " # comment\n\n# " + b + "\n", "tcp://127.0.0.1:1", a},
		{a + "\n" + a + " #again\n" + b + at, "tcp://127.0.0.1:2", a},
		{a + "\n" + b + at, "tcp://127.0.0.1:1", b},
		{a + "\n" + b + " tcp://[::1]:1 # them\n" + c + " ipc:///x", "tcp://[::1]:1", b},
		{a + "\n" + b + " tcp://[::1]:1 # them\n" + c + " ipc:///x", "ipc:///x", c},
		// The last of several.
		{a + at + "\n" + b + at, "tcp://127.0.0.1:1", b},
		{a + at + "\n" + b + at + "\n" + a + at, "tcp://127.0.0.1:1", a},
		// A key with an endpoint is for no other, nor is one of several without.
		{a + at, "tcp://127.0.0.1:2", "allow file F has no key for tcp://127.0.0.1:2, and no key without an endpoint: add the line KEY tcp://127.0.0.1:2, with KEY from the .pub file"},
		{a + "\n" + b + "\n" + c + at, "tcp://127.0.0.1:2", "allow file F has no key for tcp://127.0.0.1:2, and of its 2 keys without an endpoint it could be any: add the line KEY tcp://127.0.0.1:2, "},
		{"", "tcp://127.0.0.1:2", "allow file F has no key for tcp://127.0.0.1:2, and no key without an endpoint: add the line KEY tcp://127.0.0.1:2, "},
		// However it is spelled.
		{a + " TCP://Recv.Example:07600/\r\n" + b, "tcp://recv.example:7600", a},
		{a + " tcp://recv.example:7600\r\n" + b, "tcp://RECV.example:007600/", a},
		{a + " tcp://[0:0::1]:1\n" + b, "tcp://[::1]:1", a},
		{a + " tcp://[FE80::A%lo]:1\n" + b, "tcp://[fe80::a%lo]:1", a},
		{a + " IPC:///X\n" + b, "ipc:///X", a},
		{a + " ipc:///X\n" + b, "ipc:///x", b},
		{a + " tcp://localhost:1\n" + b, "tcp://127.0.0.1:1", b}, // names are not looked up
		{"short", "", `line 1: "short" is no public key of 40 characters`},
		{a + "\n" + a + "a", "", "line 2: "},
		{strings.Repeat("~", keyLen), "", "is no public key"},
		{a + " 127.0.0.1:1", "", `line 1: endpoint "127.0.0.1:1" has no scheme`},
		{a + " tcp://*:1", "", "* is only for listening"},
		{a + " tcp://h:1//", "", `port "1/" is not`},
		{a + " tcp://127.0.0.1:1 them", "", `"them" stands behind KEY and ENDPOINT: a comment begins with #`},
	} {
		list, err := parseAllow(tt.text)
		got := ""
		if err == nil {
			f := &allowFile{name: "F"}
			f.list.Store(list)
			got, err = f.server(tt.endpoint, false)
		}
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%q, %s: %s\nwant %s", tt.text, tt.endpoint, got, tt.want)
		}
	}
	list, err := parseAllow(a + "\n" + b + at + "\n")
	if err != nil || !list.peers[a] || list.peers[b] {
		t.Errorf("peers %v, %v: whom we connect to does not connect to us", list.peers, err)
	}
	// Where peers connect to us, a key without an endpoint is one of theirs.
	f := &allowFile{name: "F"}
	f.list.Store(list)
	if key, err := f.server("tcp://127.0.0.1:1", true); key != b || err != nil {
		t.Errorf("%q, %v", key, err)
	}
	if key, err := f.server("tcp://127.0.0.1:2", true); err == nil || !strings.Contains(err.Error(), "those without an endpoint are of who connects to us: add the line KEY tcp://127.0.0.1:2") {
		t.Errorf("%q, %v", key, err)
	}
}

// Of several keys for one endpoint people are told, of the same one again not.
func TestSeveralKeysOfAnEndpoint(t *testing.T) {
	a, b, c := strings.Repeat("a", keyLen), strings.Repeat("b", keyLen), strings.Repeat("c", keyLen)
	const at, other = " tcp://h:1\n", " tcp://h:2\n"
	for text, want := range map[string][]string{
		a + at + a + at + a + other:          nil,
		a + at + "\n" + b + " TCP://H:01/\n": {"F has several keys for tcp://h:1, in lines 1 and 3: the last is used, that of line 3, and no other"},
		c + other + a + at + b + at + c + at: {"F has several keys for tcp://h:1, in lines 2 3 and 4: the last is used, that of line 4, and no other"},
		a + at + a + other + b + at + "# " + c + at + b + other: {
			"F has several keys for tcp://h:1, in lines 1 and 3: the last is used, that of line 3, and no other",
			"F has several keys for tcp://h:2, in lines 2 and 5: the last is used, that of line 5, and no other",
		},
	} {
		list, err := parseAllow(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := list.doubts("F"); !slices.Equal(got, want) {
			t.Errorf("%q: %q\nwant %q", text, got, want)
		}
	}
	p := newParty(t, "p")
	p.open(t, a+at+b+at)
	if !p.has("allow file: warning: " + p.allow + " has several keys for tcp://h:1") {
		t.Errorf("%q", p.texts)
	}
}

// A program whose peers connect to it says when its list lets nobody in.
func TestAllowsNobody(t *testing.T) {
	for _, somebody := range []bool{false, true} {
		p := newParty(t, "p")
		p.allows(t, "# nobody yet")
		if somebody {
			p.allows(t, newParty(t, "peer").public)
		}
		keys, err := LoadKeys(p.key, p.allow, p.warn)
		if err != nil || len(p.texts) > 0 {
			t.Fatal(err, p.texts)
		}
		keys.NamedOnly()
		if p.has("allow file: warning: "+p.allow+" lets nobody in") == somebody {
			t.Errorf("%v: %q", somebody, p.texts)
		}
	}
}

// Files as Windows and Kubernetes have them are taken.
func TestFilesOfOthers(t *testing.T) {
	p, peer := newParty(t, "mine"), newParty(t, "peer")
	key, err := os.ReadFile(p.key)
	if err != nil {
		t.Fatal(err)
	}
	// A Kubernetes secret: each file is a link to one in a folder behind a link, which is exchanged.
	dir := t.TempDir()
	secret := func(folder, allow string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"key": "\ufeff" + string(key[strings.Index(string(key), "secret-key"):]), "allow": allow} {
			text = strings.ReplaceAll(text, "\n", "\r\n")
			if err := os.WriteFile(filepath.Join(dir, folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(folder, filepath.Join(dir, "..new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	secret("..1", "\ufeff"+peer.public+" # peer\n\n")
	for _, name := range []string{"key", "allow"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	k, err := LoadKeys(filepath.Join(dir, "key"), filepath.Join(dir, "allow"), p.warn)
	if err != nil || k.public != p.public || !k.allow.allows(peer.public) {
		t.Fatalf("%+v, %v", k, err)
	}
	defer k.use()()
	secret("..2", "\ufeff# nobody\n")
	until(t, "the change is seen", func() bool { return p.has("0 peers may connect, 1 are revoked") })
}

// What is no file is not waited for, whatever it is.
func TestNoRegularFile(t *testing.T) {
	p := newParty(t, "mine")
	p.allows(t, p.public)
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]string{pipe: "a pipe", link: "a pipe", dir: "a directory", "/dev/zero": "a device"} {
		for _, files := range [][2]string{{name, p.allow}, {p.key, name}} {
			if _, err := LoadKeys(files[0], files[1], p.warn); err == nil || !strings.Contains(err.Error(), name+" is "+kind+": name a regular file") {
				t.Errorf("%q: %v", files, err)
			}
		}
	}
	// Nor later.
	p.open(t, p.public)
	if err := os.Rename(pipe, p.allow); err != nil {
		t.Fatal(err)
	}
	until(t, "it is told", func() bool {
		return p.has("the keys that were allowed stay so: cannot read the allow file: " + p.allow + " is a pipe")
	})
	if err := os.Remove(p.allow); err != nil { // or it would be written into the pipe
		t.Fatal(err)
	}
	p.allows(t, "# nobody")
	until(t, "a file is taken again", func() bool { return p.has("0 peers may connect") })
}

// What is wrong with a file beside its text is seen to be right again, and told
// once.
func TestAllowFileIsTriedAgain(t *testing.T) {
	p := newParty(t, "mine")
	p.open(t, p.public)
	if err := os.Chmod(p.allow, 0o666); err != nil {
		t.Fatal(err)
	}
	until(t, "it is told", func() bool { return p.has("chmod o-w") })
	if err := os.Chmod(p.allow, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "it is taken again", func() bool { return p.has("1 peers may connect") })

	var fault error = &os.PathError{Op: "read", Path: p.allow, Err: unix.EIO}
	f := &allowFile{name: p.allow, state: stateOf(p.allow)}
	if got := f.failed(fault); got != fault || f.state == stateOf(p.allow) {
		t.Errorf("%v, and it is not tried again", got)
	}
	if got := f.failed(fault); got != nil {
		t.Errorf("told again: %v", got)
	}
}

// hang has everybody who opens the file wait until the end of the test, or goOn
// is called; waits says whether somebody does. Only root may.
func hang(t *testing.T, file string) (waits func() bool, goOn func()) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, file)
	}
	if err != nil {
		t.Skipf("no file of this host can be made to hang: %v", err)
	}
	over := false
	goOn = func() {
		if !over {
			over = true
			unix.Close(fd)
		}
	}
	t.Cleanup(goOn)
	return func() bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	}, goOn
}

// A file system that hangs keeps no peer out, and nobody from ending.
func TestAllowFileHangs(t *testing.T) {
	server, client := newParty(t, "server"), newParty(t, "client")
	server.open(t, client.public)
	client.open(t, server.public)
	s, endpoint := server.listen(t, zmq4.PULL, Options{})
	server.allows(t, client.public, server.public)
	waits, goOn := hang(t, server.allow)
	until(t, "somebody waits for the file", waits)
	const most = 50 // sockets: a context has a thousand
	for n, began := 0, time.Now(); n < most && server.keys.allow.looking.Load() && time.Since(began) < 4*lookEvery; n++ {
		c, _ := dialed(t, client.Context, zmq4.PUSH, endpoint)
		say(t, c, "hello")
		server.hears(t, s, "hello")
	}
	if !server.keys.allow.looking.Load() {
		t.Fatal("the file did not hang")
	}
	began := time.Now()
	if _, err := LoadKeys(server.key, server.allow, server.warn); err == nil || !strings.Contains(err.Error(), server.allow+" could not be read within 3s") {
		t.Errorf("at the start: %v", err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %v", took)
	}
	if server.has("has changed") {
		t.Error("the file was read")
	}
	goOn()
	until(t, "it goes on", func() bool { return server.has("2 peers may connect") })

	server.allows(t, client.public)
	waits, _ = hang(t, server.allow)
	until(t, "somebody waits for the file", waits)
	ended := make(chan error, 1)
	s.Close()
	go func() { ended <- server.Close() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Errorf("it has not ended within %v", patience)
	}
}
