package manifest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pd-tools/pd-tools/wire"
	"pgregory.net/rapid"
)

// readAll returns what Next says, a string a line, and the error that ended it.
func readAll(r io.Reader) (said []string, end error) {
	in := NewReader(r, "m")
	for {
		line, err := in.Next()
		bad := (*LineError)(nil)
		switch {
		case errors.As(err, &bad):
			said = append(said, bad.Error())
		case err != nil:
			return said, err
		case line.Batch != nil:
			said = append(said, fmt.Sprintf("%s:%d %s %d", line.File, line.No, line.Batch.ReqID, len(line.Batch.Chunks)))
		default:
			said = append(said, fmt.Sprintf("%s:%d cancel %s", line.File, line.No, line.Cancel))
		}
	}
}

func TestReaderGoesOnBehindBadLines(t *testing.T) {
	const in = "# first\r\n" +
		"\n" +
		`{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","length":1}],"last":false}` + "\r\n" +
		"   \t\n" +
		`{"req_id":"B","total_chunks":-1}` + "\n" +
		`{"cancel":"A"}` + "\n" +
		"\x00\x01\xff\n" +
		`{"req_id":"Z","total_chunks":0,"chunks":[],"last":true}`
	said, err := readAll(iotest.OneByteReader(strings.NewReader(in)))
	want := []string{
		"m:3 A 1",
		`m:5: request "B": total_chunks: -1 is negative: it counts from 0`,
		"m:6 cancel A",
		"m:7: not UTF-8: write the manifest as JSON lines in UTF-8",
		"m:8 Z 0",
	}
	if err != io.EOF || !reflect.DeepEqual(said, want) {
		t.Errorf("said %q, %v\nwant %q", said, err, want)
	}
}

func TestReaderReadsAllFields(t *testing.T) {
	const in = `{"to":1,"at":2.5,"last":true,"chunks":[{"length":7,"offset":3,"file":"f","key":"k"},{"key":"\u00e9","length":9}],"total_chunks":9,"req_id":"A"}`
	line, err := NewReader(strings.NewReader(in), "m").Next()
	if err != nil {
		t.Fatal(err)
	}
	want := &Batch{ReqID: "A", Total: 9, Last: true, At: 2.5, To: 1,
		Chunks: []Chunk{{Key: "k", File: "f", Offset: 3, Length: 7}, {Key: "é", Length: 9}}}
	if !reflect.DeepEqual(line.Batch, want) {
		t.Errorf("got %+v\nwant %+v", line.Batch, want)
	}
}

// chunkLine is a line of request A with one chunk of these fields.
func chunkLine(fields string) string {
	return `{"req_id":"A","total_chunks":8,"chunks":[{` + fields + `}]}`
}

func TestBadLines(t *testing.T) {
	long := strings.Repeat("x", wire.MaxKey+1)
	for _, c := range []struct {
		name, line string
		reqID      string // that is read all the same
		says       string
	}{
		{"no JSON", `hello`, "", `not JSON: invalid character 'h' looking for beginning of value at byte 1: a line is a record`},
		{"broken JSON", `{"req_id":"A" "total_chunks":1}`, "A", `not JSON: invalid character '"' after object key:value pair at byte 15`},
		{"trailing comma", `{"req_id":"A","total_chunks":1,}`, "A", `not JSON`},
		{"req_id behind the break", `{,"req_id":"A"}`, "", `not JSON`},
		{"cut off", `{"req_id":"A","total_chunks":8,"chunks":[{"key":"a","le`, "A", "m:1: request \"A\": ends in the middle of a record"},
		{"cut off between fields", `{"req_id":"A","total_chunks":8,`, "A", "ends in the middle of a record"},
		{"cut off in a word", `{"req_id":"A","total_chunks":0,"last":tru`, "A", "ends in the middle of a record"},
		{"leading zero", `{"req_id":"A","total_chunks":01}`, "A", "not JSON: invalid character '1'"},
		{"bare word", `{"req_id":"A","total_chunks":8,"last":yes}`, "A", "not JSON: invalid character 'y' looking for beginning of value at byte 39"},
		{"bad escape", `{"req_id":"A","total_chunks":8,"x\q":1}`, "A", "not JSON: invalid character 'q'"},
		{"control character", "{\"req_id\":\"A\",\"total_chunks\":8,\"x\ty\":1}", "A", `not JSON: invalid character '\t' in string literal at byte 34`},
		{"number as a name", `{"req_id":"A",1:2}`, "A", "looking for beginning of object key string at byte 15"},
		{"two records", `{"req_id":"A","total_chunks":0,"last":true}{}`, "A", "a line is one record"},
		{"trailing text", `{"req_id":"A","total_chunks":0,"last":true} x`, "A", "a line is one record"},
		{"array", `[1]`, "", "wants an object, got array: a line is"},
		{"null", `null`, "", "req_id is empty or missing"},
		{"empty object", `{}`, "", "req_id is empty or missing: give 1 to 512 bytes"},
		{"unknown field", `{"x":[{"req_id":"no"}],"req_id":"A","total_chunks":1}`, "A", `unknown field "x": a line has req_id, total`},
		{"terminal escape in a name", `{"\u001b[2J":1,"req_id":"A"}`, "A", `unknown field "\x1b[2J"`},
		{"no UTF-8", "{\"total_chunks\":1,\"last\":\"\xff\",\"req_id\":\"A\"}", "A", "not UTF-8"},
		{"no UTF-8 in the req_id", "{\"req_id\":\"A\xff\",\"total_chunks\":1}", "", "not UTF-8"},
		{"empty req_id", `{"req_id":"","total_chunks":1}`, "", "req_id is empty"},
		{"long req_id", `{"req_id":"` + long + `","total_chunks":1}`, "", "req_id has 4097 bytes: at most 512"},
		{"req_id a number", `{"req_id":7,"total_chunks":1}`, "", "req_id: wants a string, got number"},
		{"no req_id", `{"total_chunks":1}`, "", "req_id is empty or missing"},
		{"no total_chunks", `{"req_id":"A"}`, "A", "no total_chunks"},
		{"total_chunks text", `{"req_id":"A","total_chunks":"8"}`, "A", `total_chunks: wants a whole number from 0 to 9223372036854775807, got string`},
		{"total_chunks null", `{"req_id":"A","total_chunks":null}`, "A", "no total_chunks"},
		{"total_chunks a fraction", `{"req_id":"A","total_chunks":1.5}`, "A", "got number 1.5"},
		{"total_chunks huge", `{"req_id":"A","total_chunks":18446744073709551616}`, "A", "got number 18446744073709551616"},
		{"total_chunks 0 with chunks", `{"req_id":"A","total_chunks":0,"chunks":[{"key":"a","length":1}],"last":true}`, "A", "1 chunks on a line, total_chunks is 0"},
		{"total_chunks 0 without last", `{"req_id":"A","total_chunks":0,"chunks":[]}`, "A", "last is not true"},
		{"more chunks than total", `{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1},{"key":"b","length":1}]}`, "A", "2 chunks on a line, total_chunks is 1"},
		{"chunks an object", `{"req_id":"A","total_chunks":1,"chunks":{}}`, "A", "chunks: wants an array, got object"},
		{"chunk a number", `{"req_id":"A","total_chunks":1,"chunks":[3]}`, "A", "chunks: wants an object, got number"},
		{"last text", `{"req_id":"A","total_chunks":1,"last":"yes"}`, "A", `last: wants true or false, got string`},
		{"at negative", `{"req_id":"A","total_chunks":1,"at":-1}`, "A", "at: -1 is out of range"},
		{"at beyond floats", `{"req_id":"A","total_chunks":1,"at":1e999}`, "A", "at: wants a number from 0 to 1000000000, got number 1e999"},
		{"at text", `{"req_id":"A","total_chunks":1,"at":"now"}`, "A", "at: wants a number"},
		{"to negative", `{"req_id":"A","total_chunks":1,"to":-1}`, "A", "to: -1 is negative"},
		{"to huge", `{"req_id":"A","total_chunks":1,"to":4294967296}`, "A", "to: wants a whole number from 0 to 2147483647, got number 4294967296"},
		{"no key", chunkLine(`"length":1`), "A", "chunks[0]: key is empty or missing"},
		{"empty key", chunkLine(`"key":"","length":1`), "A", "chunks[0]: key is empty"},
		{"long key", chunkLine(`"key":"` + long + `","length":1`), "A", "chunks[0]: key has 4097 bytes: at most 4096"},
		{"no length", chunkLine(`"key":"a"`), "A", "chunks[0]: length is 0 or missing"},
		{"length 0", chunkLine(`"key":"a","length":0`), "A", "length is 0"},
		{"length negative", chunkLine(`"key":"a","length":-4`), "A", "chunks[0]: length is -4"},
		{"length a fraction", chunkLine(`"key":"a","length":1.5`), "A", "chunks.length: wants a whole number"},
		{"long file", chunkLine(`"key":"a","file":"` + long + `","length":1`), "A", "chunks[0]: file has 4097 bytes: at most 4095"},
		{"offset negative", chunkLine(`"key":"a","file":"f","offset":-4,"length":1`), "A", "chunks[0]: offset: -4 is negative"},
		{"range overflows", chunkLine(`"key":"a","file":"f","offset":9223372036854775807,"length":1`), "A", "end beyond any file"},
		{"long name", `{"` + long + `":1,"req_id":"A"}`, "A", `xxx...: a line has req_id`},
		{"deep", `{"req_id":"A","x":` + strings.Repeat("[", 1<<20), "A", "exceeded max depth"},
		{"unknown chunk field", chunkLine(`"key":"a","len":1`), "A", `unknown field "len": a line has req_id, total_chunks, chunks, last, at, to, or cancel alone; a chunk has key`},
		{"key twice", `{"req_id":"A","total_chunks":8,"chunks":[{"key":"a","length":1},{"key":"b","length":1},{"key":"a","length":1}]}`, "A", `chunks[0] and chunks[2] have the same key "a"`},
		{"cancel beside others", `{"cancel":"A","req_id":"B"}`, "A", "cancel stands beside other fields"},
		{"empty cancel", `{"cancel":""}`, "", "cancel is empty"},
		{"cancel a number", `{"cancel":1}`, "", "cancel: wants a string, got number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewReader(strings.NewReader(c.line), "m").Next()
			bad := (*LineError)(nil)
			if !errors.As(err, &bad) {
				t.Fatalf("error %v, want a LineError", err)
			}
			if bad.File != "m" || bad.No != 1 || bad.ReqID != c.reqID {
				t.Errorf("names %s:%d, request %q, want m:1, %q", bad.File, bad.No, bad.ReqID, c.reqID)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("says %q, want %q in it", err, c.says)
			}
			if n := len(err.Error()); n > 1000 {
				t.Errorf("the message has %d bytes", n)
			}
		})
	}
}

func TestReaderOfDirectory(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	said, end := readAll(f)
	if len(said) != 0 || end == io.EOF || !strings.Contains(end.Error(), "is a directory") {
		t.Errorf("said %q, ended with %v", said, end)
	}
}

// endless is one line of n bytes that begins with head.
func endless(head string, n int64) io.Reader {
	return io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, n), strings.NewReader("\n"))
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestLongLineIsNotHeld(t *testing.T) {
	in := io.MultiReader(
		endless(`{"req_id":"A","total_chunks":1,"chunks":[{"key":"`, 256<<20),
		endless("# ", 64<<20),
		strings.NewReader(`{"cancel":"B"}`),
	)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	said, err := readAll(in)
	runtime.ReadMemStats(&after)
	want := []string{`m:1: request "A": ` + errTooLong.Error(), "m:3 cancel B"}
	if err != io.EOF || !reflect.DeepEqual(said, want) {
		t.Errorf("said %.200q, %v", said, err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
		t.Errorf("allocated %d MiB for lines of at most %d", got>>20, MaxLine>>20)
	}
}

func TestLineAtTheLimit(t *testing.T) {
	line := `{"cancel":"B"}`
	pad := strings.Repeat(" ", MaxLine-len(line)-1)
	said, _ := readAll(strings.NewReader(line + pad + "\n" + line + pad + " \n"))
	if want := []string{"m:1 cancel B", `m:2: request "B": ` + errTooLong.Error()}; !reflect.DeepEqual(said, want) {
		t.Errorf("said %q", said)
	}
}

func genBatch() *rapid.Generator[*Batch] {
	text := rapid.StringN(1, 20, 100)
	count := rapid.Int64Range(0, 1<<61)
	return rapid.Custom(func(t *rapid.T) *Batch {
		b := &Batch{
			ReqID: text.Draw(t, "req_id"),
			Last:  rapid.Bool().Draw(t, "last"),
			At:    rapid.Float64Range(0, MaxAt).Draw(t, "at"),
			To:    rapid.IntRange(AnyReceiver, 9).Draw(t, "to"),
		}
		for _, key := range rapid.SliceOfNDistinct(text, 0, 9, rapid.ID[string]).Draw(t, "keys") {
			c := Chunk{Key: key, Length: 1 + count.Draw(t, "length")}
			if rapid.Bool().Draw(t, "has file") {
				c.File, c.Offset = text.Draw(t, "file"), count.Draw(t, "offset")
			}
			b.Chunks = append(b.Chunks, c)
		}
		b.Total = int64(len(b.Chunks)) + count.Draw(t, "more")
		b.Last = b.Last || b.Total == 0
		return b
	})
}

func TestAppendLineReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := genBatch().Draw(t, "batch")
		line, err := NewReader(strings.NewReader(string(AppendLine(nil, b))), "m").Next()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprintf("%+v", line.Batch), fmt.Sprintf("%+v", b); got != want {
			t.Fatalf("got %s\nwant %s", got, want)
		}
	})
}

func FuzzLine(f *testing.F) {
	f.Add([]byte(`{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","file":"f","offset":1,"length":1}],"last":false,"at":1.5,"to":0}`))
	f.Add([]byte(`{"cancel":"A"}`))
	f.Add([]byte("#\n\r\n{\"req_id\":\"Z\",\"total_chunks\":0,\"last\":true}"))
	f.Add([]byte(`{"x":` + strings.Repeat("[", 20000)))
	f.Add([]byte(`{"chunks":[{"key":"\ud800"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		in := NewReader(strings.NewReader(string(data)), "m")
		var lines []Line
		for {
			line, err := in.Next()
			if bad := (*LineError)(nil); errors.As(err, &bad) {
				if bad.Error() == "" || len(bad.ReqID) > wire.MaxReqID {
					t.Fatalf("error %v of request %q", bad, bad.ReqID)
				}
				continue
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20+uint64(len(data))*2000 {
			t.Fatalf("allocated %d bytes for %d", got, len(data))
		}
		for _, line := range lines {
			if line.Batch == nil {
				continue
			}
			again, err := NewReader(strings.NewReader(string(AppendLine(nil, line.Batch))), "m").Next()
			if err != nil {
				t.Fatalf("%+v does not read back: %v", line.Batch, err)
			}
			for i := range line.Batch.Chunks {
				if c := &line.Batch.Chunks[i]; c.File == "" {
					c.Offset = 0 // means nothing then and is not written
				}
			}
			if got, want := fmt.Sprintf("%+v", again.Batch), fmt.Sprintf("%+v", line.Batch); got != want {
				t.Fatalf("got %s\nwant %s", got, want)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	batch := &Batch{ReqID: "r000001", Total: 64, To: AnyReceiver}
	for i := range 32 {
		batch.Chunks = append(batch.Chunks, Chunk{Key: fmt.Sprintf("%016x-%d", i, i), File: "kv.bin", Offset: int64(i) << 20, Length: 1 << 20})
	}
	line := AppendLine(nil, batch)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, _, err := parseLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
