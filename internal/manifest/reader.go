package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
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

func parseLine(text []byte) (*Batch, string, error) {
	if !utf8.Valid(text) {
		return nil, "", errors.New("not UTF-8: write the manifest as JSON lines in UTF-8")
	}
	p := newParser(text)
	b := &Batch{To: AnyReceiver}
	var cancel string
	seen, err := p.object(func(name string) (err error) {
		switch name {
		case "req_id":
			b.ReqID, err = p.text(wire.MaxReqID)
		case "total_chunks":
			b.Total, err = p.count()
		case "chunks":
			b.Chunks, err = p.chunks()
		case "last":
			b.Last, err = p.bool()
		case "at":
			b.At, err = p.seconds()
		case "to":
			b.To, err = p.position()
		case "cancel":
			cancel, err = p.text(wire.MaxReqID)
		default:
			err = errors.New("unknown field: a line has req_id, total_chunks, chunks, last, at, to, or cancel alone")
		}
		return err
	})
	if err == nil {
		err = p.end()
	}
	switch {
	case err != nil:
		return nil, "", explain(err)
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
		if first, twice := keys[b.Chunks[i].Key]; twice {
			return fmt.Errorf("chunks[%d] and chunks[%d] have the same key %q: each chunk of a request needs its own", first, i, clip(b.Chunks[i].Key))
		}
		keys[b.Chunks[i].Key] = i
	}
	return nil
}

// parser reads one line by JSON tokens. Unlike json.Unmarshal it refuses null,
// fields that stand twice and names in another case, and it can say which
// value is wrong.
type parser struct{ dec *json.Decoder }

func newParser(text []byte) parser {
	p := parser{json.NewDecoder(bytes.NewReader(text))}
	p.dec.UseNumber()
	return p
}

// object reads an object, calls field for each name to read its value, and
// returns the names.
func (p parser) object(field func(name string) error) (seen []string, err error) {
	if err := p.delim('{'); err != nil {
		return nil, err
	}
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		name := tok.(string) // the decoder lets nothing else be a name
		if slices.Contains(seen, name) {
			return nil, fmt.Errorf("field %q stands twice: keep one", name)
		}
		seen = append(seen, name)
		if err := field(name); err != nil {
			return nil, inField(plainName(name), err)
		}
	}
	return seen, p.delim('}')
}

// fieldError is an error in the value at path, as in chunks[3].offset.
type fieldError struct {
	path string
	err  error
}

func (e *fieldError) Error() string { return e.path + ": " + e.err.Error() }

func (e *fieldError) Unwrap() error { return e.err }

func inField(name string, err error) error {
	inner, ok := err.(*fieldError)
	switch {
	case !ok:
		return &fieldError{name, err}
	case inner.path[0] == '[':
		return &fieldError{name + inner.path, inner.err}
	}
	return &fieldError{name + "." + inner.path, inner.err}
}

// plainName quotes a field's name unless it is as plain as ours are.
func plainName(name string) string {
	name = clip(name)
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == "" {
		return name
	}
	return strconv.Quote(name)
}

func (p parser) chunks() ([]Chunk, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	var list []Chunk
	for p.dec.More() {
		c, err := p.chunk()
		if err != nil {
			return nil, inField(fmt.Sprintf("[%d]", len(list)), err)
		}
		list = append(list, c)
	}
	return list, p.delim(']')
}

func (p parser) chunk() (c Chunk, err error) {
	seen, err := p.object(func(name string) (err error) {
		switch name {
		case "key":
			c.Key, err = p.text(wire.MaxKey)
		case "file":
			c.File, err = p.text(maxFileName)
		case "offset":
			c.Offset, err = p.count()
		case "length":
			c.Length, err = p.count()
		default:
			err = errors.New("unknown field: a chunk has key, file, offset, length")
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

// text reads a string of 1 to limit bytes.
func (p parser) text(limit int) (string, error) {
	tok, err := p.dec.Token()
	s, ok := tok.(string)
	switch {
	case err != nil:
		return "", err
	case !ok:
		return "", fmt.Errorf("wants a string, got %s", describe(tok))
	case s == "":
		return "", errors.New("is empty: leave it out or give 1 or more bytes")
	case len(s) > limit:
		return "", fmt.Errorf("has %d bytes: at most %d are allowed", len(s), limit)
	}
	return s, nil
}

// count reads a whole number from 0.
func (p parser) count() (int64, error) {
	num, err := p.number("a whole number")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(num, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s is out of range: at most %d", clip(num), int64(math.MaxInt64))
	case err != nil:
		return 0, fmt.Errorf("wants a whole number, got %s", clip(num))
	case n < 0:
		return 0, fmt.Errorf("%d is negative: it counts from 0", n)
	}
	return n, nil
}

// position reads which receiver, from 0. How many there are, the sender knows.
func (p parser) position() (int, error) {
	n, err := p.count()
	if err == nil && n > math.MaxInt32 {
		err = fmt.Errorf("%d is no position: the first receiver is 0", n)
	}
	return int(n), err
}

func (p parser) seconds() (float64, error) {
	num, err := p.number("seconds, a number")
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(num, 64)
	if err != nil || v < 0 || v > MaxAt {
		return 0, fmt.Errorf("%s is out of range: give seconds from 0 to %.0f", clip(num), MaxAt)
	}
	return v, nil
}

func (p parser) number(want string) (string, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return "", err
	}
	num, ok := tok.(json.Number)
	if !ok {
		return "", fmt.Errorf("wants %s, got %s", want, describe(tok))
	}
	return num.String(), nil
}

func (p parser) bool() (bool, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return false, err
	}
	v, ok := tok.(bool)
	if !ok {
		return false, fmt.Errorf("wants true or false, got %s", describe(tok))
	}
	return v, nil
}

func (p parser) delim(want json.Delim) error {
	tok, err := p.dec.Token()
	if err == nil && tok != want {
		kind := "an object"
		if want == '[' {
			kind = "an array"
		}
		err = fmt.Errorf("wants %s, got %s", kind, describe(tok))
	}
	return err
}

// end checks that nothing stands behind the object.
func (p parser) end() error {
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the record: a line is one record")
	}
	return nil
}

func describe(tok json.Token) string {
	switch v := tok.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(clip(v))
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "an array"
	default:
		return clip(fmt.Sprint(v))
	}
}

// clip keeps a message short whatever stands in the input.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// explain words what the decoder says of text that is no JSON.
func explain(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("ends in the middle of a record: its writer stopped early, or a record stands on several lines")
	}
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return fmt.Errorf("not JSON at byte %d: %w: a line is one record, or a comment that begins with #", syntax.Offset, syntax)
	}
	return err
}

// salvageReqID finds the request that a bad line names, or "".
func salvageReqID(text []byte) string {
	p := newParser(text)
	if p.delim('{') != nil {
		return ""
	}
	for p.dec.More() {
		name, err := p.dec.Token()
		if err != nil {
			return ""
		}
		if name != "req_id" && name != "cancel" {
			if p.skip() != nil {
				return ""
			}
			continue
		}
		// A replaced byte would name another request.
		id, err := p.text(wire.MaxReqID)
		if err != nil || strings.ContainsRune(id, utf8.RuneError) {
			return ""
		}
		return id
	}
	return ""
}

// skip reads over one value, however deep, without recursion.
func (p parser) skip() error {
	for depth := 0; ; {
		tok, err := p.dec.Token()
		if err != nil {
			return err
		}
		if d, ok := tok.(json.Delim); ok {
			if d == '{' || d == '[' {
				depth++
			} else {
				depth--
			}
		}
		if depth == 0 {
			return nil
		}
	}
}
