package sender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/testkit"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

const short = 300 * time.Millisecond // a --timeout that tests can wait for

// oneRequest is a manifest of one request, A, of two chunks.
func oneRequest() *strings.Reader { return strings.NewReader(manifestLine("A", 2, 0, 1, 100)) }

func wantResult(t *testing.T, r *Result, status Status, code wire.Code, words ...string) {
	t.Helper()
	if r.Status != status || r.Code != code {
		t.Errorf("%s ended %s, %q (%s); want %s, %q", r.ReqID, r.Status, r.Code, r.Error, status, code)
	}
	for _, w := range words {
		if !strings.Contains(r.Error, w) {
			t.Errorf("%s: error %q does not say %q", r.ReqID, r.Error, w)
		}
	}
}

// lmcache_peer.md, row 14; F45: waits are bounded.
func TestSilentReceiver(t *testing.T) {
	for name, silent := range map[string]func(wire.Message) bool{
		"attach":     func(wire.Message) bool { return true },
		"allocation": func(m wire.Message) bool { return !is[*wire.AttachRequest](m) },
		"commit":     func(m wire.Message) bool { return is[*wire.CommitRequest](m) || is[*wire.Heartbeat](m) },
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.instead(func(m fakeMessage) (wire.Message, bool) { return nil, silent(m.msg) })
			cfg := f.config()
			cfg.Stdin, cfg.Timeout = oneRequest(), short
			start, held := time.Now(), testkit.Delays(t)
			s := send(t, cfg)
			wantResult(t, s.result("A"), Failed, codeUnreachable, f.endpoint, short.String())
			if sum := s.wait(); sum.Failed != 1 {
				t.Errorf("%+v", sum)
			}
			if took := time.Since(start); took > 10*short+held() {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A receiver that lives and does not admit: only the request that waits fails,
// and it is cancelled.
func TestSlowAdmissionEndsByTimeout(t *testing.T) {
	f := startFake(t)
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		a, ok := m.msg.(*wire.AllocRequest)
		return nil, ok && a.ReqID == "A"
	})
	cfg := f.config()
	cfg.Stdin, cfg.Timeout = strings.NewReader(manifestLine("A", 1, 0, 0, 100)+manifestLine("B", 1, 0, 0, 100)), short
	s := send(t, cfg)
	wantResult(t, s.result("A"), Failed, codeTimeout, f.endpoint)
	wantResult(t, s.result("B"), Ready, "")
	f.wait("CancelNotif", 1, is[*wire.CancelNotif])
	s.wait()
}

// F48: a receiver that does not fit is named at attach, with both values.
func TestReceiverThatDoesNotFit(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*wire.AttachResponse)
		words  []string
	}{
		"it refuses":                {func(r *wire.AttachResponse) { r.Error, r.Code = "slots are 64 bytes, mine 128", wire.CodeBadRequest }, []string{"64", "128"}},
		"version":                   {func(r *wire.AttachResponse) { r.Version = wire.ProtocolVersion + 1 }, []string{"version 2", "sender 1"}},
		"slots larger than staging": {func(r *wire.AttachResponse) { r.SlotSize = 1 << 30 }, []string{"1073741824", "1048576", "--staging-size"}},
		"slots of no size":          {func(r *wire.AttachResponse) { r.SlotSize = 0 }, []string{"0 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			resp := f.welcome()
			tt.change(resp)
			f.instead(func(m fakeMessage) (wire.Message, bool) { return resp, is[*wire.AttachRequest](m.msg) })
			cfg := f.config()
			cfg.Stdin = oneRequest()
			s := send(t, cfg)
			wantResult(t, s.result("A"), Failed, wire.CodeBadRequest, tt.words...)
			s.wait()
		})
	}
}

// A receiver that takes messages in one frame gets all in one behind the
// AttachRequest. When it answers as one that does not, it is another one by now.
func TestOneFrame(t *testing.T) {
	for name, tt := range map[string]struct {
		older  bool // than it was when the sender attached
		status Status
		code   wire.Code
	}{
		"all along": {false, Ready, ""},
		"no more":   {true, Failed, wire.CodeStaleEpoch},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			resp := f.welcome()
			resp.OneFrame = true
			f.instead(func(m fakeMessage) (wire.Message, bool) {
				_, attach := m.msg.(*wire.AttachRequest)
				if marked := len(m.id) == wire.MarkLen; marked == attach {
					t.Errorf("a %T came with %d bytes of correlation", m.msg, len(m.id))
				}
				if attach {
					return resp, true
				}
				if tt.older {
					f.to = append(f.to, fakeMessage{m.from, "", f.usual(m)})
				}
				return nil, tt.older
			})
			cfg := f.config()
			cfg.Stdin = oneRequest()
			s := send(t, cfg)
			wantResult(t, s.result("A"), tt.status, tt.code)
			s.wait()
		})
	}
}

// A sender that is stopped for longer than its lease between the answer to its
// AttachRequest and its way to the memory finds its grant over. Nothing was
// asked yet, so it begins anew; but not for ever.
func TestLeaseLostBeforeTheSessionIsOpen(t *testing.T) {
	const lease = 20 * time.Millisecond
	for name, tt := range map[string]struct {
		failures int
		status   Status
		code     wire.Code
	}{
		"in time":    {maxAnew, Ready, ""},
		"once again": {maxAnew + 1, Failed, wire.CodeStaleEpoch},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			resp := f.welcome()
			resp.LeaseMS = lease.Milliseconds()
			f.instead(func(m fakeMessage) (wire.Message, bool) {
				if is[*wire.Heartbeat](m.msg) {
					return nil, true // as if stopped: none is sent
				}
				return resp, is[*wire.AttachRequest](m.msg)
			})
			cfg := f.config()
			cfg.Stdin = oneRequest()
			attach, tries := cfg.attach, 0
			cfg.attach = func(ctx context.Context, engine string, at rdma.Attachment) (rdma.Remote, error) {
				if tries++; tries > tt.failures {
					return attach(ctx, engine, at)
				}
				<-time.After(lease) // the lease passes
				return nil, errors.New("the token is not good, or not any more")
			}
			s := send(t, cfg)
			wantResult(t, s.result("A"), tt.status, tt.code)
			s.wait()
		})
	}
}

func TestReceiversOfTwoSlotSizes(t *testing.T) {
	f, g := startFake(t), startFake(t)
	other := g.welcome()
	other.SlotSize = 2 * fakeSlot
	g.instead(func(m fakeMessage) (wire.Message, bool) { return other, is[*wire.AttachRequest](m.msg) })
	cfg := f.config()
	cfg.Receivers = append(cfg.Receivers, g.endpoint)
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	in.write(manifestLine("A", 1, 0, 0, 100)) // cuts the staging buffer
	wantResult(t, s.result("A"), Ready, "")
	in.write(manifestLine("B", 1, 0, 0, 100))
	wantResult(t, s.result("B"), Failed, wire.CodeBadRequest, g.endpoint, "4096", "8192")
	in.close()
	s.wait()
	if m := g.wait("AttachRequest", 1, is[*wire.AttachRequest]); m.msg.(*wire.AttachRequest).SlotSize != fakeSlot {
		t.Errorf("asked to attach with slots of %d", m.msg.(*wire.AttachRequest).SlotSize)
	}
}

// Contract §4: the sender attaches anew and fails what was refused; nothing of
// the old instance is used.
func TestAnotherEpochIsAnotherReceiver(t *testing.T) {
	for name, answer := range map[string]*wire.AllocResponse{
		"stale_epoch":     {RemoteIndexes: []int64{-1}, Error: "another", Code: wire.CodeStaleEpoch},
		"another's epoch": {RemoteIndexes: []int64{0, 1}, Epoch: fakeEpoch + 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.instead(func(m fakeMessage) (wire.Message, bool) {
				a, ok := m.msg.(*wire.AllocRequest)
				return answer, ok && a.ReqID == "A"
			})
			cfg := f.config()
			in := newPipe(t)
			cfg.Stdin = in.r
			s := send(t, cfg)
			in.write(manifestLine("A", 2, 0, 1, 100))
			wantResult(t, s.result("A"), Failed, wire.CodeStaleEpoch, f.endpoint)
			in.write(manifestLine("B", 1, 0, 0, 100))
			wantResult(t, s.result("B"), Ready, "")
			in.close()
			s.wait()
			first := f.wait("AttachRequest", 1, is[*wire.AttachRequest])
			second := f.wait("second AttachRequest", 2, is[*wire.AttachRequest])
			if first.from == second.from {
				t.Error("it attached anew under its old identity")
			}
			if len(f.remote.writes) != 1 {
				t.Errorf("%d chunks were written, only B's should", len(f.remote.writes))
			}
		})
	}
}

func TestHeartbeatsGoOnWhileNothingElseDoes(t *testing.T) {
	f := startFake(t)
	resp := f.welcome()
	resp.LeaseMS = 30
	f.instead(func(m fakeMessage) (wire.Message, bool) { return resp, is[*wire.AttachRequest](m.msg) })
	f.remote.setHold(true) // a copy that lasts
	cfg := f.config()
	cfg.Stdin = oneRequest()
	s := send(t, cfg)
	f.remote.waitWrites(t, 1)
	before := f.count(is[*wire.Heartbeat])
	f.wait("Heartbeat", before+3, is[*wire.Heartbeat])
	f.remote.setHold(false)
	wantResult(t, s.result("A"), Ready, "")
	s.wait()
}

// The writes that a lost session calls off say only that they were called off:
// the request has to say what the session was lost by.
func TestWritesThatEndWithTheirSession(t *testing.T) {
	f := startFake(t)
	resp := f.welcome()
	resp.LeaseMS = 15
	ended := make(map[string]bool) // identities
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		if is[*wire.Heartbeat](m.msg) && ended[m.from] {
			return &wire.AllocResponse{RemoteIndexes: []int64{-1}, Error: "not attached", Code: wire.CodeStaleEpoch}, true
		}
		return resp, is[*wire.AttachRequest](m.msg)
	})
	f.remote.setHold(true)
	cfg := f.config()
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	for i := range 50 {
		id := fmt.Sprint(i)
		in.write(manifestLine(id, 8, 0, 7, 100))
		f.remote.waitWrites(t, 8*(i+1))
		m := f.wait("batch", i+1, is[*wire.AllocRequest])
		f.mu.Lock()
		ended[m.from] = true
		f.mu.Unlock()
		wantResult(t, s.result(id), Failed, wire.CodeStaleEpoch, f.endpoint, "lease")
	}
	in.close()
	s.wait()
}

// lmcache_peer.md, rows 1 and 2: neither the next batch of an admitted request
// nor a cancel waits behind a batch that waits.
func TestNothingWaitsBehindAWaitingBatch(t *testing.T) {
	f := startFake(t)
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		a, ok := m.msg.(*wire.AllocRequest)
		return nil, ok && a.ReqID == "B"
	})
	cfg := f.config()
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	in.write(manifestLine("A", 2, 0, 0, 100) + manifestLine("B", 2, 0, 0, 100))
	f.wait("batch of B", 1, func(m wire.Message) bool { a, ok := m.(*wire.AllocRequest); return ok && a.ReqID == "B" })
	in.write(manifestLine("A", 2, 1, 1, 100))
	wantResult(t, s.result("A"), Ready, "")
	in.write(`{"cancel":"B"}` + "\n")
	wantResult(t, s.result("B"), Cancelled, "")
	c := f.wait("CancelNotif", 1, is[*wire.CancelNotif])
	if id := c.msg.(*wire.CancelNotif).ReqID; id != "B" {
		t.Errorf("cancelled %s", id)
	}
	in.close()
	if sum := s.wait(); !sum.Clean() {
		t.Errorf("a cancel is no failure: %+v", sum)
	}
}

// Contract §4: an attached sender cancels only when none of its writes for that
// request is in flight.
func TestCancelWaitsForWritesUnderWay(t *testing.T) {
	f := startFake(t)
	f.remote.setHold(true)
	cfg := f.config()
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	in.write(manifestLine("A", 3, 0, 1, 100))
	f.remote.waitWrites(t, 2)
	in.write(`{"cancel":"A"}` + "\n")
	wantResult(t, s.result("A"), Cancelled, "")
	in.write(manifestLine("B", 1, 0, 0, 100))
	f.wait("batch of B", 1, func(m wire.Message) bool { a, ok := m.(*wire.AllocRequest); return ok && a.ReqID == "B" })
	if n := f.count(is[*wire.CancelNotif]); n != 0 {
		t.Fatal("cancelled while its writes are under way")
	}
	f.remote.setHold(false)
	f.wait("CancelNotif", 1, is[*wire.CancelNotif])
	wantResult(t, s.result("B"), Ready, "")
	in.close()
	s.wait()
	if n := f.count(is[*wire.CommitRequest]); n != 1 {
		t.Errorf("%d commits, want B's only", n)
	}
}

// Slots that were revoked live in regions that were not there at attach.
func TestRegionsAreLearntBeforeTheyAreWrittenTo(t *testing.T) {
	f := startFake(t)
	now := f.welcome()
	now.Regions = append(now.Regions, wire.Region{ID: 5})
	asked := 0
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		switch m.msg.(type) {
		case *wire.AttachRequest:
			asked++
			return now, asked > 1
		case *wire.AllocRequest:
			return &wire.AllocResponse{
				RemoteIndexes: []int64{3, 4}, Regions: []int64{0, 5}, Access: [][]byte{{30}, {40}}, Epoch: fakeEpoch,
			}, true
		}
		return nil, false
	})
	cfg := f.config()
	cfg.Stdin = oneRequest()
	s := send(t, cfg)
	wantResult(t, s.result("A"), Ready, "")
	s.wait()
	if len(f.remote.regions) != 2 {
		t.Errorf("engine was told of regions %v", f.remote.regions)
	}
	for _, op := range f.remote.writes {
		if op.Slot == 4 && op.Region != 5 || op.Slot == 3 && op.Region != 0 {
			t.Errorf("wrote to slot %d of region %d", op.Slot, op.Region)
		}
		if len(op.Access) != 1 || int(op.Access[0]) != 10*op.Slot {
			t.Errorf("wrote to slot %d with access %v", op.Slot, op.Access)
		}
	}
}

func TestReceiverThatIsGoneFailsItsRequestsAtOnce(t *testing.T) {
	f := startFake(t)
	f.instead(func(m fakeMessage) (wire.Message, bool) { return nil, is[*wire.AllocRequest](m.msg) })
	cfg := f.config()
	cfg.Stdin = oneRequest()
	s := send(t, cfg)
	f.wait("AllocRequest", 1, is[*wire.AllocRequest])
	f.remote.end(fmt.Errorf("%w: reset", rdma.ErrGone))
	wantResult(t, s.result("A"), Failed, codeUnreachable, f.endpoint+": the data connection has ended: reset")
	s.wait()
}

// A write that fails because the data connection has ended says so too, but not
// why: the request fails by what ended it.
func TestDataConnectionThatEndsInMidWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		end   func(*fakeRemote)
		code  wire.Code
		words string
	}{
		"receiver killed":     {func(r *fakeRemote) { r.end(fmt.Errorf("%w: reset", rdma.ErrGone)) }, codeUnreachable, ": the data connection has ended: reset"},
		"ended by receiver":   {func(r *fakeRemote) { r.end(errors.Join(rdma.ErrGone, rdma.ErrEnded)) }, wire.CodeStaleEpoch, " ended this sender: it was not heard for the lease of 1m0s"},
		"seen by writes only": {func(r *fakeRemote) { r.failWrites(rdma.ErrGone); r.setHold(false) }, codeUnreachable, ": the data connection has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.remote.setHold(true)
			cfg := f.config()
			cfg.Stdin = oneRequest()
			s := send(t, cfg)
			f.remote.waitWrites(t, 2)
			tt.end(f.remote)
			wantResult(t, s.result("A"), Failed, tt.code)
			if got := s.result("A").Error; got != f.endpoint+tt.words {
				t.Errorf("error is %q", got)
			}
			s.wait()
		})
	}
}

// A receiver that is back at once with another memory does not know us; one
// that said that it ended us was not restarted.
func TestStaleEpochAfterTheDataConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		cause error
		word  string
	}{
		"restarted": {rdma.ErrGone, "was restarted"},
		"ended":     {errors.Join(rdma.ErrGone, rdma.ErrEnded), "lease"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.instead(func(m fakeMessage) (wire.Message, bool) { return nil, is[*wire.AllocRequest](m.msg) })
			cfg := f.config()
			cfg.Stdin = oneRequest()
			s := send(t, cfg)
			m := f.wait("AllocRequest", 1, is[*wire.AllocRequest])
			f.remote.end(tt.cause)
			f.reply(m, &wire.AllocResponse{RemoteIndexes: []int64{-1, -1}, Error: "who?", Code: wire.CodeStaleEpoch})
			wantResult(t, s.result("A"), Failed, wire.CodeStaleEpoch, f.endpoint, tt.word)
			s.wait()
		})
	}
}

// Any other write error is its request's own.
func TestWriteThatFails(t *testing.T) {
	f := startFake(t)
	f.remote.failWrites(errors.New("slot is locked"))
	cfg := f.config()
	in := newPipe(t)
	cfg.Stdin = in.r
	s := send(t, cfg)
	in.write(manifestLine("A", 2, 0, 1, 100))
	wantResult(t, s.result("A"), Failed, wire.CodeInternal, "slot is locked")
	f.wait("CancelNotif", 1, is[*wire.CancelNotif])
	f.remote.failWrites(nil)
	in.write(manifestLine("B", 2, 0, 1, 100))
	wantResult(t, s.result("B"), Ready, "")
	in.close()
	s.wait()
	if n := f.count(is[*wire.AttachRequest]); n != 1 {
		t.Errorf("attached %d times", n)
	}
}

// What a receiver says before it goes is heard.
func TestLastWordsAreHeard(t *testing.T) {
	f := startFake(t)
	f.instead(func(m fakeMessage) (wire.Message, bool) { return nil, is[*wire.AllocRequest](m.msg) })
	cfg := f.config()
	cfg.Stdin = oneRequest()
	s := send(t, cfg)
	m := f.wait("AllocRequest", 1, is[*wire.AllocRequest])
	f.reply(m, &wire.AllocResponse{RemoteIndexes: []int64{-1, -1}, Error: "receiver is stopping", Code: wire.CodeShuttingDown})
	f.remote.end(rdma.ErrGone)
	wantResult(t, s.result("A"), Failed, wire.CodeShuttingDown, "stopping")
	s.wait()
}

func TestAnswersThatMakeNoSense(t *testing.T) {
	for name, answer := range map[string]wire.Message{
		"slot beyond the buffer":   &wire.AllocResponse{RemoteIndexes: []int64{0, fakeSlots}, Epoch: fakeEpoch},
		"negative slot":            &wire.AllocResponse{RemoteIndexes: []int64{0, -1}, Epoch: fakeEpoch},
		"too few slots":            &wire.AllocResponse{RemoteIndexes: []int64{0}, Epoch: fakeEpoch},
		"too many slots":           &wire.AllocResponse{RemoteIndexes: []int64{0, 1, 2}, Epoch: fakeEpoch},
		"already sent, no such":    &wire.AllocResponse{RemoteIndexes: []int64{0}, AlreadySentIndexes: []int64{2}, Epoch: fakeEpoch},
		"already sent, twice":      &wire.AllocResponse{AlreadySentIndexes: []int64{1, 1}, Epoch: fakeEpoch},
		"regions for other slots":  &wire.AllocResponse{RemoteIndexes: []int64{0, 1}, Regions: []int64{0, 0, 1}, Epoch: fakeEpoch},
		"accesses for other slots": &wire.AllocResponse{RemoteIndexes: []int64{0, 1}, Access: [][]byte{{1}}, Epoch: fakeEpoch},
		"answer of another kind":   &wire.CommitResponse{},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.instead(func(m fakeMessage) (wire.Message, bool) { return answer, is[*wire.AllocRequest](m.msg) })
			cfg := f.config()
			cfg.Stdin = oneRequest()
			s := send(t, cfg)
			wantResult(t, s.result("A"), Failed, wire.CodeInternal, f.endpoint)
			s.wait()
			if len(f.remote.writes) > 0 {
				t.Error("something was written")
			}
		})
	}
}
