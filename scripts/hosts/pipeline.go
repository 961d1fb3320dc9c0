package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pd-tools/pd-tools/internal/manifest"
)

const (
	kib = 1 << 10
	mib = 1 << 20

	recvPort  = "7600"
	proxyPort = "7700"
)

// event is a line of pd-recv.
type event struct {
	Event  string
	Time   time.Time
	ReqID  string `json:"req_id"`
	Bytes  int64
	Reason string
}

// result is a line of pd-send.
type result struct {
	ReqID  string `json:"req_id"`
	Status string
	Error  string
	Code   string
}

// receiver is a pd-recv.
type receiver struct {
	*process
	port string
}

// receive starts a pd-recv that takes what comes on any link of its host, so
// that each prefill host reaches it at the address of their own link.
func (h *host) receive(slots, chunkSize int, args ...string) (*receiver, error) {
	return h.receiveAt(recvPort, slots, chunkSize, args...)
}

func (h *host) receiveAt(port string, slots, chunkSize int, args ...string) (*receiver, error) {
	p, err := h.start("pd-recv", append([]string{
		"--listen", "tcp://0.0.0.0:" + port, "--engine", "shm,ofi",
		"--buffer-size", strconv.Itoa(slots * chunkSize), "--chunk-size", strconv.Itoa(chunkSize),
	}, args...)...)
	if err != nil {
		return nil, err
	}
	_, err = find(p, patience, "its first line", func(e event) bool { return e.Event == "listening" })
	return &receiver{p, port}, err
}

// endpoint is how its own host reaches it.
func (r *receiver) endpoint() string { return "tcp://127.0.0.1:" + r.port }

// to is how the near end of a link reaches a port of the far end.
func (l *link) to(port string) string { return "tcp://" + l.toAddr + ":" + port }

func (l *link) receiver() string { return l.to(recvPort) }
func (l *link) proxy() string    { return l.to(proxyPort) }

// happened waits for an event of a request.
func (r *receiver) happened(kind, reqID string) (event, error) {
	return find(r.process, patience, fmt.Sprintf("%q of request %s", kind, reqID), func(e event) bool {
		return e.Event == kind && e.ReqID == reqID
	})
}

// check compares every byte of these ready requests with what was to be sent,
// and releases them.
func (r *receiver) check(requests ...*manifest.Batch) error {
	checker, err := r.checker(requests)
	if err != nil {
		return err
	}
	for _, b := range requests {
		if _, err := fmt.Fprintln(checker.stdin, b.ReqID); err != nil {
			return checker.failure(err.Error())
		}
	}
	checker.stdin.Close()
	return checker.wait(patience)
}

// checker starts a decoder that compares these requests, once it is given
// their ids.
func (r *receiver) checker(requests []*manifest.Batch) (*process, error) {
	list := filepath.Join(r.host.bed.dir, requests[0].ReqID+".manifest")
	if err := os.WriteFile(list, lines(requests...), 0o600); err != nil {
		return nil, err
	}
	return r.host.start("pd-check", "--manifest", list, r.endpoint())
}

// snapshot is what is used here of pd-recv stat.
type snapshot struct {
	Slots    struct{ Total, Free, Quarantined int }
	Requests []any
	Queue    []any
	Counters map[string]int
}

func (r *receiver) stat() (s snapshot, err error) {
	text, err := r.host.output(nil, "pd-recv", "stat", r.endpoint())
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// retire sees that nothing is left in the buffer and stops the receiver.
func (r *receiver) retire() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		s, err := r.stat()
		switch {
		case err != nil:
			return err
		case s.Slots.Free == s.Slots.Total && len(s.Requests) == 0 && len(s.Queue) == 0:
			return r.stop()
		case time.Now().After(deadline):
			return r.failure(fmt.Sprintf("its buffer is not empty %v after the end of all requests: %+v", patience, s))
		}
	}
}

// sender is a pd-send that takes manifest lines as they are given to it.
type sender struct {
	*process
}

func (h *host) send(args ...string) (*sender, error) {
	p, err := h.start("pd-send", args...)
	return &sender{p}, err
}

func (s *sender) give(batches ...*manifest.Batch) error {
	if _, err := s.stdin.Write(lines(batches...)); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// ended waits until a request has.
func (s *sender) ended(reqID string, within time.Duration) (result, error) {
	return find(s.process, within, "the end of request "+reqID, func(r result) bool { return r.ReqID == reqID })
}

// ready waits until a request is.
func (s *sender) ready(reqID string) error {
	r, err := s.ended(reqID, patience)
	if err == nil && r.Status != "ready" {
		err = s.failure(fmt.Sprintf("request %s is %s: %s", reqID, r.Status, r.Error))
	}
	return err
}

// failed waits until a request has failed, with a reason.
func (s *sender) failed(reqID string, within time.Duration) (result, error) {
	r, err := s.ended(reqID, within)
	if err == nil && (r.Status != "failed" || r.Error == "") {
		err = s.failure(fmt.Sprintf("request %s is %s (%q), it should fail with a reason", reqID, r.Status, r.Error))
	}
	return r, err
}

// usesOFI sees that chunks are written across hosts.
func (s *sender) usesOFI() error {
	if err := s.says("writes by ofi"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Contains(s.stderr.Bytes(), []byte("writes by shm")) {
		return fmt.Errorf("%s writes by shm, across hosts: %s", s.name, s.stderr.String())
	}
	return nil
}

// finish is the end of input, with which pd-send ends.
func (s *sender) finish() error {
	s.stdin.Close()
	return s.wait(patience)
}

// transfer sends a request and compares its bytes.
func transfer(s *sender, r *receiver, request *manifest.Batch) error {
	if err := send(s, request); err != nil {
		return err
	}
	return r.check(request)
}

// send gives a sender a request and waits until it is ready.
func send(s *sender, r *manifest.Batch) error {
	if err := s.give(r); err != nil {
		return err
	}
	return s.ready(r.ReqID)
}

// request is one of n chunks, their bytes made from their keys, in one line.
func request(id string, n, chunkSize int) *manifest.Batch {
	b := &manifest.Batch{ReqID: id, Total: int64(n), Last: true, To: manifest.AnyReceiver}
	for i := range n {
		b.Chunks = append(b.Chunks, manifest.Chunk{Key: fmt.Sprintf("%s-%d", id, i), Length: int64(chunkSize)})
	}
	return b
}

func lines(batches ...*manifest.Batch) []byte {
	var text []byte
	for _, b := range batches {
		text = manifest.AppendLine(text, b)
	}
	return text
}
