package sender

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// How a link gets at its receiver's memory: by the best engine that both have
// and that reaches it.

// onThisHost is the one engine that needs no fabric.
const onThisHost = "shm"

// attachFunc reaches for a receiver's memory with the named engine.
type attachFunc func(ctx context.Context, engine string, at rdma.Attachment) (rdma.Remote, error)

// failure is why the receiver's memory is not written by an engine.
type failure struct {
	engine string
	err    error
}

// reach gets at the receiver's memory. It runs in a helper: a large buffer
// takes its time.
func (l *link) reach(o *opening, resp *wire.AttachResponse) mapped {
	m := mapped{opening: o, resp: resp}
	if err := l.cfg.memory.cut(resp.SlotSize); err != nil {
		m.misfit = fmt.Errorf("%s: %w", l.cfg.endpoint, err)
		return m
	}
	ctx := o.ctx
	if d := l.cfg.timeout * 3 / 4; d > 0 { // before those who wait give up, and cannot say why
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, tooSlow{d})
		defer cancel()
	}
	m.remote, m.err = l.cfg.attach(ctx, resp.Engine, rdma.Attachment{
		ReceiverID: resp.ReceiverID,
		Token:      resp.Token,
		Regions:    regions(resp),
		SlotSize:   resp.SlotSize,
		Slots:      int(resp.SlotCount),
		Staging:    l.cfg.memory.whole(),
		Host:       sock.Host(l.cfg.endpoint),
		Fabric:     l.cfg.fabric,
	})
	return m
}

// tooSlow is in the error of an engine that got no further in its time.
type tooSlow struct{ limit time.Duration }

func (e tooSlow) Error() string { return fmt.Sprintf("no success within %v", e.limit) }

func (tooSlow) Is(target error) bool { return target == os.ErrDeadlineExceeded }

func regions(resp *wire.AttachResponse) []rdma.Region {
	list := make([]rdma.Region, len(resp.Regions))
	for i, r := range resp.Regions {
		list[i] = rdma.Region{ID: int(r.ID), Desc: r.Desc}
	}
	return list
}

// unmapped goes on when an engine does not reach the receiver's memory: with
// another one, if there is any.
func (l *link) unmapped(engine string, err error) {
	o := l.opening
	overdue := o.lease > 0 && time.Since(o.heard) >= o.lease
	if errors.Is(err, rdma.ErrEnded) || overdue && !errors.Is(err, rdma.ErrUnreachable) {
		l.lose(l.ended()) // most likely: we were stopped, and the grant is over
		return
	}
	o.failures = append(o.failures, failure{engine, err})
	o.engines = slices.DeleteFunc(slices.Clone(o.engines), func(name string) bool { return name == engine })
	if len(o.engines) == 0 {
		l.lose(lost{code: codeOf(err), err: l.unreached(o.failures)})
		return
	}
	o.state = attaching
	o.firstAsk = ownIDs | (l.ids + 1)
	l.ask()
}

// codeOf tells an engine that met nobody, or somebody who hung or went away, from
// one that cannot do its work.
func codeOf(err error) wire.Code {
	for _, notThere := range []error{rdma.ErrUnreachable, rdma.ErrGone, os.ErrDeadlineExceeded} {
		if errors.Is(err, notThere) {
			return codeUnreachable
		}
	}
	return wire.CodeInternal
}

// refusal says why the receiver will not have us, after what kept us from
// writing by the engines that it would. What went wrong with one that should do is
// the reason then, and not that there is no other; only the one for this host
// should not do when the receiver is on another.
func (l *link) refusal(resp *wire.AttachResponse) lost {
	o := l.opening
	if len(o.failures) == 0 {
		return lost{code: resp.Code, err: fmt.Errorf("%s refuses to attach us: %s", l.cfg.endpoint, resp.Error)}
	}
	code := resp.Code
	for _, f := range o.failures {
		if f.engine != onThisHost || !errors.Is(f.err, rdma.ErrUnreachable) {
			code = codeOf(f.err)
		}
	}
	return lost{code: code, err: l.unreached(append(o.failures, failure{strings.Join(o.engines, ", "), errors.New(resp.Error)}))}
}

func (l *link) unreached(failures []failure) error {
	why := make([]string, len(failures))
	for i, f := range failures {
		why[i] = fmt.Sprintf("%s: %v", f.engine, f.err)
	}
	return fmt.Errorf("cannot reach the memory of %s: %s", l.cfg.endpoint, strings.Join(why, "; "))
}

// writesBy says by which engine the session is written, and why not by one that
// is better and should do, as any does but one for this host when the receiver
// is on another.
func (l *link) writesBy() string {
	o := l.opening
	text := fmt.Sprintf("%s: writes by %s", l.cfg.endpoint, o.session.engine)
	if o.session.engine != onThisHost {
		text += fmt.Sprintf(" (%s)", l.cfg.fabric.Provider)
	}
	for _, f := range o.failures {
		if !errors.Is(f.err, rdma.ErrUnreachable) {
			text += fmt.Sprintf("; not by %s: %v", f.engine, f.err)
		}
	}
	return text
}
