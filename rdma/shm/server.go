// Package shm is the write engine for one host: memory shared between
// processes of one user. The target passes the descriptors of the buffer's
// regions, which are memory files, over an abstract unix socket to whoever shows
// a token it granted; the initiator maps them and copies. The end of that
// connection tells each side of the other's. Nothing is left in the file system.
// It knows nothing of requests or of the wire.
//
// An initiator can write any slot: it is trusted as the same user.
//
// Start reading at Server, the receiver's side; remote.go is the initiator's,
// reader.go that of a local decoder, proto.go what they say to each other,
// copy.go the copy itself. The memory is rdma/buffer's, the socket's door
// rdma/door's.
package shm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
	"github.com/pd-tools/pd-tools/rdma/door"
)

// Name is the engine's name.
const Name = "shm"

// Server is the receiver's side.
type Server struct {
	buffer *buffer.Buffer
	*door.Door
}

// address is the abstract socket of a receiver. A hash, since ids are any text.
func address(receiverID string) *net.UnixAddr {
	sum := sha256.Sum256([]byte(receiverID))
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@pd-tools/shm/%x", sum[:16])}
}

// Serve lets initiators write into b, and decoders read it. They find it by
// receiverID. Each writer whose connection has ended is told to gone.
func Serve(b *buffer.Buffer, receiverID string, gone func(rdma.Writer)) (*Server, error) {
	listener, err := net.ListenUnix("unix", address(receiverID))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("a receiver with the id %q runs on this host already", receiverID)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for writers: %w", err)
	}
	s := &Server{buffer: b}
	s.Door = door.New(door.Config{
		Listener:    listener,
		Magic:       magic,
		Check:       func(c net.Conn) error { return sameUser(c.(*net.UnixConn)) },
		Refuse:      refuse,
		Serve:       func(c net.Conn, _ rdma.Writer) { s.serve(c.(*net.UnixConn)) },
		ServeReader: func(c net.Conn) { s.serveReader(c.(*net.UnixConn)) },
		Gone:        gone,
	})
	return s, nil
}

// Desc implements rdma.Server. There is nothing to describe: what a region is
// made of comes over the socket.
func (s *Server) Desc() []byte { return nil }

// Open implements rdma.Server: a writer has all memory once it is connected.
func (s *Server) Open(rdma.Writer, int) ([]byte, error) { return nil, nil }

// Shut implements rdma.Server: there is nothing to take away but by a
// revocation.
func (s *Server) Shut(int) {}

// Leave implements rdma.Server.
func (s *Server) Leave(int) {}

// refuse tells a connection why it cannot come in.
func refuse(c net.Conn, why error) {
	a := answer{status: refused, text: []byte(why.Error()), fd: -1}
	switch {
	case errors.Is(why, errOtherUser):
		a.status = otherUser
	case errors.Is(why, door.ErrToken):
		a.status = outdated
	}
	_ = sendAnswer(c.(*net.UnixConn), a)
}

// serve lasts until the other end closes. From here on that may have our memory,
// so it is gone when the socket says so and not before: whatever else goes
// wrong, wait for that.
func (s *Server) serve(c *net.UnixConn) {
	if s.talk(c, false) != nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// serveReader has no end to wait for: a reader that has its regions needs us no
// more.
func (s *Server) serveReader(c *net.UnixConn) {
	defer time.AfterFunc(ioTimeout, func() { c.Close() }).Stop()
	_ = s.talk(c, true)
}

// talk answers requests for regions until the other end closes, which is no
// error. Waiting for that end has no deadline; Close ends it.
func (s *Server) talk(c *net.UnixConn, readOnly bool) error {
	if err := sendAnswer(c, answer{status: welcome, fd: -1}); err != nil {
		return err
	}
	ask := make([]byte, askLen)
	for {
		if _, err := io.ReadFull(c, ask); err != nil {
			return nil // the end, which may be a reset
		}
		if err := s.sendRegion(c, binary.LittleEndian.Uint32(ask), readOnly); err != nil {
			return err
		}
	}
}

func (s *Server) sendRegion(c *net.UnixConn, id uint32, readOnly bool) error {
	r := int(id)
	if r >= s.buffer.Regions() {
		return sendAnswer(c, answer{status: noRegion, region: r, fd: -1})
	}
	fd := s.buffer.FD(r)
	if readOnly {
		ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ro)
		fd = ro
	}
	living := s.buffer.Living(r)
	living = living[:min(len(living), maxSpans)] // the initiator prefaults the rest as it writes there
	return sendAnswer(c, answer{status: region, region: r, text: appendSpans(nil, living), fd: fd})
}
