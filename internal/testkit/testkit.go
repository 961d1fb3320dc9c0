// Package testkit has what the tests of several packages share: a wait with a
// deadline, how far the machine holds programs up, a monitor, and an HTTP
// client. It knows nothing of what is tested. Only tests import it.
package testkit

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Until waits until ok, which is called with c's lock held, or until d has
// passed: then it is false.
func Until(c *sync.Cond, d time.Duration, ok func() bool) bool {
	late := false
	stop := time.AfterFunc(d, func() {
		c.L.Lock()
		defer c.L.Unlock()
		late = true
		c.Broadcast()
	})
	defer stop.Stop()
	c.L.Lock()
	defer c.L.Unlock()
	for !ok() {
		if late {
			return false
		}
		c.Wait()
	}
	return true
}

// Delays measures, from now on, by how much the machine holds programs up. What
// it returns is to be allowed where a bound is the contract's.
func Delays(t *testing.T) func() time.Duration {
	const nap, turns = 10 * time.Millisecond, 5 // a program and those that it waits for each have some
	var worst atomic.Int64
	var began atomic.Pointer[time.Time]
	begin := func() { now := time.Now(); began.Store(&now) }
	late := func() int64 { return max(worst.Load(), int64(time.Since(*began.Load())-nap)) }
	begin()
	go func() {
		for ; t.Context().Err() == nil; begin() {
			time.Sleep(nap)
			worst.Store(late())
		}
	}()
	// The nap that goes on counts, too: whoever asks may be the first to run
	// after all were held up.
	return func() time.Duration { return turns * time.Duration(late()) }
}

// CPU is what the process has computed for so far. Unlike time it does not
// depend on what else the machine does.
func CPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Get is Fetch that succeeds.
func Get(t *testing.T, url string) (int, string) {
	t.Helper()
	code, body, err := Fetch(url)
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

// Fetch returns the status and the body. A server ends a connection on which it
// has heard nothing for a while, which may be because the machine held us up: so
// it is asked more than once.
func Fetch(url string) (code int, body string, err error) {
	for range 5 {
		if code, body, err = fetch(url); err == nil {
			break
		}
	}
	return code, body, err
}

func fetch(url string) (int, string, error) {
	c := http.Client{Timeout: time.Minute}
	defer c.CloseIdleConnections()
	r, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// Must returns v and ends the test on an error.
func Must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// WantError fails the test unless err says all of the words.
func WantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// Eventually waits for a condition that nobody tells of.
func Eventually(t *testing.T, patience time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %v: %s", patience, what)
		}
	}
}
