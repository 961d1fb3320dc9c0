// Package netns makes network namespaces, which test beds use as hosts, and
// removes them, those too that a killed run has left. It knows nothing of what
// runs in them. Their names tell which run made them: start at Name.
package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killWithin bounds how long the programs in a namespace may take to die.
const killWithin = 10 * time.Second

// Name begins the names of all that this run makes: namespaces, to which a dash
// and a name are added, and one folder. The pid and its start follow prefix, so
// that a later run knows what a killed one left.
func Name(prefix string) string {
	return fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), started(os.Getpid()))
}

// started is when a process has, in ticks of the system, "" when there is none.
// With it a pid is unique.
func started(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field is the program's name in parentheses and may hold
	// anything; the start is the 22nd.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return fields[22-3]
}

// Add makes one; nothing reaches it but its own loopback.
func Add(ns string) error {
	if err := Run("ip", "netns", "add", ns); err != nil {
		return err
	}
	if err := Run("ip", "-n", ns, "link", "set", "lo", "up"); err != nil {
		return errors.Join(err, Remove(ns))
	}
	return nil
}

// Sweep removes what runs that were killed have left: namespaces, and folders of
// temporary files.
func Sweep(prefix string) error {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return fmt.Errorf("ip netns list: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ") // "NAME (id: 0)"
		if abandoned(prefix, name) {
			errs = append(errs, Remove(name))
		}
	}
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, folder := range folders {
		if abandoned(prefix, filepath.Base(folder)) {
			errs = append(errs, os.RemoveAll(folder))
		}
	}
	return errors.Join(append(errs, err)...)
}

var ours = regexp.MustCompile(`^([0-9]+)-([0-9]+)(-[a-z0-9]+)?$`)

// abandoned tells a name made by a run that lives no more.
func abandoned(prefix, name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	match := ours.FindStringSubmatch(rest)
	if !ok || match == nil {
		return false
	}
	pid, err := strconv.Atoi(match[1])
	return err == nil && started(pid) != match[2]
}

// Remove kills what is left in a namespace and deletes it. Its veth ends go with
// it, and with them the other ends.
func Remove(ns string) error {
	for deadline := time.Now().Add(killWithin); ; time.Sleep(5 * time.Millisecond) {
		out, err := exec.Command("ip", "netns", "pids", ns).Output()
		if err != nil {
			return fmt.Errorf("ip netns pids %s: %w", ns, err)
		}
		pids := strings.Fields(string(out))
		if len(pids) == 0 {
			return Run("ip", "netns", "delete", ns)
		}
		for _, text := range pids {
			pid, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("ip netns pids %s: %w", ns, err)
			}
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot remove the network namespace %s: %s do not die", ns, strings.Join(pids, " "))
		}
	}
}

// Run runs a command, and its error is what the command said.
func Run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
