package sock

import (
	"strings"
	"testing"

	"github.com/pebbe/zmq4"
)

// A socket whose peer refuses it gets in once that has changed its mind.
func TestRedial(t *testing.T) {
	server, client := newParty(t, "server"), newParty(t, "client")
	server.open(t, server.public)
	client.open(t, server.public)
	s, endpoint := server.listen(t, zmq4.PULL, Options{})
	r, err := client.Redial(zmq4.PUSH, endpoint, Options{Linger: -1}, newPoller(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.Close() }()
	until(t, "it is refused", func() bool { r.Tend(); return r.Why() != nil })
	if why := r.Why().Error(); !strings.Contains(why, "refused our key") {
		t.Error(why)
	}
	server.allows(t, client.public)
	until(t, "it gets in", func() bool {
		if r.Tend() || r.Why() != nil {
			return false
		}
		return Send(r.Socket, []byte("hello")) == nil
	})
	server.hears(t, s, "hello")
}

// A socket whose peer comes again with another key gets in once the allow file
// has it, in whatever order that happens.
func TestRedialTakesANewKey(t *testing.T) {
	for _, first := range []string{"the file", "the peer"} {
		client, old, anew := newParty(t, "client"), newParty(t, "old"), newParty(t, "new")
		old.open(t, client.public)
		s, endpoint := old.listen(t, zmq4.PULL, Options{})
		client.open(t, old.public+" "+endpoint)
		r, err := client.Redial(zmq4.PUSH, endpoint, Options{Linger: -1, Prepare: func(s *zmq4.Socket) error { return s.SetImmediate(true) }}, newPoller(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { r.Close() }()
		says := func(s *zmq4.Socket, to *party, text string) {
			until(t, "it gets in", func() bool { // what a connection has that ends is lost
				r.Tend()
				_ = Send(r.Socket, []byte(text))
				frames, err := to.Recv(s, 1)
				return err == nil && string(frames[0]) == text
			})
		}
		says(s, old, "hello")

		change := func() {
			client.allows(t, old.public+" "+endpoint, anew.public+" "+endpoint)
			until(t, "the change is seen", func() bool {
				return client.has("has several keys for " + endpoint + ", in lines 1 and 2: the last is used, that of line 2")
			})
		}
		if first == "the file" {
			change()
			says(s, old, "still") // a connection stays
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		anew.open(t, client.public)
		until(t, "the new one has the port", func() bool {
			s, _, err = anew.Listen(zmq4.PULL, endpoint, Options{})
			return err == nil
		})
		defer s.Close()
		if first == "the peer" {
			until(t, "it does not get in", func() bool { return r.Tend() || r.Why() != nil })
			if why := r.Why().Error(); !strings.Contains(why, "or another than its line in "+client.allow) {
				t.Error(why)
			}
			change()
		}
		says(s, anew, "hello again")
	}
}
