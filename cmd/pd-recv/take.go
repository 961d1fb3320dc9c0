package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/client"
	"github.com/pd-tools/pd-tools/internal/crc32c"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/shm"
	"github.com/pd-tools/pd-tools/wire"
)

// takeOptions are what the flags say.
type takeOptions struct {
	output  string
	keep    bool
	timeout time.Duration
	curve   cli.Curve
}

func takeCommand() *urfave.Command {
	o := &takeOptions{}
	return &urfave.Command{
		Name: "take", Usage: "read a ready request's bytes and release it", UsageText: "pd-recv take [flags] ENDPOINT REQ_ID",
		Description: "Reads the receiver's memory, so it runs on the same host as the same user.",
		Flags: append([]urfave.Flag{
			cli.Var(&o.output, "o", "FILE", "", "write to FILE instead of stdout; - is stdout even if it is a terminal", outputFile),
			cli.Bool(&o.keep, "keep", "give the request back: it stays ready"),
			timeoutFlag(&o.timeout),
		}, o.curve.Flags()...),
		Action: func(c *urfave.Context) error {
			args, err := cli.Args(c, "ENDPOINT", "REQ_ID")
			if err != nil {
				return err
			}
			if f, ok := c.App.Writer.(*os.File); ok && o.output == "" && term.IsTerminal(int(f.Fd())) {
				return cli.Usagef("stdout is a terminal and chunks are binary: name a file with -o, or -o - if you mean it")
			}
			return withConn(c, &o.curve, args[0], func(ctx context.Context, conn *client.Conn) error {
				return o.take(ctx, conn, args[1], c.App.Writer)
			})
		},
	}
}

func outputFile(s string) (string, error) {
	if s == "" {
		return "", errors.New("is empty: name a file, or - for stdout")
	}
	return s, nil
}

// take writes a request out and releases it. Whatever goes wrong before all is
// written, the request is ready again.
func (o *takeOptions) take(ctx context.Context, conn *client.Conn, reqID string, stdout io.Writer) error {
	// A file that may not grow is an error to clean up after, not our end.
	signal.Ignore(syscall.SIGXFSZ)
	taken, err := o.ask(ctx, conn, reqID)
	if err != nil {
		return err
	}
	writing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go o.renew(writing, stop, conn, taken)
	if err := o.writeOut(writing, taken, stdout); err != nil {
		return errors.Join(err, o.answered(ctx, func(ctx context.Context) error { return conn.GiveBack(ctx, reqID) }))
	}
	stop(nil)
	release := conn.Release
	if o.keep {
		release = conn.GiveBack
	}
	if err := o.answered(ctx, func(ctx context.Context) error { return release(ctx, reqID) }); err != nil {
		return fmt.Errorf("all is written, but the request was not released: %w", err)
	}
	return nil
}

func (o *takeOptions) ask(ctx context.Context, conn *client.Conn, reqID string) (*wire.TakeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return conn.Take(ctx, reqID)
}

// answered asks what must be asked even if a signal has come.
func (o *takeOptions) answered(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(o.timeout, stopWithin/2))
	defer cancel()
	return ask(ctx)
}

// renew keeps the take while it is written out. When it is lost, what lies in
// the slots is not the request any more, and writing stops.
func (o *takeOptions) renew(ctx context.Context, stop context.CancelCauseFunc, conn *client.Conn, taken *wire.TakeResponse) {
	lease := time.Duration(taken.LeaseMS) * time.Millisecond
	if lease == 0 {
		return
	}
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	until := time.Now().Add(lease)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			_, err := o.ask(ctx, conn, taken.ReqID)
			var refused *client.Refused
			switch {
			case err == nil:
				until = now.Add(lease)
			case errors.As(err, &refused), time.Now().After(until):
				stop(fmt.Errorf("the take was lost while it was written: %w", err))
				return
			}
		}
	}
}

// writeOut writes to the file or stdout. A write may block for as long as its
// reader likes, so it has a goroutine of its own, which is left behind when
// ctx ends.
func (o *takeOptions) writeOut(ctx context.Context, taken *wire.TakeResponse, stdout io.Writer) error {
	chunks, err := openChunks(ctx, taken)
	if err != nil {
		return err
	}
	out, err := create(o.output, stdout)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- chunks.writeTo(ctx, out) }()
	select {
	case err = <-done:
		chunks.Close()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, out.abandon())
	}
	return out.commit()
}

// chunks are the taken request's, in the receiver's memory.
type chunks struct {
	*shm.Reader
	taken *wire.TakeResponse
}

func openChunks(ctx context.Context, taken *wire.TakeResponse) (*chunks, error) {
	if len(taken.Token) == 0 {
		return nil, errors.New("the receiver does not let its memory be read now: try again in a minute")
	}
	at := rdma.Attachment{ReceiverID: taken.ReceiverID, Token: taken.Token, SlotSize: taken.SlotSize, Slots: int(taken.SlotCount)}
	for _, region := range taken.Regions {
		at.Regions = append(at.Regions, rdma.Region{ID: int(region.ID), Desc: region.Desc})
	}
	reader, err := shm.OpenReader(ctx, at)
	if err != nil {
		return nil, err
	}
	return &chunks{reader, taken}, nil
}

// writeTo writes the chunks in order, each checked first.
func (c *chunks) writeTo(ctx context.Context, w io.Writer) error {
	var buf []byte
	for i := range c.taken.Chunks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var err error
		if buf, err = c.read(buf[:0], &c.taken.Chunks[i]); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		if _, err := w.Write(buf); err != nil {
			return fmt.Errorf("cannot write: %w", err)
		}
	}
	return nil
}

// read copies a chunk, so that what is checked is what is written.
func (c *chunks) read(buf []byte, chunk *wire.TakenChunk) ([]byte, error) {
	slot, err := c.Slot(int(chunk.Region), int(chunk.Slot))
	if err != nil {
		return nil, err
	}
	if chunk.Length < 0 || chunk.Length > int64(len(slot)) {
		return nil, fmt.Errorf("has %d bytes in a slot of %d", chunk.Length, len(slot))
	}
	buf = append(buf, slot[:chunk.Length]...)
	if sum := crc32c.Update(0, buf); chunk.HasCRC && sum != chunk.CRC {
		return nil, fmt.Errorf("CRC-32C of slot %d is %08x, its sender said %08x: it did not write what it reported; the request is left as it is, pd-recv drop gives it up", chunk.Slot, sum, chunk.CRC)
	}
	return buf, nil
}
