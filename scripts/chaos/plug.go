package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/pd-tools/pd-tools/internal/netns"
)

// prefix begins the names of the hosts that we make.
const prefix = "pd-chaos-"

// plug joins a sender's host, a network namespace of its own, to the one where
// all else runs. Chunks reach it over that only.
type plug struct {
	ns   string
	dev  string // our end of it
	ours string // address of that end
}

// newPlug needs root.
func newPlug(i int) (*plug, error) {
	pid := os.Getpid()
	p := &plug{
		ns:  fmt.Sprintf("%s-send%d", netns.Name(prefix), i),
		dev: fmt.Sprintf("pdc%x.%d", pid, i), // 15 letters at most
		// 198.18.0.0/15 is for test beds: RFC 2544. The other half is scripts/hosts'.
		ours: fmt.Sprintf("198.19.%d.%d", pid%256, 4*i+1),
	}
	theirs := fmt.Sprintf("198.19.%d.%d/30", pid%256, 4*i+2)
	if err := netns.Add(p.ns); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"link", "add", p.dev, "type", "veth", "peer", "name", "eth0", "netns", p.ns},
		{"addr", "add", p.ours + "/30", "dev", p.dev},
		{"-n", p.ns, "addr", "add", theirs, "dev", "eth0"},
		{"link", "set", p.dev, "up"},
		{"-n", p.ns, "link", "set", "eth0", "up"},
	} {
		if err := netns.Run("ip", args...); err != nil {
			return nil, errors.Join(err, p.remove())
		}
	}
	return p, nil
}

func (p *plug) endpoint(port int) string { return fmt.Sprintf("tcp://%s:%d", p.ours, port) }

// cut pulls the plug for a while: whoever sends goes on, and nobody hears.
func (p *plug) cut(long time.Duration) error {
	if err := netns.Run("ip", "link", "set", p.dev, "down"); err != nil {
		return err
	}
	time.Sleep(long)
	return netns.Run("ip", "link", "set", p.dev, "up")
}

func (p *plug) remove() error { return netns.Remove(p.ns) }

// hosts says why senders cannot have hosts of their own here, or nil.
func hosts() error {
	if os.Geteuid() != 0 {
		return errors.New("takes root")
	}
	if err := netns.Sweep(prefix); err != nil {
		return err
	}
	p, err := newPlug(0)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", p.ours+":0")
	if err == nil {
		// What cannot be heard there, behind a firewall, is of no use.
		_, port, _ := net.SplitHostPort(l.Addr().String())
		err = netns.Run("ip", "netns", "exec", p.ns, "bash", "-c", fmt.Sprintf("timeout 5 bash -c ': </dev/tcp/%s/%s'", p.ours, port))
		l.Close()
	}
	return errors.Join(err, p.remove())
}
