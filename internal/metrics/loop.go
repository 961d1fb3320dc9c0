package metrics

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

var errClosing = errors.New("the program is ending")

// loop is the control loop as it is seen from here: somebody who is asked and
// answers. One question is under way at a time, however many wait for it, so
// that nothing piles up while it does not turn.
type loop struct {
	ask      func(func(wire.Message))
	patience time.Duration // how long it may take to answer

	mu       sync.Mutex
	under    *question // the one under way, or nil
	answered time.Time // when the last one was; before the first, the start
}

type question struct {
	done   chan struct{}
	answer wire.Message // once done is closed
}

func newLoop(ask func(func(wire.Message))) *loop {
	return &loop{ask: ask, patience: patience, answered: time.Now()}
}

// state is the program's of now. The error says how long the loop has not
// answered.
func (l *loop) state(ctx context.Context) (wire.Message, error) {
	q := l.question()
	late := time.NewTimer(l.patience)
	defer late.Stop()
	select {
	case <-q.done:
		return q.answer, nil
	case <-late.C:
		return nil, fmt.Errorf("the control loop has not answered for %.1f s", l.silence().Seconds())
	case <-ctx.Done():
		return nil, errClosing // or nobody waits for this
	}
}

func (l *loop) question() *question {
	l.mu.Lock()
	if q := l.under; q != nil {
		l.mu.Unlock()
		return q
	}
	q := &question{done: make(chan struct{})}
	l.under = q
	l.mu.Unlock()
	l.ask(func(m wire.Message) { l.settle(q, m) })
	return q
}

// settle is called by the loop.
func (l *loop) settle(q *question, m wire.Message) {
	l.mu.Lock()
	l.under, l.answered = nil, time.Now()
	l.mu.Unlock()
	q.answer = m
	close(q.done)
}

func (l *loop) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.answered)
}
