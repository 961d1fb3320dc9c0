package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// open is what a process has.
type open struct {
	others   []string // descriptors that are no memory
	memories int
	memory   int64 // bytes
}

func descriptors(pid int) (o open) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, _ := os.ReadDir(dir) // none when it has ended
	for _, fd := range list {
		name := filepath.Join(dir, fd.Name())
		target, err := os.Readlink(name)
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(target, "/memfd:"):
			var s syscall.Stat_t
			if syscall.Stat(name, &s) == nil {
				o.memories++
				o.memory += s.Blocks * 512
			}
		default:
			o.others = append(o.others, target)
		}
	}
	return o
}

// leftovers sees that all programs have ended and left no file, socket or shared
// memory behind.
func (w *world) leftovers() {
	procs, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, cwd := range procs {
		if at, err := os.Readlink(cwd); err == nil && at == w.dir {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(cwd), "cmdline"))
			w.violated("left running: %s %q", filepath.Base(filepath.Dir(cwd)), name)
		}
	}
	said, _ := filepath.Glob(filepath.Join(w.dir, "*.err"))
	for _, name := range said {
		text, _ := os.ReadFile(name)
		for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
			if strings.Contains(string(text), bad) {
				w.violated("%s in %s", bad, name)
			}
		}
	}
	files, _ := filepath.Glob(filepath.Join(w.dir, "taken", ".*"))
	for _, f := range files {
		w.violated("left behind: %s", f)
	}
	there := unixNames(nil)
	for _, r := range w.ledger.receivers {
		for _, name := range r.sockets {
			if slices.Contains(there, name) {
				w.violated("left open: the unix socket %s of %s", name, r.name)
			}
		}
	}
}

// unixNames are the names of the abstract unix sockets among these descriptors,
// or of all.
func unixNames(of []string) (names []string) {
	text, _ := os.ReadFile("/proc/net/unix")
	for entry := range strings.Lines(string(text)) {
		f := strings.Fields(entry)
		if len(f) == 8 && strings.HasPrefix(f[7], "@pd-tools/") && (of == nil || slices.Contains(of, "socket:["+f[6]+"]")) {
			names = append(names, f[7])
		}
	}
	return names
}
