package testkit

import (
	"testing"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/sock"
)

// Poller waits for a socket, until the test ends.
func Poller(t *testing.T, s *zmq4.Socket, events zmq4.State) *sock.Poller {
	t.Helper()
	p, err := sock.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if err := p.Watch(s, events); err != nil {
		t.Fatal(err)
	}
	return p
}
