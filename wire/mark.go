package wire

import "encoding/binary"

// A message in one frame carries its correlation itself: a byte that no msgpack
// has, eight bytes that the asker chose, and the message. Its answer begins with
// the same MarkLen bytes. [correlation, "", message] says as much in three frames,
// and each frame costs about as much as a small message does: with CURVE it is
// encrypted by itself. A receiver that takes such messages says so when a sender
// attaches (AttachResponse.OneFrame).
const (
	MarkLen   = 9 // bytes
	markFirst = 0xc1
)

// AppendMark begins a message in one frame.
func AppendMark(b []byte, correlation uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, markFirst), correlation)
}

// CutMark splits a message in one frame. mark is nil where there is none.
func CutMark(b []byte) (mark, message []byte) {
	if len(b) < MarkLen || b[0] != markFirst {
		return nil, b
	}
	return b[:MarkLen:MarkLen], b[MarkLen:]
}

// Correlation is what AppendMark was given.
func Correlation(mark []byte) uint64 { return binary.BigEndian.Uint64(mark[1:]) }
