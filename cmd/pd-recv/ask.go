package main

import (
	"context"
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/sock"
)

func statCommand() *urfave.Command {
	var timeout time.Duration
	var curve cli.Curve
	return &urfave.Command{
		Name: "stat", Usage: "print a receiver's state as JSON", UsageText: "pd-recv stat [flags] ENDPOINT",
		Flags: append(curve.Flags(), timeoutFlag(&timeout)),
		Action: func(c *urfave.Context) error {
			args, err := cli.Args(c, "ENDPOINT")
			if err != nil {
				return err
			}
			return withConn(c, &curve, args[0], func(ctx context.Context, conn *client.Conn) error {
				return stat(ctx, c, conn, timeout)
			})
		},
	}
}

func stat(ctx context.Context, c *urfave.Context, conn *client.Conn, timeout time.Duration) error {
	ask, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	snapshot, err := conn.Stat(ask)
	if err != nil {
		return err
	}
	line, err := cli.JSONLine(snapshot)
	if err != nil {
		return err
	}
	return cli.Write(ctx, c.App.Writer, line)
}

func dropCommand() *urfave.Command {
	var timeout time.Duration
	var curve cli.Curve
	return &urfave.Command{
		Name: "drop", Usage: "release a ready request without reading it", UsageText: "pd-recv drop [flags] ENDPOINT REQ_ID",
		Flags: append(curve.Flags(), timeoutFlag(&timeout)),
		Action: func(c *urfave.Context) error {
			args, err := cli.Args(c, "ENDPOINT", "REQ_ID")
			if err != nil {
				return err
			}
			return withConn(c, &curve, args[0], func(ctx context.Context, conn *client.Conn) error {
				ask, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				return conn.Release(ask, args[1])
			})
		},
	}
}

// withConn asks a receiver, until done or told to stop by a signal.
func withConn(c *urfave.Context, curve *cli.Curve, endpoint string, do func(context.Context, *client.Conn) error) error {
	if err := sock.CheckDial(endpoint); err != nil {
		return cli.Usagef("%v", err)
	}
	keys, err := curve.KeysToAsk(c.App, endpoint)
	if err != nil {
		return err
	}
	ctx, stop := cli.Signals(c.Context, stopWithin)
	defer stop()
	conn, err := client.Dial(endpoint, keys)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := do(ctx, conn); err != nil {
		if interrupted := cli.Interrupted(ctx); interrupted != nil {
			return interrupted
		}
		return err
	}
	return nil
}

// stopWithin is how long a command may take to give a take back when a signal
// ends it.
const stopWithin = 5 * time.Second
