package cli

import (
	"errors"
	"fmt"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/sock"
)

// Curve are the flags that give a program's sockets keys.
type Curve struct {
	// Listens says that the program is there for others to connect to: an allow
	// file's lines without an endpoint are theirs.
	Listens bool

	key, allow string
}

// Flags are the two.
func (c *Curve) Flags() []urfave.Flag {
	return []urfave.Flag{
		Var(&c.key, "curve-key", "FILE", "", "encrypt, with the key in FILE, which pd-recv keygen made", file),
		Var(&c.allow, "curve-allow", "FILE", "", "whose keys are taken: lines KEY [ENDPOINT] [# comment]", file),
	}
}

func file(s string) (string, error) {
	if s == "" {
		return "", errors.New("is empty: name a file")
	}
	return s, nil
}

// Keys reads the files; nil without the flags. The program connects to
// endpoints; an empty one is none. Warn tells people of who is refused.
func (c *Curve) Keys(warn func(kind, text string), endpoints ...string) (*sock.Keys, error) {
	switch {
	case c.key == "" && c.allow == "":
		return nil, nil
	case c.allow == "":
		return nil, Usagef("--curve-key needs --curve-allow: a file with the public keys of the others, one a line")
	case c.key == "":
		return nil, Usagef("--curve-allow needs --curve-key: a file that pd-recv keygen makes")
	}
	keys, err := sock.LoadKeys(c.key, c.allow, warn)
	if err != nil {
		return nil, err
	}
	if c.Listens {
		keys.NamedOnly()
	}
	for _, endpoint := range endpoints {
		if endpoint == "" {
			continue
		}
		if err := keys.CheckDial(endpoint); err != nil {
			return nil, Usagef("%v", err)
		}
	}
	return keys, nil
}

// KeysToAsk is Keys for a program to which nobody connects: what people should
// know of the files it prints at once, and of later changes nothing.
func (c *Curve) KeysToAsk(app *urfave.App, endpoints ...string) (*sock.Keys, error) {
	started := false
	keys, err := c.Keys(func(_, text string) {
		if !started {
			fmt.Fprintf(app.ErrWriter, "%s: %s\n", app.Name, Escape(text))
		}
	}, endpoints...)
	started = true
	return keys, err
}
