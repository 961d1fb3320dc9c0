package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSlowDisk(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := os.WriteFile(name, []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := newDisk(dir)
	if err != nil {
		t.Skip("needs root: ", err)
	}
	defer d.close()
	d.slowFor(600 * time.Millisecond)
	for _, least := range []time.Duration{200 * time.Millisecond, 0} {
		began := time.Now()
		got, err := os.ReadFile(name)
		took := time.Since(began)
		if err != nil || string(got) != "bytes" || took < least {
			t.Errorf("%q after %v, want no less: %v; %v", got, took, least, err)
		}
		d.slowFor(0)
	}
}
