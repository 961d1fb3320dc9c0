package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const (
	sources     = 4       // files of chunks' bytes
	sourceBytes = 4 << 20 // of each
)

func (w *world) source(i int) string { return filepath.Join(w.dir, "sources", fmt.Sprint(i)) }

// writeSources makes the files. The same seed gives the same bytes.
func (w *world) writeSources() error {
	for _, sub := range []string{"sources", "taken"} {
		if err := os.MkdirAll(filepath.Join(w.dir, sub), 0o700); err != nil {
			return err
		}
	}
	var key [32]byte
	key[0] = byte(w.seed)
	for i := range sources {
		bytes := make([]byte, sourceBytes)
		key[1] = byte(i)
		rand.NewChaCha8(key).Read(bytes)
		w.contents = append(w.contents, bytes)
		if err := os.WriteFile(w.source(i), bytes, 0o600); err != nil {
			return err
		}
	}
	w.disk, _ = newDisk(filepath.Join(w.dir, "sources")) // main has said why not
	return nil
}

// place gives a third of the chunks their bytes from a file. A key has the same
// bytes in every request.
func (w *world) place(c *manifest.Chunk) {
	h := fnv.New64a()
	io.WriteString(h, c.Key)
	if n := h.Sum64(); n%3 == 0 {
		c.File = w.source(int(n / 3 % sources))
		c.Offset = int64(n/64) & 0xffff_ffff % (sourceBytes - int64(w.chunk))
	}
}

// trace has the real programs make a trace and a manifest of it.
func (w *world) trace(seed uint64, prefix string, rnd *rand.Rand) ([]byte, error) {
	made, err := exec.Command(filepath.Join(w.bin, "gentrace"), "--requests", "1000", "--seed", strconv.FormatUint(seed, 10)).Output()
	if err != nil {
		return nil, fmt.Errorf("gentrace: %w", err)
	}
	cmd := exec.Command(filepath.Join(w.bin, "pd-send"), "manifest", "--chunk-size", strconv.Itoa(w.chunk), "--tokens-per-chunk", "4096",
		"--interleave", strconv.Itoa(1+rnd.IntN(16)), "--batch", strconv.Itoa(1+rnd.IntN(4)), "--prefix", prefix)
	cmd.Stdin = bytes.NewReader(made)
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("pd-send manifest: %w", err)
	}
	return list, nil
}

// keepSender has one life of a pd-send after the other, each with a trace of
// its own, until the producers are to end.
func (w *world) keepSender(s *sender) {
	rnd := rand.New(rand.NewPCG(w.seed, 100+uint64(s.index)))
	for w.feeding.Err() == nil {
		if err := w.oneSender(s, rnd); err != nil {
			w.violated("%s: %v", s.name, err)
			return
		}
		select {
		case <-time.After(s.absence()):
		case <-w.feeding.Done():
		}
	}
}

func (w *world) oneSender(s *sender, rnd *rand.Rand) error {
	life := &senderLife{name: s.next(), proxy: s.proxy.index}
	list, err := w.trace(rnd.Uint64N(1000), life.name+"-", rnd)
	if err != nil {
		return err
	}
	args := []string{
		"--name", life.name, "--proxy", s.proxyEndpoint(), "--timeout", sendTimeout.String(),
		"--staging-size", strconv.Itoa((4 + rnd.IntN(12)) * w.chunk), "--batch", strconv.Itoa(1 + rnd.IntN(8)),
	}
	args = append(args, w.keyFlags...)
	for _, r := range w.receivers {
		args = append(args, "--to", s.receiverEndpoint(r))
	}
	program := filepath.Join(w.bin, "pd-send")
	if s.plug != nil {
		program, args = "ip", append([]string{"netns", "exec", s.plug.ns, program}, args...)
	}
	proc, err := start(w.dir, life.name, program, func(text []byte) {
		r, ok := line[result](w.ledger, life.name, text)
		if !ok {
			return
		}
		r.at = time.Now()
		w.add(func() {
			life.results = append(life.results, r)
			q := w.requests[r.ReqID]
			if q == nil || q.by != life {
				w.wrong = append(w.wrong, fmt.Sprintf("%s tells of request %s, which it was not given", life.name, r.ReqID))
				return
			}
			q.results = append(q.results, r)
		})
		if r.Status == "ready" {
			s.proxy.received()
		}
	}, args...)
	if err != nil {
		return err
	}
	w.add(func() { w.ledger.senders = append(w.ledger.senders, life); s.life = life })
	s.leave(0)
	proc.up.Store(true)
	s.set(proc)
	fed := make(chan error, 1)
	go func() { fed <- w.feed(s, life, proc, list, rnd) }()
	select {
	case err = <-fed:
	case <-proc.done:
		err = <-fed
	}
	proc.stdin.Close()
	if !proc.endsWithin(patience) {
		w.violated("%s does not end %v after the end of its input", life.name, patience)
		proc.kill()
		<-proc.done
	}
	s.set(nil)
	w.add(func() { life.how, life.told, life.code = proc.how(), proc.asked.Load(), proc.code() })
	w.say("%s ended %s with code %d", life.name, life.how, life.code)
	return err
}

func (s *sender) receiverEndpoint(r *receiver) string {
	if s.plug != nil {
		return s.plug.endpoint(r.port)
	}
	return s.toRecv[r.index].endpoint()
}

func (s *sender) proxyEndpoint() string {
	if s.plug != nil {
		return s.plug.endpoint(s.proxy.port)
	}
	return s.toTell.endpoint()
}

// feed writes a manifest into a sender's pipe as a serving engine would: in time
// with others, some requests never finished, some cancelled, some impossible.
func (w *world) feed(s *sender, life *senderLife, proc *process, list []byte, rnd *rand.Rand) error {
	mean := float64(time.Second) * float64(len(w.senders)) / w.rate
	until := time.Now().Add(senderLasts/2 + time.Duration(rnd.Int64N(int64(senderLasts))))
	skip := map[string]bool{} // no more lines of these
	due := time.Now()
	for r := manifest.NewReader(bytes.NewReader(list), life.name); ; {
		l, err := r.Next()
		if err == io.EOF || w.feeding.Err() != nil || proc.ended() || time.Now().After(until) {
			return nil
		}
		if err != nil {
			return err
		}
		b := l.Batch
		if skip[b.ReqID] {
			continue
		}
		b.At = 0
		q := w.requestOf(life, b, rnd)
		if !q.begun {
			due = due.Add(time.Duration(rnd.ExpFloat64() * mean))
			due = w.wait(s, due)
		}
		b.Total, b.To = q.total, q.to
		for i := range b.Chunks {
			w.place(&b.Chunks[i])
		}
		w.add(func() { q.chunks = append(q.chunks, b.Chunks...) })
		text := manifest.AppendLine(nil, b)
		switch n := rnd.IntN(200); {
		case n < 6:
			text = fmt.Appendf(text, `{"cancel":%q}`+"\n", b.ReqID)
			w.add(func() { q.cancelled = true })
			skip[b.ReqID] = true
		case n < 8:
			skip[b.ReqID] = true // its end never comes
		}
		if _, err := proc.stdin.Write(text); err != nil {
			if proc.doomed.Load() || proc.asked.Load() || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("%s takes no more input: %w", proc.name, err)
		}
		w.add(func() { q.begun = true })
	}
}

// requestOf finds or notes the request of a line.
func (w *world) requestOf(life *senderLife, b *manifest.Batch, rnd *rand.Rand) *request {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.requests[b.ReqID]
	if q == nil {
		q = &request{id: b.ReqID, by: life, to: rnd.IntN(len(w.receivers)), total: b.Total}
		if rnd.IntN(300) == 0 {
			q.total = 1 << 20 // can never be admitted
		}
		w.requests[b.ReqID] = q
	}
	return q
}

// wait is for the time at which the next request is due, or later when the
// producer is to be slow.
func (w *world) wait(s *sender, due time.Time) time.Time {
	w.add(func() {
		if s.slow.After(due) {
			due = s.slow
		}
	})
	if now := time.Now(); due.Before(now) {
		return now // what was missed is not made up for
	}
	select {
	case <-time.After(time.Until(due)):
	case <-w.feeding.Done():
	}
	return due
}
