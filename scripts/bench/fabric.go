//go:build !noofi

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/ofi"
)

// across are the sections that a build without libfabric lacks.
var across = []section{{"fabric", (*bench).fabric}}

// fabric compares the writes of ofi over TCP on loopback with what iperf3 gets
// out of one stream and plain C out of libfabric, and pd-send to pd-recv with
// those writes. Every byte of ours and of the C program's is compared after
// every round; iperf3 sends the same 128 KiB again and again, from the cache.
func (b *bench) fabric() error {
	walk := pick(b, coldWalk, quickWalk)
	b.table.note("ofi: over %s on loopback (congestion control %s), %d writes in flight, buffers of %s at each side walked from end to end; every byte is compared.",
		ofi.DefaultProvider, congestionControl(), ofi.Window, humanize.IBytes(uint64(walk)))
	stream, err := b.iperf(walk)
	switch {
	case b.quick && errors.Is(err, exec.ErrNotFound):
		b.say("no iperf3: its rows are left out")
	case err != nil:
		return err
	default:
		defer stream.stop()
	}
	program, err := b.compile()
	if err != nil {
		return err
	}
	for _, piece := range []int{64 * kib, mib, 4 * mib} {
		if err := b.fabricWrites(stream, program, walk, piece); err != nil {
			return err
		}
	}
	return b.fabricEndToEnd(pick(b, coldWalk, 2*e2eRequest*e2eChunk))
}

// congestionControl is what TCP uses; it decides much of what one stream gets,
// on loopback too.
func congestionControl() string {
	name, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(name))
}

// fabricWrites fills the rows of one size.
func (b *bench) fabricWrites(stream *iperf, program string, walk, piece int) error {
	ours, err := b.fabricPair(walk, piece)
	if err != nil {
		return err
	}
	defer ours.stop()
	bare, err := b.bare(program, ofi.DefaultProvider, walk, piece, ofi.Window)
	if err != nil {
		return err
	}
	defer bare.stop()

	floors := map[int][2]limit{64 * kib: {atLeast(0.45)}, mib: {atLeast(0.85), atLeast(0.95)}, 4 * mib: {atLeast(0.85), atLeast(0.95)}}
	size := humanize.IBytes(uint64(piece))
	ways := []func() (float64, error){ours.write, bare.write}
	var rows []*row // of each way but the first
	rows = append(rows, b.table.row(megabytes, floors[piece][1], "ofi writes, %s : fi_write in C", size))
	if stream != nil {
		ways = append(ways, stream.send)
		rows = append(rows, b.table.row(megabytes, floors[piece][0], "ofi writes, %s : one stream of iperf3", size))
	}
	got := make([]float64, len(ways))
	for round := range pick(b, 15, 1) {
		for i := range ways {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			way := (round + i) % len(ways)
			if got[way], err = ways[way](); err != nil {
				return err
			}
		}
		for i, r := range rows {
			r.add(got[0], got[i+1])
		}
	}
	for _, r := range rows {
		b.say("%v", r)
	}
	return nil
}

// fabricEndToEnd compares pd-send to pd-recv with the engine alone. A round
// fills the buffer once; what is in it is compared by pd-check, which releases
// it, when the time is taken.
func (b *bench) fabricEndToEnd(walk int) error {
	slots := walk / e2eChunk
	requests := slots / e2eRequest
	recv, endpoint, err := b.receiver(slots, e2eChunk, "--engine", ofi.Name)
	if err != nil {
		return err
	}
	defer recv.stop()
	pdSend, err := b.pdSend(endpoint, "--engine", ofi.Name)
	if err != nil {
		return err
	}
	defer pdSend.stop()
	alone, err := b.fabricPair(walk, e2eChunk)
	if err != nil {
		return err
	}
	defer alone.stop()
	file, err := b.onDisk(walk)
	if err != nil {
		return err
	}
	for _, source := range []struct{ name, file string }{{"files in the page cache", file}, {"patterns", ""}} {
		row := b.table.row(megabytes, atLeast(0.6), "pd-send to pd-recv by ofi, %d MiB chunks, %s : ofi writes", e2eChunk/mib, source.name)
		for round := range 1 + pick(b, 15, 1) {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			t, prefix := transfer{filepath.Join(b.dir, "manifest.jsonl"), requests}, fmt.Sprintf("r%d-%s", round, source.name)
			if err := writeManifest(t, prefix, e2eChunk, source.file, walk); err != nil {
				return err
			}
			whole := func() (float64, error) { return b.sendBytes(recv, pdSend, t) }
			got, ref, err := inTurn(round, whole, alone.write)
			if err != nil {
				return err
			}
			if err := b.compareAll(endpoint, t, prefix); err != nil {
				return err
			}
			if round > 0 { // the first one warms
				row.add(got, ref)
			}
		}
		b.say("%v", row)
	}
	return untilIdle(endpoint)
}

// compareAll has pd-check look at every byte of the requests of a manifest and
// release them.
func (b *bench) compareAll(endpoint string, t transfer, prefix string) error {
	var ids strings.Builder
	for r := range t.requests {
		fmt.Fprintln(&ids, requestID(prefix, r))
	}
	check := exec.CommandContext(b.ctx, filepath.Join(b.bin, "pd-check"), "--manifest", t.list, endpoint)
	check.Stdin = strings.NewReader(ids.String())
	if out, err := check.CombinedOutput(); err != nil {
		return fmt.Errorf("pd-check: %w: %s", err, out)
	}
	return nil
}

// fabricPair is a target and an initiator, a process each.
type fabricPair struct {
	target, initiator *worker
	bytes             int
}

func (b *bench) fabricPair(walk, piece int) (_ *fabricPair, err error) {
	p := &fabricPair{bytes: walk}
	if p.target, err = b.worker("target"); err != nil {
		return nil, err
	}
	if p.initiator, err = b.worker("initiator"); err == nil {
		err = p.connect(walk/piece, piece)
	}
	if err == nil {
		_, err = p.write() // warms, and makes sure
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *fabricPair) connect(slots, piece int) error {
	var at rdma.Attachment
	fabric := rdma.Fabric{Provider: ofi.DefaultProvider, Addr: "127.0.0.1"}
	if err := p.target.ask(targetOrder{Engine: ofi.Name, Slots: slots, SlotSize: piece, Fabric: fabric}, &at); err != nil {
		return err
	}
	if err := p.initiator.ask(initiatorOrder{Engine: ofi.Name, Attachment: &at}, new(span)); err != nil {
		return err
	}
	// As many in hand as pd-send's staging buffer has of 1 MiB: enough that some
	// wait while the engine has the processor and workers do not get to run.
	order := initiatorOrder{Workers: 4 * ofi.Window}
	if err := p.target.ask(targetOrder{Open: true}, &order.Access); err != nil {
		return err
	}
	return p.initiator.ask(order, new(span))
}

// write has every slot written and compares; MB/s.
func (p *fabricPair) write() (float64, error) {
	var s span
	var bad int // slots
	if err := p.target.ask(targetOrder{Clear: true}, &bad); err != nil {
		return 0, err
	}
	if err := p.initiator.ask(initiatorOrder{}, &s); err != nil {
		return 0, err
	}
	if err := p.target.ask(targetOrder{}, &bad); err != nil {
		return 0, err
	}
	if bad > 0 {
		return 0, fmt.Errorf("%d slots do not hold what was written", bad)
	}
	return speed(p.bytes, s), nil
}

func (p *fabricPair) stop() {
	for _, w := range []*worker{p.initiator, p.target} {
		if w != nil {
			w.stop()
		}
	}
}
