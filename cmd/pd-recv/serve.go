package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/cli"
	"github.com/pd-tools/pd-tools/internal/receiver"
	"github.com/pd-tools/pd-tools/internal/reservation"
	"github.com/pd-tools/pd-tools/internal/sock"
	"github.com/pd-tools/pd-tools/rdma"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

const (
	// minLease is the shortest lease: a sender must get a few heartbeats in.
	minLease = 50 * time.Millisecond

	// maxSlots bounds the ledger: some tens of bytes a slot.
	maxSlots = 1 << 24

	// fewFiles is a limit of open files worth a warning: each sender takes two, and twelve more by ofi.
	fewFiles = 1024
)

// serveOptions are what the flags say.
type serveOptions struct {
	receiver.Config
	buffer   int64
	engines  []string
	fabric   rdma.Fabric
	mode     string
	monitor  string
	metrics  string
	curve    cli.Curve
	shutdown time.Duration
	share    share
	prefill  int // tokens; 0: any number
	tokens   int // of a chunk

	sink, monitorFlag *cli.Flag
	fabricFlags       []*cli.Flag
}

func (o *serveOptions) flags() []urfave.Flag {
	r := &o.Reservation
	o.sink = cli.Optional(&o.SinkDelay, "sink", "DELAY", "0s", "play the decoder: release what is ready, after DELAY", cli.Delay)
	o.monitorFlag = cli.Var(&o.monitor, "monitor", "ENDPOINT", "tcp://127.0.0.1:7602", "publish what happens, for pd-top; none: do not", cli.MonitorEndpoint)
	o.fabricFlags = []*cli.Flag{
		cli.Var(&o.fabric.Provider, "fabric", "PROVIDER", "tcp;ofi_rxm", "libfabric provider of ofi, as fi_info names it", cli.Provider),
		cli.Var(&o.fabric.Addr, "fabric-addr", "ADDR", "", "address of this host where ofi is written; else that of --listen", cli.IPAddress),
		cli.Var(&o.fabric.Service, "fabric-service", "PORT", "*", "TCP port where ofi's writers introduce themselves; * is a free one", service),
	}
	return append([]urfave.Flag{
		cli.Var(&o.Listen, "listen", "ENDPOINT", "tcp://127.0.0.1:7600", "where senders and decoders connect; port * is a free one", cli.ListenEndpoint),
		cli.Var(&o.buffer, "buffer-size", "SIZE", "1GiB", "memory for chunks", cli.Size),
		cli.Var(&r.SlotBytes, "chunk-size", "SIZE", "1MiB", "largest chunk, the size of a slot", cli.Size),
		cli.Var(&o.prefill, "max-prefill", "TOKENS", "0", "longest prompt: too small a buffer for it is an error at start; 0 or inf: any", cli.Count),
		cli.Var(&o.tokens, "tokens-per-chunk", "N", "256", "tokens of a full chunk, for --max-prefill", cli.Int(1, math.MaxInt32)),
		cli.Var(&o.engines, "engine", "NAMES", "shm", "how chunks are written, best first: shm on one host, ofi across hosts, or shm,ofi", cli.ListOf("shm", "ofi")),
		o.fabricFlags[0], o.fabricFlags[1], o.fabricFlags[2],
		cli.Var(&o.mode, "admission", "MODE", "reserve", "reserve, or for comparison: serial (one request at a time), none (deadlocks)", cli.OneOf("reserve", "serial", "none")),
		cli.Var(&r.AdmitTimeout, "admit-timeout", "TIME", "30s", "longest wait for admission; 0 or inf: no limit", cli.Limit),
		cli.Var(&r.Lease, "lease", "TIME", "15s", "silence that ends a sender; how long a take lasts", lease),
		cli.Var(&r.LegacyLease, "legacy-lease", "TIME", "120s", "silence that ends a request of a sender that never attached; 0 or inf: none", cli.Limit),
		cli.Var(&r.ReadyTTL, "ready-ttl", "TIME", "10m", "how long a ready request waits for its decoder; 0 or inf: for ever", cli.Limit),
		cli.Var(&r.Overtake, "overtake", "N", "0", "requests that may pass a waiting one; 0 is strict order", cli.Int(0, 1<<30)),
		cli.Var(&r.QueueLimit, "queue-limit", "N", "100000", "requests that may wait; 0 or inf: no limit", cli.Count),
		cli.Var(&r.QueueBytes, "queue-bytes", "SIZE", "256MiB", "bytes of the batches that may wait; 0 or inf: no limit", cli.SizeLimit),
		cli.Var(&r.SenderRequests, "sender-requests", "N", "65536", "live requests of one sender, or with keys of all that have its key; 0 or inf: no limit", cli.Count),
		cli.Var(&r.SenderQueue, "sender-queue", "N", "inf", "slots that the waiting requests of one sender (with keys, of all that have its key) may need together; 0 or inf: no limit", cli.Count),
		cli.Var(&o.share, "sender-share", "SLOTS", "inf", "slots that one sender (with keys, all that have its key) may have, or a percentage (25%) of the buffer's: its others wait, in nobody's way; 0 or inf: no limit", parseShare),
		o.sink,
		cli.Var(&o.Proxy, "proxy", "ENDPOINT", "", "tell this pd-proxy which requests expire", cli.DialEndpoint),
		o.monitorFlag,
		cli.Var(&o.metrics, "metrics", "ADDR", "", "serve metrics and health over HTTP on HOST:PORT; port * is a free one", cli.HTTPAddress),
		cli.Var(&o.shutdown, "shutdown-timeout", "TIME", "5s", "how long a stop by signal may take: of which up to 0.4 until all is written and taken; 0 or inf: no limit, until it is or a second signal comes", cli.Limit),
	}, o.curve.Flags()...)
}

func lease(s string) (time.Duration, error) {
	d, err := cli.Duration(s)
	if err == nil && d < minLease {
		err = fmt.Errorf("is shorter than %v", minLease)
	}
	return d, err
}

// service takes a port; * and 0 are a free one, and give "".
func service(s string) (string, error) {
	if s == "*" || s == "0" {
		return "", nil
	}
	if n, err := strconv.ParseUint(s, 10, 16); err != nil || n == 0 {
		return "", errors.New("is no port from 1 to 65535, nor * for a free one")
	}
	return s, nil
}

// listening is the first line.
type listening struct {
	Event       string `json:"event"`
	Endpoint    string `json:"endpoint"`
	Monitor     string `json:"monitor"`
	Engine      string `json:"engine"`
	TotalChunks int    `json:"total_chunks"`
	ChunkSize   int64  `json:"chunk_size"`
	BufferSize  int64  `json:"buffer_size"`
	Epoch       uint64 `json:"epoch"`
}

func serve(c *urfave.Context, o *serveOptions) error {
	if err := o.complete(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		boundGarbage()
	}
	ctx, stop := cli.Signals(c.Context, o.shutdown)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	log := cli.NewLog(c.App.ErrWriter, c.App.Name)
	out := cli.NewLines(c.App.Writer, fail)
	o.Events = out.Batch
	o.Warn = log.Warn
	err := o.serve(ctx, c.App, out, log)
	cli.Flush(ctx, out, log)
	if cause := context.Cause(ctx); cause != nil && cli.Interrupted(ctx) == nil {
		err = errors.Join(cause, err) // stdout is broken
	}
	return err
}

// serve runs the receiver and what shows it, and returns when ctx is done.
func (o *serveOptions) serve(ctx context.Context, app *urfave.App, out *cli.Lines, log *cli.Log) error {
	o.sayBefore(log)
	var monitored *monitored
	var err error
	if o.Keys, err = o.curve.Keys(o.Warn, o.Proxy); err == nil {
		monitored, err = o.openMonitor(log)
	}
	if err != nil {
		return err
	}
	defer monitored.close()
	served, err := o.openMetrics(app, log)
	if err != nil {
		return err
	}
	defer served.Close()
	r, err := receiver.New(o.Config)
	if err != nil {
		return err
	}
	out.JSON(&listening{
		Event: "listening", Endpoint: r.Endpoint(), Monitor: monitored.endpoint(), Engine: strings.Join(r.Engines(), ","), TotalChunks: o.Reservation.Slots,
		ChunkSize: o.Reservation.SlotBytes, BufferSize: o.buffer, Epoch: o.Reservation.Epoch,
	})
	o.sayAfter(log, r)
	monitored.say(log, o.Keys)
	go log.WatchFiles(ctx)
	if err := r.Run(ctx); err != nil {
		return err
	}
	log.Printf("%s", r.Summary())
	return nil
}

// complete works out what the flags leave open.
func (o *serveOptions) complete() error {
	r := &o.Reservation
	if o.buffer < r.SlotBytes {
		return cli.Usagef("--buffer-size %d is smaller than one chunk: needs at least %d bytes, the --chunk-size", o.buffer, r.SlotBytes)
	}
	slots := o.buffer / r.SlotBytes
	if slots > maxSlots {
		return cli.Usagef("--buffer-size %d has %d slots of --chunk-size %d, the limit is %d: raise --chunk-size", o.buffer, slots, r.SlotBytes, maxSlots)
	}
	r.Slots = int(slots)
	mode, err := reservation.ParseMode(o.mode)
	if err != nil {
		return cli.Usagef("--admission: %v", err)
	}
	r.Mode = mode
	r.SenderShare = o.share.of(r.Slots)
	if err := o.holdsPrefill(); err != nil {
		return err
	}
	r.MaxGap = receiver.MaxGap
	// Grows from start to start, and a float64, as in JSON, holds it exactly.
	r.Epoch = uint64(time.Now().UnixMicro())
	o.ID = rand.Text()
	o.Sink = o.sink.IsSet()
	for _, name := range o.engines {
		if !slices.Contains(engines.Names(), name) {
			return cli.Usagef("--engine %s: this pd-recv was built without it (-tags no%[1]s): build it without that tag", name)
		}
	}
	o.OpenTarget = o.open
	o.ShutdownTimeout = o.shutdown
	return nil
}

// holdsPrefill: the longest prompt must fit the buffer, and its sender's share of it:
// "too_large" would be noticed only under load.
func (o *serveOptions) holdsPrefill() error {
	r := &o.Reservation
	need := o.prefill / o.tokens
	if o.prefill%o.tokens > 0 {
		need++
	}
	if need > r.Slots {
		bytes := new(big.Int).Mul(big.NewInt(int64(need)), big.NewInt(r.SlotBytes))
		return cli.Usagef("--max-prefill %d needs %d chunks of %d tokens, --buffer-size %d holds %d: needs at least %v bytes",
			o.prefill, need, o.tokens, o.buffer, r.Slots, bytes)
	}
	if share := r.SenderShare; share > 0 && need > share {
		return cli.Usagef("--max-prefill %d needs %d chunks of %d tokens, --sender-share lets one sender have %d of %d: needs at least %d",
			o.prefill, need, o.tokens, share, r.Slots, need)
	}
	return nil
}

// open makes the buffer, to be written where --listen is reached unless told
// otherwise.
func (o *serveOptions) open() (rdma.Target, error) {
	r, fabric := &o.Reservation, o.fabric
	if fabric.Addr == "" {
		var err error
		if fabric.Addr, err = sock.ListenAddress(o.Listen); err != nil {
			return nil, err
		}
	}
	return engines.Open(engines.Config{ReceiverID: o.ID, Slots: r.Slots, SlotSize: r.SlotBytes, Engines: o.engines, Fabric: fabric})
}

// sayBefore tells people what they should know before it starts.
func (o *serveOptions) sayBefore(log *cli.Log) {
	if set := func(f *cli.Flag) bool { return f.IsSet() }; slices.ContainsFunc(o.fabricFlags, set) && !slices.Contains(o.engines, "ofi") {
		log.Printf("warning: the --fabric flags say nothing about %s: they are for --engine ofi", strings.Join(o.engines, ","))
	}
	r := &o.Reservation
	if rest := o.buffer % r.SlotBytes; rest > 0 {
		log.Printf("%d bytes of the buffer are not used: they fill no slot of %d bytes", rest, r.SlotBytes)
	}
	if o.share != (share{}) && r.SenderShare == 0 {
		log.Printf("warning: --sender-share %v limits nobody: the buffer has %d slots", o.share, r.Slots)
	}
	page := int64(os.Getpagesize())
	if takes := int64(r.Slots) * ((r.SlotBytes + page - 1) / page * page); takes > 2*o.buffer {
		log.Printf("warning: a slot takes whole pages of %s, so this buffer of %s takes %s of memory: raise --chunk-size",
			humanize.IBytes(uint64(page)), humanize.IBytes(uint64(o.buffer)), humanize.IBytes(uint64(takes)))
	}
	log.CheckFiles(fewFiles, "each sender takes two, by ofi fourteen")
	if slices.Contains(o.engines, "ofi") && o.fabric.Locks() {
		log.CheckLocked(o.fabric.Provider, "the buffer", o.buffer)
	}
}

// sayAfter tells people what holds from now on.
func (o *serveOptions) sayAfter(log *cli.Log, running *receiver.Receiver) {
	r, endpoint := &o.Reservation, running.Endpoint()
	log.Printf("listening on %s, slots: %d of %s, written by %s; a request waits at most %s, at most %s requests and %s wait",
		endpoint, r.Slots, humanize.IBytes(uint64(r.SlotBytes)), running.WrittenBy(),
		limit(r.AdmitTimeout == 0, r.AdmitTimeout.String()), limit(r.QueueLimit == 0, strconv.Itoa(r.QueueLimit)),
		limit(r.QueueBytes == 0, humanize.IBytes(uint64(r.QueueBytes))))
	if r.SenderShare > 0 {
		log.Printf("one sender has at most %d slots", r.SenderShare)
	}
	if r.SenderQueue > 0 {
		log.Printf("the requests of one sender that wait need at most %d slots together", r.SenderQueue)
	}
	log.Public(endpoint, "reach", o.Keys)
}

func limit(off bool, text string) string {
	if off {
		return "inf"
	}
	return text
}
