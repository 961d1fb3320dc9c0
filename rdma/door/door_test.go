package door

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
)

const magic = "knock/1\n"

// pipes is a listener whose connections are pipes in memory, so that the tests
// run in a bubble with a clock of its own.
type pipes struct {
	conns  chan net.Conn
	errs   chan error // what Accept returns next, if anything
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case err := <-p.errs:
		return nil, err
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return nil }

// testDoor says "in" and the writer, or "reader", to those it lets in.
type testDoor struct {
	*Door
	listener *pipes

	mu   sync.Mutex
	gone []rdma.Writer
}

// inBubble runs test with a door of its own.
func inBubble(t *testing.T, change func(*Config), test func(t *testing.T, d *testDoor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &testDoor{listener: &pipes{make(chan net.Conn), make(chan error), make(chan struct{})}}
		cfg := Config{
			Listener: d.listener,
			Magic:    magic,
			Refuse:   func(c net.Conn, err error) { io.WriteString(c, "no: "+err.Error()) },
			Serve: func(c net.Conn, w rdma.Writer) {
				fmt.Fprintf(c, "in %d", w)
				io.Copy(io.Discard, c)
			},
			ServeReader: func(c net.Conn) {
				io.WriteString(c, "reader")
				io.Copy(io.Discard, c)
			},
			Gone: func(w rdma.Writer) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.gone = append(d.gone, w)
			},
		}
		if change != nil {
			change(&cfg)
		}
		d.Door = New(cfg)
		defer d.Close()
		test(t, d)
	})
}

func (d *testDoor) dial() net.Conn {
	c, other := net.Pipe()
	d.listener.conns <- other
	return c
}

// knock dials, says hello and returns what it is answered.
func (d *testDoor) knock(t *testing.T, hello []byte) (net.Conn, string) {
	t.Helper()
	c := d.dial()
	t.Cleanup(func() { c.Close() })
	c.Write(hello)
	return c, answer(c)
}

// answer is "" when the connection ends without one.
func answer(c net.Conn) string {
	b := make([]byte, 1000)
	n, _ := c.Read(b)
	return string(b[:n])
}

func (d *testDoor) wantGone(t *testing.T, want ...rdma.Writer) {
	t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.gone, want) {
		t.Errorf("writers %v are gone, want %v", d.gone, want)
	}
}

func (d *testDoor) grant(t *testing.T, w rdma.Writer) []byte {
	t.Helper()
	return hello(t)(d.Grant(w))
}

func (d *testDoor) grantRead(t *testing.T) []byte {
	t.Helper()
	return hello(t)(d.GrantRead())
}

// hello returns what somebody with a token says.
func hello(t *testing.T) func(token []byte, err error) []byte {
	return func(token []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		b, err := Hello(magic, token)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func TestHello(t *testing.T) {
	_, err := Hello(magic, make([]byte, 40))
	if err == nil || err.Error() != "token of 40 bytes, the receiver's have 41" {
		t.Errorf("error %v", err)
	}
}

func TestEnter(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		good := d.grant(t, 7)
		if again := d.grant(t, 7); !bytes.Equal(again, good) {
			t.Error("Grant asked again gives another token")
		}
		for i := range good {
			bad := slices.Clone(good)
			bad[i] ^= 1
			want := "no: the token is not good"
			if i < len(magic) {
				want = "no: hello is not \"knock/1\\n\": another version of pd-tools?"
			}
			if _, got := d.knock(t, bad); !strings.HasPrefix(got, want) {
				t.Errorf("with byte %d changed the answer is %q, want %q", i, got, want)
			}
		}
		if d.Conn(7) != nil || d.Conn(8) != nil {
			t.Error("a writer that has not entered has a connection")
		}
		c, got := d.knock(t, good)
		if got != "in 7" {
			t.Fatalf("a good token is answered %q", got)
		}
		if _, got := d.knock(t, good); !strings.HasPrefix(got, "no: the token is in use") {
			t.Errorf("a token in use is answered %q", got)
		}
		if d.Conn(7) == nil {
			t.Error("a writer inside has no connection")
		}
		d.wantGone(t)
		c.Close()
		d.wantGone(t, 7)
		if d.Conn(7) != nil {
			t.Error("a writer that is gone has a connection")
		}
		if _, got := d.knock(t, good); !strings.HasPrefix(got, "no: the token is not good") {
			t.Errorf("the token of a writer that is gone is answered %q", got)
		}
	})
}

// Of many who come with one token at once one gets in.
func TestEnterTogether(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		token := d.grant(t, 1)
		var in atomic.Int32
		for range 20 {
			go func() {
				if _, got := d.knock(t, token); got == "in 1" {
					in.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := in.Load(); n != 1 {
			t.Errorf("%d got in", n)
		}
		d.Conn(1).Close() // the engine ends it
		d.wantGone(t, 1)
	})
}

func TestCheck(t *testing.T) {
	inBubble(t, func(c *Config) {
		c.Check = func(net.Conn) error { return errors.New("not your house") }
	}, func(t *testing.T, d *testDoor) {
		if got := answer(d.dial()); got != "no: not your house" { // before any hello
			t.Errorf("answer %q", got)
		}
	})
}

func TestWithdraw(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		never := d.grant(t, 1)
		if d.Withdraw(1) || d.Withdraw(99) {
			t.Error("a writer that never entered counts as connected")
		}
		if _, got := d.knock(t, never); !strings.HasPrefix(got, "no: the token is not good") {
			t.Errorf("a withdrawn token is answered %q", got)
		}
		c, _ := d.knock(t, d.grant(t, 2))
		if !d.Withdraw(2) || !d.Withdraw(2) {
			t.Error("a writer inside counts as not connected")
		}
		c.Close()
		d.wantGone(t, 2)
		if d.Withdraw(2) {
			t.Error("a writer that is gone counts as connected")
		}
	})
}

// Those who connect and say nothing, or half a hello, keep nobody out, and
// nobody with a token goes for them. The last few end by the clock.
func TestStrangers(t *testing.T) {
	const strangers = 300
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		inside, _ := d.knock(t, d.grant(t, 1))
		said := make([]string, strangers)
		var ended atomic.Int32
		for i := range said {
			c := d.dial()
			defer c.Close()
			if i%3 == 0 {
				c.Write([]byte(magic)[:5])
			}
			go func() {
				said[i] = answer(c)
				ended.Add(1)
			}()
		}
		if _, got := d.knock(t, d.grant(t, 2)); got != "in 2" { // for whom one more has to go
			t.Errorf("among strangers a good token is answered %q", got)
		}
		synctest.Wait()
		if n := ended.Load(); n != strangers-maxStrangers+1 {
			t.Errorf("%d of %d strangers have ended", n, strangers)
		}
		time.Sleep(Timeout)
		synctest.Wait()
		if n := ended.Load(); n != strangers {
			t.Errorf("%d of %d strangers have ended after %v", n, strangers, Timeout)
		}
		for i, s := range said {
			if late := i > strangers-maxStrangers; strings.HasPrefix(s, "no: no hello") != late {
				t.Errorf("stranger %d was told %q", i, s)
			}
		}
		d.wantGone(t)
		inside.Close()
		d.wantGone(t, 1)
	})
}

// A refusal that nobody reads ends by the clock.
func TestRefusalNotRead(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		c := d.dial()
		c.Write(make([]byte, len(magic)+tokenLen))
		time.Sleep(Timeout)
		synctest.Wait()
		if got := answer(c); got != "" {
			t.Errorf("answer %q", got)
		}
	})
}

func TestReaders(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		token := d.grantRead(t)
		c, got := d.knock(t, token)
		if got != "reader" {
			t.Errorf("answer %q", got)
		}
		if _, got := d.knock(t, token); !strings.HasPrefix(got, "no: the token is not good") {
			t.Errorf("a reader's token used twice is answered %q", got)
		}
		c.Close()
		d.wantGone(t) // readers are not told

		late := d.grantRead(t)
		time.Sleep(readTokenTTL)
		if _, got := d.knock(t, late); !strings.HasPrefix(got, "no: the token is not good") {
			t.Errorf("a token past its time is answered %q", got)
		}
	})
}

// Tokens that nobody uses keep nobody from reading: the oldest goes first, and
// each in its time. Readers that are served count, and stay.
func TestReadTokensAreBounded(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		count := func(want int) {
			t.Helper()
			d.mu.Lock()
			defer d.mu.Unlock()
			if n := len(d.readers); n != want {
				t.Errorf("%d tokens are kept, want %d", n, want)
			}
		}
		served, _ := d.knock(t, d.grantRead(t))
		oldest := d.grantRead(t)
		var newest []byte
		for range maxReaders {
			newest = d.grantRead(t)
		}
		count(maxReaders)
		if _, got := d.knock(t, oldest); !strings.HasPrefix(got, "no: the token is not good") {
			t.Errorf("the oldest of too many tokens is answered %q", got)
		}
		c, got := d.knock(t, newest)
		if got != "reader" {
			t.Errorf("the newest token is answered %q", got)
		}
		time.Sleep(readTokenTTL)
		d.grantRead(t)
		count(3) // the two inside and this one
		c.Close()
		served.Close()
		synctest.Wait()
		count(1)
	})
}

// Close ends those inside and the strangers, and waits until all are gone.
func TestClose(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		inside, _ := d.knock(t, d.grant(t, 3))
		d.grant(t, 4)
		stranger := d.dial()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(d.gone, []rdma.Writer{3}) {
			t.Errorf("writers %v are gone after Close", d.gone)
		}
		for _, c := range []net.Conn{inside, stranger} {
			if got := answer(c); got != "" {
				t.Errorf("after Close a connection says %q", got)
			}
		}
		for _, ask := range []func() ([]byte, error){d.GrantRead, func() ([]byte, error) { return d.Grant(4) }} {
			if token, err := ask(); !errors.Is(err, errClosed) {
				t.Errorf("after Close a grant is %x, %v", token, err)
			}
		}
		if d.Withdraw(4) {
			t.Error("a writer that never entered counts as connected")
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Where no connection can be accepted for want of descriptors, the next can
// when there are some.
func TestAcceptFails(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, d *testDoor) {
		for range 3 {
			d.listener.errs <- errors.New("too many open files")
		}
		if _, got := d.knock(t, d.grant(t, 1)); got != "in 1" {
			t.Errorf("answer %q", got)
		}
		d.listener.errs <- errors.New("too many open files") // and Close does not wait for the pause
	})
}
