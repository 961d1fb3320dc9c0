package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

func generate(t *testing.T, requests int, seed uint64) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, requests, seed, 3); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSameSeedSameTrace(t *testing.T) {
	one := generate(t, 200, 7)
	if !bytes.Equal(one, generate(t, 200, 7)) {
		t.Error("the same seed gives other bytes")
	}
	if bytes.Equal(one, generate(t, 200, 8)) {
		t.Error("another seed gives the same bytes")
	}
	if !bytes.HasPrefix(one, generate(t, 100, 7)) {
		t.Error("a shorter trace is not the beginning of a longer one")
	}
}

func TestTraceConverts(t *testing.T) {
	opt := manifest.Options{ChunkSize: 4096, TokensPerChunk: manifest.BlockTokens, Batch: 8, Interleave: 4, Prefix: "r"}
	trace := generate(t, 300, 1)
	if n := bytes.Count(trace, []byte("\n")); n != 300 {
		t.Errorf("%d lines, want 300", n)
	}
	if err := manifest.Convert(bytes.NewReader(trace), "trace", io.Discard, opt); err != nil {
		t.Error(err)
	}
}

// TestTraceIsPlausible compares with the published trace: a third of the
// blocks shared, a median input of 7,900 tokens, a few very long requests.
func TestTraceIsPlausible(t *testing.T) {
	seen := map[int]bool{}
	var blocks, shared, long, requests int
	dec := json.NewDecoder(bytes.NewReader(generate(t, 2000, 1)))
	last := -1
	for {
		var r struct {
			Timestamp int   `json:"timestamp"`
			Input     int   `json:"input_length"`
			IDs       []int `json:"hash_ids"`
		}
		err := dec.Decode(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.Timestamp < last {
			t.Fatalf("timestamp %d follows %d", r.Timestamp, last)
		}
		last = r.Timestamp
		requests++
		blocks += len(r.IDs)
		if r.Input > 7_900 {
			long++
		}
		for _, id := range r.IDs {
			if seen[id] {
				shared++
			}
			seen[id] = true
		}
	}
	if share := float64(shared) / float64(blocks); share < 0.2 || share > 0.5 {
		t.Errorf("%.2f of the blocks are shared", share)
	}
	if half := float64(long) / float64(requests); half < 0.4 || half > 0.6 {
		t.Errorf("%.2f of the inputs are above the median", half)
	}
	if mean := blocks / requests; mean < 15 || mean > 40 {
		t.Errorf("%d blocks a request", mean)
	}
}
