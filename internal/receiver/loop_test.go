package receiver

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

// A loop is a receiver without sockets and goroutines: its peers, its engine's
// troubles and its time are what a fuzzer's bytes say.
type loop struct {
	*Receiver
	t     *testing.T
	input testkit.Input
	peers [loopPeers]loopPeer

	asked, answered, unreachable int
	open                         map[string]int // envelopes not answered yet
	corr                         uint64
	failing                      bool // the engine opens no slot
	granted                      []int64
}

const (
	loopPeers = 5
	loopSlots = 8
)

type loopPeer struct {
	gone, slow bool
	writer     rdma.Writer   // once it has attached, the last time
	connected  []rdma.Writer // one may outlive its grant
}

func newLoop(t *testing.T, input []byte, target rdma.Target, mode byte) *loop {
	l := &loop{t: t, input: input, open: make(map[string]int)}
	l.Receiver = newReceiver(Config{
		ID: "loop",
		Reservation: reservation.Config{
			Slots: loopSlots, SlotBytes: testSlot, Epoch: 77, Mode: reservation.Mode(mode % 3),
			AdmitTimeout: 30 * time.Second, Lease: 15 * time.Second, LegacyLease: 120 * time.Second, ReadyTTL: 10 * time.Minute,
			QueueLimit: 20, QueueBytes: 1 << 20, SenderRequests: 30, Overtake: int(mode / 64),
		},
		Sink: mode&8 != 0, SinkDelay: time.Second,
		Events: l.events,
		Warn:   func(string, string) {},
	})
	l.setTarget(target)
	l.out = newOutbox(l)
	l.revoker = &revoker{queue: newMailbox[reservation.Revocation](), results: newMailbox[reservation.Event]()}
	return l
}

func (l *loop) events(lines []byte, n int) {
	all := bytes.SplitAfter(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n"))
	if len(all) != n {
		l.t.Errorf("%d lines said to be %d", len(all), n)
	}
	for _, line := range all {
		if !json.Valid(line) {
			l.t.Errorf("event %q", line)
		}
	}
}

// What carries answers.

func (l *loop) look() {}

func (l *loop) send(frames ...[]byte) error {
	p, err := l.peer(string(frames[0]))
	if err != nil {
		l.t.Fatal(err)
	}
	last := len(frames) - 1
	envelope, answer := joined(frames[:last]), frames[last]
	if last == 1 {
		var mark []byte
		mark, answer = wire.CutMark(answer)
		envelope += string(mark)
	}
	if l.open[envelope] == 0 {
		l.t.Fatalf("an answer to %q, which nobody has asked, or a second one", envelope)
	}
	switch {
	case p.gone:
		l.unreachable++
		l.open[envelope]--
		return sock.ErrUnreachable
	case p.slow:
		return sock.ErrAgain
	}
	l.open[envelope]--
	l.answered++
	m, err := wire.Decode(answer)
	if err != nil {
		l.t.Fatalf("the answer %q: %v", answer, err)
	}
	if a, ok := m.(*wire.AllocResponse); ok && a.Code == "" {
		l.granted = append(l.granted, a.RemoteIndexes...)
		l.granted = l.granted[max(0, len(l.granted)-64):]
	}
	return nil
}

func (l *loop) peer(identity string) (*loopPeer, error) {
	for i := range l.peers {
		if identity == loopIdentity(i) {
			return &l.peers[i], nil
		}
	}
	return nil, fmt.Errorf("an answer to %q, whom nobody knows", identity)
}

func loopIdentity(i int) string { return fmt.Sprint("peer ", i) }

func joined(frames [][]byte) string { return string(bytes.Join(frames, []byte("\x00/"))) }

// message hands over a message as the ROUTER does.
func (l *loop) message(from int, frames ...[]byte) {
	frames = append([][]byte{[]byte(loopIdentity(from))}, frames...)
	cut := frames[:min(len(frames), maxFrames)]
	end := 1
	if i := slices.IndexFunc(cut[1:], func(f []byte) bool { return len(f) == 0 }); i >= 0 {
		end = i + 2
	}
	envelope := joined(cut[:end])
	if end == 1 && len(cut) == 2 {
		mark, _ := wire.CutMark(cut[1])
		envelope += string(mark)
	}
	l.open[envelope]++
	l.asked++
	if len(frames) > maxFrames {
		l.tooLong(cut)
	} else {
		l.handle(frames)
	}
}

// say sends a payload with a correlation of its own.
func (l *loop) say(from int, payload []byte) {
	l.corr++
	if l.corr%2 == 0 {
		l.message(from, append(wire.AppendMark(nil, l.corr), payload...))
		return
	}
	l.message(from, binary.BigEndian.AppendUint64(nil, l.corr), nil, payload)
}

func (l *loop) tell(from int, m wire.Message) { l.say(from, wire.Append(nil, m)) }

// The kinds of what can happen.
const (
	doFrames = iota
	doPayload
	doAlloc
	doCommit
	doCancel
	doHeartbeat
	doTake
	doRelease
	doStat
	doAttach
	doConnect
	doDisconnect
	doSlow
	doGone
	doTime
	doRevoke
	doEngine
	doKinds
)

// next does what comes next in the input.
func (l *loop) next() {
	what, from := l.input.Byte()%doKinds, int(l.input.Byte())%loopPeers
	p := &l.peers[from]
	switch what {
	case doFrames:
		var frames [][]byte
		for n := int(l.input.Byte()) % (maxFrames + 4); len(frames) < n; {
			frames = append(frames, l.input.Bytes(int(l.input.Byte())))
		}
		l.message(from, frames...)
	case doPayload:
		l.say(from, l.input.Bytes(int(l.input.Byte())|int(l.input.Byte())<<8))
	case doAlloc:
		m := peertest.Alloc(l.reqID(), int64(l.input.Byte()%12), l.input.Byte()&1 != 0, int64(l.input.Byte()%(testSlot+2)), l.keys()...)
		if l.input.Byte()&1 != 0 {
			m.Epoch = 76 + uint64(l.input.Byte()&1)
		}
		l.tell(from, m)
	case doCommit:
		m := &wire.CommitRequest{ReqID: l.reqID(), Epoch: 77}
		for range l.input.Byte() % 6 {
			m.Slots = append(m.Slots, l.slot())
			m.Lengths = append(m.Lengths, int64(l.input.Byte()))
			m.CRCs = append(m.CRCs, uint32(l.input.Byte()&1))
		}
		l.tell(from, m)
	case doCancel:
		l.tell(from, &wire.CancelNotif{ReqID: l.reqID(), Keys: l.keys()})
	case doHeartbeat:
		l.tell(from, &wire.Heartbeat{Epoch: 76 + uint64(l.input.Byte()%3)})
	case doTake:
		l.tell(from, &wire.TakeRequest{ReqID: l.reqID()})
	case doRelease:
		l.tell(from, &wire.ReleaseRequest{ReqID: l.reqID(), Keep: l.input.Byte()&1 != 0})
	case doStat:
		l.tell(from, &wire.StatRequest{})
	case doAttach:
		engine := l.target.Engines()[0]
		l.tell(from, &wire.AttachRequest{Name: "n", Version: 1 + int64(l.input.Byte()&1), Engines: []string{"none", engine}[l.input.Byte()&1:]})
		p.writer = l.writers.bySender[loopIdentity(from)].writer
	case doConnect:
		if f, ok := l.target.(*fakeTarget); ok && p.writer != 0 && !slices.Contains(p.connected, p.writer) {
			f.connect(p.writer)
			p.connected = append(p.connected, p.writer)
		}
	case doDisconnect:
		l.disconnect(p)
	case doSlow:
		p.slow = !p.slow
	case doGone:
		p.gone = !p.gone
	case doTime:
		l.started = l.started.Add(-time.Duration(l.input.Byte()) * time.Second / 2)
	case doRevoke:
		l.revokeAll()
	case doEngine:
		l.failing = !l.failing
	}
}

func (l *loop) reqID() string { return fmt.Sprint("r", l.input.Byte()%6) }

func (l *loop) keys() (keys []string) {
	first := l.input.Byte()
	for i := range l.input.Byte() % 6 {
		keys = append(keys, fmt.Sprint("k", (first+i)%16))
	}
	return keys
}

// slot is most often one that somebody was given.
func (l *loop) slot() int64 {
	if b := int(l.input.Byte()); b&1 != 0 && len(l.granted) > 0 {
		return l.granted[b/2%len(l.granted)]
	}
	return int64(l.input.Byte()%(loopSlots+2)) - 1
}

func (l *loop) disconnect(p *loopPeer) {
	for _, w := range p.connected {
		l.target.(*fakeTarget).connected[w] = false
		l.writers.gone.put(w)
	}
	p.connected = nil
}

func (l *loop) revokeAll() {
	for _, rev := range l.revoker.queue.take() {
		l.revoker.results.put(revoke(l.target, rev))
	}
}

// turns lets the loop do what it does besides messages.
func (l *loop) turns() {
	l.out.next = time.Time{}
	l.pass(l.writers.left())
}

// holds checks what must hold whatever comes.
func (l *loop) holds() {
	if len(l.Receiver.next) != 0 {
		l.t.Fatalf("%d events were forgotten", len(l.Receiver.next))
	}
	s := l.snapshot().(*wire.Snapshot)
	n := s.Slots
	if n.Promised+n.Held+n.Quarantined+n.Free != loopSlots || min(n.Promised, n.Held, n.Quarantined, n.Free) < 0 ||
		n.Written > n.Held || n.Ready > n.Written {
		l.t.Fatalf("slots %+v", n)
	}
	cfg := l.cfg.Reservation
	if len(s.Queue) > cfg.QueueLimit || len(s.Requests) > loopPeers*cfg.SenderRequests {
		l.t.Fatalf("%d wait, %d live", len(s.Queue), len(s.Requests))
	}
	if len(l.access.open) > loopSlots {
		l.t.Fatalf("%d slots are open", len(l.access.open))
	}
	for _, b := range l.out.slow {
		if len(b.answers) > maxBacklog || len(b.answers) > 1 && b.bytes > maxBacklogBytes {
			l.t.Fatalf("a backlog of %d answers, %d bytes", len(b.answers), b.bytes)
		}
	}
	for e, n := range l.open {
		if n == 0 {
			delete(l.open, e)
		}
	}
}

// ends stops everything; nothing may be left.
func (l *loop) ends() {
	for i := range l.peers {
		l.peers[i].slow = false
	}
	l.step(reservation.Shutdown{})
	for len(l.out.turn) > 0 {
		l.turns()
	}
	l.emit()
	if lost := int(l.out.undeliverable); l.asked != l.answered+lost || lost < l.unreachable {
		l.t.Fatalf("%d messages, %d answers, %d lost; unanswered: %v", l.asked, l.answered, lost, l.open)
	}
	for i := range l.peers {
		l.disconnect(&l.peers[i])
	}
	for range 3 { // what was taken is ready again before it expires
		l.started = l.started.Add(-time.Hour)
		l.turns()
		l.revokeAll()
		l.turns()
		l.holds()
	}
	s := l.snapshot().(*wire.Snapshot)
	if s.Slots.Free != loopSlots || s.Totals.Requests != 0 {
		l.t.Fatalf("left: %+v, %d requests", s.Slots, s.Totals.Requests)
	}
}

func (l *loop) run() {
	for range 400 {
		if len(l.input) == 0 {
			break
		}
		l.next()
		l.turns()
		l.holds()
	}
	l.ends()
}

// loopSeeds are the payloads of the contract, one each, and some that make a
// whole life.
func loopSeeds(f *testing.F) {
	for _, file := range []string{"golden.json", "tolerance.json"} {
		var cases []struct{ Hex string }
		b, err := os.ReadFile("../../wire/testdata/" + file)
		if err == nil {
			err = json.Unmarshal(b, &cases)
		}
		if err != nil {
			f.Fatal(err)
		}
		for i, c := range cases {
			payload, err := hex.DecodeString(c.Hex)
			if err != nil {
				f.Fatal(err)
			}
			op := []byte{doPayload, byte(i), byte(len(payload)), byte(len(payload) >> 8)}
			f.Add(byte(i), append(op, payload...))
		}
	}
	attach := string([]byte{doAttach, 0, 0, 1, doConnect, 0})
	alloc := func(from, req, total, last, first, keys byte) string {
		return string([]byte{doAlloc, from, req, total, last, testSlot, first, keys, 0})
	}
	commit := string([]byte{doCommit, 0, 0, 2, 1, testSlot, 0, 3, testSlot, 0})
	take, release := string([]byte{doTake, 2, 0}), string([]byte{doRelease, 2, 0, 0})
	wait := string([]byte{doTime, 0, 80})
	for _, life := range []string{
		attach + alloc(0, 0, 2, 1, 0, 2) + commit + take + release,
		alloc(1, 0, 2, 1, 0, 2) + take + wait + release,
		attach + alloc(0, 0, 8, 0, 0, 2) + alloc(1, 1, 8, 1, 4, 2) + alloc(3, 2, 9, 1, 0, 1) + wait + string([]byte{doRevoke, 0}),
		attach + alloc(0, 0, 2, 1, 0, 2) + string([]byte{doEngine, 0}) + alloc(0, 1, 2, 1, 0, 2) + string([]byte{doDisconnect, 0, doRevoke, 0}),
		string([]byte{doSlow, 1}) + strings.Repeat(string([]byte{doStat, 1}), 20) + string([]byte{doGone, 1}),
		string([]byte{doFrames, 1, 19}) + strings.Repeat("\x01x", 19),
		string([]byte{doFrames, 1, 3, 0, 0, 0, doFrames, 1, 0}),
	} {
		for mode := range byte(3) {
			f.Add(mode, []byte(life))
			f.Add(mode|8|64, []byte(life))
		}
	}
}

// FuzzLoop has several peers say and do anything, under an engine that fails
// when told to: everything is answered once, nothing grows, nothing is left.
func FuzzLoop(f *testing.F) {
	loopSeeds(f)
	f.Fuzz(func(t *testing.T, mode byte, input []byte) {
		target := newFakeTarget()
		target.access = true
		l := newLoop(t, input, target, mode)
		target.open = func(rdma.Writer, int) error {
			if l.failing {
				return errors.New("it fails")
			}
			return nil
		}
		target.revoke = func([]int) error { return target.open(0, 0) }
		l.run()
	})
}

// loops tells the buffers of this process apart.
var loops atomic.Int64

// FuzzLoopEngines is FuzzLoop with the memory of a real buffer under it.
func FuzzLoopEngines(f *testing.F) {
	loopSeeds(f)
	f.Fuzz(func(t *testing.T, mode byte, input []byte) {
		target, err := engines.Open(engines.Config{
			ReceiverID: fmt.Sprint(t.Name(), os.Getpid(), loops.Add(1)), Slots: loopSlots, SlotSize: testSlot, Engines: []string{"shm"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer target.Close()
		newLoop(t, input, target, mode).run()
	})
}
