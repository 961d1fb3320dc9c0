package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/wire"
)

// offer makes f a receiver that offers engines, best first, as pd-recv answers.
func (f *fakeReceiver) offer(engines ...string) {
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		a, ok := m.msg.(*wire.AttachRequest)
		if !ok {
			return nil, false
		}
		for _, name := range engines {
			if slices.Contains(a.Engines, name) {
				resp := f.welcome()
				resp.Engine = name
				return resp, true
			}
		}
		return &wire.AttachResponse{
			Version: wire.ProtocolVersion, Code: wire.CodeBadRequest, Error: "receiver offers " + strings.Join(engines, ", ") + " only",
		}, true
	})
}

// attaches records how attaching is tried, and fails what fails says.
type attaches struct {
	remote rdma.Remote
	fails  map[string]error // by engine; errHang hangs

	mu   sync.Mutex
	list []rdma.Attachment
	with []string // engines
}

var errHang = errors.New("hang")

func (a *attaches) attach(ctx context.Context, engine string, at rdma.Attachment) (rdma.Remote, error) {
	a.mu.Lock()
	a.list, a.with = append(a.list, at), append(a.with, engine)
	a.mu.Unlock()
	err := a.fails[engine]
	if err == errHang {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return a.remote, nil
}

// A receiver that is restarted while it is reached for is another one: what it
// says of engines is no answer to what went wrong with the one before.
func TestRestartedWhileReached(t *testing.T) {
	f := startFake(t)
	asked := 0
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		a, ok := m.msg.(*wire.AttachRequest)
		if !ok {
			return nil, false
		}
		asked++
		resp := f.welcome()
		if asked == 1 {
			resp.Epoch = fakeEpoch - 1
		}
		if !slices.Contains(a.Engines, "shm") {
			return &wire.AttachResponse{Version: wire.ProtocolVersion, Epoch: fakeEpoch, Code: wire.CodeBadRequest, Error: "receiver offers shm only"}, true
		}
		return resp, true
	})
	tries := 0
	cfg := f.config()
	cfg.Engines, cfg.Stdin = bothEngines, oneRequest()
	cfg.attach = func(context.Context, string, rdma.Attachment) (rdma.Remote, error) {
		if tries++; tries == 1 {
			return nil, fmt.Errorf("no receiver here: %w", rdma.ErrUnreachable)
		}
		return f.remote, nil
	}
	s := send(t, cfg)
	wantResult(t, s.result("A"), Ready, "")
	s.wait()
}

var bothEngines = []string{"shm", "ofi"}

func TestEngineThatReaches(t *testing.T) {
	elsewhere := fmt.Errorf("no receiver here: %w", rdma.ErrUnreachable)
	broken := errors.New("no memory")
	died := fmt.Errorf("no welcome: %w", rdma.ErrGone)
	for name, tt := range map[string]struct {
		offers  []string
		may     []string // --engine
		fails   map[string]error
		timeout time.Duration
		tried   []string
		says    string // on stderr, behind the endpoint
		code    wire.Code
		errs    []string
	}{
		"the best":              {offers: bothEngines, may: bothEngines, tried: []string{"shm"}, says: ": writes by shm"},
		"the receiver's only":   {offers: []string{"ofi"}, may: bothEngines, tried: []string{"ofi"}, says: ": writes by ofi (tcp;ofi_rxm)"},
		"ours only":             {offers: bothEngines, may: []string{"ofi"}, tried: []string{"ofi"}, says: ": writes by ofi (tcp;ofi_rxm)"},
		"another host":          {offers: bothEngines, may: bothEngines, fails: map[string]error{"shm": elsewhere}, tried: bothEngines, says: ": writes by ofi (tcp;ofi_rxm)"},
		"shm that fails":        {offers: bothEngines, may: bothEngines, fails: map[string]error{"shm": broken}, tried: bothEngines, says: ": writes by ofi (tcp;ofi_rxm); not by shm: no memory"},
		"the other way":         {offers: []string{"ofi", "shm"}, may: bothEngines, fails: map[string]error{"ofi": elsewhere}, tried: []string{"ofi", "shm"}, says: ": writes by shm"},
		"shm that hangs":        {offers: bothEngines, may: bothEngines, fails: map[string]error{"shm": errHang}, timeout: 6 * time.Second, tried: bothEngines, says: ": writes by ofi (tcp;ofi_rxm); not by shm: no success within 4.5s"},
		"offered, not reached":  {offers: []string{"shm"}, may: bothEngines, fails: map[string]error{"shm": elsewhere}, tried: []string{"shm"}, code: wire.CodeBadRequest, errs: []string{"shm: no receiver here", "; ofi: receiver offers shm only"}},
		"gone meanwhile":        {offers: []string{"ofi"}, may: bothEngines, fails: map[string]error{"ofi": elsewhere}, tried: []string{"ofi"}, code: codeUnreachable, errs: []string{"ofi: no receiver here", "; shm: receiver offers ofi only"}},
		"none reached":          {offers: bothEngines, may: bothEngines, fails: map[string]error{"shm": elsewhere, "ofi": broken}, tried: bothEngines, code: wire.CodeInternal, errs: []string{"shm: no receiver here", "; ofi: no memory"}},
		"nowhere to be reached": {offers: bothEngines, may: []string{"ofi"}, fails: map[string]error{"ofi": elsewhere}, tried: []string{"ofi"}, code: codeUnreachable, errs: []string{"ofi: no receiver here"}},
		"died while reached":    {offers: []string{"ofi"}, may: []string{"ofi"}, fails: map[string]error{"ofi": died}, tried: []string{"ofi"}, code: codeUnreachable, errs: []string{"ofi: no welcome"}},
		"died, and no other":    {offers: []string{"ofi"}, may: bothEngines, fails: map[string]error{"ofi": died}, tried: []string{"ofi"}, code: codeUnreachable, errs: []string{"ofi: no welcome"}},
		"the only one fails":    {offers: bothEngines, may: []string{"shm"}, fails: map[string]error{"shm": broken}, tried: []string{"shm"}, code: wire.CodeInternal, errs: []string{"shm: no memory"}},
		"shm died, no other":    {offers: []string{"shm"}, may: bothEngines, fails: map[string]error{"shm": died}, tried: []string{"shm"}, code: codeUnreachable, errs: []string{"shm: no welcome", "; ofi: receiver offers shm only"}},
		"shm hangs, no other":   {offers: []string{"shm"}, may: bothEngines, fails: map[string]error{"shm": errHang}, timeout: 6 * time.Second, tried: []string{"shm"}, code: codeUnreachable, errs: []string{"shm: no success within 4.5s", "; ofi: receiver offers shm only"}},
		"the only one hangs":    {offers: bothEngines, may: []string{"shm"}, fails: map[string]error{"shm": errHang}, timeout: 6 * time.Second, tried: []string{"shm"}, code: codeUnreachable, errs: []string{"shm: no success within 4.5s"}},
		"shm fails, no other":   {offers: []string{"shm"}, may: bothEngines, fails: map[string]error{"shm": broken}, tried: []string{"shm"}, code: wire.CodeInternal, errs: []string{"shm: no memory", "; ofi: receiver offers shm only"}},
		"nothing in common":     {offers: []string{"shm"}, may: []string{"ofi"}, code: wire.CodeBadRequest, errs: []string{"refuses to attach us: receiver offers shm only"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.offer(tt.offers...)
			a := &attaches{remote: f.remote, fails: tt.fails}
			cfg := f.config()
			cfg.attach, cfg.Engines, cfg.Fabric = a.attach, tt.may, rdma.Fabric{Provider: "tcp;ofi_rxm", Addr: "127.0.0.1"}
			cfg.Timeout, cfg.Stdin = tt.timeout, oneRequest()
			s := send(t, cfg)
			var says []string
			if tt.says != "" {
				wantResult(t, s.result("A"), Ready, "")
				says = []string{f.endpoint + tt.says}
			} else {
				wantResult(t, s.result("A"), Failed, tt.code, append(tt.errs, f.endpoint)...)
			}
			s.wait()
			if !slices.Equal(a.with, tt.tried) {
				t.Errorf("tried %q, want %q", a.with, tt.tried)
			}
			if !slices.Equal(s.engines, says) {
				t.Errorf("people are told %q, want %q", s.engines, says)
			}
			first := f.wait("AttachRequest", 1, is[*wire.AttachRequest])
			if got := first.msg.(*wire.AttachRequest); !slices.Equal(got.Engines, tt.may) || got.ByteOrder != hostOrder() {
				t.Errorf("asked for %q, %q", got.Engines, got.ByteOrder)
			}
			if len(tt.tried) > 1 {
				second := f.wait("second AttachRequest", 2, is[*wire.AttachRequest])
				if got := second.msg.(*wire.AttachRequest).Engines; !slices.Equal(got, tt.tried[1:]) || second.from != first.from {
					t.Errorf("asked again for %q, under the same identity: %v", got, second.from == first.from)
				}
			}
			for _, at := range a.list {
				if at.Host != "127.0.0.1" || at.Fabric != cfg.Fabric || len(at.Staging) != 1<<20 {
					t.Errorf("attached with host %q, fabric %+v, %d bytes of staging", at.Host, at.Fabric, len(at.Staging))
				}
			}
		})
	}
}

// What a receiver answers late to the first choice of engines is not taken for
// the answer to the second.
func TestLateAnswerToTheFirstChoiceOfEngines(t *testing.T) {
	f := startFake(t)
	f.offer(bothEngines...)
	usual := f.answer
	var first fakeMessage
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		a, ok := m.msg.(*wire.AttachRequest)
		switch {
		case ok && slices.Contains(a.Engines, "shm"):
			first = m
		case ok:
			resp := f.welcome()
			resp.Regions = []wire.Region{{ID: 8}}
			f.to = append(f.to, fakeMessage{first.from, first.id, resp})
		}
		return usual(m), ok
	})
	a := &attaches{remote: f.remote, fails: map[string]error{"shm": rdma.ErrUnreachable}}
	cfg := f.config()
	cfg.attach, cfg.Engines, cfg.Stdin = a.attach, bothEngines, oneRequest()
	s := send(t, cfg)
	wantResult(t, s.result("A"), Ready, "")
	s.wait()
	if len(a.list) != 2 || a.list[1].Regions[0].ID != 0 {
		t.Errorf("attached with %+v", a.list)
	}
}

func TestEngineThatWasNotAskedFor(t *testing.T) {
	f := startFake(t)
	resp := f.welcome()
	resp.Engine = "ofi"
	f.instead(func(m fakeMessage) (wire.Message, bool) { return resp, is[*wire.AttachRequest](m.msg) })
	cfg := f.config()
	cfg.Engines, cfg.Stdin = []string{"shm"}, oneRequest()
	s := send(t, cfg)
	wantResult(t, s.result("A"), Failed, wire.CodeBadRequest, f.endpoint, `"ofi"`, "shm")
	s.wait()
}

// A grant that is withdrawn while it is used to attach has ended like any other:
// the sender asks for a new one, and not for ever.
func TestWithdrawnWhileReached(t *testing.T) {
	f := startFake(t)
	a := &attaches{remote: f.remote, fails: map[string]error{"shm": fmt.Errorf("%w: %w", rdma.ErrEnded, rdma.ErrGone)}}
	cfg := f.config()
	cfg.attach, cfg.Engines, cfg.Stdin = a.attach, []string{"shm"}, oneRequest()
	s := send(t, cfg)
	wantResult(t, s.result("A"), Failed, wire.CodeStaleEpoch, f.endpoint, "ended this sender")
	s.wait()
	if len(a.with) != maxAnew+1 {
		t.Errorf("tried %q", a.with)
	}
}

// A session that learns new regions stays with its engine.
func TestRegionsAreAskedForByTheEngineInUse(t *testing.T) {
	f := startFake(t)
	f.offer(bothEngines...)
	usual := f.answer
	f.instead(func(m fakeMessage) (wire.Message, bool) {
		resp := usual(m)
		switch resp := resp.(type) {
		case *wire.AttachResponse:
			resp.Regions = append(resp.Regions, wire.Region{ID: 5})
			if a := m.msg.(*wire.AttachRequest); slices.Contains(a.Engines, "shm") {
				resp.Regions = resp.Regions[:1]
			}
			if len(f.got) < 3 { // not before it is asked for
				resp.Regions = resp.Regions[:1]
			}
		case *wire.AllocResponse:
			if is[*wire.AllocRequest](m.msg) {
				resp.Regions = []int64{5, 5}
			}
		}
		return resp, true
	})
	a := &attaches{remote: f.remote, fails: map[string]error{"shm": rdma.ErrUnreachable}}
	cfg := f.config()
	cfg.attach, cfg.Engines, cfg.Stdin = a.attach, bothEngines, oneRequest()
	s := send(t, cfg)
	wantResult(t, s.result("A"), Ready, "")
	s.wait()
	if third := f.wait("third AttachRequest", 3, is[*wire.AttachRequest]); !slices.Equal(third.msg.(*wire.AttachRequest).Engines, []string{"ofi"}) {
		t.Errorf("asked for %q", third.msg.(*wire.AttachRequest).Engines)
	}
}

// While an engine takes its time to reach the memory, heartbeats go on.
func TestHeartbeatsGoOnWhileAnEngineReaches(t *testing.T) {
	f := startFake(t)
	resp := f.welcome()
	resp.LeaseMS = 30
	f.instead(func(m fakeMessage) (wire.Message, bool) { return resp, is[*wire.AttachRequest](m.msg) })
	reach := make(chan struct{})
	cfg := f.config()
	cfg.Stdin = oneRequest()
	cfg.attach = func(context.Context, string, rdma.Attachment) (rdma.Remote, error) {
		<-reach
		return f.remote, nil
	}
	s := send(t, cfg)
	f.wait("Heartbeat", 5, is[*wire.Heartbeat])
	close(reach)
	wantResult(t, s.result("A"), Ready, "")
	s.wait()
}
