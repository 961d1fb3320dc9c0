package wire

import (
	"fmt"
	"math"
	"math/bits"
)

// Memory formats, as LMCache numbers them.
const (
	FmtUndefined    = 0
	FmtKV2LTD       = 1
	FmtKVT2D        = 2
	FmtKV2TD        = 3
	FmtBinary       = 4
	FmtBinaryBuffer = 5
	FmtKVMLA        = 6
	FmtKVDSAIndex   = 7
)

// TokenDim is the dimension of a shape that counts tokens, as LMCache's
// senders compute it; ok is false for a format there is not.
func TokenDim(format int64) (dim int, ok bool) {
	switch format {
	case FmtKV2LTD, FmtKVMLA, FmtKVDSAIndex:
		return 2, true
	case FmtKVT2D:
		return 1, true
	case FmtUndefined, FmtKV2TD, FmtBinary, FmtBinaryBuffer:
		return 0, true
	}
	return 0, false
}

// DtypeSize is the bytes of one element; ok is false for a dtype there is not.
func DtypeSize(name string) (bytes int64, ok bool) {
	switch name {
	case "uint8", "int8", "bool", "fp8", "fp8_e4m3", "fp8_e5m2":
		return 1, true
	case "half", "float16", "bfloat16", "int16":
		return 2, true
	case "float", "float32", "int32":
		return 4, true
	case "double", "float64", "int64":
		return 8, true
	}
	return 0, false
}

// ChunkBytes is how many bytes a full chunk of the batch has and how many the
// one of its last key. It checks fmt, dtype, shape and last_chunk_toks. In a
// batch without keys last_chunk_toks may be 0 too.
func ChunkBytes(req *AllocRequest) (full, last int64, err error) {
	format, ok := req.Fmt.Int64()
	dim, known := TokenDim(format)
	if !ok || !known {
		return 0, 0, fmt.Errorf("fmt %v is unknown: it must be %d to %d", req.Fmt, FmtUndefined, FmtKVDSAIndex)
	}
	size, ok := DtypeSize(req.Dtype)
	if !ok {
		return 0, 0, fmt.Errorf("dtype %.64q is unknown", req.Dtype)
	}
	if dim >= len(req.Shape) {
		return 0, 0, fmt.Errorf("shape has %d dimensions, fmt %v counts tokens in dimension %d", len(req.Shape), req.Fmt, dim)
	}
	full, err = product(req.Shape, size)
	if err != nil {
		return 0, 0, err
	}
	least := int64(1)
	if len(req.Keys) == 0 {
		least = 0
	}
	most, _ := req.Shape[dim].Int64()
	toks, ok := req.LastChunkToks.Int64()
	if !ok || toks < least || toks > most {
		return 0, 0, fmt.Errorf("last_chunk_toks is %v: it must be %d to shape[%d], which is %d", req.LastChunkToks, least, dim, most)
	}
	if full == 0 {
		return 0, 0, nil
	}
	return full, full / most * toks, nil
}

// product is size times all dimensions.
func product(shape []Int, size int64) (int64, error) {
	p, zero := uint64(size), false
	for i, n := range shape {
		v, ok := n.Int64()
		if v < 0 || !ok {
			return 0, fmt.Errorf("shape[%d] is %v: it must be 0 to 2^63-1", i, n)
		}
		zero = zero || v == 0
	}
	if zero {
		return 0, nil
	}
	for _, n := range shape {
		hi, lo := bits.Mul64(p, n.bits)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("shape %v of %d-byte elements has over 2^63-1 bytes", shape, size)
		}
		p = lo
	}
	return int64(p), nil
}
