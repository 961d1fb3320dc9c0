package manifest

import (
	"errors"
	"fmt"
)

// Tracker holds the rules that take more than one line to see. It remembers
// each request from its first line until End, and its keys until its last
// line. The zero value is ready to use; it is not safe for concurrent use.
type Tracker struct{ live map[string]*progress }

// progress is what the lines of one request have said so far.
type progress struct {
	total int64
	to    int
	last  bool
	keys  map[string]struct{}
}

// Check takes the next line of a request in. An error fails the request; it is
// a *LineError, and nothing of the line is remembered. A cancel line is never
// an error.
func (t *Tracker) Check(l Line) error {
	if l.Batch == nil {
		return nil
	}
	b := l.Batch
	p := t.live[b.ReqID]
	if p == nil {
		p = &progress{total: b.Total, to: b.To, keys: map[string]struct{}{}}
	}
	if err := p.check(b); err != nil {
		return &LineError{File: l.File, No: l.No, ReqID: b.ReqID, Err: err}
	}
	p.add(b)
	if t.live == nil {
		t.live = map[string]*progress{}
	}
	t.live[b.ReqID] = p
	return nil
}

// End forgets a request that is ready, failed or cancelled.
func (t *Tracker) End(reqID string) { delete(t.live, reqID) }

func (p *progress) check(b *Batch) error {
	if p.last {
		return errors.New("follows the line that said last: take last from the earlier line or give this one another req_id")
	}
	if b.Total != p.total {
		return fmt.Errorf("total_chunks is %d, it was %d on an earlier line: all lines of a request say the same", b.Total, p.total)
	}
	if b.To != AnyReceiver && b.To != p.to {
		return fmt.Errorf("to is %d and not what the request's first line says: give it there, or nowhere", b.To)
	}
	for i := range b.Chunks {
		if _, twice := p.keys[b.Chunks[i].Key]; twice {
			return fmt.Errorf("chunks[%d]: key %q stood on an earlier line: each chunk of a request needs its own", i, clip(b.Chunks[i].Key))
		}
	}
	sum := int64(len(p.keys) + len(b.Chunks))
	if sum > p.total {
		return fmt.Errorf("%d chunks with those of earlier lines, total_chunks is %d: correct either", sum, p.total)
	}
	if b.Last && sum < p.total {
		return fmt.Errorf("last after %d of %d chunks: a manifest must not end a request early: send the rest or correct total_chunks", sum, p.total)
	}
	return nil
}

func (p *progress) add(b *Batch) {
	if p.last = b.Last; p.last {
		p.keys = nil
		return
	}
	for i := range b.Chunks {
		p.keys[b.Chunks[i].Key] = struct{}{}
	}
}
