package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

var errTooLong = fmt.Errorf("the line has more than %d bytes: break it into several lines of the same req_id", MaxLine)

// lines reads an input line by line, counts, and skips blank lines and comments.
// It never holds more than MaxLine bytes of a line.
type lines struct {
	r    *bufio.Reader
	name string
	no   int // of the line returned last, from 1
	buf  []byte
}

func newLines(r io.Reader, name string) *lines {
	return &lines{r: bufio.NewReaderSize(r, 64<<10), name: name}
}

// next returns the next line without white space around it, valid until the
// next call. It returns io.EOF at the end, and errTooLong with the line's
// beginning; any other error is the input's own.
func (l *lines) next() ([]byte, error) {
	for {
		err := l.read()
		if err != nil && !errors.Is(err, errTooLong) {
			return nil, err
		}
		line := bytes.TrimSpace(l.buf)
		if len(line) > 0 && line[0] != '#' {
			return line, err
		}
	}
}

func (l *lines) read() error {
	l.buf = l.buf[:0]
	var result error
	for {
		part, err := l.r.ReadSlice('\n')
		if room := MaxLine - len(l.buf); len(part) > room {
			part, result = part[:room], errTooLong
		}
		l.buf = append(l.buf, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(l.buf) == 0:
			return io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("%s: after line %d: %w", l.name, l.no, err)
		}
		l.no++
		return result
	}
}
