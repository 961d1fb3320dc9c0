package monitor

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

func TestAsks(t *testing.T) {
	woken, built := 0, 0
	a := NewAsks(nil)
	build := func() wire.Message { built++; return &wire.ProxySnapshot{Pending: built} }
	var got []wire.Message
	ask := func() { a.Add(func(m wire.Message) { got = append(got, m) }) }
	now := time.Unix(1000, 0)

	a.Answer(now, build)
	if built != 0 {
		t.Fatal("built, and nobody has asked")
	}
	ask() // before the loop says how it is woken
	a.WakeBy(func() { woken++ })
	if woken != 1 {
		t.Error("the loop may sleep, though somebody has asked before it could be woken")
	}
	ask()
	a.Answer(now, build)
	if woken != 2 || built != 1 || len(got) != 2 || got[0] != got[1] {
		t.Fatalf("woken %d, built %d, answers %v, want one message for both", woken, built, got)
	}
	ask()
	a.Answer(now.Add(MaxAge-1), build)
	if got[2] != got[0] || a.Message(now.Add(MaxAge-1), build) != got[0] {
		t.Error("a message younger than 100 ms is built anew")
	}
	ask()
	a.Answer(now.Add(MaxAge), build)
	if built != 2 || got[3].(*wire.ProxySnapshot).Pending != 2 {
		t.Errorf("built %d, want a new one after 100 ms", built)
	}
	a.Answer(now.Add(time.Hour), build)
	if built != 2 || len(got) != 4 {
		t.Error("somebody was answered twice")
	}
	if a.Message(now.Add(-time.Hour), build); built != 3 {
		t.Error("a message is handed out although the clock went back")
	}
}

// A loop that does not turn keeps no more than so many.
func TestAsksBounded(t *testing.T) {
	a := NewAsks(func() {})
	answered := 0
	for range maxAsks + 10 {
		a.Add(func(wire.Message) { answered++ })
	}
	a.Answer(time.Now(), func() wire.Message { return &wire.ProxySnapshot{} })
	if answered != maxAsks {
		t.Errorf("%d answered, want %d", answered, maxAsks)
	}
}

func TestAsksFromManyGoroutines(t *testing.T) {
	wake := make(chan struct{}, 1)
	a := NewAsks(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	const askers = 100
	var answered atomic.Int64
	for range askers {
		go a.Add(func(wire.Message) { answered.Add(1) })
	}
	for end := time.After(patience); answered.Load() < askers; {
		select {
		case <-wake:
		case <-end:
			t.Fatalf("%d of %d answered", answered.Load(), askers)
		}
		a.Answer(time.Now(), func() wire.Message { return &wire.ProxySnapshot{} })
	}
}
