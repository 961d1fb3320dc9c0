package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/top"
	"github.com/pd-tools/pd-tools/wire"
)

// print writes refreshes as text, or snapshots as JSON. It has failed if nothing
// was to be had of one that it was to show.
func (o *options) print(ctx context.Context, f *feed, stdout, stderr io.Writer) error {
	model := top.New(o.look(false))
	for n := 0; ; n++ {
		snapshots, err := o.refresh(ctx, f, model, stderr)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if o.json {
			err = jsonLines(&out, snapshots)
		} else {
			if n > 0 {
				out.WriteByte('\n')
			}
			err = model.Plain(&out)
		}
		if err != nil {
			return err
		}
		if err := cli.Write(ctx, stdout, out.Bytes()); err != nil {
			return err
		}
		if n+1 == o.refreshes {
			return f.missing()
		}
		if err := pause(ctx, o.delay); err != nil {
			return err
		}
	}
}

// refresh takes what has come, once every source that is live has told
// something new.
func (o *options) refresh(ctx context.Context, f *feed, model *top.Model, stderr io.Writer) ([]wire.Message, error) {
	snapshots := make([]wire.Message, len(f.endpoints))
	for {
		missing := 0
		for i := range f.endpoints {
			was := f.states[i]
			msgs, snapshot := f.read(i, o.delay, time.Now())
			for _, msg := range msgs {
				model.Update(msg)
			}
			if snapshot != nil {
				snapshots[i] = snapshot
			}
			if is := f.states[i]; o.json {
				silent(stderr, f.endpoints[i], was, is)
			}
			if snapshots[i] == nil && f.states[i].State == top.Live {
				missing++
			}
		}
		if missing == 0 {
			return snapshots, nil
		}
		select {
		case <-f.w.Changed():
		case <-time.After(leastDelay): // a source may have become stale
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func jsonLines(out *bytes.Buffer, snapshots []wire.Message) error {
	for _, s := range snapshots {
		if s == nil {
			continue
		}
		line, err := cli.JSONLine(s)
		if err != nil {
			return err
		}
		out.Write(line)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// silent says that a source has come to be silent, and that it is because of
// keys: what the word at its head says where there is no JSON.
func silent(stderr io.Writer, endpoint string, was, is top.Status) {
	switch {
	case is.Refused && !was.Refused:
		fmt.Fprintf(stderr, "pd-top: %s: REFUSED: %s\n", endpoint, is.Err)
	case is.State == top.Stale && was.State != top.Stale:
		why := ""
		if is.Err != "" {
			why = ": " + is.Err
		}
		fmt.Fprintf(stderr, "pd-top: %s: STALE since %s%s\n", endpoint, is.Since.UTC().Format(time.RFC3339), why)
	}
}
