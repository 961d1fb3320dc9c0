package wire

import (
	"bytes"
	"math"
	"math/big"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// hostile are frames that claim what they do not have, or nest without end.
func hostile() (frames [][]byte) {
	for _, head := range []string{
		"\xdd\x03\xd0\x90\x00", "\xdf\x03\xd0\x90\x00", "\xc6\x7f\xff\xff\xff", "\xdb\x7f\xff\xff\xff", "\xc9\xff\xff\xff\xff",
		"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xdc\xff\xff", "\xde\xff\xff", "\xc7\x00\x01", "\xc1",
		strings.Repeat("\x91", 5000), strings.Repeat("\x81", 5000), strings.Repeat("\x81\xa1a", 5000),
	} {
		frames = append(frames, []byte(head),
			frame("type", str(NameAllocRequest), "keys", head), frame("type", str(NameAllocRequest), "z", head),
			frame("type", str(NameSnapshot), "requests", head), frame("type", str(NameSnapshot), "z", head),
			frame("type", str(NameTakeResponse), "chunks", head), frame("type", str(NameAttachResponse), "token", head),
			frame("type", str(NameReadyResponse), "entries", head))
	}
	return append(frames,
		frame("type", str(NameSnapshot), "time", str("2026-11-29T20:33:07Z"), "requests", many(MaxSnapshotList, "\xc0"), "requests", many(MaxSnapshotList, "\xc0")),
		frame("type", str(NameTakeResponse), "chunks", many(10000, "\x80")),
		frame("type", str(NameReadyResponse), "entries", many(MaxReadyList, "\x80")))
}

func FuzzDecode(f *testing.F) {
	for _, c := range load[goldenCase](f, "golden.json") {
		f.Add(unhex(f, c.Hex))
	}
	for _, c := range load[toleranceCase](f, "tolerance.json") {
		f.Add(unhex(f, c.Hex))
	}
	for _, m := range everyMessage() {
		f.Add(Append(nil, m))
	}
	for _, b := range hostile() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := allocated()
		m, err := Decode(b)
		// A Snapshot's lists get memory by the thousand entries, whatever the
		// size of the frame.
		if spent, most := allocated()-before, uint64(16<<20+64*len(b)); spent > most {
			t.Errorf("%d bytes took %d bytes of memory", len(b), spent)
		}
		if err != nil {
			if err.Error() == "" || m != nil {
				t.Errorf("got %v and error %q", m, err)
			}
			return
		}
		again, err := Decode(Append(nil, m))
		if err != nil {
			t.Fatalf("%+v does not decode: %v", m, err)
		}
		if !equal(again, m) {
			t.Errorf("\n got %+v\nfrom %+v", again, m)
		}
	})
}

// equal is reflect.DeepEqual, but a NaN equals itself.
func equal(a, b Message) bool {
	if r, ok := a.(report); ok {
		return bytes.Equal(Append(nil, r), Append(nil, b))
	}
	return reflect.DeepEqual(a, b)
}

// allocated is how many bytes the process has allocated so far.
func allocated() uint64 {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.TotalAlloc
}

// FuzzRoundTrip fills every field of every message with what the fuzzer says,
// within the limits.
func FuzzRoundTrip(f *testing.F) {
	f.Add("k", int64(-1), uint64(1<<63), []byte("x"), uint8(3), true)
	f.Add("", int64(math.MinInt64), uint64(math.MaxUint64), []byte(nil), uint8(0), false)
	f.Add("ключ", int64(1<<32), uint64(128), bytes.Repeat([]byte{0xc1}, 300), uint8(16), true)
	f.Fuzz(func(t *testing.T, s string, n int64, u uint64, b []byte, count uint8, yes bool) {
		b = b[:min(len(b), 1000)]
		s = strings.ToValidUTF8(s[:min(len(s), MaxName)], "") // what is cut is not replaced by more
		for _, m := range everyMessage() {
			fill(reflect.ValueOf(m).Elem(), s, n, u, b, int(count)%MaxEngines, yes)
			setKind(m)
			got, err := Decode(Append(nil, m))
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			if r, ok := m.(*AllocResponse); ok {
				if isEmpty((*regionList)(&r.Regions)) {
					r.Regions = nil
				}
				if isEmpty((*accessList)(&r.Access)) {
					r.Access = nil
				}
			}
			if !same(got, m) {
				t.Errorf("\n got %+v\nwant %+v", got, m)
			}
		}
	})
}

func fill(v reflect.Value, s string, n int64, u uint64, b []byte, count int, yes bool) {
	switch v.Interface().(type) {
	case Int:
		v.Set(reflect.ValueOf([]Int{I(n), U(u)}[count%2]))
		return
	case []byte:
		v.SetBytes(b)
		return
	case [][]byte: // the only one is of accesses
		b = b[:min(len(b), MaxAccess)]
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		v.SetBool(yes)
	case reflect.Int, reflect.Int64:
		v.SetInt(n)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(u & (1<<v.Type().Bits() - 1))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), count, count))
		for i := range count {
			fill(v.Index(i), s, n+int64(i), u+uint64(i), b, count, yes)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.Type() != reflect.TypeFor[SnapshotWait]() && v.Type().Field(i).Name != "Time" && f.Kind() != reflect.Float64 {
				fill(f, s, n, u, b, count, yes)
			}
		}
	}
}

// FuzzChunkBytes compares ChunkBytes with the same rule in big numbers.
func FuzzChunkBytes(f *testing.F) {
	f.Add(int64(1), "bfloat16", int64(2), int64(32), int64(256), int64(1024), uint8(4), int64(100), true)
	f.Add(int64(4), "uint8", int64(math.MaxInt64), int64(1), int64(0), int64(-1), uint8(1), int64(math.MaxInt64), true)
	f.Add(int64(3), "int64", int64(1<<32), int64(1<<31), int64(1), int64(1), uint8(4), int64(0), false)
	f.Fuzz(func(t *testing.T, format int64, dtype string, d0, d1, d2, d3 int64, dims uint8, last int64, keys bool) {
		req := &AllocRequest{Fmt: I(format), Dtype: dtype, Shape: ints(d0, d1, d2, d3)[:dims%5], LastChunkToks: I(last)}
		if keys {
			req.Keys = []string{"k"}
		}
		gotFull, gotLast, err := ChunkBytes(req)
		wantFull, wantLast, ok := bigChunkBytes(req)
		if (err == nil) != ok {
			t.Fatalf("%+v: error %v, want ok %v", req, err, ok)
		}
		if gotFull != wantFull || gotLast != wantLast {
			t.Errorf("%+v: got %d and %d, want %d and %d", req, gotFull, gotLast, wantFull, wantLast)
		}
		if err == nil && (gotLast < 0 || gotLast > gotFull) {
			t.Errorf("%+v: last %d of %d", req, gotLast, gotFull)
		}
	})
}

func bigChunkBytes(req *AllocRequest) (full, last int64, ok bool) {
	format, _ := req.Fmt.Int64()
	dim, knownFmt := TokenDim(format)
	size, knownDtype := DtypeSize(req.Dtype)
	if !knownFmt || !knownDtype || dim >= len(req.Shape) {
		return 0, 0, false
	}
	toks, _ := req.LastChunkToks.Int64()
	p, q := big.NewInt(size), big.NewInt(size)
	for i, n := range req.Shape {
		v, _ := n.Int64()
		if v < 0 {
			return 0, 0, false
		}
		p.Mul(p, big.NewInt(v))
		if i == dim {
			if toks > v || toks < 0 || toks == 0 && len(req.Keys) > 0 {
				return 0, 0, false
			}
			v = toks
		}
		q.Mul(q, big.NewInt(v))
	}
	if !p.IsInt64() {
		return 0, 0, false
	}
	return p.Int64(), q.Int64(), true
}
