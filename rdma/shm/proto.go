package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma/buffer"
	"github.com/pd-tools/pd-tools/rdma/door"
)

// What goes over the unix socket. The initiator says hello:
//
//	magic (8 bytes) | token (41)
//
// and from then on asks for regions, each by its number (4). The target answers
// each with
//
//	status (1) | region (4) | length of the text or list (4) | text or list
//
// where a region's list is runs of slots that live there, all or the first of
// them, each as two numbers (4, 4), and its descriptor rides on the status.
// Numbers are little-endian. The socket says no more after that: its end is what
// it is for.
const (
	magic     = "pdshm/1\n"
	askLen    = 4
	headerLen = 9
	spanLen   = 8
	maxSpans  = 4096               // runs in a list
	maxText   = maxSpans * spanLen // bytes of an answer's text or list
)

type status byte

const (
	welcome   status = iota + 1
	refused          // text says why
	region           // with the descriptor
	noRegion         // no such region
	otherUser        // refused, for the other end is another user; text says who
	outdated         // refused, for the token is not good any more; text says so
)

// ioTimeout bounds each read and write of the socket but the one that waits for
// its end.
const ioTimeout = door.Timeout

// answer is what the target says.
type answer struct {
	status status
	region int
	text   []byte
	fd     int // -1, or the reader's to close
}

// sendAnswer writes an answer; fd, unless it is -1, goes along and stays the
// caller's.
func sendAnswer(c *net.UnixConn, a answer) error {
	if err := c.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
		return err
	}
	head := append(make([]byte, 0, headerLen), byte(a.status))
	head = binary.LittleEndian.AppendUint32(head, uint32(a.region))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(a.text)))
	var rights []byte
	if a.fd >= 0 {
		rights = unix.UnixRights(a.fd)
	}
	n, _, err := c.WriteMsgUnix(head, rights, nil)
	if err != nil {
		return err
	}
	_, err = c.Write(append(head[n:], a.text...))
	return err
}

// readAnswer reads an answer. Only its first byte is waited for without end.
func readAnswer(c *net.UnixConn) (a answer, err error) {
	head, rights := make([]byte, headerLen), make([]byte, unix.CmsgSpace(4))
	n, oob, _, _, err := c.ReadMsgUnix(head, rights)
	if err != nil {
		return answer{fd: -1}, err
	}
	if n == 0 {
		return answer{fd: -1}, io.EOF
	}
	if a.fd, err = oneRight(rights[:oob]); err != nil {
		return a, err
	}
	defer func() {
		if err != nil && a.fd >= 0 {
			unix.Close(a.fd)
			a.fd = -1
		}
	}()
	if err := c.SetReadDeadline(time.Now().Add(ioTimeout)); err != nil {
		return a, err
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return a, err
	}
	a.status = status(head[0])
	a.region = int(binary.LittleEndian.Uint32(head[1:]))
	size := binary.LittleEndian.Uint32(head[5:])
	if size > maxText {
		return a, fmt.Errorf("answer of %d bytes, at most %d are possible", size, maxText)
	}
	a.text = make([]byte, size)
	if _, err := io.ReadFull(c, a.text); err != nil {
		return a, err
	}
	return a, c.SetReadDeadline(time.Time{})
}

// oneRight takes the descriptor out of a control message, -1 if there is none.
func oneRight(control []byte) (fd int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return -1, err
	}
	for _, extra := range fds[1:] {
		unix.Close(extra)
	}
	return fds[0], nil
}

func appendSpans(b []byte, spans []buffer.Span) []byte {
	for _, s := range spans {
		b = binary.LittleEndian.AppendUint32(b, uint32(s.First))
		b = binary.LittleEndian.AppendUint32(b, uint32(s.N))
	}
	return b
}

// parseSpans reads a region's list and checks that l has the slots.
func parseSpans(b []byte, l buffer.Layout) ([]buffer.Span, error) {
	if len(b)%spanLen != 0 {
		return nil, fmt.Errorf("list of slots of %d bytes", len(b))
	}
	spans := make([]buffer.Span, 0, len(b)/spanLen)
	for ; len(b) > 0; b = b[spanLen:] {
		first, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		if uint64(first)+uint64(n) > uint64(l.Slots) {
			return nil, fmt.Errorf("%d slots from %d on, in a buffer of %d", n, first, l.Slots)
		}
		spans = append(spans, buffer.Span{First: int(first), N: int(n)})
	}
	return spans, nil
}

var errOtherUser = errors.New("shm is for one user")

// sameUser says whether the other end belongs to the user of this process.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return fmt.Errorf("who is at the other end: %w", err)
	}
	if me := os.Geteuid(); int(cred.Uid) != me {
		return fmt.Errorf("the other end belongs to user %d, this one to user %d: %w", cred.Uid, me, errOtherUser)
	}
	return nil
}
