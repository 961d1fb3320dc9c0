package wire

import (
	"bytes"
	"math"
	"testing"
)

func TestMark(t *testing.T) {
	message := Append(nil, new(StatRequest))
	for _, id := range []uint64{0, 1, math.MaxUint64} {
		mark, rest := CutMark(append(AppendMark(nil, id), message...))
		if len(mark) != MarkLen || Correlation(mark) != id || !bytes.Equal(rest, message) {
			t.Errorf("%d: mark % x, message %q", id, mark, rest)
		}
	}
	for _, b := range [][]byte{nil, message, AppendMark(nil, 1)[:MarkLen-1], bytes.Repeat([]byte{0x80}, 20)} {
		if mark, rest := CutMark(b); mark != nil || !bytes.Equal(rest, b) {
			t.Errorf("% x: mark % x", b, mark)
		}
	}
	// What begins so is no message, whatever else it is.
	if _, err := Decode(append(AppendMark(nil, 1), message...)); err == nil {
		t.Error("a mark is decoded")
	}
}
