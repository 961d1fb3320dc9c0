package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
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

// record is a line as JSON has it; a field that has no pointer may not be zero
// where it is needed.
type record struct {
	ReqID  string  `json:"req_id"`
	Total  *int64  `json:"total_chunks"`
	Chunks []Chunk `json:"chunks"`
	Last   bool    `json:"last"`
	At     float64 `json:"at"`
	To     *int32  `json:"to"`
	Cancel *string `json:"cancel"`
}

func parseLine(text []byte) (b *Batch, cancel string, err error) {
	if !utf8.Valid(text) {
		return nil, "", errors.New("not UTF-8: write the manifest as JSON lines in UTF-8")
	}
	var rec record
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rec); err != nil {
		return nil, "", explain(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, "", fmt.Errorf("something follows the record at byte %d: a line is one record", dec.InputOffset())
	}
	if rec.Cancel == nil {
		b, err = rec.batch()
		return b, "", err
	}
	if rec.ReqID != "" || rec.Total != nil || rec.Chunks != nil {
		return nil, "", errors.New("cancel stands beside other fields: put it on a line of its own")
	}
	return nil, *rec.Cancel, checkText("cancel", *rec.Cancel, wire.MaxReqID)
}

// batch holds the rules that a single line shows.
func (rec *record) batch() (*Batch, error) {
	b := &Batch{ReqID: rec.ReqID, Chunks: rec.Chunks, Last: rec.Last, At: math.Abs(rec.At), To: AnyReceiver}
	if err := checkText("req_id", b.ReqID, wire.MaxReqID); err != nil {
		return nil, err
	}
	if rec.Total == nil {
		return nil, errors.New("no total_chunks: every line has req_id and total_chunks")
	}
	b.Total = *rec.Total
	if rec.To != nil {
		b.To = int(*rec.To)
	}
	switch n := int64(len(b.Chunks)); {
	case b.Total < 0:
		return nil, fmt.Errorf("total_chunks: %d is negative: it counts from 0", b.Total)
	case rec.To != nil && b.To < 0:
		return nil, fmt.Errorf("to: %d is negative: it counts from 0", b.To)
	case rec.At < 0 || rec.At > MaxAt:
		return nil, fmt.Errorf("at: %g is out of range: give seconds from 0 to %.0f", rec.At, MaxAt)
	case n > b.Total:
		return nil, fmt.Errorf("%d chunks on a line, total_chunks is %d: correct either", n, b.Total)
	case b.Total == 0 && !b.Last:
		return nil, errors.New(`total_chunks is 0 and last is not true: give the number of chunks of the whole request, or "last":true for a request without any`)
	}
	return b, checkChunks(b.Chunks)
}

func checkChunks(chunks []Chunk) error {
	keys := make(map[string]int, len(chunks))
	for i := range chunks {
		c := &chunks[i]
		if err := c.check(); err != nil {
			return fmt.Errorf("chunks[%d]: %w", i, err)
		}
		if first, twice := keys[c.Key]; twice {
			return fmt.Errorf("chunks[%d] and chunks[%d] have the same key %q: each chunk of a request needs its own", first, i, clip(c.Key))
		}
		keys[c.Key] = i
	}
	return nil
}

func (c *Chunk) check() error {
	if err := checkText("key", c.Key, wire.MaxKey); err != nil {
		return err
	}
	switch {
	case len(c.File) > maxFileName:
		return checkText("file", c.File, maxFileName)
	case c.Offset < 0:
		return fmt.Errorf("offset: %d is negative: it counts from 0", c.Offset)
	case c.Length < 1:
		return fmt.Errorf("length is %d or missing: a chunk has at least 1 byte", c.Length)
	case c.Offset > math.MaxInt64-c.Length:
		return fmt.Errorf("offset %d and length %d end beyond any file", c.Offset, c.Length)
	}
	return nil
}

// checkText checks a text that must have 1 to limit bytes.
func checkText(name, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty or missing: give 1 to %d bytes", name, limit)
	case len(s) > limit:
		return fmt.Errorf("%s has %d bytes: at most %d are allowed", name, len(s), limit)
	}
	return nil
}

// explain words what encoding/json says in the terms of a manifest.
func explain(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("ends in the middle of a record: its writer stopped early, or a record stands on several lines")
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON: %w at byte %d: a line is a record, or a comment that begins with #", err, syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("wants an object, got %s: a line is a record, or a comment that begins with #", clip(kind.Value))
	case errors.As(err, &kind):
		return fmt.Errorf("%s: wants %s, got %s", clip(kind.Field), kindWords[kind.Type.Kind()], clip(kind.Value))
	}
	// An unknown field: its name can be as long as the line.
	return fmt.Errorf("%s: a line has req_id, total_chunks, chunks, last, at, to, or cancel alone; a chunk has key, file, offset, length",
		clip(strings.TrimPrefix(err.Error(), "json: ")))
}

var kindWords = map[reflect.Kind]string{
	reflect.String:  "a string",
	reflect.Bool:    "true or false",
	reflect.Int32:   fmt.Sprintf("a whole number from 0 to %d", math.MaxInt32),
	reflect.Int64:   fmt.Sprintf("a whole number from 0 to %d", int64(math.MaxInt64)),
	reflect.Float64: fmt.Sprintf("a number from 0 to %.0f", MaxAt),
	reflect.Slice:   "an array",
	reflect.Struct:  "an object",
}

// clip keeps a message short whatever stands in the input.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// salvageReqID finds the request that a bad line names, or "".
func salvageReqID(text []byte) string {
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, _ := dec.Token(); open != json.Delim('{') {
		return ""
	}
	for dec.More() {
		name, _ := dec.Token()
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return ""
		}
		if name != "req_id" && name != "cancel" {
			continue
		}
		var id string
		// A replaced byte would name another request.
		if json.Unmarshal(value, &id) != nil || len(id) > wire.MaxReqID || strings.ContainsRune(id, utf8.RuneError) {
			return ""
		}
		return id
	}
	return ""
}
