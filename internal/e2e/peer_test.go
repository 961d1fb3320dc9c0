package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/wire"
)

// chunkSize is the length of the chunks of these tests, the slot size of receive.
const chunkSize = 1 << 10

// fed is a program whose stdin a test holds open.
type fed struct {
	*program
	stdin *os.File
}

func feed(t *testing.T, name string, args ...string) *fed {
	t.Helper()
	return feedWith(t, with{}, name, args...)
}

func feedWith(t *testing.T, also with, name string, args ...string) *fed {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	also.stdin = r
	f := &fed{startWith(t, also, name, args...), w}
	r.Close()
	t.Cleanup(func() { w.Close() })
	return f
}

// send starts a pd-send to one receiver.
func send(t *testing.T, to *receiver, flags ...string) *fed {
	t.Helper()
	return feed(t, "pd-send", append([]string{"--to", to.endpoint}, flags...)...)
}

func (f *fed) write(lines ...string) {
	f.t.Helper()
	if _, err := f.stdin.WriteString(strings.Join(lines, "")); err != nil {
		f.t.Fatalf("%s takes no more input: %v", f.name, err)
	}
}

// ends closes stdin and checks the exit code.
func (f *fed) ends(code int) {
	f.t.Helper()
	f.stdin.Close()
	if got := f.exits(); got != code {
		f.t.Errorf("%s ends with %d, want %d; stderr:\n%s", f.name, got, code, f.stderr())
	}
}

// result waits until a request has ended in this way.
func (f *fed) result(reqID, status string) line {
	f.t.Helper()
	l := f.event("req_id", reqID)
	if l.str("status") != status {
		f.t.Fatalf("request %s is %v, want %s", reqID, l, status)
	}
	return l
}

// batch is a manifest line: count chunks of a request of total, from number
// first on, with further fields.
func batch(reqID string, total, first, count int, more ...string) string {
	return batchOf(reqID, total, first+count == total, keys(reqID, first, count), more...)
}

func batchOf(reqID string, total int, last bool, keys []string, more ...string) string {
	chunks := make([]string, len(keys))
	for i, key := range keys {
		chunks[i] = fmt.Sprintf(`{"key":%q,"length":%d}`, key, chunkSize)
	}
	fields := append([]string{fmt.Sprintf(`"req_id":%q,"total_chunks":%d,"chunks":[%s],"last":%v`,
		reqID, total, strings.Join(chunks, ","), last)}, more...)
	return "{" + strings.Join(fields, ",") + "}\n"
}

func cancelLine(reqID string) string { return fmt.Sprintf(`{"cancel":%q}`+"\n", reqID) }

func keys(prefix string, first, count int) []string {
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", prefix, first+i)
	}
	return list
}

// pattern is the bytes of chunks that name no file.
func pattern(size int, keys ...string) string {
	var b strings.Builder
	chunk := make([]byte, size)
	for _, key := range keys {
		manifest.Pattern(chunk, key)
		b.Write(chunk)
	}
	return b.String()
}

// peer is a raw peer of a running pd-recv.
type peer struct {
	t *testing.T
	*peertest.Peer
	epoch uint64
}

// dial connects a peer such as pd-send is before it has attached.
func dial(t *testing.T, r *receiver) *peer { return connect(t, r, peertest.Options{}) }

// lmcache connects a peer such as LMCache's sender.
func lmcache(t *testing.T, r *receiver) *peer { return connect(t, r, peertest.Options{Legacy: true}) }

func connect(t *testing.T, r *receiver, o peertest.Options) *peer {
	t.Helper()
	p, err := peertest.Dial(r.endpoint, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return &peer{t: t, Peer: p}
}

// attached connects a peer that attaches and never opens a data connection, so
// that nothing but its lease tells that it is gone.
func attached(t *testing.T, r *receiver, name string) *peer {
	t.Helper()
	p := dial(t, r)
	resp, err := p.Attach(name, "shm")
	if err != nil {
		t.Fatal(err)
	}
	p.epoch = resp.Epoch
	return p
}

func (p *peer) request(reqID string, total int, last bool, keys ...string) *wire.AllocRequest {
	m := peertest.Alloc(reqID, int64(total), last, chunkSize, keys...)
	m.Epoch = p.epoch
	return m
}

// ask sends a message and does not wait for its answer.
func (p *peer) ask(m wire.Message) (corr uint64) {
	p.t.Helper()
	corr, err := p.Send(m)
	if err != nil {
		p.t.Fatal(err)
	}
	return corr
}

// answer waits for an AllocResponse.
func (p *peer) answer(corr uint64) *wire.AllocResponse {
	p.t.Helper()
	m, err := p.Wait(corr, patience)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, ok := m.(*wire.AllocResponse)
	if !ok {
		p.t.Fatalf("answer is a %T: %+v", m, m)
	}
	return resp
}

// call is one round trip that an AllocResponse answers.
func (p *peer) call(m wire.Message) *wire.AllocResponse {
	p.t.Helper()
	return p.answer(p.ask(m))
}

// alloc is a batch that must be granted; it returns the slots.
func (p *peer) alloc(reqID string, total int, last bool, keys ...string) []int64 {
	p.t.Helper()
	return granted(p.t, p.call(p.request(reqID, total, last, keys...)), len(keys))
}

func (p *peer) cancel(reqID string, keys ...string) *wire.AllocResponse {
	p.t.Helper()
	return p.call(&wire.CancelNotif{ReqID: reqID, Keys: append([]string{}, keys...)})
}

// commit says that these slots are written. They are not: whoever takes the
// request is told so.
func (p *peer) commit(reqID string, slots []int64) *wire.CommitResponse {
	p.t.Helper()
	return p.committed(p.ask(p.commitOf(reqID, slots)))
}

func (p *peer) commitOf(reqID string, slots []int64) *wire.CommitRequest {
	m := &wire.CommitRequest{ReqID: reqID, Slots: slots, Epoch: p.epoch}
	for range slots {
		m.Lengths = append(m.Lengths, chunkSize)
		m.CRCs = append(m.CRCs, 0)
	}
	return m
}

// committed waits for the answer to a commit.
func (p *peer) committed(corr uint64) *wire.CommitResponse {
	p.t.Helper()
	answer, err := p.Wait(corr, patience)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, ok := answer.(*wire.CommitResponse)
	if !ok {
		p.t.Fatalf("answer is a %T: %+v", answer, answer)
	}
	return resp
}

// granted checks that an answer names so many slots, each once.
func granted(t *testing.T, resp *wire.AllocResponse, n int) []int64 {
	t.Helper()
	slots := slices.Sorted(slices.Values(resp.RemoteIndexes))
	if resp.Code != "" || len(slots) != n || len(slices.Compact(slots)) != n || n > 0 && slots[0] < 0 {
		t.Fatalf("answer is %+v, want %d slots", resp, n)
	}
	return resp.RemoteIndexes
}

// refused checks that an answer refuses a batch of n keys with this code, and
// says why.
func refused(t *testing.T, resp *wire.AllocResponse, code wire.Code, n int) {
	t.Helper()
	for _, slot := range resp.RemoteIndexes {
		if slot != -1 {
			t.Errorf("a refusal names slot %d", slot)
		}
	}
	if resp.Code != code || resp.Error == "" || len(resp.RemoteIndexes) != max(n, 1) {
		t.Errorf("answer is %+v, want code %s for %d keys", resp, code, n)
	}
}

// receiveAt starts a receiver with so many slots of chunkSize at an endpoint.
func receiveAt(t *testing.T, endpoint string, slots int, flags ...string) *receiver {
	t.Helper()
	args := append([]string{"--listen", endpoint, "--chunk-size", fmt.Sprint(chunkSize), "--buffer-size", fmt.Sprint(slots * chunkSize)}, flags...)
	r := &receiver{program: start(t, nil, "pd-recv", args...)}
	r.endpoint = r.event("event", "listening").str("endpoint")
	return r
}

// happens waits for an event of a request.
func (r *receiver) happens(event, reqID string) line {
	r.t.Helper()
	return r.event("event", event, "req_id", reqID)
}

// happened says how often an event of a request has been printed.
func (r *receiver) happened(event, reqID string) int {
	return len(r.lines("event", event, "req_id", reqID))
}

// inOrder checks that these events have happened one after another; each is
// "event req_id".
func (r *receiver) inOrder(events ...string) {
	r.t.Helper()
	at := -1
	for _, want := range events {
		event, reqID, _ := strings.Cut(want, " ")
		r.happens(event, reqID)
		place := slices.IndexFunc(r.stdout(), func(s string) bool {
			l := parse(s)
			return l.str("event") == event && l.str("req_id") == reqID
		})
		if place < at {
			r.t.Errorf("%q came too early:\n%s", want, strings.Join(r.stdout(), "\n"))
		}
		at = place
	}
}

// take reads a ready request as a decoder does.
func (r *receiver) take(reqID string) string {
	r.t.Helper()
	return output(r.t, 0, "pd-recv", "take", r.endpoint, reqID)
}

// drop releases a ready request unread.
func (r *receiver) drop(reqID string) {
	r.t.Helper()
	output(r.t, 0, "pd-recv", "drop", r.endpoint, reqID)
}

// proxied is a running pd-proxy --json.
func proxied(t *testing.T) (*program, string) {
	t.Helper()
	p := start(t, nil, "pd-proxy", "--json", "--listen", "tcp://127.0.0.1:*")
	return p, listening(p)
}

// notifier tells a proxy what a sender does: that a request is ready.
func notifier(t *testing.T, endpoint string) (notify func(id string)) {
	t.Helper()
	push := pusher(t, endpoint)
	return func(id string) {
		for sock.Send(push, wire.Append(nil, &wire.ProxyNotif{ReqID: id})) != nil {
			time.Sleep(time.Millisecond) // until there is room
		}
	}
}

// pusher is the socket by which a proxy is told.
func pusher(t *testing.T, endpoint string) *zmq4.Socket {
	t.Helper()
	ctx, err := sock.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ctx.Close() })
	push, err := ctx.Dial(zmq4.PUSH, endpoint, sock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { push.Close() })
	return push
}

// at is when an event happened.
func (l line) at(t *testing.T) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, l.str("time"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// eventually waits for what no program tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
