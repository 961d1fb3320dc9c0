package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// roleArg as first argument makes this binary one of two programs that use the
// engine and nothing else; the second names which: a target or an initiator.
// Each answers a line of JSON on stdin with one on stdout.
const roleArg = "role"

func runRole(name string) error {
	switch name {
	case "target":
		return target()
	case "initiator":
		return initiator()
	}
	return fmt.Errorf("there is no role %q", name)
}

// shape is what a target is asked for first.
type shape struct {
	Engine   string
	Slots    int
	SlotSize int64
	Fabric   rdma.Fabric
}

// verdict is what is in the slots.
type verdict struct {
	Bad   int // slots that do not hold their own pattern
	Error string
}

// slotKey is what the pattern of a slot is made from.
func slotKey(round, slot int) string { return fmt.Sprintf("round %d slot %d", round, slot) }

// target owns slots: a shape is answered with an attachment; then 0 with the
// access to each slot; then the number of each round with a verdict.
func target() error {
	in := bufio.NewScanner(os.Stdin)
	var s shape
	if err := hear(in, &s); err != nil {
		return err
	}
	id := fmt.Sprintf("hosts-%d", os.Getpid())
	t, err := engines.Open(engines.Config{
		ReceiverID: id, Slots: s.Slots, SlotSize: s.SlotSize, Engines: []string{s.Engine}, Fabric: s.Fabric,
	})
	if err != nil {
		return err
	}
	defer t.Close()
	const writer = 1
	token, err := t.Grant(writer, s.Engine)
	if err != nil {
		return err
	}
	tell(rdma.Attachment{ReceiverID: id, Token: token, Regions: t.Regions(s.Engine), SlotSize: s.SlotSize, Slots: s.Slots})
	for round := 0; hear(in, &round) == nil; {
		if round > 0 {
			tell(judge(t, s, round))
			continue
		}
		access := make([][]byte, s.Slots)
		for i := range access {
			if access[i], err = t.Open(writer, i); err != nil {
				return err
			}
		}
		tell(access)
	}
	return nil
}

// judge compares every byte of every slot.
func judge(t rdma.Target, s shape, round int) (v verdict) {
	for i := range s.Slots {
		if at, ok := manifest.Verify(slotKey(round, i), t.Slot(i)); !ok {
			v.Bad++
			v.Error = fmt.Sprintf("slot %d differs from byte %d on", i, at)
		}
	}
	return v
}

// order is what an initiator is told: the first one to attach (answered with
// nil), the second with the access to the slots, later ones to write all slots
// (answered with the nanoseconds that took).
type order struct {
	Engine     string
	Attachment *rdma.Attachment
	Access     [][]byte
	Round      int
	Window     int // writes posted at a time
}

func initiator() error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16*mib)
	ctx := context.Background()
	var remote rdma.Remote
	var first order
	var ops []rdma.Op
	for {
		var o order
		if hear(in, &o) != nil {
			return nil // the end
		}
		switch {
		case o.Attachment != nil:
			first = o
			o.Attachment.Staging = make([]byte, int64(o.Attachment.Slots)*o.Attachment.SlotSize)
			var err error
			if remote, err = engines.Attach(ctx, o.Engine, *o.Attachment); err != nil {
				return err
			}
			defer remote.Close()
			tell(0)
		case o.Access != nil:
			for i, access := range o.Access {
				from := int64(i) * first.Attachment.SlotSize
				ops = append(ops, rdma.Op{Local: first.Attachment.Staging[from:][:first.Attachment.SlotSize], Slot: i, Access: access})
			}
			tell(0)
		default:
			for i := range ops {
				manifest.Pattern(ops[i].Local, slotKey(o.Round, i))
			}
			start := time.Now()
			for at := 0; at < len(ops); at += o.Window {
				if err := remote.Write(ctx, ops[at:min(at+o.Window, len(ops))]); err != nil {
					return err
				}
			}
			tell(time.Since(start))
		}
	}
}

func hear(in *bufio.Scanner, to any) error {
	if !in.Scan() {
		return fmt.Errorf("stdin ended: %w", in.Err())
	}
	return json.Unmarshal(in.Bytes(), to)
}

func tell(answer any) { json.NewEncoder(os.Stdout).Encode(answer) }
