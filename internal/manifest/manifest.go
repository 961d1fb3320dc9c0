// Package manifest is what pd-send reads: which chunks a request has, in which
// batches they go, and where their bytes come from. It also turns a Mooncake
// trace into a manifest.
//
// A manifest is JSON lines. One line is one batch of a request, or a cancel:
//
//	{"req_id":"A","total_chunks":8,"chunks":[{"key":"A-0","file":"kv.bin","offset":0,"length":1048576}],"last":false}
//	{"cancel":"A"}
//
// The package knows nothing of sockets, staging or receivers. Start at Reader;
// Tracker holds the rules that take more than one line to see, Split cuts a
// batch into what one AllocRequest can say, Fill gets a chunk's bytes, and
// Convert reads traces.
package manifest

import (
	"encoding/json"
	"fmt"
	"strconv"
)

const (
	// MaxLine is how many bytes a line has at most, its end included. A longer
	// one is an error and is never held in memory.
	MaxLine = 4 << 20
	// MaxAt is the largest `at`, seconds: 31 years, which a time.Duration holds.
	MaxAt = 1e9
	// AnyReceiver as Batch.To leaves the choice of the receiver to the sender.
	AnyReceiver = -1
)

// Chunk is one piece of a request's KV.
type Chunk struct {
	Key    string `json:"key"`
	File   string `json:"file"`   // "": the bytes are a pattern made from the key
	Offset int64  `json:"offset"` // bytes from the start of File
	Length int64  `json:"length"` // bytes, at least 1
}

// Batch is one line: the next chunks of a request.
type Batch struct {
	ReqID  string
	Total  int64 // chunks of the whole request, over all lines; 0 needs a line without chunks that is the last
	Chunks []Chunk
	Last   bool    // no line of this request follows
	At     float64 // seconds from the start at which the line is due; 0 when not given
	To     int     // position of the receiver, from 0; AnyReceiver when not given
}

// Line is a line that can be used. Either Batch or Cancel is set.
type Line struct {
	File   string
	No     int    // from 1
	Batch  *Batch // nil: a cancel line
	Cancel string // the request to abort
}

// LineError says what is wrong with one line and what to do. The lines after
// it can be read.
type LineError struct {
	File  string
	No    int    // from 1
	ReqID string // the request that the line names, which fails; "" when that could not be read
	Err   error
}

func (e *LineError) Error() string {
	if e.ReqID == "" {
		return fmt.Sprintf("%s:%d: %v", e.File, e.No, e.Err)
	}
	return fmt.Sprintf("%s:%d: request %q: %v", e.File, e.No, e.ReqID, e.Err)
}

func (e *LineError) Unwrap() error { return e.Err }

// AppendLine appends b as a manifest line, its line end included. Reader reads
// it back as it was.
func AppendLine(dst []byte, b *Batch) []byte {
	dst = appendString(append(dst, `{"req_id":`...), b.ReqID)
	dst = strconv.AppendInt(append(dst, `,"total_chunks":`...), b.Total, 10)
	dst = append(dst, `,"chunks":[`...)
	for i := range b.Chunks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendChunk(dst, &b.Chunks[i])
	}
	dst = strconv.AppendBool(append(dst, `],"last":`...), b.Last)
	if b.At != 0 {
		dst = strconv.AppendFloat(append(dst, `,"at":`...), b.At, 'f', -1, 64)
	}
	if b.To != AnyReceiver {
		dst = strconv.AppendInt(append(dst, `,"to":`...), int64(b.To), 10)
	}
	return append(dst, "}\n"...)
}

func appendChunk(dst []byte, c *Chunk) []byte {
	dst = appendString(append(dst, `{"key":`...), c.Key)
	if c.File != "" {
		dst = appendString(append(dst, `,"file":`...), c.File)
		dst = strconv.AppendInt(append(dst, `,"offset":`...), c.Offset, 10)
	}
	dst = strconv.AppendInt(append(dst, `,"length":`...), c.Length, 10)
	return append(dst, '}')
}

func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string always has a JSON form
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
