// Package plan answers how large a buffer must be. It replays a trace or a
// manifest against the admission core of pd-recv, internal/reservation, in
// virtual time: it decides nothing of its own, it only plays the senders, their
// links and the decoder. No goroutine, socket or clock is in it, so that the
// same load always gives the same numbers.
//
// Read a Load, then Run it under a Policy with so many slots; Smallest looks for
// the smallest buffer that meets a target.
package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/wire"
)

// Load is what senders send. It does not change: several runs may share it.
type Load struct {
	requests []*request
	arrivals []arrival // of all batches, in the order of the input

	Kind       string // trace or manifest
	ChunkBytes int64  // of a full chunk: the size of a slot
	Largest    int    // chunks of the largest request
	Chunks     int    // of all requests, shared ones included
	Cancels    int    // lines of a manifest that cancel a request; they are left out
	Empty      int    // requests without a chunk, which never reach a receiver; left out
	Outputs    bool   // it says how many tokens each request decodes
}

// Requests is how many there are.
func (l *Load) Requests() int { return len(l.requests) }

type request struct {
	id      string
	number  int
	total   int   // chunks
	bytes   int64 // of the chunks
	tokens  int64
	output  int64 // tokens decoded
	batches []*wire.AllocRequest
}

// arrival is when the sender has a batch: its line is read then.
type arrival struct {
	of    *request
	batch int
	at    float64 // seconds, as the line says; 0: with the line before
}

// Options of Read.
type Options struct {
	BytesPerToken  int64
	TokensPerChunk int64
	Batch          int // chunks a batch, at most
	Limit          int // requests of a trace; 0: all
}

// Check says what is wrong with the size of a chunk.
func (o *Options) Check() error {
	if o.BytesPerToken < 1 || o.TokensPerChunk < 1 || o.BytesPerToken > maxChunk/o.TokensPerChunk {
		return fmt.Errorf("a chunk of %d tokens of %d bytes: must have 1 byte to %d", o.TokensPerChunk, o.BytesPerToken, int64(maxChunk))
	}
	return nil
}

// Read reads a manifest or a Mooncake trace, whichever its first record is.
// Name stands for the input in errors.
func Read(r io.Reader, name string, o Options) (*Load, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(r, 64<<10)
	trace, err := isTrace(in)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	b := &builder{load: &Load{Kind: "manifest"}, opt: o, open: map[string]*request{}}
	if trace {
		b.load.Kind, b.load.Outputs, b.load.ChunkBytes = "trace", true, o.BytesPerToken*o.TokensPerChunk
		err = manifest.ReadTrace(in, name, manifest.Options{
			ChunkSize: b.load.ChunkBytes, TokensPerChunk: o.TokensPerChunk, Batch: o.Batch, Interleave: 1, Limit: o.Limit, Prefix: "r",
		}, func(line *manifest.Batch, output int64) error { return b.add(line, output) })
	} else {
		err = b.manifest(in, name)
	}
	if err != nil {
		return nil, err
	}
	return b.finish(name)
}

// maxChunk bounds a chunk so that sums of many stay in an int64.
const maxChunk = 1 << 40

// isTrace looks at the first record without reading it.
func isTrace(in *bufio.Reader) (bool, error) {
	for skip := 0; ; {
		head, err := in.Peek(in.Size())
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		rest := head[skip:]
		line, _, whole := bytes.Cut(rest, []byte("\n"))
		trimmed := bytes.TrimSpace(line)
		if len(trimmed) > 0 && trimmed[0] != '#' || !whole {
			return hasField(trimmed, "timestamp") || hasField(trimmed, "hash_ids"), nil
		}
		skip += len(line) + 1
	}
}

// hasField looks for a field's name in what may be the beginning of an object
// only.
func hasField(text []byte, name string) bool {
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, _ := dec.Token(); open != json.Delim('{') {
		return false
	}
	for dec.More() {
		field, err := dec.Token()
		if err != nil {
			return false
		}
		if field == name {
			return true
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return false
		}
	}
	return false
}

// builder makes a Load of lines.
type builder struct {
	load   *Load
	opt    Options
	tracks manifest.Tracker
	open   map[string]*request // requests whose last line has not come
	done   map[string]bool
}

func (b *builder) manifest(in io.Reader, name string) error {
	b.done = map[string]bool{}
	r := manifest.NewReader(in, name)
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.unfinished(name)
		}
		if err == nil {
			err = b.tracks.Check(line)
		}
		if err != nil {
			return err
		}
		if line.Batch == nil {
			b.load.Cancels++
			continue
		}
		fail := func(format string, args ...any) error {
			return &manifest.LineError{File: line.File, No: line.No, ReqID: line.Batch.ReqID, Err: fmt.Errorf(format, args...)}
		}
		switch {
		case line.Batch.To > 0:
			return fail("is for receiver %d: plan has one buffer: give it the lines of one receiver, without `to`", line.Batch.To)
		case b.done[line.Batch.ReqID]:
			return fail("has ended on an earlier line: give it another req_id")
		case b.opt.Limit > 0 && b.open[line.Batch.ReqID] == nil && len(b.load.requests) == b.opt.Limit:
			continue
		}
		for _, piece := range manifest.Split(line.Batch, b.opt.Batch) {
			if err := b.add(&piece, 0); err != nil {
				return fail("%w", err)
			}
		}
		if line.Batch.Last {
			b.tracks.End(line.Batch.ReqID)
			b.done[line.Batch.ReqID] = true
		}
	}
}

func (b *builder) unfinished(name string) error {
	for _, q := range b.load.requests { // the first by order, not by map
		if b.open[q.id] != nil {
			return fmt.Errorf("%s ends before request %q does: %d of its lines have come and none says last", name, q.id, len(q.batches))
		}
	}
	return nil
}

func (b *builder) add(line *manifest.Batch, output int64) error {
	l := b.load
	if line.Total == 0 {
		l.Empty++
		return nil
	}
	if line.Total > maxTotal {
		return fmt.Errorf("total_chunks %d: plan takes %d at most", line.Total, maxTotal)
	}
	q := b.open[line.ReqID]
	if q == nil {
		q = &request{id: line.ReqID, number: len(l.requests), total: int(line.Total), output: output}
		b.open[q.id] = q
		l.requests = append(l.requests, q)
		l.Largest = max(l.Largest, q.total)
		l.Chunks += q.total
	}
	if line.Last {
		delete(b.open, q.id)
	}
	for _, c := range line.Chunks {
		if c.Length > maxChunk {
			return fmt.Errorf("a chunk of %d bytes: plan takes %d at most", c.Length, int64(maxChunk))
		}
		q.bytes += c.Length
		l.ChunkBytes = max(l.ChunkBytes, c.Length)
	}
	l.arrivals = append(l.arrivals, arrival{of: q, batch: len(q.batches), at: line.At})
	q.batches = append(q.batches, alloc(line))
	return nil
}

// maxTotal is as many slots as a buffer of pd-recv may have.
const maxTotal = 1 << 24

// alloc is the message by which pd-send asks for a batch.
func alloc(line *manifest.Batch) *wire.AllocRequest {
	m := &wire.AllocRequest{
		Keys: make([]string, len(line.Chunks)), Fmt: wire.I(wire.FmtBinary), Dtype: "uint8", ReqID: line.ReqID,
		IsLastBatch: line.Last, TotalChunks: wire.I(line.Total),
	}
	full, last := int64(1), int64(1)
	for i, c := range line.Chunks {
		m.Keys[i] = c.Key
		full, last = line.Chunks[0].Length, c.Length
	}
	m.Shape, m.LastChunkToks = []wire.Int{wire.I(full)}, wire.I(last)
	return m
}

func (b *builder) finish(name string) (*Load, error) {
	if len(b.load.requests) == 0 {
		return nil, fmt.Errorf("%s has no request with a chunk: give a manifest of pd-send or a Mooncake trace", name)
	}
	for _, q := range b.load.requests {
		q.tokens = (q.bytes + b.opt.BytesPerToken - 1) / b.opt.BytesPerToken
	}
	return b.load, nil
}

// Median is the chunks of a request in the middle.
func (l *Load) Median() int {
	totals := make([]int, len(l.requests))
	for i, q := range l.requests {
		totals[i] = q.total
	}
	slices.Sort(totals)
	return totals[len(totals)/2]
}

// due is when each arrival is, in order, at a pace, read by so many senders to
// which the requests are dealt in turn. A sender that waits for a line's time
// reads nothing behind it before.
func (l *Load) due(pace float64, senders int) []time.Duration {
	due := make([]time.Duration, len(l.arrivals))
	latest := make([]time.Duration, senders)
	for i, a := range l.arrivals {
		at := &latest[a.of.number%senders]
		*at = max(*at, time.Duration(a.at/pace*float64(time.Second)))
		due[i] = *at
	}
	return due
}
