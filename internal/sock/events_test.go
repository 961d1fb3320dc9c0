package sock

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

// What is known of a connection, by what ZeroMQ told of it.
func TestConnection(t *testing.T) {
	const (
		connected   = zmq4.EVENT_CONNECTED
		retried     = zmq4.EVENT_CONNECT_RETRIED
		lost        = zmq4.EVENT_DISCONNECTED
		succeeded   = zmq4.EVENT_HANDSHAKE_SUCCEEDED
		brokeOff    = zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL
		wait        = zmq4.Event(0) // not an event: for as long as a handshake may take
		askedForKey = zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL
	)
	type list []zmq4.Event
	for name, tt := range map[string]struct {
		events   list
		up       bool
		retries  int
		why      string // part of it
		hopeless bool
		refused  bool
	}{
		"nothing yet":              {},
		"nobody there":             {list{retried, retried}, false, 2, "", false, false},
		"connected":                {list{retried, connected, succeeded}, true, 0, "", false, false},
		"lost":                     {list{connected, succeeded, lost, retried}, false, 1, "", false, false},
		"broken off":               {list{connected, brokeOff, lost}, false, 0, "asks for a key", false, false},
		"broken off again":         {list{connected, brokeOff, lost, retried, connected, brokeOff}, false, 1, "asks for a key", false, false},
		"broken off, then gone":    {list{connected, brokeOff, lost, retried, retried}, false, 2, "", false, false},
		"let in at last":           {list{connected, brokeOff, lost, retried, connected, succeeded}, true, 0, "", false, false},
		"silent":                   {list{connected, wait, brokeOff, lost}, false, 0, "says nothing", false, false},
		"silent, tried again":      {list{connected, wait, brokeOff, lost, retried, connected}, false, 1, "says nothing", false, false},
		"lost, then silent":        {list{connected, succeeded, lost, retried, connected, wait, brokeOff, lost}, false, 1, "says nothing", false, false},
		"asks for a key":           {list{connected, askedForKey, lost}, false, 0, "asks for a key: give", true, true},
		"another kind of socket":   {list{connected, lost}, false, 0, "something else", true, false},
		"another kind, then right": {list{connected, lost, retried, connected, succeeded}, true, 0, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			n := &Connection{endpoint: "tcp://peer:1", within: 5 * time.Second}
			for _, kind := range tt.events {
				if kind == wait {
					now = now.Add(n.within)
					continue
				}
				now = now.Add(time.Millisecond)
				n.take(event{kind, failedMechanism}, now)
			}
			if n.Up() != tt.up || n.Retries() != tt.retries || n.hopeless != tt.hopeless || n.Refused() != tt.refused {
				t.Errorf("up %v, %d retries, hopeless %v, refused %v", n.Up(), n.Retries(), n.hopeless, n.Refused())
			}
			if why := fmt.Sprint(n.Why()); (n.Why() == nil) != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("why: %s", why)
			}
		})
	}
}

// One that has stopped lets its peers connect and says nothing: it does not look
// as one does that asks for a key, or refuses ours.
func TestSilentPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	endpoint := "tcp://" + l.Addr().String()
	known := newParty(t, "known")
	known.open(t, known.public)
	for _, c := range []*Context{newContext(t), known.Context} {
		s, n, err := c.DialFollowed(zmq4.SUB, endpoint, Options{Linger: -1, Meant: "anything", Prepare: func(s *zmq4.Socket) error {
			return s.SetHandshakeIvl(200 * time.Millisecond)
		}})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it is known to be silent", func() bool { return !n.Read() && n.Why() != nil })
		if why := n.Why(); !strings.Contains(why.Error(), "says nothing: it has stopped, or is no endpoint of anything") || n.Refused() {
			t.Errorf("%v, refused %v", why, n.Refused())
		}
		s.Close()
		n.Close()
	}
}

// What does not speak ZeroMQ's protocol gets no message that would be lost in it,
// even if it takes whatever comes: ZeroMQ alone would take it for an old peer.
func TestPeerOfAnotherProtocol(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Write([]byte("SSH-2.0-x\r\n"))
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	s, n, err := newContext(t).DialFollowed(zmq4.PUSH, "tcp://"+l.Addr().String(), Options{
		Linger: -1, Meant: "anything", Prepare: func(s *zmq4.Socket) error { return s.SetImmediate(true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	defer s.Close()
	until(t, "it is known", func() bool {
		if Send(s, []byte("lost")) == nil {
			t.Fatal("it takes a message")
		}
		return n.Read()
	})
	if why := n.Why().Error(); !strings.Contains(why, "something else: give that of anything") {
		t.Error(why)
	}
}
