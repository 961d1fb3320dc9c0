package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
)

// iperf is a server of iperf3; each send runs a client.
type iperf struct {
	bench  *bench
	server *process
	port   string
	bytes  int // that a client sends
}

// iperf starts the server. An error is exec.ErrNotFound where there is no
// iperf3.
func (b *bench) iperf(bytes int) (*iperf, error) {
	name, err := exec.LookPath("iperf3")
	if err != nil {
		return nil, fmt.Errorf("%w: scripts/setup --bench installs it", err)
	}
	// It takes no free port by itself. Somebody may take this one in between,
	// and then the run ends.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	s, err := b.start(name, "--server", "--bind", "127.0.0.1", "--port", port, "--forceflush")
	if err != nil {
		return nil, err
	}
	if _, err := s.firstLine(); err != nil {
		s.stop()
		return nil, err
	}
	return &iperf{b, s, port, bytes}, nil
}

// send is what the server received by one stream, in MB/s.
func (i *iperf) send() (float64, error) {
	out, err := exec.CommandContext(i.bench.ctx, "iperf3", "--client", "127.0.0.1", "--port", i.port,
		"--bytes", strconv.Itoa(i.bytes), "--json").Output()
	var result struct {
		Error string
		End   struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if wrong := json.Unmarshal(out, &result); err == nil {
		err = wrong
	}
	if result.Error != "" {
		err = errors.New(result.Error)
	}
	if err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	return result.End.Received.Rate / 8e6, nil
}

func (i *iperf) stop() { i.server.stop() }
