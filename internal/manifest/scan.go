package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

var errCut = errors.New("ends in the middle of a record: its writer stopped early, or a record stands on several lines")

// scanner reads the JSON of one line from left to right. Unlike json.Unmarshal
// it refuses null, fields that stand twice and names in another case, says
// which value is wrong; json.Decoder's tokens could do that in four times the
// time.
type scanner struct {
	text []byte
	at   int // bytes read
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

// record reads an object that has only known fields, each at most once. It
// calls field for each to read its value, and returns their names.
func (s *scanner) record(known []string, field func(name string) error) (seen []string, err error) {
	err = s.object(func(name string) error {
		switch {
		case !slices.Contains(known, name):
			return fmt.Errorf("unknown field %s: known are %s", strconv.Quote(clip(name)), strings.Join(known, ", "))
		case slices.Contains(seen, name):
			return fmt.Errorf("field %s stands twice: keep one", name)
		}
		seen = append(seen, name)
		if err := field(name); err != nil {
			return inField(name, err)
		}
		return nil
	})
	return seen, err
}

func (s *scanner) object(field func(name string) error) error {
	return s.list('{', '}', "an object", func(int) error {
		if err := s.expect('"', "a field's name"); err != nil {
			return err
		}
		name, err := s.quoted()
		if err != nil {
			return err
		}
		if err := s.expect(':', "a colon"); err != nil {
			return err
		}
		s.at++
		return field(name)
	})
}

func (s *scanner) array(element func() error) error {
	return s.list('[', ']', "an array", func(i int) error {
		if err := element(); err != nil {
			return inField(fmt.Sprintf("[%d]", i), err)
		}
		return nil
	})
}

// list reads items between first and last with commas between them.
func (s *scanner) list(first, last byte, kind string, item func(i int) error) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != first {
		return s.wants(kind)
	}
	s.at++
	if c, err = s.peek(); err == nil && c == last {
		s.at++
		return nil
	}
	for i := 0; ; i++ {
		if err := item(i); err != nil {
			return err
		}
		c, err := s.peek()
		switch {
		case err != nil:
			return err
		case c == last:
			s.at++
			return nil
		case c != ',':
			return s.notJSON("a comma or the end of " + kind)
		}
		s.at++
	}
}

// end checks that nothing follows.
func (s *scanner) end() error {
	if _, err := s.peek(); err == nil {
		return fmt.Errorf("something follows the record at byte %d: a line is one record", s.at+1)
	}
	return nil
}

// str reads a string of 1 to limit bytes.
func (s *scanner) str(limit int) (string, error) {
	c, err := s.peek()
	if err != nil {
		return "", err
	}
	if c != '"' {
		return "", s.wants("a string")
	}
	v, err := s.quoted()
	switch {
	case err != nil:
		return "", err
	case v == "":
		return "", errors.New("is empty: leave it out or give 1 or more bytes")
	case len(v) > limit:
		return "", fmt.Errorf("has %d bytes: at most %d are allowed", len(v), limit)
	}
	return v, nil
}

// count reads a whole number from 0 to most.
func (s *scanner) count(most int64) (int64, error) {
	num, err := s.number("a whole number")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(num, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, fmt.Errorf("wants a whole number, got %s", clip(num))
	case num[0] == '-' && num != "-0":
		return 0, fmt.Errorf("%s is negative: it counts from 0", clip(num))
	case err != nil || n > most:
		return 0, fmt.Errorf("%s is out of range: at most %d", clip(num), most)
	}
	return n, nil
}

// real reads a number from 0 to most.
func (s *scanner) real(most float64) (float64, error) {
	num, err := s.number("a number")
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(num, 64)
	if err != nil || v < 0 || v > most {
		return 0, fmt.Errorf("%s is out of range: give 0 to %.0f", clip(num), most)
	}
	return math.Abs(v), nil // -0 is 0
}

func (s *scanner) bool() (bool, error) {
	c, err := s.peek()
	if err != nil {
		return false, err
	}
	if c != 't' && c != 'f' {
		return false, s.wants("true or false")
	}
	word, err := s.word()
	return word == "true", err
}

func (s *scanner) number(kind string) (string, error) {
	c, err := s.peek()
	if err != nil {
		return "", err
	}
	if c != '-' && (c < '0' || c > '9') {
		return "", s.wants(kind)
	}
	return s.word()
}

// skip reads over one value, however deep, without recursion. It is lenient:
// what it reads is thrown away.
func (s *scanner) skip() error {
	for depth := 0; ; {
		c, err := s.peek()
		switch {
		case err != nil:
			return err
		case c == '{' || c == '[':
			depth++
			s.at++
		case c == '}' || c == ']':
			depth--
			s.at++
		case c == ',' || c == ':':
			s.at++
			continue
		case c == '"':
			_, err = s.quoted()
		default:
			_, err = s.word()
		}
		if err != nil || depth <= 0 {
			return err
		}
	}
}

// peek returns the next byte that is no white space.
func (s *scanner) peek() (byte, error) {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c, nil
		}
	}
	return 0, errCut
}

func (s *scanner) expect(want byte, kind string) error {
	c, err := s.peek()
	if err == nil && c != want {
		err = s.notJSON(kind)
	}
	return err
}

// quoted reads a string; the next byte is its quote.
func (s *scanner) quoted() (string, error) {
	escaped := false
	for i := s.at + 1; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '\\':
			escaped = true
			i++
		case c < ' ':
			s.at = i
			return "", s.notJSON("a string without control characters")
		case c == '"':
			raw := s.text[s.at : i+1]
			s.at = i + 1
			if !escaped {
				return string(raw[1 : len(raw)-1]), nil
			}
			var v string
			if err := json.Unmarshal(raw, &v); err != nil {
				return "", fmt.Errorf("not JSON: %w", err)
			}
			return v, nil
		}
	}
	s.at = len(s.text)
	return "", errCut
}

// word reads a number, true, false or null.
func (s *scanner) word() (string, error) {
	from := s.at
	for s.at < len(s.text) && isWordByte(s.text[s.at]) {
		s.at++
	}
	word := s.text[from:s.at]
	if json.Valid(word) {
		return string(word), nil
	}
	if from > 0 && len(word) > 0 && s.at == len(s.text) {
		return "", errCut
	}
	s.at = from
	return "", s.notJSON("a value")
}

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '+' || c == '.'
}

// wants says that the next value is of the wrong kind.
func (s *scanner) wants(kind string) error {
	var got string
	var err error
	switch s.text[s.at] {
	case '{':
		got = "an object"
	case '[':
		got = "an array"
	case '"':
		got, err = s.quoted()
		got = strconv.Quote(clip(got))
	default:
		got, err = s.word()
		got = clip(got)
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("wants %s, got %s", kind, got)
}

// notJSON says that something else belongs where the next byte is.
func (s *scanner) notJSON(want string) error {
	return fmt.Errorf("not JSON: %q at byte %d, where %s belongs: a line is a record, or a comment that begins with #", s.text[s.at], s.at+1, want)
}

// clip keeps a message short whatever stands in the input.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
