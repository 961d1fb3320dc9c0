package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	askTimeout   = 2 * time.Second
	giveUpAfter  = 20 * time.Second // a request that cannot be had
	byProcess    = 40               // one request in so many is taken by pd-recv take
	takeProgress = 10 * time.Second
)

// decoders take what is ready at one receiver, compare each byte with what was
// to be sent, and release it.
type decoders struct {
	w    *world
	r    *receiver
	work sync.WaitGroup

	mu    sync.Mutex
	news  *sync.Cond
	queue []string
	ended bool

	// What faults ask of the next take.
	slow  time.Duration
	die   int
	kill  int
	grace time.Duration
}

func newDecoders(w *world, r *receiver) *decoders {
	d := &decoders{w: w, r: r}
	d.news = sync.NewCond(&d.mu)
	return d
}

func (d *decoders) start() {
	if d.r.sink {
		return
	}
	for i := range d.r.receiverConfig.decoders {
		d.work.Go(func() { d.run(rand.New(rand.NewPCG(d.w.seed, 1000+uint64(i)))) })
	}
}

func (d *decoders) stop() {
	d.change(func() { d.ended = true })
	d.work.Wait()
}

func (d *decoders) change(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
	d.news.Broadcast()
}

func (d *decoders) add(id string) { d.change(func() { d.queue = append(d.queue, id) }) }

// over says whether all is to end at once.
func (w *world) over() bool { return w.living.Err() != nil }

func (d *decoders) next() (id string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) == 0 && !d.ended {
		d.news.Wait()
	}
	if len(d.queue) == 0 || d.w.over() {
		return "", false
	}
	id, d.queue = d.queue[0], d.queue[1:]
	return id, true
}

// decode has a request taken that a proxy told of.
func (w *world) decode(id string) {
	var q *request
	again := false // another proxy told of it, or another life
	w.ledger.add(func() {
		if q = w.requests[id]; q != nil {
			again, q.queued = q.queued, true
		}
	})
	if q != nil && !again && q.total > 0 && !w.receivers[q.to].sink {
		w.receivers[q.to].decoders.add(id)
	}
}

// mood is what a decoder is to do with a request.
type mood struct {
	slow      time.Duration
	die, kill bool
	grace     time.Duration
}

func (d *decoders) mood() (m mood) {
	d.change(func() {
		m.slow, d.slow = d.slow, 0
		switch {
		case d.die > 0:
			d.die--
			m.die = true
		case d.kill > 0:
			d.kill--
			m.kill, m.grace = true, d.grace
		}
	})
	return m
}

func (d *decoders) run(rnd *rand.Rand) {
	var conn *client.Conn
	for {
		id, ok := d.next()
		if !ok {
			break
		}
		if conn == nil {
			var err error
			if conn, err = client.Dial(endpoint(d.r.port), d.w.keys); err != nil {
				d.w.violated("a decoder of %s: %v", d.r.name, err)
				return
			}
		}
		m := d.mood()
		switch {
		case m.kill:
			d.killed(id, m.grace)
		case !m.die && rnd.IntN(byProcess) == 0 && d.byProcess(id):
		default:
			if died := d.take(conn, id, m); died {
				conn.Close()
				conn = nil
			}
		}
		time.Sleep(d.r.pause)
	}
	if conn != nil {
		conn.Close()
	}
}

// take takes, compares and releases one request, and keeps trying while the
// receiver does not answer. It reports whether the decoder is to die before.
func (d *decoders) take(conn *client.Conn, id string, m mood) (died bool) {
	var q *request
	d.w.ledger.add(func() { q = d.w.requests[id]; q.releases = true })
	for deadline := time.Now().Add(giveUpAfter); time.Now().Before(deadline) && !d.w.over(); {
		asked := time.Now()
		taken, err := ask(func(ctx context.Context) (*wire.TakeResponse, error) { return conn.Take(ctx, id) })
		var no *client.Refused
		switch {
		case errors.As(err, &no) && no.Code == wire.CodeTaken:
			time.Sleep(lease / 10) // by a decoder that died
			continue
		case errors.As(err, &no):
			d.w.ledger.add(func() { q.refused = append(q.refused, refusal{string(no.Code), time.Now()}) })
			return false
		case err != nil: // stopped, or between two lives
			continue
		}
		if m.die {
			d.w.say("a decoder of %s dies while it takes %s", d.r.name, id)
			d.add(id)
			return true
		}
		if m.slow > 0 {
			time.Sleep(m.slow)
			m.slow = 0
			if time.Since(asked) > lease/2 {
				continue // the take is anew
			}
		}
		switch bad, err := d.compare(taken, q); {
		case time.Since(asked) > lease:
			continue // it was not ours any more: what lay there says nothing
		case err != nil:
			if !d.mayBeGone(q) {
				d.w.say("%s: request %s cannot be read: %v", d.r.name, id, err)
			}
			time.Sleep(lease / 20)
			continue
		case bad != "":
			d.w.violated("%s: request %s was ready, and %s", d.r.name, id, bad)
			return false
		}
		if d.release(conn, q, asked) {
			return false
		}
	}
	d.w.say("%s: request %s was given up", d.r.name, id)
	return false
}

func ask[T any](do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	return do(ctx)
}

// release reports whether there is nothing more to do.
func (d *decoders) release(conn *client.Conn, q *request, asked time.Time) bool {
	_, err := ask(func(ctx context.Context) (struct{}, error) { return struct{}{}, conn.Release(ctx, q.id) })
	var no *client.Refused
	if errors.As(err, &no) {
		// "While it lasts only that connection releases it and nothing else ends it."
		if time.Since(asked) < lease && !d.mayBeGone(q) {
			d.w.violated("%s: request %s was taken and cannot be released %v after that: %v", d.r.name, q.id, time.Since(asked), no)
		}
		d.w.ledger.add(func() { q.refused = append(q.refused, refusal{string(no.Code), time.Now()}) })
	}
	return err == nil || no != nil
}

// mayBeGone says whether the life of the receiver in which it was ready may be
// over.
func (d *decoders) mayBeGone(q *request) bool {
	p := d.r.current()
	if p == nil || p.ended() || p.doomed.Load() || p.asked.Load() {
		return true
	}
	d.w.ledger.mu.Lock()
	defer d.w.ledger.mu.Unlock()
	for _, e := range d.r.life.events {
		if e.ReqID == q.id && e.Event == "ready" {
			return false
		}
	}
	return true
}

// compare says what is wrong with a taken request, if anything is.
func (d *decoders) compare(taken *wire.TakeResponse, q *request) (bad string, err error) {
	at := rdma.Attachment{ReceiverID: taken.ReceiverID, Token: taken.Token, SlotSize: taken.SlotSize, Slots: int(taken.SlotCount)}
	for _, region := range taken.Regions {
		at.Regions = append(at.Regions, rdma.Region{ID: int(region.ID), Desc: region.Desc})
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	memory, err := shm.OpenReader(ctx, at)
	if err != nil {
		return "", err
	}
	defer memory.Close()
	if len(taken.Chunks) != len(q.chunks) {
		return fmt.Sprintf("has %d chunks, not %d", len(taken.Chunks), len(q.chunks)), nil
	}
	var all int64
	for i := range q.chunks {
		got, want := &taken.Chunks[i], &q.chunks[i]
		if got.Key != want.Key || got.Length != want.Length {
			return fmt.Sprintf("chunk %d is %q of %d bytes, not %q of %d", i, got.Key, got.Length, want.Key, want.Length), nil
		}
		slot, err := memory.Slot(int(got.Region), int(got.Slot))
		if err != nil {
			return "", err
		}
		buf, err := d.w.bytesOf(want)
		if err != nil {
			return "", err
		}
		if !bytes.Equal(buf, slot[:got.Length]) {
			return fmt.Sprintf("the bytes of chunk %d (%q, slot %d, region %d) are not its own", i, got.Key, got.Slot, got.Region), nil
		}
		all += got.Length
	}
	d.w.compared(all)
	return "", nil
}

func (w *world) compared(bytes int64) {
	w.ledger.add(func() { w.bytes += bytes; w.takes++ })
}

// bytesOf are what a chunk should have.
func (w *world) bytesOf(c *manifest.Chunk) ([]byte, error) {
	buf := make([]byte, c.Length)
	if c.File == "" {
		manifest.Pattern(buf, c.Key)
		return buf, nil
	}
	i, err := strconv.Atoi(filepath.Base(c.File))
	if err == nil {
		copy(buf, w.contents[i][c.Offset:])
	}
	return buf, err
}

// byProcess has pd-recv take write a request to a file, and compares that. It
// reports whether it did.
func (d *decoders) byProcess(id string) bool {
	q, name := d.toFile(id)
	ctx, cancel := context.WithTimeout(context.Background(), takeProgress)
	defer cancel()
	defer os.Remove(name)
	said, err := exec.CommandContext(ctx, filepath.Join(d.w.bin, "pd-recv"), d.takeArgs(name, id)...).CombinedOutput()
	got, there := os.ReadFile(name)
	if err != nil {
		if there == nil && !bytes.Contains(said, []byte("not released")) {
			d.w.violated("pd-recv take of request %s failed (%v) and left a file: %s", id, err, said)
		}
		return false
	}
	var want []byte
	for i := range q.chunks {
		part, err := d.w.bytesOf(&q.chunks[i])
		if err != nil {
			d.w.violated("%v", err)
		}
		want = append(want, part...)
	}
	if !bytes.Equal(got, want) {
		d.w.violated("pd-recv take of request %s: %d bytes are not the %d that were sent", id, len(got), len(want))
	}
	d.w.compared(int64(len(want)))
	return true
}

func (d *decoders) takeArgs(name, id string) []string {
	args := append([]string{"take", "-o", name}, d.w.keyFlags...)
	return append(args, endpoint(d.r.port), id)
}

func (d *decoders) toFile(id string) (q *request, name string) {
	d.w.ledger.add(func() { q = d.w.requests[id]; q.releases = true })
	return q, filepath.Join(d.w.dir, "taken", id)
}

// killed has pd-recv take write to a pipe that nobody reads, and kills it.
func (d *decoders) killed(id string, grace time.Duration) {
	_, name := d.toFile(id)
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		d.w.violated("%v", err)
		return
	}
	defer os.Remove(name)
	cmd := exec.Command(filepath.Join(d.w.bin, "pd-recv"), d.takeArgs(name, id)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		d.w.violated("%v", err)
		return
	}
	time.Sleep(100*time.Millisecond + grace)
	cmd.Process.Kill()
	cmd.Wait()
	d.add(id)
}
