package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// defaultAskEvery is how often a receiver is asked what is ready, and for how
// long it is waited for each time.
const defaultAskEvery = 5 * time.Second

// page is what a receiver said is ready.
type page struct {
	source  int  // position of the receiver in Config.Recover
	anew    bool // it was started anew: what it said before is no more
	entries []wire.ReadyEntry
}

// asker asks one receiver what is ready, whoever told us of it or did not: a
// notification is lost with the proxy that took it.
type asker struct {
	endpoint string
	keys     *sock.Keys
	source   int
	every    time.Duration
	tell     func(context.Context, page)
	note     func(string)

	conn  *client.Conn // nil after it gave no answer
	epoch uint64
	after uint64 // the last number known in that epoch
	state state
}

// startAskers asks every receiver until the context ends; wait returns when all
// have stopped.
func startAskers(ctx context.Context, cfg *Config, tell func(context.Context, page)) (wait func()) {
	var all sync.WaitGroup
	for i, endpoint := range cfg.Recover {
		a := &asker{endpoint: endpoint, keys: cfg.Keys, source: i, every: cfg.askEvery, tell: tell, note: cfg.Note}
		all.Go(func() { a.run(ctx) })
	}
	return all.Wait
}

func (a *asker) run(ctx context.Context) {
	defer a.hangUp()
	for ctx.Err() == nil {
		next := time.Now().Add(a.every)
		for more := true; more && ctx.Err() == nil; {
			var err error
			more, err = a.ask(ctx)
			a.say(ctx, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
}

// ask gets one page of what is ready behind what is known.
func (a *asker) ask(ctx context.Context) (more bool, err error) {
	if a.conn == nil {
		if a.conn, err = client.Dial(a.endpoint, a.keys); err != nil {
			return false, err
		}
	}
	patience, cancel := context.WithTimeout(ctx, a.every)
	defer cancel()
	m, err := a.conn.Ready(patience, a.epoch, a.after)
	if err != nil {
		// A connection anew: questions that were not answered would wait in
		// this one for the receiver, all of them.
		a.hangUp()
		return false, err
	}
	p := page{source: a.source, anew: a.epoch != 0 && m.Epoch != a.epoch, entries: m.Entries}
	if m.Epoch != a.epoch {
		a.epoch, a.after = m.Epoch, 0
	}
	for _, e := range m.Entries {
		if e.Seq <= a.after {
			return false, fmt.Errorf("receiver %s tells number %d behind number %d", a.endpoint, e.Seq, a.after)
		}
		a.after = e.Seq
	}
	a.tell(ctx, p)
	return m.More, nil
}

func (a *asker) hangUp() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// say tells people when a receiver stops answering, or answers something else,
// and when it answers again.
func (a *asker) say(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	now := answers
	var refused *client.Refused
	if errors.As(err, &refused) {
		now = refuses
	} else if err != nil {
		now = silent
	}
	if now == a.state {
		return
	}
	switch a.state = now; now {
	case answers:
		a.note(fmt.Sprintf("receiver %s answers", a.endpoint))
	case refuses:
		a.note(fmt.Sprintf("receiver %s does not say what is ready (%v): is it as new as this proxy?", a.endpoint, err))
	case silent:
		a.note(fmt.Sprintf("%v (asking again until it says what is ready)", err))
	}
}

// state is how a receiver last answered.
type state uint8

const (
	answers state = iota
	refuses
	silent
)
