package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/plan"
	"github.com/pd-tools/pd-tools/internal/reservation"
)

// models are the bytes that a token's keys and values take: 2 x layers x KV
// heads x head size x 2 bytes, for DeepSeek's MLA (512+64) x layers x 2.
var models = map[string]int64{
	"llama-3.1-8b":      131_072,
	"llama-3.1-70b":     327_680,
	"llama-3.1-70b-tp8": 40_960, // one of eight ranks
	"qwen3-32b":         262_144,
	"qwen3-1.7b":        114_688,
	"qwen3-0.6b":        114_688,
	"qwen2-0.5b":        12_288,
	"deepseek-v3":       70_272,
	"deepseek-r1":       70_272,
}

func modelNames() []string { return slices.Sorted(maps.Keys(models)) }

// autoSizes is how many buffer sizes are tried where none are named.
const autoSizes = 8

// planOptions are what the flags say.
type planOptions struct {
	plan.World
	plan.Options
	model     string
	tokens    int
	senders   int
	modes     []string
	overtake  []int
	sizes     []int64
	target    time.Duration
	share     share
	json      bool
	plot      string
	modelFlag *cli.Flag
	perToken  *cli.Flag
	targeted  *cli.Flag
}

func planCommand() *urfave.Command {
	o := &planOptions{}
	o.modelFlag = cli.Var(&o.model, "model", "NAME", "llama-3.1-8b", "whose KV cache: "+strings.Join(modelNames(), ", "), cli.OneOf(modelNames()...))
	o.perToken = cli.Var(&o.BytesPerToken, "bytes-per-token", "SIZE", "", "KV cache of one token, instead of --model", cli.Size)
	o.targeted = cli.Var(&o.target, "target-p99", "TIME", "", "find the smallest buffer in which 99% wait no longer for admission and all are served", cli.Delay)
	return &urfave.Command{
		Name: "plan", Usage: "how large a buffer must be, from a trace or a manifest", UsageText: "pd-recv plan [flags] [FILE]",
		Description: `FILE, or the standard input without one or for -, is a Mooncake trace or a manifest of pd-send. It is replayed in
virtual time, with the code by which pd-recv admits, for each buffer size and policy. --link-rate and --ingress-rate are
bytes a second. A ready request keeps its slots for --consume, plus --consume-per-token for each of its tokens, plus what its
output takes at --decode-rate.

  pd-recv plan --model qwen3-32b --link-rate 25GB --consume 200ms --target-p99 2s trace.jsonl`,
		Flags: []urfave.Flag{
			o.modelFlag, o.perToken,
			cli.Var(&o.tokens, "tokens-per-chunk", "N", "256", "tokens of a full chunk", cli.Int(1, math.MaxInt32)),
			cli.Var(&o.sizes, "buffer-size", "SIZES", "", "buffers to try, with commas between; else from half the largest request on, doubled until nobody waits", sizeList),
			cli.Var(&o.modes, "admission", "MODES", "reserve,serial,none", "policies to try", cli.ListOf("reserve", "serial", "none")),
			cli.Var(&o.overtake, "overtake", "NUMBERS", "0,8,64", "reserve is tried with each of these", numbers),
			o.targeted,
			cli.Var(&o.AdmitTimeout, "admit-timeout", "TIME", "30s", "longest wait for admission; 0 or inf: no limit", cli.Limit),
			cli.Var(&o.Pace, "pace", "R", "1", "requests come R times as fast", cli.Factor),
			cli.Var(&o.Limit, "limit", "N", "", "only the first N requests; 0 or inf: all", cli.Count),
			cli.Var(&o.senders, "senders", "N", "1", "senders, to which the requests are dealt in turn", cli.Int(1, 65_536)),
			cli.Var(&o.share, "sender-share", "SLOTS", "inf", "slots that one of them may have, or a percentage (25%) of the buffer's; 0 or inf: no limit", parseShare),
			cli.Var(&o.Batch, "batch", "N", "8", "chunks asked for at once, at most", cli.Int(1, math.MaxInt32)),
			cli.Var(&o.LinkRate, "link-rate", "SIZE", "12.5GB", "bytes a second that one sender writes; 0 or inf: no limit", cli.SizeLimit),
			cli.Var(&o.IngressRate, "ingress-rate", "SIZE", "inf", "bytes a second that all senders write together; 0 or inf: no limit", cli.SizeLimit),
			cli.Var(&o.RoundTrip, "round-trip", "TIME", "200us", "from a batch to its answer", cli.Delay),
			cli.Var(&o.Consume, "consume", "TIME", "100ms", "how long the decoder keeps a ready request", cli.Delay),
			cli.Var(&o.ConsumeToken, "consume-per-token", "TIME", "0s", "and for each of its tokens", cli.Delay),
			cli.Var(&o.DecodeRate, "decode-rate", "N", "", "and until its output is decoded, at N tokens a second; needs a trace", cli.Factor),
			cli.Var(&o.LostEvery, "lost-every", "N", "", "of every N requests one loses its sender as soon as that has slots; 0 or inf: none", cli.Count),
			cli.Var(&o.Lease, "lease", "TIME", "15s", "until such a sender is given up", lease),
			cli.Bool(&o.json, "json", "print a JSON object a line instead of a table"),
			cli.Var(&o.plot, "plot", "FILE", "", "draw wait against buffer size into FILE.svg", svgFile),
		},
		Action: func(c *urfave.Context) error { return o.run(c) },
	}
}

func sizeList(s string) ([]int64, error) { return list(s, cli.Size) }

func numbers(s string) ([]int, error) { return list(s, cli.Int(0, 1<<30)) }

// list takes values with commas between.
func list[T comparable](s string, parse func(string) (T, error)) ([]T, error) {
	var values []T
	for _, word := range strings.Split(s, ",") {
		if strings.TrimSpace(word) == "" {
			return nil, errors.New("lacks a value: write them with commas between, as in 1GiB,2GiB or 0,8")
		}
		v, err := parse(strings.TrimSpace(word))
		if err != nil {
			return nil, fmt.Errorf("%q %w", word, err)
		}
		if slices.Contains(values, v) {
			return nil, fmt.Errorf("has %s twice", strconv.Quote(word))
		}
		values = append(values, v)
	}
	return values, nil
}

func svgFile(s string) (string, error) {
	if !strings.HasSuffix(s, ".svg") {
		return "", errors.New("does not end in .svg: the plot is SVG")
	}
	return s, nil
}

func (o *planOptions) run(c *urfave.Context) error {
	if c.Args().Len() > 1 {
		return cli.Usagef("unexpected argument %q: one trace or manifest at a time", c.Args().Get(1))
	}
	if o.modelFlag.IsSet() && o.perToken.IsSet() {
		return cli.Usagef("--model and --bytes-per-token are both given: take one")
	}
	if !o.perToken.IsSet() {
		o.BytesPerToken = models[o.model]
	}
	o.TokensPerChunk, o.Senders, o.SenderShare = int64(o.tokens), o.senders, o.share.of
	if err := o.Options.Check(); err != nil {
		return cli.Usagef("%v: change --bytes-per-token, --model or --tokens-per-chunk", err)
	}
	if err := o.canDraw(); err != nil {
		return err
	}
	load, err := o.read(c.Args().First())
	if err != nil {
		return err
	}
	if err := o.World.Check(load); err != nil {
		return cli.Usagef("%v", err)
	}
	slots, err := o.slots(load)
	if err != nil {
		return err
	}
	var jobs []func() plan.Result
	for _, n := range slots {
		for _, p := range o.policies() {
			jobs = append(jobs, func() plan.Result { return plan.Run(load, o.World, p, n) })
		}
	}
	results := sideBySide(jobs)
	out := &planOutput{o: o, load: load, w: c.App.Writer}
	if err := out.results(results); err != nil {
		return err
	}
	if err := o.draw(results); err != nil {
		return err
	}
	if o.targeted.IsSet() {
		return out.smallest()
	}
	return nil
}

func (o *planOptions) read(name string) (*plan.Load, error) {
	if name == "" || name == "-" {
		return plan.Read(os.Stdin, "stdin", o.Options)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read: %w", err)
	}
	defer f.Close()
	return plan.Read(f, name, o.Options)
}

// slots are the buffers to try.
func (o *planOptions) slots(load *plan.Load) ([]int, error) {
	if o.sizes == nil {
		return plan.Sizes(load, o.World, plan.Policy{}, autoSizes), nil
	}
	var slots []int
	for _, size := range o.sizes {
		n := size / load.ChunkBytes
		switch {
		case n < 1:
			return nil, cli.Usagef("--buffer-size %d is smaller than one chunk: needs at least %d bytes, or fewer --tokens-per-chunk", size, load.ChunkBytes)
		case n > maxSlots:
			return nil, cli.Usagef("--buffer-size %d has %d slots of %d bytes, the limit is %d: raise --tokens-per-chunk", size, n, load.ChunkBytes, maxSlots)
		}
		slots = append(slots, int(n))
	}
	return slots, nil
}

// policies are those to try: reserve once for each --overtake.
func (o *planOptions) policies() []plan.Policy {
	var policies []plan.Policy
	for _, name := range o.modes {
		mode, err := reservation.ParseMode(name)
		if err != nil {
			panic(err) // the flag takes no other
		}
		if mode != reservation.Reserve {
			policies = append(policies, plan.Policy{Mode: mode})
			continue
		}
		for _, n := range o.overtake {
			policies = append(policies, plan.Policy{Overtake: n})
		}
	}
	return policies
}

// sideBySide does jobs on all processors and keeps their order.
func sideBySide[T any](jobs []func() T) []T {
	results := make([]T, len(jobs))
	next := make(chan int)
	var done sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		done.Go(func() {
			for i := range next {
				results[i] = jobs[i]()
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	done.Wait()
	return results
}

// canDraw tries --plot before the work, which may take minutes. What is there stays
// as it is.
func (o *planOptions) canDraw() error {
	if o.plot == "" {
		return nil
	}
	_, missing := os.Lstat(o.plot)
	f, err := os.OpenFile(o.plot, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("cannot draw: %w: name another file with --plot", err)
	}
	if missing != nil {
		_ = os.Remove(o.plot)
	}
	return f.Close()
}

func (o *planOptions) draw(results []plan.Result) error {
	if o.plot == "" {
		return nil
	}
	f, err := os.Create(o.plot)
	if err != nil {
		return fmt.Errorf("cannot draw: %w", err)
	}
	if err := errors.Join(plan.Plot(f, results), f.Close()); err != nil {
		return fmt.Errorf("cannot draw %s: %w", o.plot, err)
	}
	return nil
}

// planOutput is stdout.
type planOutput struct {
	o    *planOptions
	load *plan.Load
	w    io.Writer
}

func (p *planOutput) results(results []plan.Result) error {
	if p.o.json {
		err := p.line(map[string]any{
			"kind": "load", "input": p.load.Kind, "requests": p.load.Requests(), "chunks": p.load.Chunks, "chunk_size": p.load.ChunkBytes,
			"median_chunks": p.load.Median(), "largest_chunks": p.load.Largest, "empty": p.load.Empty, "cancel_lines": p.load.Cancels,
		})
		for i := 0; i < len(results) && err == nil; i++ {
			err = p.line(runLine("run", &results[i]))
		}
		return err
	}
	if _, err := fmt.Fprintf(p.w, "%d requests of %s, median %d chunks, largest %d, %d in all; a chunk has %s\n\n",
		p.load.Requests(), "a "+p.load.Kind, p.load.Median(), p.load.Largest, p.load.Chunks, plan.Size(p.load.ChunkBytes)); err != nil {
		return err
	}
	if left := p.load.Cancels; left > 0 {
		if _, err := fmt.Fprintf(p.w, "%d cancel lines are left out: their requests are sent whole\n\n", left); err != nil {
			return err
		}
	}
	return plan.Table(p.w, results)
}

// smallest looks for the buffer that meets the target, for each policy.
func (p *planOutput) smallest() error {
	type found struct {
		plan.Result
		ok bool
	}
	policies := p.o.policies()
	limit := min(max(p.load.Chunks, p.load.Largest), maxSlots) // more is never used
	var jobs []func() found
	for _, policy := range policies {
		jobs = append(jobs, func() found {
			r, ok := plan.Smallest(p.load, p.o.World, policy, p.o.target, limit)
			return found{r, ok}
		})
	}
	unmet := 0
	if !p.o.json {
		but := ""
		if p.o.LostEvery > 0 {
			but = " but those that lose their sender"
		}
		if _, err := fmt.Fprintf(p.w, "\nThe smallest buffer with a wait of at most %v for 99 of 100 requests, and all served%s:\n", p.o.target, but); err != nil {
			return err
		}
	}
	for _, f := range sideBySide(jobs) {
		if !f.ok {
			unmet++
		}
		if err := p.found(&f.Result, f.ok); err != nil {
			return err
		}
	}
	if unmet == len(policies) {
		return fmt.Errorf("no buffer meets --target-p99 %v: raise it or --admit-timeout, or have links and the decoder go faster", p.o.target)
	}
	return nil
}

func (p *planOutput) found(r *plan.Result, ok bool) error {
	if p.o.json {
		line := runLine("smallest", r)
		line["met"], line["target_p99_ms"] = ok, millis(p.o.target)
		return p.line(line)
	}
	var err error
	if ok {
		_, err = fmt.Fprintf(p.w, "  %-12v %6d slots, %9s (%d bytes): p99 %s\n", r.Policy, r.Slots, plan.Size(r.Bytes), r.Bytes, plan.Time(r.Wait.P99))
	} else {
		_, err = fmt.Fprintf(p.w, "  %-12v none: with %d slots, which hold all requests at once, p99 is %s and %d of %d are ready\n",
			r.Policy, r.Slots, plan.Time(r.Wait.P99), r.Ready, r.Requests)
	}
	return err
}

func (p *planOutput) line(v any) error {
	line, err := cli.JSONLine(v)
	if err == nil {
		_, err = p.w.Write(line)
	}
	return err
}

// runLine is a result as JSON.
func runLine(kind string, r *plan.Result) map[string]any {
	spread := func(s plan.Spread) map[string]float64 {
		return map[string]float64{"p50": millis(s.P50), "p90": millis(s.P90), "p99": millis(s.P99), "max": millis(s.Max)}
	}
	line := map[string]any{
		"kind": kind, "admission": r.Policy.Mode.String(), "overtake": r.Policy.Overtake, "slots": r.Slots, "buffer_size": r.Bytes,
		"requests": r.Requests, "ready": r.Ready, "timed_out": r.TimedOut, "too_large": r.TooLarge, "refused": r.Refused, "lost": r.Lost, "stuck": r.Stuck,
		"admit_wait_ms": spread(r.Wait), "admit_wait_large_ms": spread(r.Large), "to_ready_ms": spread(r.ToReady),
		"utilisation": r.Utilisation, "promised": r.Promised, "peak": r.Peak, "span_s": r.Span.Seconds(),
		"goodput_bytes_per_s": r.Goodput, "requests_per_s": r.Rate, "deadlocks": r.Deadlocks,
	}
	if d := r.Deadlock; d != nil {
		line["deadlock"] = map[string]any{
			"at_s": d.At.Seconds(), "partial": d.Partial, "held": d.Held, "free": d.Free, "waiting": d.Waiting,
			"req_id": d.First, "has": d.Has, "needs": d.Needs,
		}
	}
	return line
}
