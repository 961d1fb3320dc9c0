package reservation

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs testdata/*.txt: commands in (see op), trace out. There is
// a file for each paragraph of §4 and one for §5, in each a case for each
// sentence, which it quotes. Every case is checked against the model as well,
// and must drain at its end. With -rewrite the traces are written anew: read
// the difference against the sentence before you keep it. "case doors" traces
// who may write which slot, too.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if filepath.Ext(path) != ".txt" {
			t.Skip("no scenario")
		}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			if td.Cmd != "case" {
				t.Fatalf("%s: unknown directive %q", td.Pos, td.Cmd)
			}
			args := slices.DeleteFunc(slices.Clone(td.CmdArgs), func(a datadriven.CmdArg) bool { return a.Key == "doors" })
			cfg, err := caseConfig(args)
			if err != nil {
				t.Fatalf("%s: %v", td.Pos, err)
			}
			return runCase(t, td, cfg, len(args) < len(td.CmdArgs))
		})
	})
}

func runCase(t *testing.T, td *datadriven.TestData, cfg Config, doors bool) string {
	w := newWorld(cfg)
	w.trace, w.doors = &strings.Builder{}, doors
	for line := range strings.Lines(td.Input) {
		line = strings.TrimSpace(line)
		fmt.Fprintln(w.trace, line)
		if line == "state" {
			w.trace.WriteString(w.state())
			continue
		}
		o, err := parseOp(line)
		if err == nil {
			err = w.do(o)
		}
		if err != nil {
			t.Errorf("%s: %v", td.Pos, err)
			return w.trace.String()
		}
	}
	trace := w.trace.String()
	if err := w.do(op{verb: "drain"}); err != nil {
		t.Errorf("%s: %v", td.Pos, err)
	}
	return trace
}

// caseConfig is pd-recv's defaults with 10 slots, and what a case changes.
func caseConfig(args []datadriven.CmdArg) (Config, error) {
	cfg := Config{
		Slots: 10, AdmitTimeout: 30 * time.Second, Lease: 15 * time.Second, LegacyLease: 120 * time.Second,
		ReadyTTL: 10 * time.Minute, Memory: 60 * time.Second, Remember: 1000, MaxGap: 500 * time.Millisecond,
	}
	durations := map[string]*time.Duration{
		"admit-timeout": &cfg.AdmitTimeout, "lease": &cfg.Lease, "legacy-lease": &cfg.LegacyLease,
		"ready-ttl": &cfg.ReadyTTL, "memory": &cfg.Memory, "max-gap": &cfg.MaxGap,
	}
	numbers := map[string]*int{
		"slots": &cfg.Slots, "overtake": &cfg.Overtake, "remember": &cfg.Remember,
		"queue-limit": &cfg.QueueLimit, "sender-requests": &cfg.SenderRequests,
		"sender-queue": &cfg.SenderQueue, "sender-share": &cfg.SenderShare,
	}
	for _, arg := range args {
		var value string
		if len(arg.Vals) > 0 {
			value = arg.Vals[0]
		}
		var err error
		switch {
		case durations[arg.Key] != nil:
			*durations[arg.Key], err = time.ParseDuration(value)
		case numbers[arg.Key] != nil:
			*numbers[arg.Key], err = strconv.Atoi(value)
		case arg.Key == "queue-bytes":
			cfg.QueueBytes, err = strconv.ParseInt(value, 10, 64)
		case arg.Key == "mode":
			cfg.Mode, err = ParseMode(value)
		default:
			err = fmt.Errorf("unknown setting %q", arg.Key)
		}
		if err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}
