package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const (
	traceRequests = 200
	traceChunk    = 64 * kib
	fileBytes     = 20*mib + 12345 // the last chunk is a short one
)

// trace is the main job across hosts: files and a made-up trace from two
// prefill hosts, announced by a proxy on the decode host, taken there and
// compared. shm must not reach from host to host, and auto must see that.
func (l *lab) trace(b *bed) error {
	decode, links, err := b.star(2, l.mbits)
	if err != nil {
		return err
	}
	recv, err := decode.receive(1024, traceChunk)
	if err != nil {
		return err
	}
	if err := l.noSharedMemory(links[0]); err != nil {
		return err
	}
	if err := l.files(decode, recv, links); err != nil {
		return err
	}
	if err := l.requests(decode, recv, links); err != nil {
		return err
	}
	return recv.retire()
}

// noSharedMemory asks for shm from host to host, which must fail and say why.
func (l *lab) noSharedMemory(link *link) error {
	s, err := link.from.send("--engine", "shm", "--to", link.receiver())
	if err != nil {
		return err
	}
	if err := s.give(request("shm", 1, traceChunk)); err != nil {
		return err
	}
	r, err := s.failed("shm", patience)
	if err != nil {
		return err
	}
	if !strings.Contains(r.Error, "runs on this host") {
		return s.failure("shm failed across hosts, and does not say that it reaches one only: " + r.Error)
	}
	l.say("pd-send --engine shm: %s", r.Error)
	s.stdin.Close()
	if err := s.wait(patience); err == nil {
		return errors.New("pd-send --engine shm ended with 0, across hosts")
	}
	return nil
}

// proxy starts a pd-proxy that ends after n requests.
func (h *host) proxy(n int) (*process, error) {
	p, err := h.start("pd-proxy", "--listen", "tcp://0.0.0.0:"+proxyPort, "-n", strconv.Itoa(n), "--timeout", patience.String())
	if err != nil {
		return nil, err
	}
	return p, p.says("listening on")
}

// files sends a file from each prefill host and takes them.
func (l *lab) files(decode *host, recv *receiver, links []*link) error {
	proxy, err := decode.proxy(len(links))
	if err != nil {
		return err
	}
	content := map[string][]byte{}
	var senders []*sender
	for i, link := range links {
		id := fmt.Sprintf("file%d", i+1)
		content[id] = make([]byte, fileBytes)
		rand.Read(content[id])
		name := filepath.Join(decode.bed.dir, id)
		if err := os.WriteFile(name, content[id], 0o600); err != nil {
			return err
		}
		s, err := link.from.send("--to", link.receiver(), "--proxy", link.proxy())
		if err != nil {
			return err
		}
		if err := s.give(fromFile(id, name, fileBytes, traceChunk)); err != nil {
			return err
		}
		s.stdin.Close()
		senders = append(senders, s)
	}
	if err := proxy.wait(patience); err != nil {
		return err
	}
	for _, s := range senders {
		if err := errors.Join(s.wait(patience), s.usesOFI()); err != nil {
			return err
		}
	}
	for id := range content {
		got, err := decode.output(nil, "pd-recv", "take", recv.endpoint(), id)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, content[id]) {
			return fmt.Errorf("request %s: %d bytes were taken that differ from the %d of its file", id, len(got), len(content[id]))
		}
	}
	l.say("%d files of %d bytes, one from each prefill host: equal", len(links), fileBytes)
	return nil
}

// fromFile is a request of a file's bytes.
func fromFile(id, name string, size, chunkSize int) *manifest.Batch {
	b := &manifest.Batch{ReqID: id, Last: true, To: manifest.AnyReceiver}
	for at := 0; at < size; at += chunkSize {
		b.Chunks = append(b.Chunks, manifest.Chunk{
			Key: fmt.Sprintf("%s-%d", id, at), File: name, Offset: int64(at), Length: int64(min(chunkSize, size-at)),
		})
	}
	b.Total = int64(len(b.Chunks))
	return b
}

// deal deals a manifest's requests out to n senders.
func deal(list []byte, n int) ([][]byte, error) {
	parts := make([][]byte, n)
	turn := map[string]int{}
	for r := manifest.NewReader(bytes.NewReader(list), "trace"); ; {
		line, err := r.Next()
		if err == io.EOF {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		id := line.Batch.ReqID
		if _, known := turn[id]; !known {
			turn[id] = len(turn) % n
		}
		parts[turn[id]] = manifest.AppendLine(parts[turn[id]], line.Batch)
	}
}

// requests sends a made-up trace, one half from each prefill host, while a
// decoder takes what the proxy names and compares it.
func (l *lab) requests(decode *host, recv *receiver, links []*link) error {
	trace, err := decode.output(nil, "gentrace", "--requests", strconv.Itoa(traceRequests))
	if err != nil {
		return err
	}
	list, err := decode.output(trace, "pd-send", "manifest", "--chunk-size", strconv.Itoa(traceChunk), "--interleave", "8")
	if err != nil {
		return err
	}
	name := filepath.Join(decode.bed.dir, "trace.manifest")
	if err := os.WriteFile(name, list, 0o600); err != nil {
		return err
	}
	parts, err := deal(list, len(links))
	if err != nil {
		return err
	}
	proxy, err := decode.proxy(traceRequests)
	if err != nil {
		return err
	}
	checker, err := decode.start("pd-check", "--manifest", name, recv.endpoint())
	if err != nil {
		return err
	}
	var senders []*sender
	start := time.Now()
	for i, link := range links {
		s, err := link.from.send("--to", link.receiver(), "--proxy", link.proxy())
		if err != nil {
			return err
		}
		senders = append(senders, s)
		go func() {
			s.stdin.Write(parts[i]) // if it does not take them, requests are missing below
			s.stdin.Close()
		}()
	}
	if err := proxy.pipe(checker); err != nil {
		return err
	}
	took := time.Since(start)
	for _, s := range senders {
		if err := errors.Join(s.wait(patience), s.usesOFI()); err != nil {
			return err
		}
	}
	l.say("a trace of %d requests in %s: %s", traceRequests, seconds(took), bytes.TrimSpace(bytes.Join(checker.out, nil)))
	return nil
}
