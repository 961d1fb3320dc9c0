package main

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/pd-tools/pd-tools/wire"
)

// marker stands in a template where each request has its own number.
const marker = "########"

// template is an encoded message that is made another request's by writing a
// number over the marker. The client is to cost little beside the server.
type template struct {
	bytes []byte
	at    []int // where a marker stood
}

func newTemplate(m wire.Message) *template {
	t := &template{bytes: wire.Append(nil, m)}
	for from := 0; ; {
		i := bytes.Index(t.bytes[from:], []byte(marker))
		if i < 0 {
			return t
		}
		t.at = append(t.at, from+i)
		from += i + len(marker)
	}
}

// number is the message for request n. It is good until the next call.
func (t *template) number(n uint32) []byte {
	var text [len(marker)]byte
	hex.Encode(text[:], []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	for _, at := range t.at {
		copy(t.bytes[at:], text[:])
	}
	return t.bytes
}

// chunkSize is the size of a chunk where only messages count, bytes.
const chunkSize = 4096

// allocRequest asks for keys number from up to from+n of a request of total
// chunks. Keys are as long as the hashes engines use.
func allocRequest(reqID string, from, n, total int, epoch uint64) *wire.AllocRequest {
	req := &wire.AllocRequest{
		Keys:        make([]string, n),
		Fmt:         wire.I(wire.FmtBinary),
		Shape:       []wire.Int{wire.I(chunkSize)},
		Dtype:       "uint8",
		ReqID:       reqID,
		IsLastBatch: from+n == total,
		TotalChunks: wire.I(int64(total)),
		Epoch:       epoch,
	}
	if n > 0 {
		req.LastChunkToks = wire.I(chunkSize)
	}
	for i := range req.Keys {
		req.Keys[i] = fmt.Sprintf("%s-%032x", reqID, from+i)
	}
	return req
}
