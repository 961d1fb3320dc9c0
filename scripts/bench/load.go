package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pd-tools/pd-tools/wire"
)

// step makes the next message of request n, given the answer to the one
// before. The message is good until the next call.
type step func(n uint32, answer []byte) ([]byte, error)

// flow is what is done for each request: messages one after another.
type flow struct {
	steps []step
	// answers, for an echo only, is how long the answer to each step is to be,
	// bytes.
	answers []int
}

// load is a closed loop: each of clients keeps window requests going.
type load struct {
	endpoint string
	clients  int
	window   int
	keys     *keyPairs                      // nil: none
	oneFrame bool                           // its clients talk so
	flow     func(c *client) (*flow, error) // one for each client
}

const warmUp = 30 * time.Millisecond

// tally is what a client saw while it was measured.
type tally struct {
	messages int   // answers
	requests int   // whose last answer came
	bytes    []int // of answers, by step
	counts   []int // answers, by step
}

// rate is what a load reached.
type rate struct {
	messages, requests float64 // per second
	answers            []int   // mean bytes of the answer to each step
}

// run connects all clients, loads the server for a warm-up and then for d, which
// is what counts; what was begun is brought to its end afterwards.
func (l *load) run(ctx context.Context, d time.Duration) (*rate, error) {
	var wg, connected sync.WaitGroup
	tallies := make([]tally, l.clients)
	errs := make([]error, l.clients)
	var start time.Time
	begin := make(chan struct{})
	connected.Add(l.clients)
	for i := range l.clients {
		wg.Go(func() {
			c, err := l.connect()
			connected.Done()
			if err != nil {
				errs[i] = err
				return
			}
			defer c.close()
			<-begin
			errs[i] = l.client(ctx, c, i, start, start.Add(d), &tallies[i])
		})
	}
	connected.Wait()
	start = time.Now().Add(warmUp)
	close(begin)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return sum(tallies, d), nil
}

func sum(tallies []tally, d time.Duration) *rate {
	var all tally
	all.bytes, all.counts = make([]int, len(tallies[0].bytes)), make([]int, len(tallies[0].counts))
	for _, t := range tallies {
		all.messages += t.messages
		all.requests += t.requests
		for i := range t.bytes {
			all.bytes[i] += t.bytes[i]
			all.counts[i] += t.counts[i]
		}
	}
	r := &rate{messages: float64(all.messages) / d.Seconds(), requests: float64(all.requests) / d.Seconds()}
	for i := range all.bytes {
		r.answers = append(r.answers, all.bytes[i]/max(all.counts[i], 1))
	}
	return r
}

// place is one of the requests a client has going.
type place struct {
	request uint32
	step    int // whose answer is awaited
}

// loop is one client at work.
type loop struct {
	c      *client
	flow   *flow
	places []place
	next   uint32 // request number; the client's own in the upper 8 bits
	tally  *tally
}

// connect makes one client and has it answered once: to be let in, which with
// keys takes longer, is nothing of a rate.
func (l *load) connect() (*client, error) {
	c, err := dialWith(l.keys, l.endpoint)
	if err != nil {
		return nil, err
	}
	c.oneFrame = l.oneFrame
	err = c.send(correlation(0, 0), wire.Append(nil, &wire.StatRequest{}))
	if err == nil {
		_, _, err = c.receive()
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (l *load) client(ctx context.Context, c *client, no int, from, to time.Time, t *tally) error {
	f, err := l.flow(c)
	if err != nil {
		return err
	}
	t.bytes, t.counts = make([]int, len(f.steps)), make([]int, len(f.steps))
	r := &loop{c: c, flow: f, places: make([]place, l.window), next: uint32(no) << 24, tally: t}
	for i := range r.places {
		if err := r.begin(i); err != nil {
			return err
		}
	}
	for going := l.window; going > 0; {
		i, answer, err := r.answer()
		if err != nil {
			return err
		}
		now := time.Now()
		last := r.places[i].step == len(f.steps)-1
		if now.After(from) && now.Before(to) {
			r.count(i, len(answer), last)
		}
		switch {
		case !last:
			r.places[i].step++
			err = r.say(i, answer)
		case now.Before(to) && ctx.Err() == nil:
			err = r.begin(i)
		default:
			going--
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *loop) begin(i int) error {
	r.places[i] = place{request: r.next}
	r.next++
	return r.say(i, nil)
}

func (r *loop) say(i int, answer []byte) error {
	p := &r.places[i]
	payload, err := r.flow.steps[p.step](p.request, answer)
	if err != nil {
		return err
	}
	size := 0
	if r.flow.answers != nil {
		size = r.flow.answers[p.step]
	}
	return r.c.send(correlation(i, size), payload)
}

// answer is the next answer and whose it is.
func (r *loop) answer() (place int, payload []byte, err error) {
	c, payload, err := r.c.receive()
	if err != nil {
		return 0, nil, err
	}
	place = placeOf(c)
	if place < 0 || place >= len(r.places) {
		return 0, nil, fmt.Errorf("answer for place %d of %d", place, len(r.places))
	}
	if refused(payload) {
		m, err := wire.Decode(payload)
		return 0, nil, fmt.Errorf("step %d of request %d refused: %+v %v", r.places[place].step, r.places[place].request, m, err)
	}
	return place, payload, nil
}

// refused looks for the field that only a refusal has; decoding each answer
// would cost the client as much as the server.
func refused(payload []byte) bool { return bytes.Contains(payload, []byte("\xa4code")) }

func (r *loop) count(place, bytes int, last bool) {
	step := r.places[place].step
	r.tally.messages++
	r.tally.bytes[step] += bytes
	r.tally.counts[step]++
	if last {
		r.tally.requests++
	}
}
