package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/top"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	// reachWithin bounds the look whether anybody is there, and firstWithin the
	// wait for the first snapshot of somebody who is.
	reachWithin = 900 * time.Millisecond
	firstWithin = 3 * time.Second

	// A source is stale that was silent for two refreshes: of ours, or of its
	// own where they are further apart; but not for less than leastSilence.
	leastSilence = time.Second
	slowestPace  = 1250 * time.Millisecond
)

// feed is what comes from the endpoints.
type feed struct {
	w         *monitor.Watcher
	endpoints []string
	began     time.Time
	states    []top.Status
	problems  []error // why nobody was there at first
}

// dial finds out who is there and begins to watch. Unless told to wait it is an
// error when nobody publishes. With all, it waits for the first snapshot of
// everybody who is there, else for anybody's.
func dial(ctx context.Context, o *options, stderr io.Writer, all bool) (*feed, error) {
	f := &feed{endpoints: o.endpoints, began: time.Now(), states: make([]top.Status, len(o.endpoints)), problems: make([]error, len(o.endpoints))}
	if !o.wait {
		f.reach(ctx)
		if f.count(func(i int) bool { return f.problems[i] == nil }) == 0 {
			return nil, f.nobody(o.endpoints)
		}
	}
	var err error
	if f.w, err = monitor.Watch(o.keys, o.endpoints...); err != nil {
		return nil, err
	}
	for i := range f.states {
		f.states[i].Source = i
		f.state(i, f.w.Look(i), o.delay, f.began)
	}
	if o.wait && !all {
		return f, nil // the screen shows who is waited for
	}
	if err := f.first(ctx, o, stderr, all); err != nil {
		f.w.Close()
		return nil, err
	}
	if err := f.missing(); all && err != nil && o.refreshes != 1 {
		fmt.Fprintf(stderr, "pd-top: %v\n", err) // print says it at its end, too
	}
	return f, nil
}

// reach asks all endpoints at a time whether anybody is there.
func (f *feed) reach(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	type answer struct {
		i   int
		err error
	}
	answers := make(chan answer, len(f.endpoints))
	for i, endpoint := range f.endpoints {
		go func() { answers <- answer{i, sock.Reach(ctx, endpoint)} }()
	}
	for range f.endpoints {
		a := <-answers
		f.problems[a.i] = a.err
	}
}

func (f *feed) count(is func(i int) bool) (n int) {
	for i := range f.endpoints {
		if is(i) {
			n++
		}
	}
	return n
}

// nobody says why there is nothing to show, and what to do.
func (f *feed) nobody(endpoints []string) error {
	var all []error
	for i, err := range f.problems {
		if err != nil {
			all = append(all, fmt.Errorf("%w: start the program with --monitor %s, or wait for it with --wait", err, endpoints[i]))
		}
	}
	return errors.Join(all...)
}

// first waits for the first snapshot. With --wait it says who is there and, for
// its keys, will not be heard until somebody changes them.
func (f *feed) first(ctx context.Context, o *options, stderr io.Writer, all bool) error {
	said := make([]bool, len(f.endpoints))
	var late <-chan time.Time
	if !o.wait {
		late = time.After(firstWithin)
	}
	for {
		heard := f.count(f.heard)
		missing := f.count(func(i int) bool { return f.problems[i] == nil && !f.heard(i) })
		for i := range f.endpoints {
			if r := f.w.Look(i); o.wait && r.Refused && !said[i] {
				said[i] = true
				fmt.Fprintf(stderr, "pd-top: %v (still waiting)\n", f.silent(i))
			}
		}
		if missing == 0 || heard > 0 && !all {
			return nil
		}
		select {
		case <-f.w.Changed():
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			if heard > 0 {
				return nil
			}
			for i := range f.endpoints {
				if f.problems[i] == nil {
					f.problems[i] = f.silent(i)
				}
			}
			return errors.Join(f.problems...)
		}
	}
}

func (f *feed) heard(i int) bool { return !f.w.Look(i).Heard.IsZero() }

// silent says that somebody is there, but publishes nothing.
func (f *feed) silent(i int) error {
	if why := f.w.Look(i).Err; why != "" {
		return errors.New(withEndpoint(f.endpoints[i], why))
	}
	return fmt.Errorf("%s: somebody is there, but published nothing within %v: it has stopped, or is no endpoint of --monitor", f.endpoints[i], firstWithin)
}

// withEndpoint names the endpoint, unless the reason does.
func withEndpoint(endpoint, why string) string {
	if strings.HasPrefix(why, endpoint) {
		return why
	}
	return endpoint + ": " + why
}

// missing names those of whom nothing has come, if there are any.
func (f *feed) missing() error {
	var missing []error
	for i, err := range f.problems {
		if f.heard(i) {
			continue
		}
		if err == nil {
			err = f.silent(i)
		}
		missing = append(missing, err)
	}
	return errors.Join(missing...)
}

// state is how it is with a source now.
func (f *feed) state(i int, r monitor.Reading, delay time.Duration, now time.Time) top.Status {
	s := top.Status{Source: i, State: top.Live, Since: r.Heard, Retry: r.Retry, Err: r.Err, Refused: r.Refused, Now: now}
	silence := max(2*delay, 2*min(r.Pace, slowestPace), leastSilence)
	switch {
	case r.Heard.IsZero():
		s.State, s.Since = top.Waiting, f.began
		if s.Err == "" && !r.Connected && f.problems[i] != nil {
			s.Err = f.problems[i].Error()
		}
	case !r.Connected || now.Sub(r.Heard) > silence:
		s.State = top.Stale
	case f.states[i].State == top.Live:
		s.Since = f.states[i].Since
	}
	f.states[i] = s
	return s
}

// read is what one source has told, for a top.Model, and its snapshot, if a new
// one came.
func (f *feed) read(i int, delay time.Duration, now time.Time) (msgs []tea.Msg, snapshot wire.Message) {
	r := f.w.Read(i)
	for _, e := range r.Events {
		msgs = append(msgs, top.Events{Source: i, Event: e})
	}
	if r.Snapshot != nil {
		msgs = append(msgs, top.Report{Source: i, Msg: r.Snapshot, At: r.Heard})
	}
	return append(msgs, f.state(i, r, delay, now)), r.Snapshot
}

// turned says whether a source is no more as it was last seen.
func (f *feed) turned(delay time.Duration, now time.Time) bool {
	for i := range f.endpoints {
		was := f.states[i]
		if f.state(i, f.w.Look(i), delay, now).State != was.State {
			f.states[i] = was
			return true
		}
		f.states[i] = was
	}
	return false
}
