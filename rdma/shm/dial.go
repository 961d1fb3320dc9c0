package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/buffer"
	"github.com/pd-tools/pd-tools/rdma/door"
)

const dialPause = 10 * time.Millisecond // before a busy target is tried again

// dial connects to a target, shows the token and waits for the welcome. A
// target that is busy is tried until ctx ends or ioTimeout is over.
func dial(ctx context.Context, at rdma.Attachment) (*net.UnixConn, error) {
	hello, err := door.Hello(magic, at.Token)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ioTimeout, fmt.Errorf("no answer in %v", ioTimeout))
	defer cancel()
	for {
		c, err := dialOnce(ctx, at.ReceiverID, hello)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, errBusy) {
			return nil, err
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("receiver %q: %w, tried until: %w", at.ReceiverID, err, context.Cause(ctx))
		}
	}
}

// errBusy says that the target let the connection drop before it answered.
var errBusy = errors.New("busy with other connections")

func dialOnce(ctx context.Context, id string, hello []byte) (_ *net.UnixConn, err error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", address(id).Name)
	switch {
	case errors.Is(err, syscall.EAGAIN): // its backlog is full
		return nil, errBusy
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no receiver with the id %q runs on this host: %w", id, rdma.ErrUnreachable)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("receiver %q: %w: %w", id, err, rdma.ErrUnreachable)
	case err != nil:
		return nil, fmt.Errorf("receiver %q: %w", id, err)
	}
	c := nc.(*net.UnixConn)
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := sameUser(c); errors.Is(err, errOtherUser) { // before it learns the token
		return nil, fmt.Errorf("receiver %q: %w: %w", id, err, rdma.ErrUnreachable)
	} else if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	_, err = c.Write(hello)
	a := answer{fd: -1}
	if err == nil {
		a, err = readAnswer(c)
	}
	switch {
	case !stop():
		discard(a)
		return nil, fmt.Errorf("receiver %q: %w", id, context.Cause(ctx))
	case err != nil:
		return nil, errBusy
	case a.status == otherUser:
		discard(a)
		return nil, fmt.Errorf("receiver %q: %s: %w", id, a.text, rdma.ErrUnreachable)
	case a.status == outdated:
		discard(a)
		return nil, fmt.Errorf("receiver %q: %s: %w: %w", id, a.text, rdma.ErrEnded, rdma.ErrGone)
	case a.status != welcome:
		discard(a)
		return nil, fmt.Errorf("receiver %q: %s", id, a.text)
	}
	return c, nil
}

// ask requests a region.
func ask(c *net.UnixConn, id int) error {
	if id < 0 || id >= buffer.MaxRegions {
		return fmt.Errorf("region %d: regions are numbered 0 to %d", id, buffer.MaxRegions-1)
	}
	if err := c.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
		return err
	}
	_, err := c.Write(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	return err
}

// discard closes the descriptor of an answer nobody wants.
func discard(a answer) {
	if a.fd >= 0 {
		unix.Close(a.fd)
	}
}

// mapAnswer maps the region that an answer brings and returns slots that live
// there. There is none where the target has no such region.
func mapAnswer(a answer, l buffer.Layout, readOnly bool) (base []byte, living []buffer.Span, err error) {
	defer discard(a)
	switch {
	case a.status == noRegion:
		return nil, nil, fmt.Errorf("the receiver has no region %d", a.region)
	case a.status != region || a.fd < 0:
		return nil, nil, fmt.Errorf("no region in the receiver's answer, but %q", a.text)
	}
	if living, err = parseSpans(a.text, l); err == nil {
		base, err = buffer.Map(a.fd, l, readOnly)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("region %d: %w", a.region, err)
	}
	return base, living, nil
}
