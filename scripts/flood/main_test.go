package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/internal/built"
)

// Some of each kind, against the real programs: none of the good ones' requests
// fails, and memory stays within a bound. How fast they are on a machine that does
// other things decides nothing, and what waits there takes memory meanwhile.
func TestEveryKind(t *testing.T) {
	bin := t.TempDir()
	if err := built.Fast(bin, "", "../../cmd/pd-recv", "../../cmd/pd-send", "../../cmd/pd-proxy"); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	ok, err := run(t.Context(), []string{"-bin", bin, "-count", "2000", "-rate", "1500", "-before", "1s", "-ratio", "0", "-growth", "192"}, &stdout, &stderr)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	var r result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatal(err)
	}
	if !ok || len(r.Wrong) > 0 {
		t.Errorf("wrong: %q", r.Wrong)
	}
	if r.Kinds < 50 || r.Sent < 2000 || r.Answers == 0 || r.GoodReady == 0 || r.Counters.BadFrames == 0 {
		t.Errorf("the run is %s", lines[len(lines)-1])
	}
	for _, k := range kinds() {
		if k.engine != "ofi" && k.keysOnly == strings.Contains(stdout.String(), k.name+"  ") {
			t.Errorf("%s: is it in the table as it should be?", k.name)
		}
	}
}

func TestKindsAreDistinct(t *testing.T) {
	names := map[string]bool{}
	for _, k := range kinds() {
		if names[k.name] || k.send == nil {
			t.Errorf("%q is there twice, or does nothing", k.name)
		}
		names[k.name] = true
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"-nope", "stray", "-rate 0", "-count 0", "-kinds (", "-count 100", "-count 14999 -rate 3000"} {
		var stdout, stderr bytes.Buffer
		if _, err := run(t.Context(), strings.Fields(args), &stdout, &stderr); err != errUsage || stderr.Len() == 0 || stdout.Len() > 0 {
			t.Errorf("%s: %v, stderr %q", args, err, stderr.String())
		}
	}
}
