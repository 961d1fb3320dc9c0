// Package proxy collects the notifications of senders and receivers and tells
// which requests are ready. It knows nothing of buffers, slots or chunks. Tally
// decides what a notification means; Run is the socket around it: one
// goroutine that owns both. Receivers are asked for what was not notified
// (recover.go), each by a goroutine of its own.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/monitor"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	// maxFrame is the largest notification taken, bytes: a req_id and a reason.
	maxFrame = 64 << 10
	// recvQueue is how many notifications ZeroMQ keeps for us, a peer.
	recvQueue = 256
	// batch is how many notifications are read before the loop looks up.
	batch = 1024
	// defaultQuiet is how long nothing must come for all that has arrived to be
	// read: ZeroMQ moves it from the kernel to its queue piece by piece.
	defaultQuiet = 100 * time.Millisecond
	// defaultDrain bounds the reading at the end, however much keeps coming.
	defaultDrain = 3 * time.Second
)

// ErrTimeout is what Run returns when Config.Timeout has passed.
var ErrTimeout = errors.New("time is up")

// Config says what Run does. Its functions must not block.
type Config struct {
	Listen  string
	Keys    *sock.Keys    // of all sockets; may be nil
	Expect  int           // notifications of a request until it is ready, at least 1
	Count   int           // end after so many requests; 0: go on
	Timeout time.Duration // end with ErrTimeout; 0: never
	Recover []string      // receivers that are asked what is ready

	Listening func(endpoint string)   // called once, when peers can connect
	Tell      func(Outcome)           // called for each request as it ends
	Warn      func(kind, text string) // for people; a peer can cause as many as it likes
	Note      func(text string)       // for people, from any goroutine: what becomes of those in Recover

	Asks  *monitor.Asks // if any, are answered with a *wire.ProxySnapshot
	ID    string        // of this instance, for snapshots
	Epoch uint64        // the same

	quiet, drain time.Duration // tests: instead of defaultQuiet and defaultDrain
	askEvery     time.Duration // tests: instead of defaultAskEvery
}

// Summary is what Run did.
type Summary struct {
	Counters
	Pending int // requests that wait for more notifications
}

func (s Summary) String() string {
	ready := fmt.Sprintf("%d ready", s.Ready)
	if s.Recovered > 0 {
		ready += fmt.Sprintf(" (%d recovered)", s.Recovered)
	}
	text := fmt.Sprintf("%s, %d failed, %d pending, %d duplicates, %d late failures, %d forgotten, %d bad frames",
		ready, s.Failed, s.Pending, s.Duplicates, s.LateFailures, s.Forgotten, s.BadFrames)
	if s.Refused > 0 {
		text += fmt.Sprintf(", peers refused %d times", s.Refused)
	}
	return text
}

// Run collects until ctx is done, Count requests have ended or Timeout has
// passed. Then it reads what has arrived, so that no notification that was
// handed to it is lost: more than Count requests may be told.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	zctx, err := sock.NewContext(cfg.Keys)
	if err != nil {
		return Summary{}, err
	}
	defer zctx.Close()
	c, err := open(zctx, cfg)
	if err != nil {
		return Summary{}, err
	}
	defer c.close()
	cfg.Listening(c.endpoint)

	if cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cfg.Timeout, ErrTimeout)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, c.poller.Wake)
	defer stop()
	err = c.collectAndAsk(ctx)
	if err == nil {
		err = c.drain()
	}
	if err == nil && !c.full() && context.Cause(ctx) == ErrTimeout {
		err = ErrTimeout
	}
	return c.summary(), err
}

// collector owns the socket.
type collector struct {
	cfg      Config
	ctx      *sock.Context
	socket   *zmq4.Socket
	endpoint string
	poller   *sock.Poller
	tally    *Tally
	pages    chan page // one at a time; with each the loop is woken
	started  time.Time
}

func open(zctx *sock.Context, cfg Config) (*collector, error) {
	if cfg.quiet == 0 {
		cfg.quiet, cfg.drain = defaultQuiet, defaultDrain
	}
	if cfg.askEvery == 0 {
		cfg.askEvery = defaultAskEvery
	}
	c := &collector{cfg: cfg, ctx: zctx, tally: NewTally(cfg.Expect), pages: make(chan page, 1), started: time.Now()}
	var err error
	if c.poller, err = sock.NewPoller(); err != nil {
		return nil, err
	}
	if c.socket, c.endpoint, err = zctx.Listen(zmq4.PULL, cfg.Listen, sock.Options{MaxFrame: maxFrame, RecvQueue: recvQueue}); err == nil {
		if err = c.poller.Watch(c.socket, zmq4.POLLIN); err != nil {
			c.socket.Close()
		}
	}
	if err != nil {
		c.poller.Close()
		return nil, err
	}
	if cfg.Asks != nil {
		cfg.Asks.WakeBy(c.poller.Wake)
	}
	return c, nil
}

func (c *collector) close() {
	c.poller.Close()
	c.socket.Close()
}

// collectAndAsk collects while the receivers are asked. What they say after the
// end is not heard: it stays ready there.
func (c *collector) collectAndAsk(ctx context.Context) error {
	// A context of their own: it is ctx itself that wakes the loop when it ends.
	asking, cancel := context.WithCancel(ctx)
	wait := startAskers(asking, &c.cfg, func(ctx context.Context, p page) {
		select {
		case c.pages <- p:
			c.poller.Wake()
		case <-ctx.Done():
		}
	})
	defer wait()
	defer cancel()
	return c.collect(ctx)
}

func (c *collector) collect(ctx context.Context) error {
	for ctx.Err() == nil && !c.full() {
		if _, err := c.turn(-1); err != nil {
			return err
		}
	}
	return nil
}

// turn waits until something has come, or somebody has woken it, and handles
// it, of pages one. It says how many notifications that were.
func (c *collector) turn(wait time.Duration) (int, error) {
	if _, err := c.poller.Wait(wait); err != nil {
		return 0, err
	}
	n, err := c.readBatch()
	select {
	case p := <-c.pages:
		c.hear(p)
	default:
	}
	if err == nil && c.cfg.Asks != nil {
		c.cfg.Asks.Answer(time.Now(), c.snapshot)
	}
	return n, err
}

// full says whether Count requests have ended.
func (c *collector) full() bool {
	return c.cfg.Count > 0 && c.tally.Counters.Ready+c.tally.Counters.Failed >= int64(c.cfg.Count)
}

// drain reads until nothing comes any more. New peers are heard, too: ZeroMQ's
// unbind would cut the connections there are.
func (c *collector) drain() error {
	now := time.Now()
	end, quiet := now.Add(c.cfg.drain), now.Add(c.cfg.quiet)
	for {
		n, err := c.turn(max(quiet.Sub(now), 0))
		if err != nil {
			return err
		}
		// Reading comes before the look at the clock: what came while we were
		// stopped has arrived, too. To be woken for nothing is not to have read.
		now = time.Now()
		switch {
		case n > 0 && !now.Before(end), n == 0 && !now.Before(quiet):
			return nil
		case n > 0:
			quiet = now.Add(c.cfg.quiet)
		}
	}
}

// readBatch handles what is there, up to a bound, and says how much it was.
func (c *collector) readBatch() (int, error) {
	for n := range batch {
		frames, err := c.ctx.Recv(c.socket, 2)
		switch {
		case errors.Is(err, sock.ErrAgain):
			return n, nil
		case err != nil && !errors.Is(err, sock.ErrFrames):
			return n, err
		}
		c.handle(frames, err)
	}
	return batch, nil
}

func (c *collector) handle(frames [][]byte, framing error) {
	m, err := decode(frames, framing)
	if err != nil {
		c.tally.BadFrames++
		c.cfg.Warn("bad frames", fmt.Sprintf("bad frame: %v", err))
		return
	}
	c.act(c.book(m))
}

// hear books what a receiver said is ready.
func (c *collector) hear(p page) {
	if p.anew {
		c.cfg.Note(fmt.Sprintf("receiver %s was started anew", c.cfg.Recover[p.source]))
		c.tally.Lost(p.source)
	}
	for _, e := range p.entries {
		c.act(c.tally.Found(time.Now().UTC(), e.ReqID, p.source))
	}
}

// act tells what a notification, or what was found, has done.
func (c *collector) act(o Outcome, effect Effect) {
	switch effect {
	case Ended:
		c.cfg.Tell(o)
	case Forgetful:
		c.cfg.Warn("forgotten", fmt.Sprintf("%d requests wait for more notifications: forgot the oldest", c.tally.Pending()))
	case LateFailure:
		c.cfg.Warn("late failures", fmt.Sprintf("%s failed after it was told as ready: %s", o.ReqID, o.Reason))
	}
}

func (c *collector) book(m wire.Message) (Outcome, Effect) {
	now := time.Now().UTC()
	if fail, ok := m.(*wire.FailNotif); ok {
		return c.tally.Failed(now, fail.ReqID, fail.Reason)
	}
	return c.tally.Ready(now, m.(*wire.ProxyNotif).ReqID)
}

// decode takes a notification as one frame, or behind one empty frame, which
// some senders put in front.
func decode(frames [][]byte, framing error) (wire.Message, error) {
	if framing != nil {
		return nil, framing
	}
	if len(frames) == 2 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) != 1 {
		return nil, fmt.Errorf("message of %d frames, want 1", len(frames))
	}
	m, err := wire.Decode(frames[0])
	if err != nil {
		return nil, fmt.Errorf("%d bytes: %w", len(frames[0]), err)
	}
	if err := check(m); err != nil {
		return nil, err
	}
	return m, nil
}

// check says what makes a message no notification.
func check(m wire.Message) error {
	var reqID string
	switch m := m.(type) {
	case *wire.ProxyNotif:
		reqID = m.ReqID
	case *wire.FailNotif:
		reqID = m.ReqID
	default:
		return fmt.Errorf("%s is no notification", strings.TrimPrefix(fmt.Sprintf("%T", m), "*wire."))
	}
	if reqID == "" {
		return errors.New("req_id is empty")
	}
	return nil
}

func (c *collector) summary() Summary {
	return Summary{Counters: c.counters(), Pending: c.tally.Pending()}
}

func (c *collector) counters() Counters {
	n := c.tally.Counters
	n.Refused = c.cfg.Keys.Refused()
	return n
}

// snapshot is the state of now, for those who asked.
func (c *collector) snapshot() wire.Message {
	now := time.Now()
	s := &wire.ProxySnapshot{
		Time:     wire.StampOf(now),
		Kind:     wire.KindProxy,
		ID:       c.cfg.ID,
		Epoch:    c.cfg.Epoch,
		Endpoint: c.endpoint,
		UptimeS:  now.Sub(c.started).Seconds(),
		Expect:   c.cfg.Expect,
		Pending:  c.tally.Pending(),
		Waiting:  []wire.ProxyRequest{},
		Counters: c.counters(),
	}
	for id, p := range c.tally.pending.all() {
		if len(s.Waiting) == wire.MaxSnapshotList {
			break
		}
		s.Waiting = append(s.Waiting, wire.ProxyRequest{ReqID: id, Notifs: p.known(), AgeMS: now.Sub(p.since).Milliseconds()})
	}
	return s
}
