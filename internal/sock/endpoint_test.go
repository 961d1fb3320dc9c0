package sock

import (
	"context"
	"net"
	"strings"
	"testing"
)

func TestCheckEndpoint(t *testing.T) {
	long := "ipc:///" + strings.Repeat("x", 107)
	for _, tc := range []struct{ endpoint, listen, dial string }{ // the error holds this; "" is none
		{"tcp://127.0.0.1:7600", "", ""},
		{"tcp://[::1]:7600", "", ""},
		{"tcp://[fe80::1%lo]:7600", "", ""},
		{"tcp://decode-3.example.org:7600", "", ""},
		{"tcp://localhost:65535", "", ""},
		{"ipc:///run/pd/recv.sock", "", ""},
		{"tcp://127.0.0.1:*", "", "only for listening"},
		{"tcp://127.0.0.1:0", "", "only for listening"},
		{"tcp://127.0.0.1:00", "", "only for listening"},
		{"tcp://*:7600", "", "only for listening"},
		{"127.0.0.1:7600", "tcp://HOST:PORT", "tcp://HOST:PORT"},
		{"[::1]:7600", "no scheme", "no scheme"},
		{"", "no scheme", "no scheme"},
		{"udp://127.0.0.1:7600", `"udp" is unknown`, `"udp" is unknown`},
		{"inproc://x", "unknown", "unknown"},
		{"tcp://127.0.0.1", "no port", "no port"},
		{"tcp://[::1]", "no port", "no port"},
		{"tcp://::1", "brackets", "brackets"},
		{"tcp://::1:7600", "brackets", "brackets"},
		{"tcp://[::1:7600", "in brackets", "in brackets"},
		{"tcp://[127.0.0.1]:7600", "no IPv6 address", "no IPv6 address"},
		{"tcp://:7600", "host is empty", "host is empty"},
		{"tcp://127.0.0.1:", "port is empty", "port is empty"},
		{"tcp://127.0.0.1:70000", `"70000" is not 0 to 65535`, `"70000" is not 0 to 65535`},
		{"tcp://127.0.0.1:-1", `"-1"`, `"-1"`},
		{"tcp://127.0.0.1:+1", `"+1"`, `"+1"`},
		{"tcp://127.0.0.1:76oo", `"76oo"`, `"76oo"`},
		{"tcp://eth0;127.0.0.1:7600", "character", "character"},
		{"tcp://a b:7600", "character", "character"},
		{"ipc://", "no path", "no path"},
		{"ipc://*", "no path", "no path"},
		{long, "at most 107", "at most 107"},
	} {
		check := func(what string, err error, want string) {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: error %v, want %q", what, tc.endpoint, err, want)
			}
		}
		check("listen", CheckListen(tc.endpoint), tc.listen)
		check("dial", CheckDial(tc.endpoint), tc.dial)
	}
}

func TestIsPublic(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"tcp://127.0.0.1:7600":  false,
		"tcp://127.8.0.1:7600":  false,
		"tcp://[::1]:*":         false,
		"tcp://localhost:7600":  false,
		"ipc:///run/x":          false,
		"tcp://*:7600":          true,
		"tcp://0.0.0.0:7600":    true,
		"tcp://[::]:7600":       true,
		"tcp://10.0.0.1:7600":   true,
		"tcp://example.org:760": true,
	} {
		if got := IsPublic(endpoint); got != want {
			t.Errorf("IsPublic(%q) = %v, want %v", endpoint, got, want)
		}
	}
}

func TestAdvertise(t *testing.T) {
	for _, bound := range []string{"tcp://127.0.0.1:7600", "tcp://[::1]:7600", "ipc:///run/x"} {
		if got := advertise(bound); got != bound {
			t.Errorf("advertise(%q) = %q, want it unchanged", bound, got)
		}
	}
	for _, bound := range []string{"tcp://0.0.0.0:7600", "tcp://[::]:7600"} {
		got := advertise(bound)
		if err := CheckDial(got); err != nil || strings.Contains(got, "0.0.0.0") || strings.Contains(got, "::") {
			t.Errorf("advertise(%q) = %q: no peer can use that", bound, got)
		}
	}
}

func TestListenAddress(t *testing.T) {
	for endpoint, want := range map[string]string{
		"tcp://10.0.0.1:7600":  "10.0.0.1",
		"tcp://[fd00::1]:*":    "fd00::1",
		"tcp://localhost:7600": "127.0.0.1",
		"tcp://lo:7600":        "127.0.0.1",
		"tcp://*:7600":         "",
		"tcp://0.0.0.0:7600":   "",
		"tcp://[::]:7600":      "",
		"ipc:///run/recv":      "127.0.0.1",
	} {
		if got, err := ListenAddress(endpoint); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", endpoint, got, err, want)
		}
	}
	if got, err := ListenAddress("tcp://127.0.0.1"); err == nil {
		t.Errorf("an endpoint without a port has address %q", got)
	}
}

func TestHost(t *testing.T) {
	for endpoint, want := range map[string]string{
		"tcp://10.0.0.1:7600":  "10.0.0.1",
		"tcp://[fd00::1]:7600": "fd00::1",
		"tcp://decode-0:7600":  "decode-0",
		"ipc:///run/recv":      "localhost",
	} {
		if got := Host(endpoint); got != want {
			t.Errorf("%s: %q, want %q", endpoint, got, want)
		}
	}
}

func TestReach(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "tcp://" + l.Addr().String()
	if err := Reach(t.Context(), endpoint); err != nil {
		t.Error(err)
	}
	l.Close()
	for endpoint, want := range map[string]string{
		endpoint:                     "cannot connect to " + endpoint + ": connection refused",
		"ipc:///nowhere/at/all":      "cannot connect to ipc:///nowhere/at/all: no such file or directory",
		"tcp://nowhere.invalid:7602": "no such host",
		"tcp://127.0.0.1:*":          "only for listening",
	} {
		if err := Reach(t.Context(), endpoint); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", endpoint, err, want)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Reach(over, endpoint); err == nil || !strings.HasSuffix(err.Error(), "no answer") {
		t.Errorf("no time left: %v", err)
	}
}

func TestSamePort(t *testing.T) {
	for _, c := range []struct{ endpoint, actual, want string }{
		{"tcp://127.0.0.1:*", "tcp://127.0.0.1:1234", "tcp://127.0.0.1:1234"},
		{"tcp://*:0", "tcp://10.1.2.3:1234", "tcp://*:1234"},
		{"tcp://[::1]:7602", "tcp://[::1]:7602", "tcp://[::1]:7602"},
		{"ipc:///tmp/x", "ipc:///tmp/x", "ipc:///tmp/x"},
	} {
		if got := SamePort(c.endpoint, c.actual); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.endpoint, c.actual, got, c.want)
		}
	}
}
