package sock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
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
)

// allowFile says whose keys are taken. It is read anew when it changes.
type allowFile struct {
	name string
	list atomic.Pointer[allowList] // in force

	mu    sync.Mutex
	state fileState // of what was last read
	next  fileState // of the change that is waited for
	since time.Time // when next was first seen
}

// allowList is the content of an allow file.
type allowList struct {
	peers   map[string]bool // may connect to us
	servers []server        // that we connect to
	revoked map[string]bool // were peers in an earlier list and are none now
}

// server is somebody we connect to.
type server struct {
	key      string
	endpoint string
}

// fileState differs when a file is another, or has been written.
type fileState struct {
	changed time.Time
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
	s := fileState{changed: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s
}

func readAllow(name string) (*allowList, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the allow file: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().Perm()&0o002 != 0 {
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

func readAtMost(f *os.File, limit int64) (string, error) {
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), limit)
	}
	return string(text), err
}

// parseAllow reads lines of the form KEY [ENDPOINT] [# comment]. Blank ones and
// those that begin with # are comments.
func parseAllow(text string) (*allowList, error) {
	list := &allowList{peers: map[string]bool{}, revoked: map[string]bool{}}
	no := 0
	for line := range strings.Lines(text) {
		no++
		if err := list.add(strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", no, err)
		}
	}
	return list, nil
}

func (l *allowList) add(fields []string) error {
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
	l.servers = append(l.servers, server{fields[0], addr.String()})
	return nil
}

// server is the key of who listens at an endpoint: that of its line, else the
// only one there is.
func (a *allowFile) server(endpoint string) (string, error) {
	addr, err := parseDial(endpoint)
	if err != nil {
		return "", err
	}
	list := a.list.Load()
	keys := map[string]bool{}
	for key := range list.peers {
		keys[key] = true
	}
	for _, s := range list.servers {
		if s.endpoint == addr.String() {
			return s.key, nil
		}
		keys[s.key] = true
	}
	if len(keys) == 1 {
		for key := range keys {
			return key, nil
		}
	}
	return "", fmt.Errorf("allow file %s does not say which of its %d keys %s has: add the line KEY %[3]s, with KEY from the .pub file of who listens there",
		a.name, len(keys), addr)
}

// allows says whether a peer may connect to us.
func (a *allowFile) allows(key string) bool { return a.list.Load().peers[key] }

// look takes a change of the file into force. It reports whether there was one,
// and an error for a file that cannot be used, once: the list stays then.
func (a *allowFile) look(now time.Time) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
		return false, err
	}
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
