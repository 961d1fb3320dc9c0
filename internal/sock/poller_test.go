package sock

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

func newPoller(t *testing.T) *Poller {
	t.Helper()
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// watching is a poller that watches one socket.
func watching(t *testing.T, s *zmq4.Socket, events zmq4.State) *Poller {
	t.Helper()
	p := newPoller(t)
	if err := p.Watch(s, events); err != nil {
		t.Fatal(err)
	}
	return p
}

// waits fails the test unless a wait of d ends as it should.
func waits(t *testing.T, p *Poller, d time.Duration, want bool) {
	t.Helper()
	start := time.Now()
	ready, err := p.Wait(d)
	if took := time.Since(start); ready != want || err != nil || !ready && took < d || took > d+patience {
		t.Errorf("a wait of %v ends after %v: %v, %v; want %v", d, took, ready, err, want)
	}
}

// What a poller reports follows what its socket has and what it is watched for.
func TestPoller(t *testing.T) {
	c := newContext(t)
	pull, push := pair(t, c, "tcp://127.0.0.1:*", Options{})
	const short = 900 * time.Microsecond // not a whole number of anybody's ticks
	p := watching(t, pull, zmq4.POLLIN)
	waits(t, p, 0, false)
	waits(t, p, short, false)
	if err := Send(push, []byte("one"), []byte("of two frames")); err != nil {
		t.Fatal(err)
	}
	waits(t, p, patience, true)
	waits(t, p, -1, true) // until it is read
	waits(t, p, 0, true)
	if err := p.Watch(pull, 0); err != nil {
		t.Fatal(err)
	}
	waits(t, p, short, false)
	if err := p.Watch(pull, zmq4.POLLIN); err != nil {
		t.Fatal(err)
	}
	waits(t, p, short, true)
	if _, err := Recv(pull, 2); err != nil {
		t.Fatal(err)
	}
	waits(t, p, short, false)
	if err := p.Watch(push, zmq4.POLLOUT); err != nil { // another one
		t.Fatal(err)
	}
	waits(t, p, patience, true)
	p.Forget(push)
	p.Forget(push)
	waits(t, p, short, false)
	if err := Send(push, []byte("two")); err != nil {
		t.Fatal(err)
	}
	waits(t, p, patience, true)
}

// A socket that is forgotten and closed is not waited for, and whoever comes by
// its descriptor later neither.
func TestPollerForgets(t *testing.T) {
	c := newContext(t)
	pull, push := pair(t, c, "tcp://127.0.0.1:*", Options{})
	p := watching(t, pull, zmq4.POLLIN)
	if err := Send(push, []byte("unread")); err != nil {
		t.Fatal(err)
	}
	waits(t, p, patience, true)
	p.Forget(pull)
	pull.Close()
	for range 100 {
		s, _ := pair(t, c, "tcp://127.0.0.1:*", Options{})
		if err := p.Watch(s, zmq4.POLLIN); err != nil {
			t.Fatal(err)
		}
		waits(t, p, 0, false)
		p.Forget(s)
	}
}

// To wait takes no time of a processor's, whatever the sockets have that nobody
// asks for.
func TestPollerSleeps(t *testing.T) {
	c := newContext(t)
	pull, push := pair(t, c, "tcp://127.0.0.1:*", Options{})
	p := watching(t, pull, 0)
	if err := p.Watch(push, zmq4.POLLIN); err != nil { // which it never has
		t.Fatal(err)
	}
	if err := Send(push, []byte("unread")); err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const long = 500 * time.Millisecond
	before := used()
	waits(t, p, long, false)
	if took := used() - before; took > long/2 {
		t.Errorf("a wait of %v takes %v of a processor's time", long, took)
	}
}

// Whatever deadline there was before, a wait ends in time.
func TestPollerDeadlines(t *testing.T) {
	p := newPoller(t)
	for _, before := range []time.Duration{time.Hour, -1} {
		for _, d := range []time.Duration{20, 5, 50, 1, 10} {
			time.AfterFunc(time.Millisecond, p.Wake)
			waits(t, p, 0, false)
			if ready, err := p.Wait(before); ready || err != nil {
				t.Errorf("woken: %v, %v", ready, err)
			}
			waits(t, p, d*time.Millisecond, false)
		}
	}
}

// Signals that keep coming lengthen no wait.
func TestWaitEndsUnderSignals(t *testing.T) {
	c := newContext(t)
	pull, _ := pair(t, c, "tcp://127.0.0.1:*", Options{})
	p := watching(t, pull, zmq4.POLLIN)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), syscall.Gettid()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
				_ = unix.Tgkill(pid, tid, syscall.SIGURG)
			case <-stop:
				tick.Stop()
				return
			}
		}
	})
	waits(t, p, 100*time.Millisecond, false)
	close(stop)
	wg.Wait()
}

// Every piece of work that others leave is seen, though wake-ups coalesce.
func TestWakeLosesNothing(t *testing.T) {
	p := newPoller(t)
	const workers, each = 4, 20_000
	var mu sync.Mutex
	left := 0
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				mu.Lock()
				left++
				mu.Unlock()
				p.Wake()
			}
		})
	}
	for got := 0; got < workers*each; {
		start := time.Now()
		if _, err := p.Wait(patience); err != nil || time.Since(start) >= patience {
			t.Fatalf("%d of %d seen, then no wake-up for %v: %v", got, workers*each, patience, err)
		}
		mu.Lock()
		got += left
		left = 0
		mu.Unlock()
	}
	wg.Wait()
}

// A Wake that comes while the loop works, or goes to sleep, is not lost: who
// waits for an answer before the next Wake would wait for good.
func TestWakeAtAnyTime(t *testing.T) {
	p := newPoller(t)
	const askers, each = 4, 20_000
	asked := make(chan chan struct{}, askers)
	for range askers {
		go func() {
			answer := make(chan struct{}, 1)
			for range each {
				asked <- answer
				p.Wake()
				<-answer
			}
		}()
	}
	for got := 0; got < askers*each; {
		start := time.Now()
		if _, err := p.Wait(patience); err != nil || time.Since(start) >= patience {
			t.Fatalf("%d of %d answered, then no wake-up for %v: %v", got, askers*each, patience, err)
		}
		for len(asked) > 0 {
			(<-asked) <- struct{}{}
			got++
		}
	}
}

// The same where messages come, too.
func TestWakeAndMessages(t *testing.T) {
	c := newContext(t)
	pull, push := pair(t, c, "tcp://127.0.0.1:*", Options{})
	p, room := watching(t, pull, zmq4.POLLIN), watching(t, push, zmq4.POLLOUT)
	const each = 5_000
	next := make(chan struct{}, 1)
	failed := make(chan error, 1)
	go func() {
		for range each {
			<-next
			_, err := room.Wait(patience)
			if err == nil {
				err = Send(push, []byte("x"))
			}
			if err != nil {
				failed <- err
				return
			}
			p.Wake()
		}
		failed <- nil
	}()
	next <- struct{}{}
	for got := 0; got < each; {
		start := time.Now()
		if _, err := p.Wait(patience); err != nil || time.Since(start) >= patience {
			t.Fatalf("%d of %d read, then nothing for %v: %v", got, each, patience, err)
		}
		for {
			if _, err := Recv(pull, 1); err != nil {
				break
			}
			if got++; got < each {
				next <- struct{}{}
			}
		}
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// Wake never blocks, even when nobody waits, and does nothing after Close.
func TestWakeNeverBlocks(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		p.Wake()
		p.woken.Store(false) // as if seen
	}
	p.Close()
	p.Wake()
	if _, err := p.Wait(time.Second); err == nil {
		t.Error("a closed one waits")
	}
}
