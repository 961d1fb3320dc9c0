// Wirecheck is the Go side of the comparison with msgspec: it writes LMCache's
// messages as package wire does.
//
//	wirecheck [--break N] echo         each line of stdin, a payload in hex, decoded and encoded again
//	wirecheck [--break N] make SEED N  N random messages
//
// It prints a line for each: the payload in hex, a space, and the fields as
// JSON, or "error", a space, and why. --break flips a bit of the N-th payload,
// from 1, to see that the comparison finds it.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"

	"github.com/pd-tools/pd-tools/wire"
)

func main() {
	broken := flag.Int("break", 0, "flip a bit of the N-th payload")
	flag.Parse()
	p := &printer{w: bufio.NewWriter(os.Stdout), broken: *broken}
	var err error
	switch {
	case flag.NArg() == 1 && flag.Arg(0) == "echo":
		err = echo(p)
	case flag.NArg() == 3 && flag.Arg(0) == "make":
		err = produce(p, flag.Arg(1), flag.Arg(2))
	default:
		fmt.Fprintln(os.Stderr, "wirecheck: usage: wirecheck [--break N] echo <payloads | make SEED N")
		os.Exit(2)
	}
	if err == nil {
		err = p.w.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "wirecheck:", err)
		os.Exit(1)
	}
}

// printer writes the lines.
type printer struct {
	w         *bufio.Writer
	n, broken int
}

func (p *printer) message(m wire.Message) {
	b := wire.Append(nil, m)
	if p.n++; p.n == p.broken {
		b[len(b)/2] ^= 1
	}
	fields, err := json.Marshal(fieldsOf(m))
	if err != nil {
		p.refused(err)
		return
	}
	fmt.Fprintf(p.w, "%x %s\n", b, fields)
}

func (p *printer) refused(err error) { fmt.Fprintf(p.w, "error %q\n", err) }

func echo(p *printer) error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 4*wire.MaxResponse)
	for lines.Scan() {
		b, err := hex.DecodeString(lines.Text())
		if err != nil {
			return err
		}
		m, err := wire.Decode(b)
		if err != nil {
			p.refused(err)
			continue
		}
		p.message(m)
	}
	return lines.Err()
}

func produce(p *printer, seed, count string) error {
	s, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	r := random{rand.New(rand.NewPCG(s, 0))}
	for range n {
		p.message(r.message())
	}
	return nil
}

// fieldsOf is what Python sees of a message.
func fieldsOf(m wire.Message) map[string]any {
	switch m := m.(type) {
	case *wire.AllocRequest:
		return map[string]any{
			"type": wire.NameAllocRequest, "keys": list(m.Keys), "fmt": number(m.Fmt), "shape": numbers(m.Shape),
			"dtype": m.Dtype, "last_chunk_toks": number(m.LastChunkToks), "req_id": m.ReqID,
			"is_last_batch": m.IsLastBatch, "total_chunks": number(m.TotalChunks),
		}
	case *wire.AllocResponse:
		return map[string]any{
			"type": wire.NameAllocResponse, "remote_indexes": list(m.RemoteIndexes),
			"already_sent_indexes": list(m.AlreadySentIndexes),
		}
	case *wire.ProxyNotif:
		return map[string]any{"type": wire.NameProxyNotif, "req_id": m.ReqID}
	case *wire.CancelNotif:
		return map[string]any{"type": wire.NameCancelNotif, "req_id": m.ReqID, "keys": list(m.Keys)}
	}
	return map[string]any{"type": fmt.Sprintf("%T", m)}
}

func number(n wire.Int) json.Number { return json.Number(n.String()) }

func numbers(ns []wire.Int) []json.Number {
	out := make([]json.Number, len(ns))
	for i, n := range ns {
		out[i] = number(n)
	}
	return out
}

// list is never null in JSON.
func list[T any](s []T) []T { return append([]T{}, s...) }

// random makes messages. Sizes and numbers lie on both sides of where msgpack
// changes its form.
type random struct{ *rand.Rand }

func (r random) message() wire.Message {
	switch r.IntN(4) {
	case 0:
		return &wire.AllocRequest{
			Keys: some(r, 40, r.text), Fmt: r.integer(), Shape: some(r, 20, r.integer), Dtype: r.short(),
			LastChunkToks: r.integer(), ReqID: r.text(), IsLastBatch: r.IntN(2) == 0, TotalChunks: r.integer(),
		}
	case 1:
		return &wire.AllocResponse{RemoteIndexes: some(r, 40, r.index), AlreadySentIndexes: some(r, 20, r.index)}
	case 2:
		return &wire.ProxyNotif{ReqID: r.text()}
	}
	return &wire.CancelNotif{ReqID: r.text(), Keys: some(r, 40, r.text)}
}

func some[T any](r random, most int, one func() T) []T {
	s := make([]T, r.IntN(most+1))
	for i := range s {
		s[i] = one()
	}
	return s
}

// bits is a number of a random number of bits, up to most.
func (r random) bits(most int) uint64 { return r.Uint64() >> (64 - 1 - r.IntN(most)) }

func (r random) integer() wire.Int {
	if r.IntN(4) == 0 {
		return wire.I(r.index())
	}
	return wire.U(r.bits(64))
}

func (r random) index() int64 {
	if v := int64(r.bits(63)); r.IntN(4) != 0 {
		return v
	} else {
		return -v - 1
	}
}

var letters = []rune("ab/-_09 \x00\n\"\\éЖ漢𝄞")

func (r random) letters(n int) string {
	s := make([]rune, r.IntN(n+1))
	for i := range s {
		s[i] = letters[r.IntN(len(letters))]
	}
	return string(s)
}

func (r random) short() string { return r.letters(40) }

// text is short, or long enough for msgpack's longer forms.
func (r random) text() string {
	if r.IntN(16) == 0 {
		return r.letters(120)
	}
	return r.short()
}
