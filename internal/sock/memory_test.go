package sock

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/usage"
)

// Messages that were read leave no memory behind, although others between them
// are still unread.
func TestMemoryGoesBack(t *testing.T) {
	const (
		rounds = 500
		each   = 50
		bytes  = 2000
		rest   = 32 << 20 // what may be left of 50 MB, which take twice as much
	)
	c := newContext(t)
	queue := Options{RecvQueue: rounds * each}
	read, toRead := pair(t, c, "tcp://127.0.0.1:*", queue)
	_, toUnread := pair(t, c, "tcp://127.0.0.1:*", queue)
	start := resident(t)
	for range rounds {
		for range each {
			push(t, toRead, bytes)
		}
		push(t, toUnread, bytes)
	}
	for got, end := 0, time.Now().Add(patience); got < rounds*each; {
		_, err := Recv(read, 1)
		switch {
		case err == nil:
			got++
		case !errors.Is(err, ErrAgain):
			t.Fatal(err)
		case time.Now().After(end):
			t.Fatalf("%d of %d messages came", got, rounds*each)
		}
	}
	most := resident(t)
	for end := time.Now().Add(patience); resident(t) > start+rest; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d MiB at the start, %d when all was read, %d now", start>>20, most>>20, resident(t)>>20)
		}
	}
}

func push(t *testing.T, s *zmq4.Socket, bytes int) {
	t.Helper()
	if err := uninterrupted(func() error { _, err := s.SendBytes(make([]byte, bytes), 0); return err }); err != nil {
		t.Fatal(err)
	}
}

// resident is the memory of this process, bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	u, err := usage.Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return u.Resident()
}
