package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/internal/built"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == roleArg {
		exit(runRole(os.Args[2]))
	}
	os.Exit(m.Run())
}

// Every section must run against the real programs and fill its rows.
func TestQuickRun(t *testing.T) {
	bin := t.TempDir()
	if err := built.Fast(bin, "", "../../cmd/pd-recv", "../../cmd/pd-send", "../pd-check"); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	missed, err := run(t.Context(), []string{"-quick", "-bin", bin}, &stdout, &stderr)
	if err != nil || missed {
		t.Fatalf("missed %v, %v\n%s", missed, err, stderr.String())
	}
	rows := []string{
		"control: 16 clients, 32 in flight, 32 keys", "bystander's heartbeat, 100 wait", "CPU over 200ms, 100 wait",
		"1000 outstanding : 8", "shm writes, 8.0 MiB, 2 senders", "pd-send to pd-recv, 1 MiB chunks",
		"watched: 16 clients, 32 in flight, 8 keys", "watched: a bystander's heartbeat while 100 wait",
	}
	if built.With("ofi") {
		rows = append(rows, "ofi writes, 4.0 MiB : fi_write in C", "pd-send to pd-recv by ofi, 1 MiB chunks, patterns")
	}
	for _, name := range rows {
		if !strings.Contains(stdout.String(), name) {
			t.Errorf("no row %q in\n%s", name, stdout.String())
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-only nothing", `no section "nothing"`},
		{"-nope", "not defined"},
		{"stray", `"stray": there are only flags`},
	} {
		var stdout, stderr bytes.Buffer
		_, err := run(t.Context(), strings.Fields(c.args), &stdout, &stderr)
		if err != errUsage || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("%s: %v, stderr %q", c.args, err, stderr.String())
		}
	}
}
