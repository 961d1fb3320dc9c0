package manifest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func TestFillFromFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "kv.bin")
	content := make([]byte, 1000)
	Pattern(content, "content")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file           string
		offset, length int64
		says           string
	}{
		{name, 0, 1000, ""},
		{name, 488, 512, ""},
		{name, 999, 1, ""},
		{name, 900, 512, "has 1000 bytes, chunk wants 512 at offset 900"},
		{name, 1000, 1, "has 1000 bytes, chunk wants 1 at offset 1000"},
		{name, 1<<63 - 2, 1, "chunk wants 1 at offset 9223372036854775806"},
		{filepath.Join(dir, "none"), 0, 1, "no such file or directory: name it as seen from"},
		{filepath.Join(name, "x"), 0, 1, "not a directory"},
		{filepath.Join(dir, "a\x1b"), 0, 1, `a\x1b": no such file`},
		{"a\x00b", 0, 1, "invalid argument"},
		{dir, 0, 1, "is a directory: name a file"},
		{fifo, 0, 1, "is no regular file (p---------)"},
		{"/dev/zero", 0, 1, "is no regular file (Dc---------)"},
	} {
		got := make([]byte, c.length)
		_, err := Fill(got, &Chunk{Key: "k", File: c.file, Offset: c.offset, Length: c.length})
		switch {
		case c.says == "":
			if err != nil || !bytes.Equal(got, content[c.offset:c.offset+c.length]) {
				t.Errorf("%d at %d: error %v, or other bytes", c.length, c.offset, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s, %d at %d: error %v, want %q", c.file, c.length, c.offset, err, c.says)
		}
	}
}

// A chunk is read and summed in parts: what comes of it does not depend on where they
// end.
func TestFillSumsWhatItReads(t *testing.T) {
	const offset = 77
	content := slowPattern(offset+3*sumPart, "content")
	name := filepath.Join(t.TempDir(), "kv.bin")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1, 7, sumPart - 1, sumPart, sumPart + 1, 2*sumPart + 13, 3 * sumPart} {
		for _, c := range []struct {
			Chunk
			want []byte
		}{
			{Chunk{Key: "k", Length: n}, slowPattern(int(n), "k")},
			{Chunk{Key: "k", Length: n, File: name, Offset: offset}, content[offset : offset+n]},
		} {
			got := make([]byte, n)
			sum, err := Fill(got, &c.Chunk)
			if err != nil || !bytes.Equal(got, c.want) || sum != crc32.Checksum(c.want, crc32.MakeTable(crc32.Castagnoli)) {
				t.Errorf("%d bytes of file %q: sum %#x, error %v, right bytes %v", n, c.File, sum, err, bytes.Equal(got, c.want))
			}
		}
	}
}

func TestFillWantsRoomForTheChunk(t *testing.T) {
	if _, err := Fill(make([]byte, 3), &Chunk{Key: "k", Length: 4}); err == nil {
		t.Error("a chunk of 4 bytes fills 3")
	}
}

func TestFillSeesAFileReplaced(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "kv.bin")
	for _, content := range []string{"old", "new"} {
		next := filepath.Join(dir, "next")
		if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, name); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 3)
		if _, err := Fill(got, &Chunk{Key: "k", File: name, Length: 3}); err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
}

func TestFillConcurrently(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 4*4096)
	for i := range 4 {
		Pattern(content[i*4096:(i+1)*4096], fmt.Sprint(i))
	}
	name := filepath.Join(dir, "kv.bin")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			got := make([]byte, 4096)
			for i := range 50 {
				part := (worker + i) % 4
				_, err := Fill(got, &Chunk{Key: "k", File: name, Offset: int64(part) * 4096, Length: 4096})
				if _, ok := Verify(fmt.Sprint(part), got); err != nil || !ok {
					t.Errorf("part %d: error %v, right bytes %v", part, err, ok)
				}
			}
		})
	}
	wg.Wait()
}

// slowPattern is the definition, word by word.
func slowPattern(n int, key string) []byte {
	h := fnv.New64a()
	h.Write([]byte(key))
	var out []byte
	for i := uint64(1); len(out) < n; i++ {
		out = binary.LittleEndian.AppendUint64(out, h.Sum64()+i*0x9E3779B97F4A7C15)
	}
	return out[:n]
}

func TestPatternIsItsDefinition(t *testing.T) {
	for n := range 200 {
		key := strings.Repeat("k", n%7)
		got := make([]byte, n)
		if _, err := Fill(got[:n:n], &Chunk{Key: key, Length: int64(n)}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, slowPattern(n, key)) {
			t.Errorf("%d bytes of %q differ", n, key)
		}
	}
	if got := slowPattern(8, "a"); binary.LittleEndian.Uint64(got) != 0x4d9b5606054c68a1 {
		t.Errorf("first word is %x", got)
	}
}

func TestVerifyFindsTheFirstBadByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.String().Draw(t, "key")
		data := make([]byte, rapid.IntRange(1, 100).Draw(t, "n"))
		Pattern(data, key)
		if at, ok := Verify(key, data); !ok {
			t.Fatalf("byte %d of the pattern itself is bad", at)
		}
		bad := rapid.IntRange(0, len(data)-1).Draw(t, "bad")
		for _, i := range []int{bad, len(data) - 1} {
			data[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
			if bad == len(data)-1 {
				break // flipped twice it might be right again
			}
		}
		if at, ok := Verify(key, data); ok || at != bad {
			t.Fatalf("got %d, %v, want %d", at, ok, bad)
		}
	})
}

func BenchmarkPattern(b *testing.B) {
	dst := make([]byte, 1<<20)
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		Pattern(dst, "r000001-0123456789abcdef")
	}
}

func BenchmarkVerify(b *testing.B) {
	data := make([]byte, 1<<20)
	Pattern(data, "k")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, ok := Verify("k", data); !ok {
			b.Fatal("bad")
		}
	}
}

func BenchmarkFillFile(b *testing.B) {
	name := filepath.Join(b.TempDir(), "kv.bin")
	if err := os.WriteFile(name, make([]byte, 1<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int64{16 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			dst := make([]byte, size)
			b.SetBytes(size)
			for b.Loop() {
				if _, err := Fill(dst, &Chunk{Key: "k", File: name, Length: size}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
