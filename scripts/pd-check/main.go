// Pd-check is a decoder that trusts nobody: it reads the ids of ready requests
// from stdin, one a line, as pd-proxy prints them, takes each from the
// receiver, compares every byte with what the manifest says, and releases it.
//
//	pd-proxy | pd-check --manifest trace.manifest tcp://127.0.0.1:7600
//
// It prints one line at the end of stdin. Exit code: 0 when all is as it should
// be, 1 when a byte differs or a request cannot be had, 2 for wrong usage.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
	"github.com/pd-tools/pd-tools/wire"
)

const (
	decoders = 4                // requests that are compared at a time
	patience = 30 * time.Second // with the receiver, for one request
)

func main() {
	file := flag.String("manifest", "", "what the requests' bytes should be")
	flag.Parse()
	if *file == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "pd-check: usage: pd-check --manifest FILE ENDPOINT <ids")
		os.Exit(2)
	}
	sum, err := run(*file, flag.Arg(0), os.Stdin)
	fmt.Printf("checked %d requests, %d chunks, %s: %d chunks differ\n", sum.requests, sum.chunks, humanize.IBytes(uint64(sum.bytes)), sum.differing)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pd-check:", err)
		os.Exit(1)
	}
}

// summary is what was compared so far.
type summary struct {
	requests, chunks, differing int
	bytes                       int64
}

type checker struct {
	conn *client.Conn
	want map[string][]manifest.Chunk // of each request

	mu  sync.Mutex
	sum summary
	err error // the first one
}

func run(file, endpoint string, ids io.Reader) (summary, error) {
	want, err := load(file)
	if err != nil {
		return summary{}, err
	}
	conn, err := client.Dial(endpoint, nil)
	if err != nil {
		return summary{}, err
	}
	defer conn.Close()
	c := &checker{conn: conn, want: want}
	queue := make(chan string)
	var workers sync.WaitGroup
	for range decoders {
		workers.Go(func() {
			for id := range queue {
				c.book(id, c.check(id))
			}
		})
	}
	lines := bufio.NewScanner(ids)
	for lines.Scan() {
		queue <- lines.Text()
	}
	close(queue)
	workers.Wait()
	return c.sum, errors.Join(c.err, lines.Err())
}

// load reads the chunks of each request of a manifest.
func load(file string) (map[string][]manifest.Chunk, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	want := map[string][]manifest.Chunk{}
	for r := manifest.NewReader(f, file); ; {
		line, err := r.Next()
		switch {
		case err == io.EOF:
			return want, nil
		case err != nil:
			return nil, err
		case line.Batch != nil:
			want[line.Batch.ReqID] = append(want[line.Batch.ReqID], line.Batch.Chunks...)
		}
	}
}

func (c *checker) book(id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.requests++
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("request %q: %w", id, err)
	}
}

// check takes, compares and releases one request.
func (c *checker) check(id string) error {
	want, known := c.want[id]
	switch {
	case !known:
		return errors.New("is not in the manifest")
	case len(want) == 0:
		return nil // a request without chunks never reached the receiver
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	take, err := c.conn.Take(ctx, id)
	if err != nil {
		return fmt.Errorf("take: %w", err)
	}
	if err := c.compare(ctx, take, want); err != nil {
		return errors.Join(err, c.conn.GiveBack(ctx, id)) // for whoever looks into it
	}
	if err := c.conn.Release(ctx, id); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func (c *checker) compare(ctx context.Context, take *wire.TakeResponse, want []manifest.Chunk) error {
	if len(take.Chunks) != len(want) {
		return fmt.Errorf("has %d chunks, the manifest says %d", len(take.Chunks), len(want))
	}
	memory, err := shm.OpenReader(ctx, attachment(take))
	if err != nil {
		return err
	}
	defer memory.Close()
	for i := range want {
		got := &take.Chunks[i]
		if got.Key != want[i].Key || got.Length != want[i].Length {
			return fmt.Errorf("chunk %d is %q with %d bytes, the manifest says %q with %d", i, got.Key, got.Length, want[i].Key, want[i].Length)
		}
		slot, err := memory.Slot(int(got.Region), int(got.Slot))
		if err != nil {
			return err
		}
		buf := make([]byte, got.Length)
		if _, err := manifest.Fill(buf, &want[i]); err != nil {
			return err
		}
		same := bytes.Equal(buf, slot[:got.Length])
		c.count(got.Length, same)
		if !same {
			return fmt.Errorf("chunk %d (%q): its bytes differ from the manifest's", i, got.Key)
		}
	}
	return nil
}

func (c *checker) count(bytes int64, same bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.chunks++
	c.sum.bytes += bytes
	if !same {
		c.sum.differing++
	}
}

func attachment(take *wire.TakeResponse) rdma.Attachment {
	at := rdma.Attachment{
		ReceiverID: take.ReceiverID,
		Token:      take.Token,
		SlotSize:   take.SlotSize,
		Slots:      int(take.SlotCount),
	}
	for _, region := range take.Regions {
		at.Regions = append(at.Regions, rdma.Region{ID: int(region.ID), Desc: region.Desc})
	}
	return at
}
