package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/pebbe/zmq4"
)

// keyPairs are a client's own and the public key of its receiver.
type keyPairs struct{ server, public, secret string }

// keyed is what is compared: receivers with keys and such without.
type keyed struct {
	*bench
	client     *keyPairs
	recv, send []string // the flags of programs with keys

	loads, frames []*row // one for each of controlLoads
	whole         *row
}

// withKeys compares messages per second of receivers with keys with those of
// receivers without. On which cores the threads of a process come to lie stays
// as it is for long and decides more than keys do; hence many pairs of them.
func (b *bench) withKeys() error {
	k := &keyed{bench: b}
	if err := k.makeKeys(); err != nil {
		return err
	}
	b.table.note("keys: messages per second of a pd-recv with keys; the reference is one without, both new every few rounds. Messages are in one frame, as pd-send's are; clients and receiver share this machine's cores, and both ends encrypt. pd-send: requests of %d chunks of %d bytes, written by shm.", e2eRequest, chunkSize)
	for _, l := range controlLoads {
		floor := atLeast(0.9)
		if l.window == 1 {
			floor = atLeast(0.8) // a round trip's time and no rate; of a bare ROUTER that works 15 µs a message it is 0.9
		}
		k.loads = append(k.loads, b.table.row(perSecond, floor, "keys: %s, 8 keys, with keys : without", l.name))
	}
	k.whole = b.table.row(perSecond, atLeast(0.9), "keys: pd-send to pd-recv --sink, requests a second, with keys : without")
	for _, l := range controlLoads {
		k.frames = append(k.frames, b.table.row(perSecond, limit{}, "frames: %s, 8 keys, messages in one frame : in three", l.name))
	}
	for pair := range pick(b, 30, 1) {
		if err := k.loadPair(pair); err != nil {
			return err
		}
		if err := k.sendPair(pair); err != nil {
			return err
		}
	}
	for _, row := range slices.Concat(k.loads, []*row{k.whole}, k.frames) {
		b.say("%v", row)
	}
	return nil
}

// receivers starts one of each kind, in turn this or that first; stop ends both.
func (k *keyed) receivers(pair int, args ...string) (ps [2]*process, endpoints [2]string, stop func(), err error) {
	stop = func() {
		for _, p := range ps {
			if p != nil {
				p.stop()
			}
		}
	}
	for i := range ps {
		kind := (pair + i) % 2
		flags := slices.Concat([2][]string{k.recv, nil}[kind], args)
		if ps[kind], endpoints[kind], err = k.receiver(controlSlots, chunkSize, flags...); err != nil {
			stop()
			return ps, endpoints, nil, err
		}
	}
	return ps, endpoints, stop, nil
}

// loadPair adds rounds of one pair of receivers to the rows of loads.
func (k *keyed) loadPair(pair int) error {
	_, at, stop, err := k.receivers(pair)
	if err != nil {
		return err
	}
	defer stop()
	for i, l := range controlLoads {
		run := func(kind int, oneFrame bool) func() (*rate, error) {
			return func() (*rate, error) {
				keys := [2]*keyPairs{k.client, nil}[kind]
				return k.load(at[kind], l.clients, l.window, keys, oneFrame)
			}
		}
		if err := k.rounds(k.loads[i], pick(k.bench, 4, 1), run(0, true), run(1, true)); err != nil {
			return err
		}
		if err := k.rounds(k.frames[i], 1, run(1, true), run(1, false)); err != nil {
			return err
		}
	}
	return nil
}

// sendPair adds rounds of real senders, to receivers of their own.
func (k *keyed) sendPair(pair int) error {
	ps, at, stop, err := k.receivers(pair, "--sink")
	if err != nil {
		return err
	}
	defer stop()
	var senders [2]*worker
	for kind, flags := range [2][]string{k.send, nil} {
		if senders[kind], err = k.pdSend(at[kind], flags...); err != nil {
			return err
		}
		defer senders[kind].stop()
	}
	for round := range pick(k.bench, 2, 1) {
		t := transfer{filepath.Join(k.dir, "keys.manifest"), pick(k.bench, 1000, 10)}
		if err := writeManifest(t, fmt.Sprintf("k%d-%d", pair, round), chunkSize, "", 0); err != nil {
			return err
		}
		run := func(kind int) func() (float64, error) {
			return func() (float64, error) { return k.bench.send(ps[kind], senders[kind], t) }
		}
		got, want, err := inTurn(pair+round, run(0), run(1))
		if err != nil {
			return err
		}
		k.whole.add(got, want)
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

func (k *keyed) load(endpoint string, clients, window int, keys *keyPairs, oneFrame bool) (*rate, error) {
	l := load{endpoint, clients, window, keys, oneFrame, func(c *client) (*flow, error) {
		steps, err := allocRelease(8)(c)
		return &flow{steps: steps}, err
	}}
	return l.run(k.ctx, pick(k.bench, 150*time.Millisecond, 50*time.Millisecond))
}

// makeKeys has pd-recv keygen make those of the programs; a client has its own.
func (k *keyed) makeKeys() (err error) {
	k.client = &keyPairs{}
	if k.client.public, k.client.secret, err = zmq4.NewCurveKeypair(); err != nil {
		return err
	}
	sender := ""
	for _, of := range []struct {
		name   string
		flags  *[]string
		public *string
	}{{"recv", &k.recv, &k.client.server}, {"send", &k.send, &sender}} {
		file := filepath.Join(k.dir, of.name+".key")
		out, err := exec.Command(filepath.Join(k.bin, "pd-recv"), "keygen", file).Output()
		if err != nil {
			return fmt.Errorf("cannot make keys: %w", err)
		}
		var made struct {
			PublicKey string `json:"public_key"`
		}
		if err := json.Unmarshal(out, &made); err != nil {
			return err
		}
		*of.public = made.PublicKey
		*of.flags = []string{"--curve-key", file, "--curve-allow", file + ".allow"}
	}
	return errors.Join(
		os.WriteFile(k.recv[3], []byte(k.client.public+"\n"+sender+"\n"), 0o600),
		os.WriteFile(k.send[3], []byte(k.client.server+"\n"), 0o600))
}
