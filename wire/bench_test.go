package wire

import (
	"fmt"
	"testing"
)

// batch is an AllocRequest of n keys as LMCache names them.
func batch(n int) *AllocRequest {
	r := &AllocRequest{
		Fmt: I(FmtKV2LTD), Shape: []Int{I(2), I(32), I(256), I(1024)}, Dtype: "bfloat16", LastChunkToks: I(100),
		ReqID: "cmpl-5f0c2b6d8f9a4c47a7b1-0", TotalChunks: I(64), Epoch: 1764447186123456789,
	}
	for i := range n {
		r.Keys = append(r.Keys, fmt.Sprintf("vllm@meta-llama/Llama-3.1-8B-Instruct@8@3@%064x@bfloat16", i))
	}
	return r
}

func BenchmarkDecodeAlloc(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		frame := Append(nil, batch(n))
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendAlloc(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		m := batch(n)
		dst := Append(nil, m)
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				dst = Append(dst[:0], m)
			}
		})
	}
}

func BenchmarkAnswer(b *testing.B) {
	m := &AllocResponse{Epoch: 1764447186123456789}
	for i := range 32 {
		m.RemoteIndexes = append(m.RemoteIndexes, int64(i*37))
	}
	dst := Append(nil, m)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			dst = Append(dst[:0], m)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Decode(dst); err != nil {
				b.Fatal(err)
			}
		}
	})
}
