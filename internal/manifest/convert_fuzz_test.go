package manifest

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// FuzzConvert converts anything that is said to be a trace: a line of it is
// wrong, or what comes out is a manifest that pd-send takes.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":1000,"output_length":5,"hash_ids":[1,2]}`+"\n"+`{"timestamp":27,"input_length":600,"output_length":9,"hash_ids":[1]}`), int64(512), byte(3))
	f.Add([]byte(`{"timestamp":-1,"input_length":0,"hash_ids":null}`), int64(1), byte(0))
	f.Add([]byte(`{"input_length":9223372036854775807,"hash_ids":[]}`), int64(math.MaxInt32), byte(9))
	f.Add([]byte(`{"input_length":1e9,"hash_ids":[1]}`), int64(1), byte(1))
	f.Fuzz(func(t *testing.T, trace []byte, tokens int64, n byte) {
		opt := Options{ChunkSize: 1 << 20, TokensPerChunk: tokens, Batch: 1 + int(n%8), Interleave: 1 + int(n/8), Limit: 5, Prefix: "r"}
		out := &atMost{left: 1 << 20}
		if opt.Check() != nil {
			return
		}
		err := Convert(bytes.NewReader(trace), "trace", out, opt)
		var bad *LineError
		switch {
		case errors.Is(err, errFull):
			return
		case err != nil && !errors.As(err, &bad):
			t.Fatalf("an error that names no line: %v", err)
		case err != nil && bad.Error() == "":
			t.Fatal("an error that says nothing")
		}
		in := NewReader(strings.NewReader(out.String()), "manifest")
		var track Tracker
		for {
			line, err := in.Next()
			if err == io.EOF {
				return
			}
			if err == nil {
				err = track.Check(line)
			}
			if err != nil {
				t.Fatalf("%q becomes %q: %v", trace, out.String(), err)
			}
		}
	})
}

var errFull = errors.New("enough")

type atMost struct {
	strings.Builder
	left int
}

func (w *atMost) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, errFull
	}
	return w.Builder.Write(b)
}
