package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

// msgpack by hand, where the bytes are to be wrong.

func str(s string) string {
	if len(s) < 32 {
		return string([]byte{0xa0 | byte(len(s))}) + s
	}
	return string(binary.BigEndian.AppendUint32([]byte{0xdb}, uint32(len(s)))) + s
}

// fields is a map of at most 15 pairs: names, and values as they are.
func fields(pairs ...string) []byte {
	var b strings.Builder
	b.WriteByte(0x80 | byte(len(pairs)/2))
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString(str(pairs[i]) + pairs[i+1])
	}
	return []byte(b.String())
}

// claims is an AllocRequest in which one field has this value.
func claims(field, value string) []byte {
	pairs := []string{
		"type", str(wire.NameAllocRequest), "keys", "\x91\xa1k", "fmt", "\x04", "shape", "\x91\x05", "dtype", str("uint8"),
		"last_chunk_toks", "\x05", "req_id", str("odd"), "is_last_batch", "\xc3", "total_chunks", "\x01",
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == field {
			pairs[i+1] = value
			return fields(pairs...)
		}
	}
	return fields(append(pairs, field, value)...)
}

func encode(m wire.Message) []byte { return wire.Append(nil, m) }

// batch is a well-formed AllocRequest.
func batch(reqID string, total int64, last bool, keys ...string) []byte {
	return encode(peertest.Alloc(reqID, total, last, slotBytes, keys...))
}

// many are n keys of so many bytes each.
func many(n, length int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%0*d", length, i)
	}
	return keys
}
