package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/pebbe/zmq4"
)

// keyPairs are a client's own and the public key of its receiver.
type keyPairs struct{ server, public, secret string }

// withKeys compares messages per second of receivers with keys with those of
// receivers without. On which cores the threads of a process come to lie stays
// as it is for long and decides more than keys do; hence several pairs.
func (b *bench) withKeys() error {
	k := &keyPairs{}
	flags, err := b.makeKeys(k)
	if err != nil {
		return err
	}
	b.table.note("keys: messages per second of a pd-recv with keys; the reference is one without, both new every few rounds. Messages are in one frame, as pd-send's are; clients and receiver share this machine's cores, and both ends encrypt.")
	var keyed, frames []*row
	for _, l := range controlLoads {
		keyed = append(keyed, b.table.row(perSecond, atLeast(0.9), "keys: %s, 8 keys, with keys : without", l.name))
	}
	for _, l := range controlLoads {
		frames = append(frames, b.table.row(perSecond, limit{}, "frames: %s, 8 keys, messages in one frame : in three", l.name))
	}
	for pair := range pick(b, 30, 1) {
		if err := b.keysPair(pair, k, flags, keyed, frames); err != nil {
			return err
		}
	}
	for _, row := range append(keyed, frames...) {
		b.say("%v", row)
	}
	return nil
}

// keysPair adds rounds of one pair of receivers to the rows, of which there is
// one for each of controlLoads.
func (b *bench) keysPair(pair int, k *keyPairs, flags []string, keyed, frames []*row) error {
	var secret, plain string
	for i := range 2 {
		endpoint, with := &secret, flags
		if (pair+i)%2 == 1 {
			endpoint, with = &plain, nil
		}
		p, at, err := b.receiver(controlSlots, chunkSize, with...)
		if err != nil {
			return err
		}
		defer p.stop()
		*endpoint = at
	}
	for i, l := range controlLoads {
		err := b.rounds(keyed[i], pick(b, 4, 1), func() (*rate, error) { return b.keyLoad(secret, l.clients, l.window, k, true) },
			func() (*rate, error) { return b.keyLoad(plain, l.clients, l.window, nil, true) })
		if err != nil {
			return err
		}
		err = b.rounds(frames[i], 1, func() (*rate, error) { return b.keyLoad(plain, l.clients, l.window, nil, true) },
			func() (*rate, error) { return b.keyLoad(plain, l.clients, l.window, nil, false) })
		if err != nil {
			return err
		}
	}
	return nil
}

// inRounds is rounds, and says what the row came to.
func (b *bench) inRounds(row *row, rounds int, ours, reference func() (*rate, error)) error {
	if err := b.rounds(row, rounds, ours, reference); err != nil {
		return err
	}
	b.say("%v", row)
	return nil
}

// rounds adds the messages of two loads in turn to a row, so many times.
func (b *bench) rounds(row *row, rounds int, ours, reference func() (*rate, error)) error {
	for round := range rounds {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		got, want, err := inTurn(round, ours, reference)
		if err != nil {
			return err
		}
		row.add(got.messages, want.messages)
	}
	return nil
}

func (b *bench) keyLoad(endpoint string, clients, window int, k *keyPairs, oneFrame bool) (*rate, error) {
	l := load{endpoint, clients, window, k, oneFrame, func(c *client) (*flow, error) {
		steps, err := allocRelease(8)(c)
		return &flow{steps: steps}, err
	}}
	return l.run(b.ctx, pick(b, 150*time.Millisecond, 50*time.Millisecond))
}

// makeKeys has pd-recv keygen make the receiver's and returns its flags.
func (b *bench) makeKeys(k *keyPairs) (flags []string, err error) {
	name := filepath.Join(b.dir, "recv.key")
	out, err := exec.Command(filepath.Join(b.bin, "pd-recv"), "keygen", name).Output()
	if err != nil {
		return nil, fmt.Errorf("cannot make keys: %w", err)
	}
	var made struct {
		PublicKey string `json:"public_key"`
	}
	if err := json.Unmarshal(out, &made); err != nil {
		return nil, err
	}
	k.server = made.PublicKey
	if k.public, k.secret, err = zmq4.NewCurveKeypair(); err != nil {
		return nil, err
	}
	allow := filepath.Join(b.dir, "recv.allow")
	return []string{"--curve-key", name, "--curve-allow", allow}, os.WriteFile(allow, []byte(k.public+"\n"), 0o600)
}
