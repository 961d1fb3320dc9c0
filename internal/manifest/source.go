package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maxFileName is how many bytes a file name has at most: Linux's PATH_MAX
// without its end mark.
const maxFileName = 4095

// Fill reads the bytes of c into dst, which is c.Length long. It never waits
// for a writer: what is no regular file is refused. Safe for concurrent use.
//
// The file is opened for each chunk. That costs a microsecond, and keeping it
// open would send the old bytes of a file that was replaced, or hold the
// memory of one that was deleted.
func Fill(dst []byte, c *Chunk) error {
	if int64(len(dst)) != c.Length {
		return fmt.Errorf("chunk %q has %d bytes, room is for %d", clip(c.Key), c.Length, len(dst))
	}
	if c.File == "" {
		Pattern(dst, c.Key)
		return nil
	}
	// Without O_NONBLOCK, opening a FIFO waits for its writer.
	f, err := os.OpenFile(c.File, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return cannotOpen(c.File, err)
	}
	defer f.Close()
	return readRange(dst, f, c)
}

func readRange(dst []byte, f *os.File, c *Chunk) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("%q: %w", c.File, err)
	case info.IsDir():
		return fmt.Errorf("%q is a directory: name a file", c.File)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%q is no regular file (%s): write its bytes to a file first", c.File, info.Mode().Type())
	case info.Size()-c.Length < c.Offset:
		return tooShort(c, info.Size())
	}
	n, err := f.ReadAt(dst, c.Offset)
	switch {
	case errors.Is(err, io.EOF) && n < len(dst):
		return tooShort(c, c.Offset+int64(n)) // it shrank meanwhile
	case err != nil && n < len(dst):
		return fmt.Errorf("%q at offset %d: %w", c.File, c.Offset+int64(n), err)
	}
	return nil
}

func tooShort(c *Chunk, size int64) error {
	return fmt.Errorf("%q has %d bytes, chunk wants %d at offset %d: correct offset and length, or write the file in full before its line",
		c.File, size, c.Length, c.Offset)
}

func cannotOpen(name string, err error) error {
	var cause *fs.PathError
	if errors.As(err, &cause) {
		err = cause.Err // the name is said here, quoted
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot open %q: %w: name it as seen from where this program runs", name, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cannot open %q: %w: let this user read it", name, err)
	}
	return fmt.Errorf("cannot open %q: %w", name, err)
}
