package cli

import (
	"bytes"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	urfave "github.com/urfave/cli/v2"
)

func printAppHelp(w io.Writer, app *urfave.App) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s\n\n%s\n", app.Name, app.Usage, indent(app.UsageText))
	if len(app.Commands) > 0 {
		fmt.Fprintf(&b, "\nCommands ('%s COMMAND --help' tells more):\n", app.Name)
		table := newTable(&b)
		for _, cmd := range app.Commands {
			fmt.Fprintf(table, "  %s\t%s\n", cmd.Name, cmd.Usage)
		}
		table.Flush()
	}
	printFlags(&b, app.Name, app.Flags)
	printNotes(&b, app.Description)
	_, err := w.Write(b.Bytes())
	return err
}

func printCommandHelp(w io.Writer, app *urfave.App, cmd *urfave.Command) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s: %s\n\n%s\n", app.Name, cmd.Name, cmd.Usage, indent(cmd.UsageText))
	printFlags(&b, app.Name, cmd.Flags)
	printNotes(&b, cmd.Description)
	_, err := w.Write(b.Bytes())
	return err
}

func printFlags(b *bytes.Buffer, program string, flags []urfave.Flag) {
	variable := ""
	b.WriteString("\nFlags:\n")
	table := newTable(b)
	for _, f := range flags {
		f := f.(*Flag)
		fmt.Fprintf(table, "  %s\t%s\n", f.form(), f.explain())
		if f.env != "" && variable == "" {
			variable = fmt.Sprintf("Each flag has a variable, which it overrides: %s has %s.\n", dashed(f.name), f.env)
		}
	}
	table.Flush()
	b.WriteString(variable)
}

func (f *Flag) form() string {
	form := dashed(f.name)
	if f.alias != "" {
		form = dashed(f.alias) + ", " + form
	}
	switch {
	case f.optValue:
		return form + "[=" + f.placeholder + "]"
	case f.bare:
		return form
	}
	return form + " " + f.placeholder
}

func (f *Flag) explain() string {
	switch {
	case f.def != "":
		return f.usage + " (default " + f.def + ")"
	case f.many:
		return f.usage + " (may be given several times)"
	}
	return f.usage
}

func printNotes(b *bytes.Buffer, notes string) {
	if notes != "" {
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(notes))
	}
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// version is the module's, which has the revision in it where known; a build
// without a version has at least the revision.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := strings.Trim(info.Main.Version, "()")
	if v != "" && v != "devel" {
		return v
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v += " " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			v += " (modified)"
		}
	}
	return strings.TrimSpace("devel " + strings.TrimPrefix(v, "devel"))
}
