package monitor

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// MaxAge is how old a Snapshot may be that is handed out again: one is built at
// most ten times a second, however many ask.
const MaxAge = 100 * time.Millisecond

// maxAsks bounds what waits for a loop that does not turn; who comes later gets
// no answer.
const maxAsks = 1024

// Asks are requests for a program's Snapshot, from any goroutine, that its
// loop answers.
type Asks struct {
	waiting atomic.Bool // there are some: what the loop looks at each turn
	mu      sync.Mutex
	wake    func()
	funcs   []func(wire.Message)

	// The loop's own.
	at   time.Time
	last wire.Message
}

// NewAsks makes Asks whose loop is woken by wake. It may be nil where the loop
// sets it itself, with WakeBy.
func NewAsks(wake func()) *Asks { return &Asks{wake: wake} }

// WakeBy says how the loop is woken, before its first turn, and wakes it if
// anybody has asked until then.
func (a *Asks) WakeBy(wake func()) {
	a.mu.Lock()
	a.wake = wake
	a.mu.Unlock()
	if a.waiting.Load() {
		wake()
	}
}

// Add asks: the loop calls f, which must not block, with a message that others
// get, too, and nobody may change. f is never called when the loop has ended.
func (a *Asks) Add(f func(wire.Message)) {
	a.mu.Lock()
	wake := a.wake
	if len(a.funcs) < maxAsks {
		a.funcs = append(a.funcs, f)
	}
	a.waiting.Store(true)
	a.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// Answer is for the loop to call each turn. It costs next to nothing when
// nobody has asked.
func (a *Asks) Answer(now time.Time, build func() wire.Message) {
	if !a.waiting.Load() {
		return
	}
	a.mu.Lock()
	funcs := a.funcs
	a.funcs = nil
	a.waiting.Store(false)
	a.mu.Unlock()
	m := a.Message(now, build)
	for _, f := range funcs {
		f(m)
	}
}

// Message is what Answer would answer now, for the loop's own use: what build
// says, or said less than MaxAge ago.
func (a *Asks) Message(now time.Time, build func() wire.Message) wire.Message {
	if age := now.Sub(a.at); a.last == nil || age >= MaxAge || age < 0 {
		a.at, a.last = now, build()
	}
	return a.last
}
