package sock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
)

// Keys are a program's own pair of CURVE keys and whose it takes. All sockets
// of a Context that has them are encrypted, and hear only peers whose key is in
// the allow file. nil is no keys: nothing is encrypted, and anybody is heard.
// All methods are for any goroutine.
type Keys struct {
	file           string // of the pair
	public, secret string // in Z85, as everywhere here
	allow          *allowFile
	named          bool // whom we connect to must have a line with its endpoint
	warn           func(kind, text string)
	refused        atomic.Int64
	// generation grows whenever somebody is let in and whenever the allow file
	// changes: who sent a message is known for sure only as long as it stands.
	generation atomic.Uint64

	mu     sync.Mutex
	users  int           // Contexts; the allow file is watched while there are any
	unused chan struct{} // closed when there are none any more
}

// keyLen is how long a key is in Z85.
const keyLen = 40

// keyMode is the only mode that a file with a secret key may have.
const keyMode = 0o600

// errNoCurve is what a program with keys fails with where it cannot use them.
var errNoCurve = errors.New("the libzmq of this host was built without CURVE, so there can be no keys: install one that has it, such as Debian's libzmq5")

// LoadKeys reads the pair of keyFile and the list of allowFile. Warn tells
// people something; it must not block, and equal kinds may come often.
func LoadKeys(keyFile, allowFile string, warn func(kind, text string)) (*Keys, error) {
	if !zmq4.HasCurve() {
		return nil, errNoCurve
	}
	k := &Keys{file: keyFile, warn: warn}
	err := promptly(keyFile, k.readPair)
	if err == nil {
		err = promptly(allowFile, func() (err error) {
			k.allow, err = openAllow(allowFile)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	k.tellDoubts()
	return k, nil
}

// NamedOnly is for a program whose peers connect to it: lines without an
// endpoint are theirs, and whom it connects to must have one with.
func (k *Keys) NamedOnly() {
	k.named = true
	if len(k.allow.list.Load().peers) == 0 {
		k.warn("allow file", fmt.Sprintf("warning: %s lets nobody in: add the .pub files of those who may connect", k.allow.name))
	}
}

func (k *Keys) tellDoubts() {
	for _, text := range k.allow.list.Load().doubts(k.allow.name) {
		k.warn("allow file", "warning: "+text)
	}
}

// use is by a Context, until it calls done.
func (k *Keys) use() (done func()) {
	if k == nil {
		return func() {}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users++; k.users == 1 {
		k.unused = make(chan struct{})
		go k.watch(k.unused)
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.users--; k.users == 0 {
			close(k.unused)
		}
	}
}

// watch has an eye on the allow file. A file system that hangs keeps nobody else.
func (k *Keys) watch(unused <-chan struct{}) {
	for tick := time.Tick(lookEvery); ; {
		select {
		case now := <-tick:
			k.look(now)
		case <-unused:
			return
		}
	}
}

// look takes a changed allow file into force.
func (k *Keys) look(now time.Time) {
	changed, err := k.allow.look(now)
	if err != nil {
		k.warn("allow file", fmt.Sprintf("warning: the keys that were allowed stay so: %v", err))
	}
	if changed {
		k.generation.Add(1)
		list := k.allow.list.Load()
		k.warn("allow file", fmt.Sprintf("%s has changed: %d peers may connect, %d are revoked", k.allow.name, len(list.peers), len(list.revoked)))
		k.tellDoubts()
	}
}

// Refused is how many peers were refused since the start: a peer that tries
// again counts again.
func (k *Keys) Refused() int64 {
	if k == nil {
		return 0
	}
	return k.refused.Load()
}

// refuse counts a peer that is not let in, and tells people.
func (k *Keys) refuse(kind, text string) {
	k.refused.Add(1)
	k.warn(kind, text)
}

// CheckDial says what the allow file lacks for the endpoint to be connected
// to, or nil.
func (k *Keys) CheckDial(endpoint string) error {
	if k == nil {
		return nil
	}
	_, err := k.server(endpoint)
	return err
}

func (k *Keys) server(endpoint string) (key string, err error) {
	return k.allow.server(endpoint, k.named)
}

func (k *Keys) readPair() error {
	text, err := readSecret(k.file)
	if err != nil {
		return err
	}
	k.public, k.secret = certified(text, "public-key"), certified(text, "secret-key")
	derived, err := zmq4.AuthCurvePublic(k.secret)
	switch {
	case k.secret == "":
		return fmt.Errorf("%s has no secret-key of %d characters: make one with pd-recv keygen", k.file, keyLen)
	case err != nil:
		return fmt.Errorf("%s: its secret-key is none: %w", k.file, err)
	case k.public != "" && k.public != derived:
		return fmt.Errorf("%s: its public-key is not that of its secret-key", k.file)
	case derived[0] == '#':
		return fmt.Errorf("%s: its public key begins with #, as comments of an allow file do: make another with pd-recv keygen", k.file)
	}
	k.public = derived
	return nil
}

// readSecret reads a file that nobody else may read.
func readSecret(name string) (string, error) {
	f, info, err := openFile(name)
	if err != nil {
		return "", fmt.Errorf("cannot read the key: %w", err)
	}
	defer f.Close()
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case strings.HasSuffix(name, ".pub"):
		return "", fmt.Errorf("key file %s is the public one, for the others' --curve-allow: the secret one is %s", name, strings.TrimSuffix(name, ".pub"))
	case info.Mode().Perm() != keyMode:
		return "", fmt.Errorf("key file %s has mode %#o, and a secret key's must be %#o: chmod 600 %[1]s, and make a new one if others may have read it",
			name, info.Mode().Perm(), keyMode)
	case ok && int(owner.Uid) != os.Geteuid():
		return "", fmt.Errorf("key file %s belongs to user %d, and this program runs as %d: make one of its own", name, owner.Uid, os.Geteuid())
	}
	return readAtMost(f, maxKeyFile)
}

// certified is a key of a certificate in ZPL, as czmq and pyzmq write it.
func certified(text, name string) string {
	for line := range strings.Lines(text) {
		field, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.TrimSpace(field) == name {
			if key := strings.Trim(strings.TrimSpace(value), `"`); isKey(key) {
				return key
			}
		}
	}
	return ""
}

var z85 = regexp.MustCompile(`^[0-9A-Za-z.\-:+=^!/*?&<>()[\]{}@%$#]{40}$`)

func isKey(s string) bool { return z85.MatchString(s) }

const secretForm = `# A ZeroMQ CURVE certificate with its SECRET key: for the program that uses it
# and for nobody else. What the others need is in %s.

metadata
curve
    public-key = "%s"
    secret-key = "%s"
`

// MakeKeys makes a pair and writes it into file, which must not be there yet,
// and the public key into publicFile: file.pub.
func MakeKeys(file string) (public, publicFile string, err error) {
	if !zmq4.HasCurve() {
		return "", "", errNoCurve
	}
	var secret string
	for public == "" || public[0] == '#' { // a comment, in an allow file
		if public, secret, err = zmq4.NewCurveKeypair(); err != nil {
			return "", "", fmt.Errorf("cannot make keys: %w", err)
		}
	}
	publicFile = file + ".pub"
	name := strings.TrimSuffix(filepath.Base(file), ".key")
	secretText := fmt.Sprintf(secretForm, filepath.Base(publicFile), public, secret)
	if err := writeNew(file, keyMode, secretText); err != nil {
		return "", "", err
	}
	if err := writeNew(publicFile, 0o644, fmt.Sprintf("%s # %s\n", public, name)); err != nil {
		return "", "", errors.Join(err, os.Remove(file))
	}
	return public, publicFile, nil
}

// writeNew makes a file of just this mode.
func writeNew(name string, mode os.FileMode, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already, and keys are not written over: name another file or remove it", name)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
