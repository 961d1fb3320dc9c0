package manifest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pd-tools/pd-tools/wire"
)

// Reader reads a manifest. It is not safe for concurrent use.
type Reader struct{ lines *lines }

// NewReader reads r; name stands for it in errors.
func NewReader(r io.Reader, name string) *Reader {
	return &Reader{newLines(r, name)}
}

// Next returns the next line, skipping blank ones and those that begin with #.
// The error is io.EOF at the end, a *LineError when this line cannot be used
// (go on with the next), anything else when the input cannot be read further.
func (r *Reader) Next() (Line, error) {
	text, err := r.lines.next()
	if err != nil && !errors.Is(err, errTooLong) {
		return Line{}, err
	}
	line := Line{File: r.lines.name, No: r.lines.no}
	if err == nil {
		line.Batch, line.Cancel, err = parseLine(text)
	}
	if err != nil {
		return Line{}, &LineError{File: line.File, No: line.No, ReqID: salvageReqID(text), Err: err}
	}
	return line, nil
}

var (
	lineFields  = []string{"req_id", "total_chunks", "chunks", "last", "at", "to", "cancel"}
	chunkFields = []string{"key", "file", "offset", "length"}
)

func parseLine(text []byte) (b *Batch, cancel string, err error) {
	if !utf8.Valid(text) {
		return nil, "", errors.New("not UTF-8: write the manifest as JSON lines in UTF-8")
	}
	s := &scanner{text: text}
	b = &Batch{To: AnyReceiver}
	seen, err := s.record(lineFields, func(name string) (err error) {
		switch name {
		case "req_id":
			b.ReqID, err = s.str(wire.MaxReqID)
		case "total_chunks":
			b.Total, err = s.count(math.MaxInt64)
		case "chunks":
			b.Chunks, err = parseChunks(s)
		case "last":
			b.Last, err = s.bool()
		case "at":
			b.At, err = s.real(MaxAt)
		case "to":
			var to int64
			to, err = s.count(math.MaxInt32) // how many receivers there are, the sender knows
			b.To = int(to)
		case "cancel":
			cancel, err = s.str(wire.MaxReqID)
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	switch {
	case err != nil:
		return nil, "", err
	case !slices.Contains(seen, "cancel"):
		return b, "", checkBatch(b, seen)
	case len(seen) > 1:
		return nil, "", errors.New("cancel stands beside other fields: put it on a line of its own")
	}
	return nil, cancel, nil
}

// checkBatch holds the rules that a single line shows.
func checkBatch(b *Batch, seen []string) error {
	for _, name := range []string{"req_id", "total_chunks"} {
		if !slices.Contains(seen, name) {
			return fmt.Errorf("no %s: every line has req_id and total_chunks", name)
		}
	}
	if n := int64(len(b.Chunks)); n > b.Total {
		return fmt.Errorf("%d chunks on a line, total_chunks is %d: correct either", n, b.Total)
	}
	if b.Total == 0 && !b.Last {
		return errors.New(`total_chunks is 0 and last is not true: give the number of chunks of the whole request, or "last":true for a request without any`)
	}
	keys := make(map[string]int, len(b.Chunks))
	for i := range b.Chunks {
		key := b.Chunks[i].Key
		if first, twice := keys[key]; twice {
			return fmt.Errorf("chunks[%d] and chunks[%d] have the same key %q: each chunk of a request needs its own", first, i, clip(key))
		}
		keys[key] = i
	}
	return nil
}

func parseChunks(s *scanner) (list []Chunk, err error) {
	err = s.array(func() error {
		c, err := parseChunk(s)
		list = append(list, c)
		return err
	})
	return list, err
}

func parseChunk(s *scanner) (c Chunk, err error) {
	seen, err := s.record(chunkFields, func(name string) (err error) {
		switch name {
		case "key":
			c.Key, err = s.str(wire.MaxKey)
		case "file":
			c.File, err = s.str(maxFileName)
		case "offset":
			c.Offset, err = s.count(math.MaxInt64)
		case "length":
			c.Length, err = s.count(math.MaxInt64)
		}
		return err
	})
	switch {
	case err != nil:
		return c, err
	case !slices.Contains(seen, "key"):
		return c, errors.New("no key: every chunk has key and length")
	case c.Length == 0:
		return c, errors.New("no length, or 0: a chunk has at least 1 byte")
	case c.Offset > math.MaxInt64-c.Length:
		return c, fmt.Errorf("offset %d and length %d end beyond any file", c.Offset, c.Length)
	}
	return c, nil
}

// salvageReqID finds the request that a bad line names, or "".
func salvageReqID(text []byte) (id string) {
	s := &scanner{text: text}
	errFound := errors.New("found")
	// Whatever ends the search, what counts is whether an id was found before.
	_ = s.object(func(name string) error {
		if name != "req_id" && name != "cancel" {
			return s.skip()
		}
		found, err := s.str(wire.MaxReqID)
		if err == nil && utf8.ValidString(found) && !strings.ContainsRune(found, utf8.RuneError) {
			id = found
		}
		return errFound
	})
	return id
}
