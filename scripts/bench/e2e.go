package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const (
	e2eChunk   = mib
	e2eRequest = 32 // chunks
	e2eBatch   = 8  // chunks
	e2eWithin  = 2 * time.Minute
)

// endToEnd compares pd-send to pd-recv, checksums and all, with a copy inside
// one process of the same bytes. The decoder is --sink. What counts is the time
// from the first admission to the last request that is ready, by the
// receiver's events; by then all memory is there.
func (b *bench) endToEnd() error {
	slots := pick(b, 512, 64)
	recv, endpoint, err := b.receiver(slots, e2eChunk, "--sink")
	if err != nil {
		return err
	}
	defer recv.stop()
	local, err := b.worker("copier")
	if err != nil {
		return err
	}
	defer local.stop()
	walk := slots * e2eChunk
	requests := pick(b, 128, 2)
	pdSend, err := b.pdSend(endpoint)
	if err != nil {
		return err
	}
	defer pdSend.stop()
	file, err := b.inMemory(walk)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(file))
	b.table.note("end to end: %d requests of %d chunks through %s; pd-recv --sink plays the decoder.",
		requests, e2eRequest, humanize.IBytes(uint64(walk)))
	for _, source := range []struct{ name, file string }{{"files in memory", file}, {"patterns", ""}} {
		row := b.table.row(megabytes, atLeast(0.25), "pd-send to pd-recv, %d MiB chunks, %s : local copy", e2eChunk/mib, source.name)
		for i := range 1 + pick(b, 5, 1) {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			t := transfer{filepath.Join(b.dir, "manifest.jsonl"), requests}
			if err := writeManifest(t, fmt.Sprintf("r%d-%s", i, source.name), e2eChunk, source.file, walk); err != nil {
				return err
			}
			ref, err := localCopy(local, walk, e2eChunk)
			if err != nil {
				return err
			}
			got, err := b.sendBytes(recv, pdSend, t)
			if err != nil {
				return err
			}
			if i > 0 { // the first one warms
				row.add(got, ref)
			}
		}
		b.say("%v", row)
	}
	return untilIdle(endpoint)
}

// inMemory makes a file of size bytes whose pages are there, in a directory
// of its own.
func (b *bench) inMemory(size int) (string, error) {
	dir, err := os.MkdirTemp("/dev/shm", "pd-bench-")
	if err != nil {
		return "", err
	}
	return writeFile(dir, size)
}

// onDisk makes one whose pages are there as well, in the page cache, and have
// been written out.
func (b *bench) onDisk(size int) (string, error) {
	name, err := writeFile(b.dir, size)
	if err != nil {
		return "", err
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	return name, errors.Join(f.Sync(), f.Close())
}

// writeFile's bytes are not all alike.
func writeFile(dir string, size int) (string, error) {
	name := filepath.Join(dir, "kv.bin")
	content := make([]byte, size)
	manifest.Pattern(content, "bench")
	return name, os.WriteFile(name, content, 0o600)
}

func requestID(prefix string, number int) string { return fmt.Sprintf("%s-%d", prefix, number) }

// writeManifest has requests whose chunks walk through the file of walk bytes,
// again and again; without a file their bytes are patterns.
func writeManifest(t transfer, prefix string, chunkSize int, file string, walk int) error {
	var text []byte
	chunk := 0
	for r := range t.requests {
		id := requestID(prefix, r)
		for done := 0; done < e2eRequest; done += e2eBatch {
			batch := manifest.Batch{ReqID: id, Total: e2eRequest, Last: done+e2eBatch == e2eRequest, To: manifest.AnyReceiver}
			for range e2eBatch {
				c := manifest.Chunk{Key: fmt.Sprintf("%s-%d", prefix, chunk), Length: int64(chunkSize), File: file}
				if file != "" {
					c.Offset = int64(chunk * chunkSize % walk)
				}
				batch.Chunks = append(batch.Chunks, c)
				chunk++
			}
			text = manifest.AppendLine(text, &batch)
		}
	}
	return os.WriteFile(t.list, text, 0o600)
}

// pdSend starts a pd-send that stays, as one does that serves an engine: what is
// compared with it has its connections and its memory already, too.
func (b *bench) pdSend(endpoint string, flags ...string) (*worker, error) {
	flags = append(flags, "--to", endpoint, "--batch", strconv.Itoa(e2eBatch))
	return startWorker(filepath.Join(b.bin, "pd-send"), flags...)
}

// transfer is a manifest of some requests of e2eRequest chunks.
type transfer struct {
	list     string // its file
	requests int
}

// send has a pd-send send it and returns how many requests a second there were.
func (b *bench) send(recv *process, pdSend *worker, t transfer) (float64, error) {
	before, err := os.Stat(recv.out)
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(t.list)
	if err != nil {
		return 0, err
	}
	late := time.AfterFunc(e2eWithin, func() { pdSend.cmd.Process.Kill() })
	defer late.Stop()
	if _, err := pdSend.stdin.Write(text); err != nil {
		return 0, fmt.Errorf("pd-send reads no more: %w", err)
	}
	for range t.requests {
		var end struct{ Status, Error string }
		if err := pdSend.hear(&end); err != nil {
			return 0, fmt.Errorf("pd-send, which is ended after %v: %w", e2eWithin, err)
		}
		if end.Status != "ready" {
			return 0, fmt.Errorf("pd-send: a request is %s: %s", end.Status, end.Error)
		}
	}
	took, err := firstToLast(recv.out, before.Size(), t.requests)
	if err != nil {
		return 0, err
	}
	return float64(t.requests) / took.Seconds(), nil
}

// sendBytes is send's rate in MB/s, with chunks of e2eChunk.
func (b *bench) sendBytes(recv *process, pdSend *worker, t transfer) (float64, error) {
	rate, err := b.send(recv, pdSend, t)
	return rate * e2eRequest * e2eChunk / 1e6, err
}

// firstToLast is the time from the first admission to the last of n requests
// that is ready, by the events in file from offset on. Events are written
// within 10 ms; they are waited for.
func firstToLast(file string, offset int64, n int) (time.Duration, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		took, ready, err := readyTime(text[offset:])
		if ready == n || err != nil {
			return took, err
		}
	}
	return 0, fmt.Errorf("pd-recv wrote of fewer than %d requests that they are ready", n)
}

// readyTime counts the requests that are ready; a line that is not whole yet
// is left out.
func readyTime(events []byte) (took time.Duration, ready int, err error) {
	var first time.Time
	for line := range bytes.Lines(events) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var e struct {
			Event string
			Time  time.Time
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return 0, 0, err
		}
		switch {
		case e.Event == "admitted" && first.IsZero():
			first = e.Time
		case e.Event == "ready":
			took = e.Time.Sub(first)
			ready++
		}
	}
	return took, ready, nil
}
