package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func plain() Options {
	return Options{ChunkSize: 1000, TokensPerChunk: BlockTokens, Batch: 8, Interleave: 1, Prefix: "r"}
}

// convert returns the manifest's batches, each of which Tracker finds right.
func convert(t interface {
	Helper()
	Fatal(...any)
}, trace string, opt Options) []*Batch {
	t.Helper()
	var out bytes.Buffer
	if err := Convert(strings.NewReader(trace), "trace", &out, opt); err != nil {
		t.Fatal(err)
	}
	var all []*Batch
	var tr Tracker
	in := NewReader(&out, "m")
	for {
		line, err := in.Next()
		if err == io.EOF {
			return all
		}
		if err == nil {
			err = tr.Check(line)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, line.Batch)
	}
}

// chunksByRequest joins the batches of each request.
func chunksByRequest(all []*Batch) map[string][]Chunk {
	m := map[string][]Chunk{}
	for _, b := range all {
		m[b.ReqID] = append(m[b.ReqID], b.Chunks...)
	}
	return m
}

func traceLine(ms, input int, ids ...int) string {
	return fmt.Sprintf(`{"timestamp": %d, "input_length": %d, "output_length": 5, "hash_ids": %s}`+"\n",
		ms, input, strings.ReplaceAll(fmt.Sprint(ids), " ", ", "))
}

// order is which request each line is of, by its last digit; a last line is marked.
func order(all []*Batch) string {
	var s strings.Builder
	for _, b := range all {
		s.WriteString(b.ReqID[len(b.ReqID)-1:])
		if b.Last {
			s.WriteByte('.')
		}
	}
	return s.String()
}

func TestConvertLengthsAndKeys(t *testing.T) {
	trace := traceLine(0, 1100, 7, 8, 9) + // 512 + 512 + 76 tokens
		traceLine(1500, 1536, 7, 8, 9) + // the third block full
		traceLine(1500, 1024, 6, 8)
	all := convert(t, trace, plain())
	if got := order(all); got != "1.2.3." {
		t.Errorf("order %s", got)
	}
	if all[0].At != 0 || all[1].At != 1.5 || all[0].ReqID != "r000001" || all[0].Total != 3 {
		t.Errorf("batches %+v, %+v", all[0], all[1])
	}
	a, b, c := all[0].Chunks, all[1].Chunks, all[2].Chunks
	if a[0] != b[0] || a[1] != b[1] {
		t.Errorf("a shared prefix has keys %v and %v", a[:2], b[:2])
	}
	if a[2].Key == b[2].Key || a[2].Length != 149 || b[2].Length != 1000 {
		t.Errorf("a partial and a full chunk are %v and %v; 76 of 512 tokens of 1000 bytes are 149", a[2], b[2])
	}
	if a[1].Key == c[1].Key {
		t.Error("the same block behind another prefix has the same key")
	}
}

func TestConvertOtherChunkSizes(t *testing.T) {
	ids := []int{1, 2, 3, 4}
	trace := traceLine(0, 2000, ids...) + traceLine(0, 2000, ids...) + traceLine(0, 1800, 1, 2, 3, 9)
	for _, c := range []struct {
		tokens        int64
		total, shared int // chunks of the first request, those that the third shares
		lastLength    int64
	}{
		{512, 4, 3, 907},    // 464 of 512
		{1024, 2, 1, 954},   // 976 of 1024
		{4096, 1, 0, 489},   // 2000 of 4096
		{256, 8, 6, 813},    // 208 of 256
		{100, 20, 15, 1000}, // 100 of 100
		{768, 3, 2, 605},    // 464 of 768
	} {
		opt := plain()
		opt.TokensPerChunk = c.tokens
		got := chunksByRequest(convert(t, trace, opt))
		one, two, three := got["r000001"], got["r000002"], got["r000003"]
		shared := 0
		for i := range min(len(one), len(three)) {
			if one[i] == three[i] {
				shared++
			}
		}
		if len(one) != c.total || shared != c.shared || one[len(one)-1].Length != c.lastLength || one[len(one)-1] != two[len(two)-1] {
			t.Errorf("%d tokens a chunk: %d chunks, %d shared, the last is %+v; want %d, %d, %d bytes",
				c.tokens, len(one), shared, one[len(one)-1], c.total, c.shared, c.lastLength)
		}
	}
}

func TestConvertInterleaves(t *testing.T) {
	trace := traceLine(0, 3*512, 1, 2, 3) + traceLine(0, 512, 4) + traceLine(0, 0) + traceLine(0, 2*512, 5, 6)
	opt := plain()
	opt.Batch = 1
	for n, want := range map[int]string{1: "111.2.3.44.", 2: "12.13.1.44.", 3: "12.3.141.4.", 99: "12.3.414.1."} {
		opt.Interleave = n
		if got := order(convert(t, trace, opt)); got != want {
			t.Errorf("%d deep: %s, want %s", n, got, want)
		}
	}
}

func TestConvertZeroChunksAndLimit(t *testing.T) {
	opt := plain()
	opt.Limit = 1
	all := convert(t, traceLine(5, 0)+"not read", opt)
	if len(all) != 1 || all[0].Total != 0 || !all[0].Last || len(all[0].Chunks) != 0 {
		t.Errorf("batches %+v", all)
	}
}

func TestConvertBlocksWithoutHash(t *testing.T) {
	// Some traces hash full blocks only: two requests do not share the tail.
	trace := traceLine(0, 600, 1) + traceLine(0, 600, 1)
	got := chunksByRequest(convert(t, trace, plain()))
	one, two := got["r000001"], got["r000002"]
	if len(one) != 2 || one[0] != two[0] || one[1].Key == two[1].Key {
		t.Errorf("chunks %v and %v", one, two)
	}
}

func TestConvertBadTraces(t *testing.T) {
	good := traceLine(0, 512, 1)
	for _, c := range []struct{ line, says string }{
		{"hello\n", "not a line of a Mooncake trace: invalid character"},
		{`{"timestamp":0,"input_length":512,"hash_ids":[1`, "not a line of a Mooncake trace: unexpected end"},
		{`{"timestamp":0,"input_length":"512","hash_ids":[1]}`, "input_length"},
		{`{"timestamp":0,"hash_ids":[1]}`, "no timestamp or no input_length"},
		{`{"req_id":"A","total_chunks":1}`, "no timestamp or no input_length"},
		{traceLine(-1, 512, 1), "timestamp -1 is out of range"},
		{traceLine(0, -1), "input_length -1 is negative"},
		{traceLine(0, 512, -1), "a negative hash id"},
		{traceLine(0, 513, 1, 2, 3), "input_length 513 takes 2 hash_ids of 512 tokens, the line has 3"},
		{traceLine(0, 5000, 1), "takes 10 hash_ids of 512 tokens, the line has 1"},
		{traceLine(0, 1024, 1), "takes 2 hash_ids"},
		{traceLine(0, 1<<62, 1), "takes 9007199254740992 hash_ids"},
		{strings.Repeat(" ", 9) + strings.Repeat("x", MaxLine), "the line has more than"},
	} {
		var out bytes.Buffer
		err := Convert(strings.NewReader(good+"\n"+c.line), "trace", &out, plain())
		bad := (*LineError)(nil)
		if !errors.As(err, &bad) || bad.No != 3 || bad.File != "trace" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.60q: error %v, want %q", c.line, err, c.says)
		}
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Errorf("%.60q: %d lines written before it, want 1", c.line, n)
		}
	}
}

func TestOptionsCheck(t *testing.T) {
	for says, change := range map[string]func(*Options){
		"chunk-size is 0":        func(o *Options) { o.ChunkSize = 0 },
		"tokens-per-chunk is -1": func(o *Options) { o.TokensPerChunk = -1 },
		"batch is 0":             func(o *Options) { o.Batch = 0 },
		"interleave is 0":        func(o *Options) { o.Interleave = 0 },
		"limit is -1":            func(o *Options) { o.Limit = -1 },
	} {
		opt := plain()
		change(&opt)
		if err := Convert(strings.NewReader(""), "trace", io.Discard, opt); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want %q", err, says)
		}
	}
}

func TestConvertEndsWithItsWriter(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	if err := Convert(strings.NewReader(traceLine(0, 512, 1)), "trace", w, plain()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v", err)
	}
}

// TestConvertAnyTrace: whatever the options, every request is whole, its
// chunks are full but the last, and its batches are what one AllocRequest says.
func TestConvertAnyTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opt := Options{
			ChunkSize:      rapid.Int64Range(1, 1<<40).Draw(t, "chunk size"),
			TokensPerChunk: rapid.Int64Range(1, 2000).Draw(t, "tokens"),
			Batch:          rapid.IntRange(1, 9).Draw(t, "batch"),
			Interleave:     rapid.IntRange(1, 5).Draw(t, "interleave"),
			Prefix:         "r",
		}
		inputs := rapid.SliceOfN(rapid.IntRange(0, 3000), 0, 9).Draw(t, "inputs")
		var trace string
		for _, n := range inputs {
			ids := rapid.SliceOfN(rapid.IntRange(0, 3), (n+511)/512, (n+511)/512).Draw(t, "ids")
			trace += traceLine(0, n, ids...)
		}
		all := convert(t, trace, opt)
		live, ended := map[string]bool{}, 0
		for _, b := range all {
			live[b.ReqID] = true
			if len(live) > opt.Interleave {
				t.Fatalf("%d requests are mixed, want %d", len(live), opt.Interleave)
			}
			if b.Last {
				delete(live, b.ReqID)
				ended++
			}
			if len(Split(b, opt.Batch)) != 1 {
				t.Fatalf("%+v takes several requests", b)
			}
		}
		if ended != len(inputs) {
			t.Fatalf("%d requests of %d", ended, len(inputs))
		}
		lengths := map[string]int64{}
		for id, chunks := range chunksByRequest(all) {
			for i, c := range chunks {
				if i < len(chunks)-1 && c.Length != opt.ChunkSize || c.Length > opt.ChunkSize {
					t.Fatalf("%s: chunk %d has %d bytes", id, i, c.Length)
				}
				if n, ok := lengths[c.Key]; ok && n != c.Length {
					t.Fatalf("key %s has lengths %d and %d", c.Key, n, c.Length)
				}
				lengths[c.Key] = c.Length
			}
		}
	})
}

// TestConvertConversationTrace takes the first 2,000 requests of Mooncake's
// published trace: PD_TRACE, or what lies beside the repository.
func TestConvertConversationTrace(t *testing.T) {
	name := os.Getenv("PD_TRACE")
	if name == "" {
		name = filepath.Join("..", "..", "..", "shared", "data", "mooncake_conversation_head.jsonl")
	}
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("no trace: %v: set PD_TRACE to mooncake_conversation_head.jsonl", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out bytes.Buffer
	opt := Options{ChunkSize: 16 << 10, TokensPerChunk: BlockTokens, Batch: 8, Interleave: 16, Limit: 2000, Prefix: "r"}
	if err := Convert(f, name, &out, opt); err != nil {
		t.Fatal(err)
	}
	in := NewReader(&out, "m")
	totals, keys := map[string]int64{}, map[string]int{}
	var chunks int
	for {
		line, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		totals[line.Batch.ReqID] = line.Batch.Total
		for _, c := range line.Batch.Chunks {
			keys[c.Key]++
			chunks++
		}
	}
	var over128, over512 int
	for _, n := range totals {
		if n > 128 {
			over128++
		}
		if n > 512 {
			over512++
		}
	}
	if len(totals) != 2000 || over128 != 71 || over512 != 0 {
		t.Errorf("%d requests, %d of more than 128 chunks, %d of more than 512; want 2000, 71, 0", len(totals), over128, over512)
	}
	if len(keys) == chunks {
		t.Errorf("none of %d chunks is shared", chunks)
	}
	t.Logf("%d chunks, %d different ones", chunks, len(keys))
}
