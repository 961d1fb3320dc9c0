package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/pd-tools/pd-tools/internal/netns"
)

// prefix begins the name of every namespace and folder that is made here.
const prefix = "pd-hosts-"

// bed is some hosts, each a network namespace, joined by links.
type bed struct {
	ctx   context.Context // its end ends every wait
	bin   string          // directory of the built programs
	dir   string          // for files, which all hosts see; removed with the bed
	hosts []*host
	links int
}

// host is one network namespace and the programs in it. Abstract unix sockets
// belong to a namespace, so the shm engine cannot leave its host.
type host struct {
	bed     *bed
	name    string // for people: "decode"
	ns      string
	running []*process
}

// link is a veth pair. The end of `from` sends no faster than the rate; the
// other way is not limited, since only answers go there.
type link struct {
	from, far        *host
	fromAddr, toAddr string
	dev              string // its name at both ends
}

func newBed(ctx context.Context, bin string) (*bed, error) {
	if err := netns.Sweep(prefix); err != nil {
		return nil, err
	}
	b := &bed{ctx: ctx, bin: bin, dir: filepath.Join(os.TempDir(), netns.Name(prefix))}
	return b, os.Mkdir(b.dir, 0o700)
}

// host adds one.
func (b *bed) host(name string) (*host, error) {
	h := &host{bed: b, name: name, ns: netns.Name(prefix) + "-" + name}
	if err := netns.Add(h.ns); err != nil {
		return nil, err
	}
	b.hosts = append(b.hosts, h)
	return h, nil
}

// link joins two hosts by a link of their own, from which sends at most mbits
// (10^6 bits a second, headers counted as on a real wire).
func (b *bed) link(from, to *host, mbits int) (*link, error) {
	b.links++
	l := &link{from: from, far: to, dev: fmt.Sprintf("link%d", b.links)}
	// 198.18.0.0/15 is for test beds: RFC 2544.
	l.fromAddr, l.toAddr = fmt.Sprintf("198.18.%d.1", b.links), fmt.Sprintf("198.18.%d.2", b.links)
	return l, errors.Join(
		netns.Run("ip", "link", "add", l.dev, "netns", from.ns, "type", "veth", "peer", "name", l.dev, "netns", to.ns),
		netns.Run("ip", "-n", from.ns, "addr", "add", l.fromAddr+"/24", "dev", l.dev),
		netns.Run("ip", "-n", to.ns, "addr", "add", l.toAddr+"/24", "dev", l.dev),
		l.pace(mbits),
		netns.Run("ip", "-n", from.ns, "link", "set", l.dev, "up"),
		netns.Run("ip", "-n", to.ns, "link", "set", l.dev, "up"),
	)
}

// star is a decode host with n prefill hosts, each on a link of its own, on
// which it sends at most mbits.
func (b *bed) star(n, mbits int) (decode *host, links []*link, err error) {
	if decode, err = b.host("decode"); err != nil {
		return nil, nil, err
	}
	for i := range n {
		prefill, err := b.host(fmt.Sprintf("prefill%d", i+1))
		if err != nil {
			return nil, nil, err
		}
		l, err := b.link(prefill, decode, mbits)
		if err != nil {
			return nil, nil, err
		}
		links = append(links, l)
	}
	return decode, links, nil
}

// pace sets what from may send. With a burst of 4 ms iperf3 gets 0.957 of the
// rate, which with 1500-byte packets is all that is left for data, also while
// the processors are busy; the queue holds 20 ms more.
func (l *link) pace(mbits int) error {
	burst := max(64<<10, mbits*1e6/8*4/1000)
	return netns.Run("tc", "-n", l.from.ns, "qdisc", "replace", "dev", l.dev, "root",
		"tbf", "rate", strconv.Itoa(mbits)+"mbit", "burst", strconv.Itoa(burst), "latency", "20ms")
}

// cut pulls the plug at the far end: from goes on sending, and nobody hears.
func (l *link) cut() error  { return netns.Run("ip", "-n", l.far.ns, "link", "set", l.dev, "down") }
func (l *link) mend() error { return netns.Run("ip", "-n", l.far.ns, "link", "set", l.dev, "up") }

// remove ends all programs and takes everything away. It can be called at any
// time, also when the bed is only half made.
func (b *bed) remove() error {
	var errs []error
	b.killAll()
	for _, h := range b.hosts {
		errs = append(errs, netns.Remove(h.ns))
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// killAll ends all programs.
func (b *bed) killAll() {
	for _, h := range b.hosts {
		for _, p := range h.running {
			p.kill()
		}
		h.running = nil
	}
}

// possible says why hosts cannot be made here, or nil.
func possible(ctx context.Context) (err error) {
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("there is no program %q: install iproute2", tool)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("making network namespaces takes root: run it as root, as with: sudo bin/hosts")
	}
	b, err := newBed(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.remove()) }()
	one, err := b.host("one")
	if err != nil {
		return err
	}
	two, err := b.host("two")
	if err != nil {
		return err
	}
	_, err = b.link(one, two, 1000)
	return err
}
