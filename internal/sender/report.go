package sender

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pd-tools/pd-tools/internal/window"
	"github.com/pd-tools/pd-tools/wire"
)

// Status is how a request ended.
type Status string

// The ends of a request.
const (
	Ready     Status = "ready"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Result is one line of pd-send's output: how a request ended.
type Result struct {
	ReqID   string    `json:"req_id"`
	Status  Status    `json:"status"`
	Chunks  int64     `json:"chunks"` // as declared
	Sent    int64     `json:"sent"`   // of those, written and committed
	Shared  int64     `json:"shared"` // of those, already there
	Bytes   int64     `json:"bytes"`  // sent
	AdmitMS float64   `json:"admit_ms"`
	WriteMS float64   `json:"write_ms"`
	TotalMS float64   `json:"total_ms"`
	Error   string    `json:"error"` // for people; empty when ready
	Code    wire.Code `json:"code"`  // for programs; empty when ready or cancelled
}

// result words the end of a request. Its times run from the first line to
// admission, from there until all is written and committed, and in all; a part
// that did not happen is 0, one that was cut short is counted so far.
func (c *core) result(req *request, v verdict) *Result {
	r := &Result{
		ReqID:   req.id,
		Status:  v.status,
		Chunks:  req.total,
		Sent:    req.sent,
		Shared:  req.shared,
		Bytes:   req.bytes,
		TotalMS: millis(c.now - req.started),
		Error:   v.reason,
		Code:    v.code,
	}
	switch {
	case req.total == 0:
	case req.admittedAt == 0:
		r.AdmitMS = r.TotalMS
	default:
		r.AdmitMS = millis(req.admittedAt - req.started)
		written := req.writtenAt
		if written == 0 {
			written = c.now
		}
		r.WriteMS = millis(written - req.admittedAt)
	}
	return r
}

// millis is d in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Summary is what a run did.
type Summary struct {
	wire.SenderCounters
	AdmitWait wire.SnapshotWait // of all requests that were admitted
	WriteTime wire.SnapshotWait // of those, until all was written and committed
	NoProxy   bool
	Elapsed   time.Duration
}

// Clean says whether nothing failed. A cancel is no failure.
func (s *Summary) Clean() bool { return s.Failed == 0 && s.Faults == 0 }

// Requests is how many have ended.
func (s *Summary) Requests() int64 { return s.Ready + s.Failed + s.Cancelled }

// String is the summary in a line for people.
func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s requests: %s ready, %s failed, %s cancelled; %s chunks sent, %s shared; %s in %s (%s/s)",
		humanize.Comma(s.Requests()), humanize.Comma(s.Ready), humanize.Comma(s.Failed), humanize.Comma(s.Cancelled),
		humanize.Comma(s.SentChunks), humanize.Comma(s.SharedChunks),
		humanize.IBytes(uint64(s.SentBytes)), s.Elapsed.Round(time.Millisecond), humanize.IBytes(s.rate()))
	if s.AdmitWait.Max > 0 {
		fmt.Fprintf(&b, "; admission %s, write %s", window.Words(s.AdmitWait), window.Words(s.WriteTime))
	}
	if s.Faults > 0 {
		fmt.Fprintf(&b, "; %s faults of the input", humanize.Comma(s.Faults))
	}
	if s.Undelivered > 0 {
		fmt.Fprintf(&b, "; %s notices undelivered", humanize.Comma(s.Undelivered))
	}
	if s.NoProxy {
		b.WriteString("; notices were off (no --proxy)")
	}
	return b.String()
}

func (s *Summary) rate() uint64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return uint64(float64(s.SentBytes) / s.Elapsed.Seconds())
}
