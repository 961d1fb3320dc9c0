package sender

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/pd-tools/pd-tools/internal/built"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
	"github.com/pd-tools/pd-tools/wire"
)

// The engines there are, between a real receiver and a real sender.
func TestEnginesOfReceiverAndSender(t *testing.T) {
	both := []string{"shm", "ofi"}
	for name, tt := range map[string]struct {
		offers, may []string
		elsewhere   bool // shm does not reach
		says        string
		errs        []string
	}{
		"auto":                {offers: both, may: both, says: ": writes by shm"},
		"ofi by choice":       {offers: both, may: []string{"ofi"}, says: ": writes by ofi (tcp;ofi_rxm)"},
		"ofi by the receiver": {offers: []string{"ofi"}, may: both, says: ": writes by ofi (tcp;ofi_rxm)"},
		"on another host":     {offers: both, may: both, elsewhere: true, says: ": writes by ofi (tcp;ofi_rxm)"},
		"only shm there":      {offers: []string{"shm"}, may: both, elsewhere: true, errs: []string{"shm: ", "not reachable", "; ofi: ", "receiver with shm"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, engine := range append(tt.offers, tt.may...) {
				if !built.With(engine) {
					t.Skipf("built without %s", engine)
				}
			}
			r := startReceiver(t, receiverOptions{engines: tt.offers, slots: 10})
			cfg := Config{Receivers: []string{r.endpoint}, Engines: tt.may}
			if tt.elsewhere {
				cfg.attach = func(ctx context.Context, engine string, at rdma.Attachment) (rdma.Remote, error) {
					if engine == "shm" {
						at.ReceiverID += " of another host"
					}
					return engines.Attach(ctx, engine, at)
				}
			}
			in := newPipe(t)
			cfg.Stdin = in.r
			s := send(t, cfg)
			in.write(manifestLine("A", 8, 0, 3, 4096) + manifestLine("B", 2, 0, 1, 100) + manifestLine("A", 8, 4, 7, 4000))
			if tt.errs != nil {
				wantResult(t, s.result("A"), Failed, wire.CodeBadRequest, tt.errs...)
				in.close()
				s.wait()
				return
			}
			wantResult(t, s.result("A"), Ready, "")
			wantResult(t, s.result("B"), Ready, "")
			r.holds(t, "A", 8)
			r.holds(t, "B", 2)
			for i := range 10 { // slots that others had before
				id := fmt.Sprint("C", i)
				in.write(manifestLine(id, 8, 0, 7, 4096))
				wantResult(t, s.result(id), Ready, "")
				r.holds(t, id, 8)
			}
			in.close()
			s.wait()
			if want := []string{r.endpoint + tt.says}; !slices.Equal(s.engines, want) {
				t.Errorf("people are told %q, want %q", s.engines, want)
			}
		})
	}
}

// A receiver that ends under ofi, in an orderly way.
func TestReceiverThatEndsUnderOFI(t *testing.T) {
	if !built.With("ofi") {
		t.Skip("built without ofi")
	}
	r := startReceiver(t, receiverOptions{engines: []string{"ofi"}, slots: 10})
	in := newPipe(t)
	s := send(t, Config{Receivers: []string{r.endpoint}, Stdin: in.r})
	in.write(manifestLine("A", 8, 0, 3, 4096))
	r.event(t, "admitted", "A")
	r.end()
	wantResult(t, s.result("A"), Failed, wire.CodeShuttingDown, r.endpoint+": ", "the receiver has stopped")
	in.close()
	s.wait()
}
