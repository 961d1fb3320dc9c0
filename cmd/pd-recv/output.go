package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// output is a file that appears only when it is whole: until then its bytes
// are in a file beside it. Stdout, devices and pipes are written directly.
type output struct {
	io.Writer
	file *os.File // nil for stdout
	temp string   // its name until it is whole; empty when written directly
	name string
}

// create opens the output; an empty name or - is stdout.
func create(name string, stdout io.Writer) (*output, error) {
	if name == "" || name == "-" {
		return &output{Writer: stdout}, nil
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real
	}
	mode := os.FileMode(0o666)
	if info, err := os.Stat(name); err == nil {
		if info.IsDir() {
			return nil, fmt.Errorf("cannot write %s: it is a directory", name)
		}
		if !info.Mode().IsRegular() {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			return &output{Writer: f, file: f, name: name}, err
		}
		mode = info.Mode().Perm()
	}
	temp := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%d", filepath.Base(name), os.Getpid()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	return &output{Writer: f, file: f, temp: temp, name: name}, nil
}

// commit makes the output whole.
func (o *output) commit() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	if o.temp == "" {
		return err
	}
	if err == nil {
		err = os.Rename(o.temp, o.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(o.temp))
	}
	return nil
}

// abandon leaves nothing behind. A write may still be under way.
func (o *output) abandon() error {
	if o.temp == "" {
		return nil
	}
	return os.Remove(o.temp)
}
