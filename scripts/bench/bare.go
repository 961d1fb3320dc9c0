package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed fabric/write.c
var bareSource []byte

// compile makes the C program and returns its name.
func (b *bench) compile() (string, error) {
	source, program := filepath.Join(b.dir, "write.c"), filepath.Join(b.dir, "write")
	if err := os.WriteFile(source, bareSource, 0o600); err != nil {
		return "", err
	}
	line := `exec $(go env CC) -O2 -o "$2" "$1" $(pkg-config --cflags --libs libfabric) -pthread`
	if out, err := exec.CommandContext(b.ctx, "sh", "-c", line, "sh", source, program).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot compile against libfabric (scripts/setup installs what it takes): %w: %s", err, out)
	}
	return program, nil
}

// bare are the two processes of the C program.
type bare struct {
	target, initiator *worker
	bytes             int
}

func (b *bench) bare(program, provider string, walk, piece, window int) (_ *bare, err error) {
	p := &bare{bytes: walk}
	size := []string{provider, strconv.Itoa(walk), strconv.Itoa(piece)}
	var at struct {
		Addr      string
		Base, Key uint64
	}
	if p.target, err = startWorker(program, append([]string{"target"}, size...)...); err != nil {
		return nil, err
	}
	if err = p.target.hear(&at); err == nil {
		p.initiator, err = startWorker(program, append(append([]string{"initiator"}, size...), strconv.Itoa(window))...)
	}
	if err == nil {
		err = p.initiator.say(fmt.Sprintf("%s %d %d", at.Addr, at.Base, at.Key))
	}
	if err == nil {
		err = p.initiator.hear(new(span))
	}
	if err == nil {
		_, err = p.write() // connects
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// write has all written and compares; MB/s.
func (p *bare) write() (float64, error) {
	var s span
	var found struct{ Bad int }
	for _, step := range []struct {
		who    *worker
		order  string
		answer any
	}{
		{p.target, "clear", &found},
		{p.target, "go", &found},
		{p.initiator, "go", &s},
		{p.target, "stop", &found},
		{p.target, "check", &found},
	} {
		if err := step.who.ask(step.order, step.answer); err != nil {
			return 0, err
		}
	}
	if found.Bad > 0 {
		return 0, fmt.Errorf("%s: %d words differ from what was written", strings.Join(p.target.cmd.Args, " "), found.Bad)
	}
	return speed(p.bytes, s), nil
}

func (p *bare) stop() {
	for _, w := range []*worker{p.initiator, p.target} {
		if w != nil {
			w.stop()
		}
	}
}
