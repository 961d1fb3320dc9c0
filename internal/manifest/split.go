package manifest

import "github.com/pd-tools/pd-tools/wire"

// What a key and the rest of an AllocRequest take in a message, bytes: a
// generous bound on the headers, field names, shape and req_id.
const (
	keyOverhead     = 5
	requestOverhead = 1024 + wire.MaxReqID
)

// Split cuts a batch into what one AllocRequest each can say: at most n chunks
// (wire.MaxKeys at most), all of one length but the last, which may be shorter,
// and keys that fit a message. Last stays with the last of them. A batch
// without chunks comes back as it is. The pieces share b's chunks.
func Split(b *Batch, n int) []Batch {
	n = min(max(n, 1), wire.MaxKeys)
	var pieces []Batch
	rest := b.Chunks
	for {
		size := run(rest, n)
		piece := *b
		piece.Chunks = rest[:size:size]
		rest = rest[size:]
		piece.Last = b.Last && len(rest) == 0
		pieces = append(pieces, piece)
		if len(rest) == 0 {
			return pieces
		}
	}
}

// run returns how many of the first chunks fit one AllocRequest.
func run(chunks []Chunk, n int) int {
	room := wire.MaxMessage - requestOverhead
	for i := range chunks {
		room -= len(chunks[i].Key) + keyOverhead
		if i == n || i > 0 && (room < 0 || chunks[i].Length > chunks[0].Length) {
			return i
		}
		if chunks[i].Length < chunks[0].Length {
			return i + 1
		}
	}
	return len(chunks)
}
