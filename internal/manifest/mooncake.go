package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// BlockTokens is how many tokens one of a Mooncake trace's hash_ids stands for.
const BlockTokens = 512

// Options of Convert.
type Options struct {
	ChunkSize      int64  // bytes of a full chunk, at least 1
	TokensPerChunk int64  // tokens of a full chunk, at least 1; BlockTokens: a chunk a block
	Batch          int    // chunks a line at most, at least 1
	Interleave     int    // how many requests' lines are mixed, at least 1
	Limit          int    // requests to convert; 0: all
	Prefix         string // a req_id is this and the request's number from 1, in 6 digits
}

// Check says which option is wrong.
func (o *Options) Check() error {
	for _, v := range []struct {
		name        string
		value, most int64
	}{
		{"chunk-size", o.ChunkSize, math.MaxInt64},
		{"tokens-per-chunk", o.TokensPerChunk, math.MaxInt32},
		{"batch", int64(o.Batch), math.MaxInt32},
		{"interleave", int64(o.Interleave), math.MaxInt32},
	} {
		if v.value < 1 || v.value > v.most {
			return fmt.Errorf("%s is %d: give 1 to %d", v.name, v.value, v.most)
		}
	}
	if o.Limit < 0 {
		return fmt.Errorf("limit is %d: give 1 or more, or 0 for all", o.Limit)
	}
	return nil
}

// Convert reads a Mooncake trace from r, which name stands for in errors, and
// writes a manifest to w, one Write a line. It holds Interleave requests at a
// time. The first bad line of the trace ends it with a *LineError.
//
// Requests whose hash_ids begin alike have alike keys for the chunks that
// those cover. A chunk with fewer tokens than a full one is shorter in
// proportion and has a key of its own. Tokens behind the last full block may
// have no hash id; nobody shares their chunk.
func Convert(r io.Reader, name string, w io.Writer, opt Options) error {
	var line []byte
	return ReadTrace(r, name, opt, func(b *Batch, _ int64) error {
		line = AppendLine(line[:0], b)
		_, err := w.Write(line)
		return err
	})
}

// ReadTrace gives do the lines that Convert writes, each with the tokens that
// its request makes the decoder write, output_length. An error of do ends it.
func ReadTrace(r io.Reader, name string, opt Options, do func(b *Batch, output int64) error) error {
	if err := opt.Check(); err != nil {
		return err
	}
	t := &traceReader{lines: newLines(r, name), opt: &opt}
	var live []*traced // the requests that are mixed, in turn
	for more := true; ; {
		for more && len(live) < opt.Interleave {
			q, err := t.next()
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if more = err == nil; more {
				live = append(live, q)
			}
		}
		if len(live) == 0 {
			return nil
		}
		q := live[0]
		live = live[1:]
		b := q.batch(&opt)
		if err := do(b, q.output); err != nil {
			return err
		}
		if !b.Last {
			live = append(live, q)
		}
	}
}

// traceReader reads the requests of a trace.
type traceReader struct {
	lines *lines
	opt   *Options
	count int // requests read
}

// next returns the next request, or io.EOF behind the trace or the limit.
func (t *traceReader) next() (*traced, error) {
	if t.opt.Limit > 0 && t.count == t.opt.Limit {
		return nil, io.EOF
	}
	text, err := t.lines.next()
	if err == nil {
		t.count++
		var q *traced
		if q, err = parseTrace(text, t.count, t.opt); err == nil {
			return q, nil
		}
	} else if !errors.Is(err, errTooLong) {
		return nil, err
	}
	return nil, &LineError{File: t.lines.name, No: t.lines.no, Err: err}
}

func parseTrace(text []byte, number int, opt *Options) (*traced, error) {
	var rec struct {
		Timestamp   *float64 `json:"timestamp"`    // milliseconds
		InputLength *int64   `json:"input_length"` // tokens
		Output      int64    `json:"output_length"`
		HashIDs     []int64  `json:"hash_ids"`
	}
	if err := json.Unmarshal(text, &rec); err != nil {
		return nil, fmt.Errorf("not a line of a Mooncake trace: %w", err)
	}
	switch {
	case rec.Timestamp == nil || rec.InputLength == nil:
		return nil, errors.New("no timestamp or no input_length: a line of a Mooncake trace has timestamp, input_length, output_length, hash_ids")
	case *rec.Timestamp < 0 || *rec.Timestamp > MaxAt*1000:
		return nil, fmt.Errorf("timestamp %g is out of range: milliseconds from 0", *rec.Timestamp)
	case *rec.InputLength < 0:
		return nil, fmt.Errorf("input_length %d is negative", *rec.InputLength)
	case rec.Output < 0:
		return nil, fmt.Errorf("output_length %d is negative", rec.Output)
	case slices.ContainsFunc(rec.HashIDs, func(id int64) bool { return id < 0 }):
		return nil, errors.New("a negative hash id: they count from 0")
	}
	ids, tokens := rec.HashIDs, *rec.InputLength
	blocks, rest := tokens/BlockTokens, tokens%BlockTokens
	if rest > 0 {
		blocks++
		if int64(len(ids)) == blocks-1 {
			ids = append(ids, -int64(number)) // only full blocks were hashed; this one is like no other
		}
	}
	if int64(len(ids)) != blocks {
		return nil, fmt.Errorf("input_length %d takes %d hash_ids of %d tokens, the line has %d: is it a Mooncake trace?",
			tokens, blocks, BlockTokens, len(rec.HashIDs))
	}
	return &traced{
		id:     fmt.Sprintf("%s%06d", opt.Prefix, number),
		at:     *rec.Timestamp / 1000,
		tokens: tokens,
		output: rec.Output,
		ids:    ids,
		hash:   fnvBasis,
	}, nil
}

// traced is a request of a trace, some of it written.
type traced struct {
	id     string
	at     float64 // seconds
	tokens int64
	output int64   // tokens that are decoded
	ids    []int64 // one a block, the last may be partial
	done   int64   // tokens whose chunks are written
	hashed int64   // blocks in hash
	hash   uint64  // of the ids up to the chunk written last
}

// batch returns the request's next line. Its first one says when it is due.
func (q *traced) batch(opt *Options) *Batch {
	b := &Batch{ReqID: q.id, Total: ceilDiv(q.tokens, opt.TokensPerChunk), To: AnyReceiver}
	if q.done == 0 {
		b.At = q.at
	}
	for len(b.Chunks) < opt.Batch && q.done < q.tokens {
		b.Chunks = append(b.Chunks, q.chunk(opt))
	}
	b.Last = q.done == q.tokens
	return b
}

// chunk returns the next chunk. Its key is made of all hash ids up to its end
// and of the tokens it covers: what is computed for a token depends on every
// token before it.
func (q *traced) chunk(opt *Options) Chunk {
	from := q.done
	q.done = min(from+opt.TokensPerChunk, q.tokens)
	for ; q.hashed < ceilDiv(q.done, BlockTokens); q.hashed++ {
		q.hash = fnv1a(q.hash, strconv.FormatInt(q.ids[q.hashed], 10)+",")
	}
	return Chunk{
		Key:    fmt.Sprintf("%016x-%d-%d", q.hash, from, q.done),
		Length: proportion(opt.ChunkSize, q.done-from, opt.TokensPerChunk),
	}
}

// proportion returns size*part/whole, rounded up, for part <= whole <= MaxInt32.
func proportion(size, part, whole int64) int64 {
	return size/whole*part + ceilDiv(size%whole*part, whole)
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
