package main

import (
	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/sock"
)

func keygenCommand() *urfave.Command {
	return &urfave.Command{
		Name: "keygen", Usage: "make a pair of keys, for any of the programs", UsageText: "pd-recv keygen FILE",
		Description: `FILE gets both keys, FILE.pub the public one: a line for the --curve-allow file of who is to let its owner in.

  pd-recv keygen send.key && cat send.key.pub >>recv.allow`,
		Action: func(c *urfave.Context) error {
			args, err := cli.Args(c, "FILE")
			if err != nil {
				return err
			}
			public, publicFile, err := sock.MakeKeys(args[0])
			if err != nil {
				return err
			}
			line, err := cli.JSONLine(&struct {
				PublicKey  string `json:"public_key"`
				KeyFile    string `json:"key_file"`
				PublicFile string `json:"public_file"`
			}{public, args[0], publicFile})
			if err == nil {
				_, err = c.App.Writer.Write(line)
			}
			return err
		},
	}
}
