package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/rdma"
)

const (
	speedChunk  = mib
	speedChunks = 128
	speedRounds = 3
	speedWindow = 16 // writes a call of the engine alone
)

// speed compares pd-send to pd-recv, from admitted to ready, with the engine
// alone on the same link, in turns. Every byte is compared, on both.
func (l *lab) speed(b *bed) error {
	decode, links, err := b.star(1, l.mbits)
	if err != nil {
		return err
	}
	link := links[0]
	alone, err := newPair(link)
	if err != nil {
		return err
	}
	recv, err := decode.receive(speedChunks, speedChunk)
	if err != nil {
		return err
	}
	send, err := link.from.send("--to", link.receiver())
	if err != nil {
		return err
	}
	round := 0
	both := func() (engine, tools time.Duration, err error) {
		round++
		if engine, err = alone.write(round); err != nil {
			return 0, 0, err
		}
		tools, err = l.timed(recv, []*sender{send}, []*manifest.Batch{request(fmt.Sprintf("round%d", round), speedChunks, speedChunk)})
		return engine, tools, err
	}
	if _, _, err := both(); err != nil { // warms
		return err
	}
	err = l.measure(func() ([]row, error) {
		var engine, tools []time.Duration
		for range speedRounds {
			e, t, err := both()
			if err != nil {
				return nil, err
			}
			engine, tools = append(engine, e), append(tools, t)
		}
		ours, ref := median(tools), median(engine)
		return []row{{
			name: fmt.Sprintf("`pd-send` to `pd-recv` : the engine alone, 1 MiB chunks, %d Mbit/s", l.mbits),
			ours: rate(ours), ref: rate(ref), ratio: ratio(ref, ours), least: 0.9,
		}}, nil
	})
	if err != nil {
		return err
	}
	if err := send.finish(); err != nil {
		return err
	}
	return recv.retire()
}

func rate(d time.Duration) string {
	return fmt.Sprintf("%.0f Mbit/s", speedChunks*speedChunk*8/1e6/d.Seconds())
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// pair is the engine alone: a target and an initiator on two hosts.
type pair struct {
	target, initiator *process
	heard             map[*process]int // answers of each
}

func newPair(link *link) (*pair, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &pair{heard: map[*process]int{}}
	if p.target, err = link.far.start(self, roleArg, "target"); err != nil {
		return nil, err
	}
	if p.initiator, err = link.from.start(self, roleArg, "initiator"); err != nil {
		return nil, err
	}
	fabric := rdma.Fabric{Provider: "tcp;ofi_rxm"}
	var at rdma.Attachment
	if err := p.ask(p.target, shape{Engine: "ofi", Slots: speedChunks, SlotSize: speedChunk, Fabric: fabric}, &at); err != nil {
		return nil, err
	}
	at.Host, at.Fabric = link.toAddr, fabric
	if err := p.ask(p.initiator, order{Engine: "ofi", Attachment: &at}, nil); err != nil {
		return nil, err
	}
	var access [][]byte
	if err := p.ask(p.target, 0, &access); err != nil {
		return nil, err
	}
	return p, p.ask(p.initiator, order{Access: access}, nil)
}

// write fills every slot once.
func (p *pair) write(round int) (took time.Duration, err error) {
	if err := p.ask(p.initiator, order{Round: round, Window: speedWindow}, &took); err != nil {
		return 0, err
	}
	var v verdict
	if err := p.ask(p.target, round, &v); err != nil {
		return 0, err
	}
	if v.Bad > 0 {
		return 0, fmt.Errorf("the engine alone: %d of %d slots differ from what was written: %s", v.Bad, speedChunks, v.Error)
	}
	return took, nil
}

// ask gives a role a line and waits for the line that answers it.
func (p *pair) ask(role *process, order, answer any) error {
	text, err := json.Marshal(order)
	if err != nil {
		return err
	}
	if _, err := role.stdin.Write(append(text, '\n')); err != nil {
		return role.failure(err.Error())
	}
	n := p.heard[role]
	if err := role.until(patience, "an answer", func() bool { return len(role.out) > n }); err != nil {
		return err
	}
	p.heard[role]++
	if answer == nil {
		return nil
	}
	return json.Unmarshal(role.out[n], answer)
}
