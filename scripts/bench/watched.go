package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/usage"
)

const (
	subscribers = 20
	stopped     = 5 // of them, by SIGSTOP
)

// watched compares a receiver that twenty subscribers watch, of which five do
// not read, with one that nobody watches.
func (b *bench) watched() error {
	b.table.note("watched: %d subscribers, %d of them stopped; the reference is a receiver that nobody watches.", subscribers, stopped)
	if err := b.watchedControl(); err != nil {
		return err
	}
	return b.watchedCrowd()
}

// watchedControl takes two receivers and watches now the one and then the
// other: two processes of one program are seldom equally fast.
func (b *bench) watchedControl() error {
	var recvs [2]*process
	var endpoints [2]string
	for i := range recvs {
		var err error
		if recvs[i], endpoints[i], err = b.receiver(controlSlots, chunkSize); err != nil {
			return err
		}
		defer recvs[i].stop()
	}
	rows := make([]*row, len(controlLoads))
	for i, l := range controlLoads {
		rows[i] = b.table.row(perSecond, atLeast(0.85), "watched: %s, 8 keys", l.name)
	}
	for i := range recvs {
		if err := b.watchOne(recvs[i], recvs[1-i], endpoints[i], endpoints[1-i], rows); err != nil {
			return err
		}
	}
	for _, r := range rows {
		b.say("%v", r)
	}
	return nil
}

// watchOne fills half of the rows.
func (b *bench) watchOne(recv, other *process, ours, unwatched string, rows []*row) error {
	a, err := b.watch(recv)
	if err != nil {
		return err
	}
	defer a.stop()
	var first []float64
	for i, l := range controlLoads {
		at := func(endpoint string) (*rate, error) {
			l := load{endpoint, l.clients, l.window, nil, false, func(c *client) (*flow, error) {
				steps, err := allocRelease(8)(c)
				return &flow{steps: steps}, err
			}}
			return l.run(b.ctx, pick(b, 150*time.Millisecond, 50*time.Millisecond))
		}
		for round := range pick(b, 20, 1) {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			got, want, err := inTurn(round, func() (*rate, error) { return at(ours) }, func() (*rate, error) { return at(unwatched) })
			if err != nil {
				return err
			}
			rows[i].add(got.messages, want.messages)
		}
		if i == 0 {
			if first, err = resident(recv, other); err != nil {
				return err
			}
		}
	}
	last, err := resident(recv, other)
	if err != nil {
		return err
	}
	b.table.note("watched: resident memory of pd-recv from the first load to the last: watched %.1f to %.1f MiB, unwatched %.1f to %.1f MiB.",
		first[0], last[0], first[1], last[1])
	return a.tell(b)
}

// watchedCrowd measures what watching 5,000 requests costs.
func (b *bench) watchedCrowd() error {
	n := pick(b, 5000, 100)
	crowds := make([]*crowd, 2)
	for i := range crowds {
		c, err := b.gather(n)
		if c != nil {
			defer c.stop()
		}
		if err != nil {
			return err
		}
		crowds[i] = c
	}
	a, err := b.watch(crowds[0].recv)
	if err != nil {
		return err
	}
	defer a.stop()
	// The mean counts the trips that came while a Snapshot was built.
	row := b.table.row(microseconds, atMost(1.5), "watched: a bystander's heartbeat while %d wait", n)
	for range pick(b, 21, 1) {
		var took [2]float64
		for i, c := range crowds {
			if took[i], err = meanTrip(b, c); err != nil {
				return err
			}
		}
		row.add(took[0], took[1])
	}
	b.say("%v", row)
	spent, err := b.idle(crowds, pick(b, 10*time.Second, 200*time.Millisecond))
	if err != nil {
		return err
	}
	b.table.note("watched: with %d requests waiting and nothing else to do pd-recv takes %s of a core, %s when nobody watches.", n,
		ofACore(spent[0]), ofACore(spent[1]))
	return a.tell(b)
}

// meanTrip is in microseconds, over a second or so: a Snapshot as long is made
// once in that.
func meanTrip(b *bench, c *crowd) (float64, error) {
	began, n := time.Now(), 0
	for end := began.Add(pick(b, 500*time.Millisecond, 20*time.Millisecond)); time.Now().Before(end); n++ {
		if err := c.heartbeat(); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(began).Microseconds()) / float64(n), nil
}

// audience is the subscribers of one receiver.
type audience struct {
	workers []*worker
	since   time.Time
}

// watch attaches the subscribers and stops some, when all have something.
func (b *bench) watch(recv *process) (*audience, error) {
	line, err := recv.firstLine()
	if err != nil {
		return nil, err
	}
	var first struct{ Monitor string }
	if err := json.Unmarshal(line, &first); err != nil || first.Monitor == "" {
		return nil, fmt.Errorf("pd-recv publishes nothing: %.200q", line)
	}
	a := &audience{}
	for range subscribers {
		w, err := b.worker("subscriber")
		if err != nil {
			a.stop()
			return nil, err
		}
		a.workers = append(a.workers, w)
		if err := w.say(first.Monitor); err != nil {
			a.stop()
			return nil, err
		}
	}
	for _, w := range a.workers {
		var got received
		if err := w.hear(&got); err != nil {
			a.stop()
			return nil, err
		}
	}
	for _, w := range a.workers[:stopped] {
		if err := w.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			a.stop()
			return nil, err
		}
	}
	a.since = time.Now()
	return a, nil
}

// tell says what one that reads has got.
func (a *audience) tell(b *bench) error {
	w := a.workers[len(a.workers)-1]
	var got received
	if err := w.say(""); err != nil {
		return err
	}
	if err := w.hear(&got); err != nil {
		return err
	}
	took := time.Since(a.since).Seconds()
	b.say("a subscriber got %.1f messages and %.2f MB a second, at most %d messages in one", float64(got.Messages)/took, float64(got.Bytes)/took/1e6, got.Most)
	if got.Most > 10 {
		return fmt.Errorf("a subscriber got %d messages in a second, more than 10", got.Most)
	}
	return nil
}

func (a *audience) stop() {
	for _, w := range a.workers {
		w.cmd.Process.Signal(syscall.SIGCONT)
		w.stop()
	}
}

// received is what a subscriber answers: what it has got so far.
type received struct {
	Messages int
	Bytes    int
	Most     int // messages in a second
}

// subscriber subscribes to the endpoint of the first line and answers each line
// with what it got, the first when there is something.
func subscriber(stdin io.Reader, stdout io.Writer) error {
	lines := bufio.NewScanner(stdin)
	if !lines.Scan() {
		return errors.New("no endpoint")
	}
	s, err := zmq4.NewSocket(zmq4.SUB)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SetSubscribe(""), s.SetLinger(0), s.Connect(lines.Text())); err != nil {
		return err
	}
	asked := make(chan struct{}, 1)
	asked <- struct{}{}
	go func() {
		for lines.Scan() {
			asked <- struct{}{}
		}
		os.Exit(0)
	}()
	if err := s.SetRcvtimeo(50 * time.Millisecond); err != nil {
		return err
	}
	var got received
	var lately []time.Time
	for {
		m, err := s.RecvBytes(0)
		if now := time.Now(); err == nil {
			got.Messages++
			got.Bytes += len(m)
			lately = append(lately, now)
			for now.Sub(lately[0]) >= time.Second {
				lately = lately[1:]
			}
			got.Most = max(got.Most, len(lately))
		}
		if got.Messages == 0 {
			continue
		}
		select {
		case <-asked:
			if err := json.NewEncoder(stdout).Encode(&got); err != nil {
				return err
			}
		default:
		}
	}
}

// resident is the resident memory of processes, MiB.
func resident(of ...*process) ([]float64, error) {
	var sizes []float64
	for _, p := range of {
		u, err := usage.Of(p.cmd.Process.Pid)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, float64(u.Resident())/(1<<20))
	}
	return sizes, nil
}
