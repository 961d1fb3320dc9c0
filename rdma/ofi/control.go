//go:build !noofi

package ofi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// What goes over the control connection, after the hello: lines of JSON, all of
// them from the target. The first is a welcome; goodbye is the other one there is.
const (
	magic   = "pdofi/1\n"
	maxLine = 4096 // bytes
)

// descriptor is what initiators are handed with the regions.
type descriptor struct {
	Provider string `json:"provider"`
	Host     string `json:"host"` // "": the one at which the receiver is reached anyway
	Port     string `json:"port"`
}

func (d descriptor) bytes() []byte {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // three strings
	}
	return b
}

// message is one line.
type message struct {
	Error    string `json:"error,omitempty"`    // the connection is refused
	Endpoint []byte `json:"endpoint,omitempty"` // libfabric's name of the writer's endpoint
	Probe    []byte `json:"probe,omitempty"`    // access to 8 bytes that mean nothing
	Ended    bool   `json:"ended,omitempty"`    // the grant is withdrawn
}

func sendLine(c net.Conn, m message, timeout time.Duration) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err = c.Write(append(b, '\n'))
	return err
}

// lines reads what the target says.
type lines struct{ r *bufio.Reader }

func newLines(c io.Reader) lines { return lines{bufio.NewReaderSize(c, maxLine)} }

func (l lines) next() (m message, err error) {
	b, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return m, fmt.Errorf("a line of more than %d bytes", maxLine)
	}
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m)
}

// host is the address of one end of a TCP connection.
func host(a net.Addr) string {
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return ""
	}
	return h
}
