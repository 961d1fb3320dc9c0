package main

import (
	"fmt"
	"io"
	"math"
	"os"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/manifest"
	"github.com/pd-tools/pd-tools/internal/sender"
)

func manifestCommand() *urfave.Command {
	o := &manifest.Options{}
	var tokens int
	return &urfave.Command{
		Name:      "manifest",
		Usage:     "turn a Mooncake trace into a manifest",
		UsageText: "pd-send manifest [flags] [FILE]",
		Description: `FILE, or the standard input without one or for -, is a trace in Mooncake's format: JSON lines with timestamp,
input_length, output_length and hash_ids. The manifest goes to stdout. Equal hash_ids give equal keys, so that
common prefixes are shared; a line's "at" is its timestamp in seconds.`,
		Flags: []urfave.Flag{
			cli.Var(&o.ChunkSize, "chunk-size", "SIZE", "1MiB", "bytes of a full chunk", cli.Size),
			cli.Var(&tokens, "tokens-per-chunk", "N", fmt.Sprint(manifest.BlockTokens), "tokens of a full chunk", cli.Int(1, math.MaxInt32)),
			cli.Var(&o.Limit, "limit", "N", "", "convert the first N requests; 0 or inf: all", cli.Count),
			cli.Var(&o.Interleave, "interleave", "N", "1", "how many requests' lines are mixed", cli.Int(1, math.MaxInt32)),
			cli.Var(&o.Batch, "batch", "N", "8", "chunks a line, at most", cli.Int(1, math.MaxInt32)),
			cli.Var(&o.Prefix, "prefix", "TEXT", "r", "what a req_id begins with, before its number", cli.Text),
		},
		Action: func(c *urfave.Context) error {
			o.TokensPerChunk = int64(tokens)
			return convert(c, o)
		},
	}
}

func convert(c *urfave.Context, o *manifest.Options) error {
	if c.Args().Len() > 1 {
		return cli.Usagef("unexpected argument %q: one trace at a time", c.Args().Get(1))
	}
	var r io.Reader = os.Stdin
	name := c.Args().First()
	if name == "" || name == sender.Stdin {
		return manifest.Convert(r, "stdin", c.App.Writer, *o)
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("cannot read trace: %w", err)
	}
	defer f.Close()
	return manifest.Convert(f, name, c.App.Writer, *o)
}
