package wire

import (
	"math"
	"strings"
	"testing"
)

func TestTokenDim(t *testing.T) {
	want := map[int64]int{0: 0, 1: 2, 2: 1, 3: 0, 4: 0, 5: 0, 6: 2, 7: 2}
	for format := int64(-2); format < 12; format++ {
		dim, ok := TokenDim(format)
		if wantDim, known := want[format]; ok != known || dim != wantDim {
			t.Errorf("fmt %d: got %d, %v", format, dim, ok)
		}
	}
}

func TestDtypeSize(t *testing.T) {
	want := map[string]int64{
		"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4, "double": 8, "float64": 8, "uint8": 1, "int8": 1,
		"int16": 2, "int32": 4, "int64": 8, "bool": 1, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
		"": 0, "uint16": 0, "Float": 0, "float8": 0, "torch.float16": 0,
	}
	for name, size := range want {
		if got, ok := DtypeSize(name); got != size || ok != (size > 0) {
			t.Errorf("%q: got %d, %v", name, got, ok)
		}
	}
}

func ints(vs ...int64) (ns []Int) {
	for _, v := range vs {
		ns = append(ns, I(v))
	}
	return ns
}

func TestChunkBytes(t *testing.T) {
	one, none := []string{"k"}, []string(nil)
	kv := func(format int64, dtype string, last int64, shape ...int64) *AllocRequest {
		return &AllocRequest{Keys: one, Fmt: I(format), Dtype: dtype, LastChunkToks: I(last), Shape: ints(shape...)}
	}
	huge := kv(FmtBinary, "uint8", 1, 1)
	huge.Shape = []Int{U(1 << 63)}
	hugeLast := kv(FmtBinary, "uint8", 1, 1)
	hugeLast.LastChunkToks = U(math.MaxUint64)
	hugeFmt := kv(FmtBinary, "uint8", 1, 1)
	hugeFmt.Fmt = U(math.MaxUint64)
	noKeys := func(last int64) *AllocRequest {
		r := kv(FmtBinary, "uint8", last, 10)
		r.Keys = none
		return r
	}
	cases := []struct {
		name       string
		req        *AllocRequest
		full, last int64
		err        string // part of it; empty: none
	}{
		{"undefined", kv(FmtUndefined, "uint8", 3, 10, 2), 20, 6, ""},
		{"KV_2LTD", kv(FmtKV2LTD, "bfloat16", 100, 2, 32, 256, 1024), 2 * 32 * 256 * 1024 * 2, 2 * 32 * 100 * 1024 * 2, ""},
		{"KV_T2D", kv(FmtKVT2D, "half", 7, 2, 256, 32), 2 * 256 * 32 * 2, 2 * 7 * 32 * 2, ""},
		{"KV_2TD", kv(FmtKV2TD, "float", 1, 2, 256, 32), 2 * 256 * 32 * 4, 256 * 32 * 4, ""},
		{"BINARY", kv(FmtBinary, "uint8", 4096, 1<<20), 1 << 20, 4096, ""},
		{"BINARY_BUFFER", kv(FmtBinaryBuffer, "int64", 1, 5), 40, 8, ""},
		{"KV_MLA_FMT", kv(FmtKVMLA, "fp8_e4m3", 255, 1, 61, 256, 576), 61 * 256 * 576, 61 * 255 * 576, ""},
		{"KV_DSA_INDEX_FMT", kv(FmtKVDSAIndex, "double", 256, 1, 61, 256, 132), 61 * 256 * 132 * 8, 61 * 256 * 132 * 8, ""},
		{"fmt below", kv(-1, "uint8", 1, 1), 0, 0, "fmt -1 is unknown"},
		{"fmt above", kv(8, "uint8", 1, 1), 0, 0, "fmt 8 is unknown"},
		{"fmt beyond int64", hugeFmt, 0, 0, "fmt 18446744073709551615 is unknown"},
		{"dtype", kv(FmtBinary, "uint4", 1, 1), 0, 0, `dtype "uint4" is unknown`},
		{"no shape", kv(FmtBinary, "uint8", 1), 0, 0, "shape has 0 dimensions"},
		{"token dimension beyond the shape", kv(FmtKV2LTD, "uint8", 1, 2, 32), 0, 0, "shape has 2 dimensions, fmt 1 counts tokens in dimension 2"},
		{"negative dimension", kv(FmtBinary, "uint8", 1, 4, -1), 0, 0, "shape[1] is -1"},
		{"two negative dimensions", kv(FmtBinary, "uint8", 1, -4, -1), 0, 0, "shape[0] is -4"},
		{"dimension beyond int64", huge, 0, 0, "shape[0] is 9223372036854775808"},
		{"empty dimension", kv(FmtBinary, "uint8", 1, 4, 0), 0, 0, ""},
		{"empty dimension among huge ones", kv(FmtBinary, "uint8", 1, 1<<62, 1<<62, 0), 0, 0, ""},
		{"no tokens", kv(FmtBinary, "uint8", 1, 0), 0, 0, "last_chunk_toks is 1: it must be 1 to shape[0], which is 0"},
		{"last 0", kv(FmtBinary, "uint8", 0, 10), 0, 0, "last_chunk_toks is 0: it must be 1 to shape[0], which is 10"},
		{"last 1", kv(FmtBinary, "uint8", 1, 10), 10, 1, ""},
		{"last full", kv(FmtBinary, "uint8", 10, 10), 10, 10, ""},
		{"last over", kv(FmtBinary, "uint8", 11, 10), 0, 0, "last_chunk_toks is 11"},
		{"last negative", kv(FmtBinary, "uint8", -1, 10), 0, 0, "last_chunk_toks is -1"},
		{"last beyond int64", hugeLast, 0, 0, "last_chunk_toks is 18446744073709551615"},
		{"no keys, last 0", noKeys(0), 10, 0, ""},
		{"no keys, last negative", noKeys(-1), 0, 0, "last_chunk_toks is -1"},
		{"largest", kv(FmtBinary, "uint8", 1, math.MaxInt64), math.MaxInt64, 1, ""},
		{"overflow by dtype", kv(FmtBinary, "int16", 1, math.MaxInt64), 0, 0, "over 2^63-1 bytes"},
		{"overflow by a bit", kv(FmtBinary, "uint8", 1, 1<<32, 1<<31), 0, 0, "over 2^63-1 bytes"},
		{"overflow to 0 in 64 bits", kv(FmtBinary, "uint8", 1, 1<<32, 1<<32), 0, 0, "over 2^63-1 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			full, last, err := ChunkBytes(c.req)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if full != c.full || last != c.last {
				t.Errorf("got %d and %d, want %d and %d", full, last, c.full, c.last)
			}
		})
	}
}
