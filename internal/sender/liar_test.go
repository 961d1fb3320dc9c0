package sender

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// liar is receivers that answer what a fuzzer's bytes say, and a manifest that is
// no better.
type liar struct {
	recorder
	t        *testing.T
	core     *core
	input    testkit.Input
	now      time.Duration
	sessions [liarReceivers]*session
	out      []liarQuestion
	notices  []string
}

type liarQuestion struct {
	session *session
	sentMessage
}

const (
	liarReceivers = 2
	liarSlots     = 4 // of staging
)

func newLiar(t *testing.T, mode byte, input []byte) *liar {
	l := &liar{recorder: recorder{results: map[string]*Result{}}, t: t, input: input}
	l.core = newCore(coreConfig{
		receivers: []string{"r0", "r1"}, timeout: time.Minute, batch: 1 + int(mode%4), pending: 2000 << (mode >> 6),
		proxy: mode&16 != 0, tellFail: mode&16 != 0,
	}, l)
	return l
}

// Effects that want an answer.

func (l *liar) send(s *session, id uint64, msg wire.Message) {
	l.out = append(l.out, liarQuestion{s, sentMessage{id, msg}})
}

func (l *liar) notify(reqID string) { l.notices = append(l.notices, reqID) }

func (l *liar) end(res *Result) {
	if l.results[res.ReqID] != nil {
		l.t.Fatalf("%s has ended twice", res.ReqID)
	}
	l.recorder.end(res)
}

const (
	liarLine = iota
	liarCancel
	liarAttach
	liarGrant
	liarAnswer
	liarPayload
	liarWork
	liarLost
	liarRefused
	liarTime
	liarNotice
	liarInterrupt
	liarKinds
)

func (l *liar) next() {
	c, kind, at := l.core, l.input.Byte()%liarKinds, int(l.input.Byte())
	i := at % liarReceivers
	switch kind {
	case liarLine:
		line := batchLine(fmt.Sprint("q", at%8), int(l.input.Byte()%9), int(l.input.Byte()%9), int(l.input.Byte()%6))
		line.Batch.To = int(l.input.Byte()%4) - 1
		c.line(l.now, line)
	case liarCancel:
		c.line(l.now, manifest.Line{File: "m", Cancel: fmt.Sprint("q", at%8)})
	case liarAttach:
		if c.receivers[i].asking {
			l.sessions[i] = &session{receiver: i, slots: int64(l.input.Byte() % 12), slotSize: 50 + int64(l.input.Byte())}
			c.attached(l.now, attached{session: l.sessions[i], slots: liarSlots})
		}
	case liarGrant, liarAnswer, liarPayload:
		l.answer(kind, at)
	case liarWork:
		if len(l.jobs) > 0 {
			at %= len(l.jobs)
			j := l.jobs[at]
			l.jobs = append(l.jobs[:at], l.jobs[at+1:]...)
			l.work(j, l.input.Byte())
		}
	case liarLost:
		l.lose(i, l.input.Byte()&1 != 0)
	case liarRefused:
		if c.receivers[i].asking {
			c.refused(l.now, refused{receiver: i, err: errors.New("no"), code: wire.CodeInternal, heard: at&2 != 0})
		}
	case liarTime:
		l.now += time.Duration(l.input.Byte()) * time.Second
		c.expire(l.now)
	case liarNotice:
		l.notice(at)
	case liarInterrupt:
		c.interrupt(l.now, "interrupted")
	}
}

// answer answers one of the questions, once or again.
func (l *liar) answer(kind byte, at int) {
	if len(l.out) == 0 {
		return
	}
	q := l.out[at%len(l.out)]
	if l.input.Byte()&7 != 0 {
		l.out = append(l.out[:at%len(l.out)], l.out[at%len(l.out)+1:]...)
	}
	var msg wire.Message
	switch kind {
	case liarGrant: // right, most often
		resp := &wire.AllocResponse{}
		if m, ok := q.msg.(*wire.AllocRequest); ok {
			for i := range m.Keys {
				resp.RemoteIndexes = append(resp.RemoteIndexes, int64(i)+int64(l.input.Byte()&1))
			}
		}
		msg = resp
		if _, ok := q.msg.(*wire.CommitRequest); ok {
			msg = &wire.CommitResponse{}
		}
	case liarAnswer:
		resp := &wire.AllocResponse{Code: wire.Code(l.input.Bytes(int(l.input.Byte() & 3)))}
		for range l.input.Byte() % 6 {
			resp.RemoteIndexes = append(resp.RemoteIndexes, int64(int8(l.input.Byte())))
		}
		for range l.input.Byte() % 6 {
			resp.AlreadySentIndexes = append(resp.AlreadySentIndexes, int64(int8(l.input.Byte())))
		}
		for range l.input.Byte() % 6 {
			resp.Regions = append(resp.Regions, int64(int8(l.input.Byte())))
		}
		msg = resp
	default:
		var err error
		if msg, err = wire.Decode(l.input.Bytes(int(l.input.Byte()))); err != nil {
			return // the link ends the session
		}
	}
	q.session.heard.Store(int64(l.now))
	l.core.answered(l.now, answered{q.session, q.id, msg})
}

func (l *liar) work(j *job, how byte) {
	switch {
	case j.recalled() || how%4 == 1 && j.abort():
		j.err = errAborted
	case how%4 == 2:
		j.err = &writeError{rdma.ErrGone}
	case how%4 == 3:
		j.err = errors.New("no such file")
	default:
		j.state.Store(jobWriting)
	}
	l.core.worked(l.now, j)
}

func (l *liar) lose(i int, alive bool) {
	if s := l.sessions[i]; s != nil {
		l.core.lost(l.now, lost{session: s, err: errors.New("gone"), code: codeUnreachable, alive: alive})
	}
}

func (l *liar) notice(at int) {
	if len(l.notices) > 0 {
		id := l.notices[at%len(l.notices)]
		l.notices = append(l.notices[:at%len(l.notices)], l.notices[at%len(l.notices)+1:]...)
		var err error
		if at&64 != 0 {
			err = errors.New("nobody there")
		}
		l.core.noticed(l.now, noticed{id, err})
	}
}

func (l *liar) holds() {
	if err := l.core.check(); err != nil {
		l.t.Fatal(err)
	}
	if s := l.core.staging; s != nil && (s.used < 0 || s.used > s.total) {
		l.t.Fatalf("%d of %d staging slots are used", s.used, s.total)
	}
}

// ends lets everything end; nothing may be left.
func (l *liar) ends() {
	c := l.core
	c.closeInput(l.now)
	c.cancelAll(l.now, "cancelled")
	for len(l.notices) > 0 {
		l.notice(0)
	}
	for i := range l.sessions {
		l.lose(i, false)
	}
	for len(l.jobs) > 0 {
		j := l.jobs[0]
		l.jobs = l.jobs[1:]
		l.work(j, 0)
	}
	l.holds()
	if !c.done() || c.pending != 0 || c.staging != nil && c.staging.used != 0 {
		l.t.Fatalf("left: %d live, %d owed, %d pending, staging %+v", len(c.reqs), c.owed, c.pending, c.staging)
	}
}

// FuzzAnswers has receivers say anything at any time: every request ends once,
// the books add up, and nothing is left.
func FuzzAnswers(f *testing.F) {
	line := string([]byte{liarLine, 0, 2, 0, 2, 0})
	attach, grant, work := string([]byte{liarAttach, 0, 10, 50}), string([]byte{liarGrant, 0, 1}), string([]byte{liarWork, 0, 0})
	whole := line + attach + grant + work + work + grant
	for _, input := range []string{
		whole, whole + string([]byte{liarNotice, 0}),
		line + attach + grant + string([]byte{liarLost, 0, 0, liarWork, 0, 2}),
		line + attach + string([]byte{liarAnswer, 0, 1, 0, 2, 255, 9, 1, 1, 0}),
		line + attach + string([]byte{liarPayload, 0, 1, 0}) + line,
		line + string([]byte{liarRefused, 0, liarTime, 0, 100, liarCancel, 0, liarInterrupt, 0}),
		line + attach + string([]byte{liarTime, 0, 100}) + grant,
	} {
		f.Add(byte(0), []byte(input))
		f.Add(byte(16|3), []byte(input))
	}
	for _, m := range []wire.Message{&wire.AllocResponse{RemoteIndexes: []int64{0, 1}}, &wire.CommitResponse{Ready: true}, &wire.AttachResponse{}, &wire.Snapshot{Kind: wire.KindReceiver}} {
		b := wire.Append(nil, m)
		f.Add(byte(0), append([]byte(line+attach), append([]byte{liarPayload, 0, 1, byte(len(b))}, b...)...))
	}
	f.Fuzz(func(t *testing.T, mode byte, input []byte) {
		l := newLiar(t, mode, input)
		for range 300 {
			if len(l.input) == 0 {
				break
			}
			l.next()
			l.holds()
		}
		l.ends()
	})
}
