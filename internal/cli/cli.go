// Package cli is what the four programs have in common at their edge: flags
// and their variables, help, wrong usage, exit codes, signals, and writers
// that no slow reader can block. It knows nothing of what a program does.
// Start at Main; a program's flags are made with Var and its like (flags.go),
// its output goes through Lines, its messages through Log.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	urfave "github.com/urfave/cli/v2"

	_ "github.com/pd-tools/pd-tools/internal/slack"
)

// Exit codes. A program ended by a signal has 128 + its number: 130, 143.
const (
	ExitOK     = 0
	ExitFailed = 1 // some request failed, or a resource was not to be had
	ExitUsage  = 2
)

func init() {
	// We print help ourselves: urfave's goes to stdout on errors, too.
	urfave.HelpFlag = nil
}

// usageError is a wrong use of a program: exit code 2 and a pointer to --help.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

// Usagef makes the error that an Action returns for wrong usage.
func Usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// SignalError says which signal ended a program. It is the cause of the
// context that Signals cancels, and gives the exit code 128 + number when an
// Action returns it.
type SignalError struct {
	Signal  syscall.Signal
	flushBy time.Time // when a reader of stdout is waited for no more; zero: no limit
}

func (e *SignalError) Error() string {
	switch e.Signal {
	case syscall.SIGINT:
		return "interrupted"
	case syscall.SIGHUP:
		return "hung up"
	}
	return "terminated"
}

// Code is the exit code.
func (e *SignalError) Code() int { return 128 + int(e.Signal) }

// Main runs the program with the process's arguments and returns its exit code.
func Main(app *urfave.App) int {
	return Run(app, os.Args, os.Stdout, os.Stderr)
}

// Run runs the program. It adds --help, --version, --completion and the
// variables of all flags. app.Flags and those of its commands are made by this
// package; app.UsageText holds the forms of a call and app.Description what
// --help says at its end.
func Run(app *urfave.App, args []string, stdout, stderr io.Writer) int {
	prepare(app, args, stdout, stderr)
	err := app.RunContext(context.Background(), args)
	var usage *usageError
	var signal *SignalError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %s\nTry '%s --help'\n", app.Name, usage.msg, commandOf(app, args))
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", app.Name, err)
	if errors.As(err, &signal) {
		return signal.Code()
	}
	return ExitFailed
}

// commandOf is the program's name and the command it was called with, if any.
func commandOf(app *urfave.App, args []string) string {
	for _, arg := range args[min(1, len(args)):] {
		if app.Command(arg) != nil {
			return app.Name + " " + arg
		}
	}
	return app.Name
}

func prepare(app *urfave.App, args []string, stdout, stderr io.Writer) {
	app.Writer, app.ErrWriter = stdout, stderr
	app.HideHelp, app.HideHelpCommand, app.HideVersion = true, true, true
	app.EnableBashCompletion = true
	app.ExitErrHandler = func(*urfave.Context, error) {}
	app.OnUsageError = onUsageError
	if app.Version == "" {
		app.Version = version()
	}
	own := &ownFlags{args: args}
	rootFlags := app.Flags
	app.Flags = append(own.root(), app.Flags...)
	nameVariables(app.Name, app.Flags)
	action := app.Action
	app.Action = func(c *urfave.Context) error {
		return own.run(c, nil, rootFlags, func(w io.Writer) error { return printAppHelp(w, app) }, action)
	}
	for _, cmd := range app.Commands {
		prepareCommand(app, cmd, own, rootFlags)
	}
}

func prepareCommand(app *urfave.App, cmd *urfave.Command, own *ownFlags, rootFlags []urfave.Flag) {
	flags := cmd.Flags
	cmd.Flags = append(own.command(), cmd.Flags...)
	nameVariables(app.Name, cmd.Flags)
	cmd.HideHelp, cmd.HideHelpCommand = true, true
	cmd.OnUsageError = onUsageError
	action := cmd.Action
	cmd.Action = func(c *urfave.Context) error {
		return own.run(c, foreign(rootFlags, flags), flags, func(w io.Writer) error { return printCommandHelp(w, app, cmd) }, action)
	}
}

// foreign lists the root's flags that the command does not have.
func foreign(root, command []urfave.Flag) []urfave.Flag {
	var out []urfave.Flag
	for _, f := range root {
		if !contains(command, f) {
			out = append(out, f)
		}
	}
	return out
}

func contains(flags []urfave.Flag, f urfave.Flag) bool {
	for _, g := range flags {
		if g == f {
			return true
		}
	}
	return false
}

// onUsageError puts the flag package's messages into our words.
func onUsageError(_ *urfave.Context, err error, _ bool) error {
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "flag provided but not defined: -"); ok {
		return Usagef("unknown flag %s", dashed(name))
	}
	if name, ok := strings.CutPrefix(msg, "flag needs an argument: -"); ok {
		return Usagef("%s needs a value", dashed(name))
	}
	if rest, ok := strings.CutPrefix(msg, "invalid boolean flag "); ok {
		name, why, _ := strings.Cut(rest, ": ")
		return Usagef("%s %s", dashed(name), why)
	}
	for _, sep := range []string{" for flag -", " for -"} {
		if value, rest, ok := strings.Cut(msg, sep); ok {
			name, why, _ := strings.Cut(rest, ": ")
			value = strings.TrimPrefix(strings.TrimPrefix(value, "invalid value "), "invalid boolean value ")
			return blame(dashed(name), value, why)
		}
	}
	return Usagef("%s", msg)
}

// blame says of a flag or variable what is wrong with its value; reasons begin
// with a verb, or name the value themselves.
func blame(what, quoted, why string) error {
	if strings.Contains(why, quoted) {
		return Usagef("%s: %s", what, why)
	}
	return Usagef("%s %s %s", what, quoted, why)
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// ownFlags are those that every program has.
type ownFlags struct {
	args          []string // all that the program was called with
	help, version bool
	completion    string
}

func (o *ownFlags) root() []urfave.Flag {
	return append(o.command(),
		Bool(&o.version, "version", "print the version"),
		Var(&o.completion, "completion", "SHELL", "", "print a completion script: bash, zsh or fish", OneOf("bash", "zsh", "fish")))
}

func (o *ownFlags) command() []urfave.Flag {
	return []urfave.Flag{Bool(&o.help, "help", "print this help", "h")}
}

// run does what was asked of ownFlags, or checks the rest and runs the action.
func (o *ownFlags) run(c *urfave.Context, foreign, flags []urfave.Flag, help func(io.Writer) error, action urfave.ActionFunc) error {
	switch {
	case o.help:
		return help(c.App.Writer)
	case o.version:
		_, err := fmt.Fprintf(c.App.Writer, "%s %s\n", c.App.Name, c.App.Version)
		return err
	case o.completion != "":
		return printCompletion(c.App.Writer, c.App.Name, o.completion)
	}
	for _, f := range foreign {
		if f := f.(*Flag); f.given {
			return Usagef("%s is no flag of %s %s", dashed(f.name), c.App.Name, c.Command.Name)
		}
	}
	for _, f := range flags {
		if err := f.(*Flag).envError(); err != nil {
			return err
		}
	}
	rest := c.Args().Slice()
	ended := count(o.args, "--") > count(rest, "--") // urfave has taken the one before them out
	for _, arg := range rest {
		if len(arg) > 1 && arg[0] == '-' && !ended {
			return Usagef("flag %q stands behind an argument: flags come first; if it is none, write -- before the first argument", arg)
		}
	}
	return action(c)
}

func count(list []string, item string) (n int) {
	for _, s := range list {
		if s == item {
			n++
		}
	}
	return n
}

// Args returns the arguments that are left behind the flags: exactly one for
// each name.
func Args(c *urfave.Context, names ...string) ([]string, error) {
	args := c.Args().Slice()
	switch {
	case len(args) > len(names) && len(names) == 0 && len(c.App.Commands) > 0 && c.App.Command(c.Command.Name) == nil:
		return nil, Usagef("unknown command %q: have %s", args[0], strings.Join(commandNames(c.App), ", "))
	case len(args) > len(names):
		return nil, Usagef("unexpected argument %q", args[len(names)])
	case len(args) < len(names):
		return nil, Usagef("missing %s", strings.Join(names[len(args):], " and "))
	}
	return args, nil
}

func commandNames(app *urfave.App) []string {
	var names []string
	for _, cmd := range app.Commands {
		names = append(names, cmd.Name)
	}
	return names
}
