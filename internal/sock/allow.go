package sock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	maxKeyFile   = 64 << 10 // bytes
	maxAllowFile = 16 << 20

	// lookEvery is how often it is seen whether the allow file has changed. One
	// that is being written counts when it has been left alone for as long.
	lookEvery = 250 * time.Millisecond

	// readWithin is how long a file may take to be read at the start.
	readWithin = 3 * time.Second
)

// allowFile says whose keys are taken. It is read anew when it changes.
type allowFile struct {
	name string
	list atomic.Pointer[allowList] // in force

	looking atomic.Bool // somebody is: what follows is theirs
	state   fileState   // of what was last read
	next    fileState   // of the change that is waited for
	since   time.Time   // when next was first seen
	fault   string      // why it could not be read, and is tried again
}

// allowList is the content of an allow file.
type allowList struct {
	peers   map[string]bool   // may connect to us
	servers map[string]server // that we connect to, by endpoint
	revoked map[string]bool   // were peers in an earlier list and are none now
}

// server is somebody we connect to.
type server struct {
	key  string
	line int
	old  []int // earlier lines that say something else
}

// fileState differs when a file is another, or something was done to it.
type fileState struct {
	written time.Time
	changed syscall.Timespec // its mode, too
	size    int64
	inode   uint64
	missing string // why it could not be looked at
}

func openAllow(name string) (*allowFile, error) {
	a := &allowFile{name: name, state: stateOf(name)}
	list, err := readAllow(name)
	if err != nil {
		return nil, err
	}
	a.list.Store(list)
	return a, nil
}

func stateOf(name string) fileState {
	info, err := os.Stat(name)
	if err != nil {
		return fileState{missing: err.Error()}
	}
	s := fileState{written: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.changed = sys.Ino, sys.Ctim
	}
	return s
}

// openFile opens a regular file or a symbolic link to one. It waits for nothing,
// as it would at a pipe until somebody writes into it.
func openFile(name string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is %s: name a regular file, or a symbolic link to one", name, kindOf(info.Mode()))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	}
	return "a device"
}

// promptly ends a read that a file system keeps: it returns, and the read's
// goroutine ends when the file system lets it.
func promptly(name string, read func() error) error {
	done := make(chan error, 1)
	go func() { done <- read() }()
	select {
	case err := <-done:
		return err
	case <-time.After(readWithin):
		return fmt.Errorf("%s could not be read within %v: does its file system hang?", name, readWithin)
	}
}

func readAllow(name string) (*allowList, error) {
	f, info, err := openFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the allow file: %w", err)
	}
	defer f.Close()
	if info.Mode().Perm()&0o002 != 0 {
		return nil, fmt.Errorf("allow file %s can be written by everybody: chmod o-w %[1]s", name)
	}
	text, err := readAtMost(f, maxAllowFile)
	if err != nil {
		return nil, err
	}
	list, err := parseAllow(text)
	if err != nil {
		return nil, fmt.Errorf("allow file %s, %w", name, err)
	}
	return list, nil
}

// readAtMost reads text, without the mark that some editors put in front of it.
func readAtMost(f *os.File, limit int64) (string, error) {
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), limit)
	}
	return strings.TrimPrefix(string(text), "\ufeff"), err
}

// parseAllow reads lines of the form KEY [ENDPOINT] [# comment]. Blank ones and
// those that begin with # are comments.
func parseAllow(text string) (*allowList, error) {
	list := &allowList{peers: map[string]bool{}, servers: map[string]server{}, revoked: map[string]bool{}}
	no := 0
	for line := range strings.Lines(text) {
		no++
		if err := list.add(no, strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", no, err)
		}
	}
	return list, nil
}

func (l *allowList) add(line int, fields []string) error {
	switch {
	case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		return nil
	case !isKey(fields[0]):
		return fmt.Errorf("%.64q is no public key of %d characters, as pd-recv keygen writes it into a .pub file", fields[0], keyLen)
	case len(fields) == 1 || strings.HasPrefix(fields[1], "#"):
		l.peers[fields[0]] = true
		return nil
	}
	addr, err := parseDial(fields[1])
	if err != nil {
		return err
	}
	if len(fields) > 2 && !strings.HasPrefix(fields[2], "#") {
		return fmt.Errorf("%.64q stands behind KEY and ENDPOINT: a comment begins with #", fields[2])
	}
	s := server{key: fields[0], line: line}
	if before, ok := l.servers[addr.String()]; ok {
		s.old = before.old
		if before.key != s.key {
			s.old = append(s.old, before.line)
		}
	}
	l.servers[addr.String()] = s
	return nil
}

// isServer says whether a key is of somebody we connect to.
func (l *allowList) isServer(key string) bool {
	for _, s := range l.servers {
		if s.key == key {
			return true
		}
	}
	return false
}

// doubts are what people should know of a file that can be used.
func (l *allowList) doubts(file string) (texts []string) {
	for _, endpoint := range slices.Sorted(maps.Keys(l.servers)) {
		if s := l.servers[endpoint]; len(s.old) > 0 {
			var lines strings.Builder
			for _, line := range s.old {
				lines.WriteString(strconv.Itoa(line) + " ")
			}
			texts = append(texts, fmt.Sprintf("%s has several keys for %s, in lines %sand %d: the last is used, that of line %[4]d, and no other",
				file, endpoint, lines.String(), s.line))
		}
	}
	return texts
}

// server is the key of who listens at an endpoint: that of its line, else the
// only one that has no endpoint, unless named: then it must have a line.
func (a *allowFile) server(endpoint string, named bool) (string, error) {
	addr, err := parseDial(endpoint)
	if err != nil {
		return "", err
	}
	list := a.list.Load()
	if s, ok := list.servers[addr.String()]; ok {
		return s.key, nil
	}
	if len(list.peers) == 1 && !named {
		for key := range list.peers {
			return key, nil
		}
	}
	others := fmt.Sprintf("of its %d keys without an endpoint it could be any", len(list.peers))
	switch {
	case len(list.peers) == 0:
		others = "no key without an endpoint"
	case named:
		others = "those without an endpoint are of who connects to us"
	}
	return "", fmt.Errorf("allow file %s has no key for %s, and %s: add the line KEY %[2]s, with KEY from the .pub file of who listens there", a.name, addr, others)
}

// allows says whether a peer may connect to us.
func (a *allowFile) allows(key string) bool { return a.list.Load().peers[key] }

// look takes a change of the file into force. It reports whether there was one,
// and an error for a file that cannot be used, once: the list stays then.
func (a *allowFile) look(now time.Time) (changed bool, err error) {
	if !a.looking.CompareAndSwap(false, true) {
		return false, nil
	}
	defer a.looking.Store(false)
	state := stateOf(a.name)
	switch {
	case state == a.state:
		a.next = state
		return false, nil
	case state != a.next:
		a.next, a.since = state, now
		return false, nil
	case now.Sub(a.since) < lookEvery:
		return false, nil
	}
	a.state = state
	if state.missing != "" {
		return false, errors.New(state.missing)
	}
	list, err := readAllow(a.name)
	if err != nil {
		return false, a.failed(err)
	}
	a.fault = ""
	old := a.list.Load()
	for _, was := range []map[string]bool{old.peers, old.revoked} {
		for key := range was {
			if !list.peers[key] {
				list.revoked[key] = true
			}
		}
	}
	a.list.Store(list)
	return true, nil
}

// failed is err if it is news. What the file system has against the file may
// pass without a trace: it is tried again.
func (a *allowFile) failed(err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); !ok {
		return err
	}
	a.state = fileState{}
	if a.fault == err.Error() {
		return nil
	}
	a.fault = err.Error()
	return err
}
