package manifest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/wire"
	"pgregory.net/rapid"
)

func chunksOf(lengths ...int64) []Chunk {
	var list []Chunk
	for i, n := range lengths {
		list = append(list, Chunk{Key: fmt.Sprint(i), Length: n})
	}
	return list
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		lengths []int64
		n       int
		want    string
	}{
		{nil, 8, "[]"},
		{[]int64{4, 4, 4}, 8, "[4 4 4]"},
		{[]int64{4, 4, 4}, 2, "[4 4] [4]"},
		{[]int64{4, 4, 3}, 8, "[4 4 3]"},
		{[]int64{4, 3, 4}, 8, "[4 3] [4]"},
		{[]int64{3, 4, 4}, 8, "[3] [4 4]"},
		{[]int64{4, 3, 3, 3}, 8, "[4 3] [3 3]"},
		{[]int64{1, 2, 3}, 8, "[1] [2] [3]"},
		{[]int64{4, 4}, 0, "[4] [4]"},
	} {
		var got []string
		for _, p := range Split(&Batch{Chunks: chunksOf(c.lengths...)}, c.n) {
			lengths := []int64{}
			for _, ch := range p.Chunks {
				lengths = append(lengths, ch.Length)
			}
			got = append(got, fmt.Sprint(lengths))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("Split(%v, %d) = %s, want %s", c.lengths, c.n, s, c.want)
		}
	}
}

func TestSplitKeepsWhatABatchMustBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &Batch{
			ReqID:  "A",
			Total:  99,
			Chunks: chunksOf(rapid.SliceOfN(rapid.Int64Range(1, 3), 0, 60).Draw(t, "lengths")...),
			Last:   rapid.Bool().Draw(t, "last"),
			At:     3,
			To:     2,
		}
		n := rapid.IntRange(1, 9).Draw(t, "n")
		var all []Chunk
		pieces := Split(b, n)
		for i, p := range pieces {
			all = append(all, p.Chunks...)
			if len(p.Chunks) > n || len(p.Chunks) == 0 && len(b.Chunks) > 0 {
				t.Fatalf("piece %d has %d chunks, at most %d fit", i, len(p.Chunks), n)
			}
			if p.Last != (b.Last && i == len(pieces)-1) {
				t.Fatalf("piece %d of %d has last %v", i, len(pieces), p.Last)
			}
			for j, c := range p.Chunks {
				full := p.Chunks[0].Length
				if c.Length != full && (j < len(p.Chunks)-1 || c.Length > full) {
					t.Fatalf("piece %d: chunk %d has length %d behind %d", i, j, c.Length, full)
				}
			}
			if p.ReqID != b.ReqID || p.Total != b.Total || p.At != b.At || p.To != b.To {
				t.Fatalf("piece %d is %+v", i, p)
			}
		}
		if !reflect.DeepEqual(all, b.Chunks) {
			t.Fatalf("chunks %v, want %v", all, b.Chunks)
		}
	})
}

func TestSplitFitsAMessage(t *testing.T) {
	b := &Batch{ReqID: strings.Repeat("r", wire.MaxReqID), Total: 1 << 40}
	for i := range 600 {
		b.Chunks = append(b.Chunks, Chunk{Key: fmt.Sprintf("%0*d", wire.MaxKey, i), Length: 1 << 20})
	}
	left := len(b.Chunks)
	for _, p := range Split(b, 1<<30) {
		left -= len(p.Chunks)
		req := &wire.AllocRequest{Fmt: wire.I(4), Shape: []wire.Int{wire.I(1 << 20)}, Dtype: "uint8",
			LastChunkToks: wire.I(1 << 20), ReqID: p.ReqID, TotalChunks: wire.I(p.Total), Epoch: 1 << 63}
		for _, c := range p.Chunks {
			req.Keys = append(req.Keys, c.Key)
		}
		if n := len(wire.Append(nil, req)); n > wire.MaxMessage || len(p.Chunks) > wire.MaxKeys {
			t.Fatalf("%d chunks make a message of %d bytes", len(p.Chunks), n)
		}
	}
	if left != 0 {
		t.Errorf("%d chunks are missing", left)
	}
	short := &Batch{Chunks: make([]Chunk, 2*wire.MaxKeys)}
	if p := Split(short, 1<<30); len(p) != 2 {
		t.Errorf("%d pieces, want 2 of %d chunks", len(p), wire.MaxKeys)
	}
}
