package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

// Reach says why nobody can be reached at an endpoint to connect to, or nil: it
// makes a connection and ends it without a word.
func Reach(ctx context.Context, endpoint string) error {
	addr, err := parseDial(endpoint)
	if err != nil {
		return err
	}
	network, where := "tcp", net.JoinHostPort(addr.host, addr.port)
	if addr.scheme == "ipc" {
		network, where = "unix", addr.path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, where)
	if err == nil {
		return conn.Close()
	}
	var call *os.SyscallError
	switch {
	case errors.As(err, &call):
		err = call.Err
	case ctx.Err() != nil:
		err = errors.New("no answer")
	}
	return fmt.Errorf("cannot connect to %s: %w", endpoint, err)
}
