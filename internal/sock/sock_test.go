package sock

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

const patience = 30 * time.Second // for what takes milliseconds

func newContext(t *testing.T) *Context {
	t.Helper()
	c, err := NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close context: %v", err)
		}
	})
	return c
}

// pair returns a connected PULL and PUSH.
func pair(t *testing.T, c *Context, listen string, o Options) (pull, push *zmq4.Socket) {
	t.Helper()
	pull, endpoint, err := c.Listen(zmq4.PULL, listen, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pull.Close() })
	push, err = c.Dial(zmq4.PUSH, endpoint, Options{Prepare: func(s *zmq4.Socket) error { return s.SetImmediate(true) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { push.Close() })
	wait(t, push, zmq4.POLLOUT)
	return pull, push
}

func wait(t *testing.T, s *zmq4.Socket, events zmq4.State) {
	t.Helper()
	ready, err := watching(t, s, events).Wait(patience)
	if err != nil || !ready {
		t.Fatalf("socket not ready after %v: %v", patience, err)
	}
}

func TestListenTakesAFreePortAndTellsIt(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://localhost:*", "tcp://[::1]:*", "tcp://*:*", "tcp://[::]:0", "tcp://lo:*"} {
		t.Run(endpoint, func(t *testing.T) {
			if strings.Contains(endpoint, "[") && !hasIPv6() {
				t.Skip("no IPv6 on this host")
			}
			c := newContext(t)
			pull, push := pair(t, c, endpoint, Options{})
			if err := Send(push, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			wait(t, pull, zmq4.POLLIN)
			got, err := Recv(pull, 1)
			if err != nil || len(got) != 1 || string(got[0]) != "hello" {
				t.Fatalf("got %q, %v", got, err)
			}
			last, _ := push.GetLastEndpoint()
			if err := CheckDial(last); err != nil || strings.HasSuffix(last, ":0") {
				t.Errorf("advertised %s: %v", last, err)
			}
		})
	}
}

func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func TestDialByNameFindsAnIPv4Listener(t *testing.T) {
	c := newContext(t)
	pull, endpoint, err := c.Listen(zmq4.PULL, "tcp://127.0.0.1:*", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer pull.Close()
	push, err := c.Dial(zmq4.PUSH, strings.Replace(endpoint, "127.0.0.1", "localhost", 1), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer push.Close()
	if err := Send(push, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	wait(t, pull, zmq4.POLLIN)
}

func TestListenOnATakenEndpoint(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "ipc://" + filepath.Join(t.TempDir(), "s")} {
		c := newContext(t)
		first, actual, err := c.Listen(zmq4.PULL, endpoint, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		const tries, limit = 5, time.Second
		var took time.Duration
		for range tries { // a busy machine may be slow now and then
			start := time.Now()
			_, _, err = c.Listen(zmq4.PULL, actual, Options{})
			if err == nil || !strings.Contains(err.Error(), actual) || !strings.Contains(err.Error(), "in use") {
				t.Fatalf("error is %v; want the endpoint and that it is in use", err)
			}
			if took = time.Since(start); took <= limit {
				break
			}
		}
		if took > limit {
			t.Errorf("took %v, want %v", took, limit)
		}
	}
}

func TestSocketFileIsRemoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s")
	c, err := NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := c.Listen(zmq4.PULL, "ipc://"+file, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestUnknownHost(t *testing.T) {
	c := newContext(t)
	const host = "no-such-host.invalid"
	if _, _, err := c.Listen(zmq4.PULL, "tcp://"+host+":7600", Options{}); err == nil || !strings.Contains(err.Error(), host) {
		t.Errorf("listen: %v", err)
	}
	if _, err := c.Dial(zmq4.PUSH, "tcp://"+host+":7600", Options{}); err == nil || !strings.Contains(err.Error(), host) {
		t.Errorf("dial: %v", err)
	}
}

func TestRecvBoundsFrames(t *testing.T) {
	c := newContext(t)
	pull, push := pair(t, c, "tcp://127.0.0.1:*", Options{})
	if _, err := Recv(pull, 3); !errors.Is(err, ErrAgain) {
		t.Fatalf("empty socket: %v, want ErrAgain", err)
	}
	send := func(n int) {
		frames := make([][]byte, n)
		for i := range frames {
			frames[i] = fmt.Append(nil, i)
		}
		if err := Send(push, frames...); err != nil {
			t.Fatal(err)
		}
		wait(t, pull, zmq4.POLLIN)
	}
	for _, n := range []int{1, 2, 3} {
		send(n)
		if got, err := Recv(pull, 3); err != nil || len(got) != n {
			t.Errorf("%d frames: got %d, %v", n, len(got), err)
		}
	}
	for _, n := range []int{4, 5, 50} {
		send(n)
		got, err := Recv(pull, 3)
		if !errors.Is(err, ErrFrames) || len(got) != 3 || string(got[2]) != "2" {
			t.Errorf("%d frames: got %q, %v, want the first 3 and ErrFrames", n, got, err)
		}
	}
	send(1)
	if got, err := Recv(pull, 3); err != nil || string(got[0]) != "0" {
		t.Errorf("after too many frames: got %q, %v", got, err)
	}
}

func TestTooLargeAFrameNeverArrives(t *testing.T) {
	c := newContext(t)
	pull, push := pair(t, c, "tcp://127.0.0.1:*", Options{MaxFrame: 1000})
	if err := Send(push, bytes.Repeat([]byte("x"), 1001)); err != nil {
		t.Fatal(err)
	}
	// ZeroMQ ends the connection; the sender's socket connects anew.
	p := watching(t, pull, zmq4.POLLIN)
	for deadline := time.Now().Add(patience); ; {
		_ = Send(push, []byte("small"))
		if ready, err := p.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		} else if ready {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no message after the large one")
		}
	}
	if got, err := Recv(pull, 1); err != nil || string(got[0]) != "small" {
		t.Errorf("got %.20q, %v", got, err)
	}
}

func TestSendToNobody(t *testing.T) {
	c := newContext(t)
	router, _, err := c.Listen(zmq4.ROUTER, "tcp://127.0.0.1:*", Options{Prepare: func(s *zmq4.Socket) error {
		return s.SetRouterMandatory(1)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	if err := Send(router, []byte("nobody"), nil, []byte("x")); !errors.Is(err, ErrUnreachable) {
		t.Errorf("router: %v, want ErrUnreachable", err)
	}
	push, err := c.Dial(zmq4.PUSH, "tcp://127.0.0.1:1", Options{Prepare: func(s *zmq4.Socket) error { return s.SetImmediate(true) }})
	if err != nil {
		t.Fatal(err)
	}
	defer push.Close()
	if err := Send(push, []byte("x")); !errors.Is(err, ErrAgain) {
		t.Errorf("push: %v, want ErrAgain", err)
	}
}

// Context.Close with a peer that never comes ends when the linger has passed.
func TestCloseIsBounded(t *testing.T) {
	c, err := NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	push, err := c.Dial(zmq4.PUSH, "tcp://127.0.0.1:1", Options{Linger: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := Send(push, []byte("never")); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	push.Close() // the linger begins
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 40*time.Millisecond || took > patience {
		t.Errorf("close took %v, want about 50ms", took)
	}
}
