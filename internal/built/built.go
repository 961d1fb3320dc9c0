// Package built says how this test was built, and builds the programs it runs
// in the same way. It knows nothing of them. Only tests import it.
package built

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/pd-tools/pd-tools/internal/crc32c"
	"github.com/pd-tools/pd-tools/rdma/engines"
)

// With says whether there is an engine of this name: ofi is left out by -tags
// noofi.
func With(engine string) bool { return slices.Contains(engines.Names(), engine) }

// Programs builds packages into a folder: with the race detector where the test
// has it, and without the engines that it lacks. They are named from folder at,
// which may be empty: where the test runs.
func Programs(dir, at string, packages ...string) error { return build(Race, dir, at, packages) }

// Fast is Programs without the race detector: for what is measured.
func Fast(dir, at string, packages ...string) error { return build(false, dir, at, packages) }

// tags are those that this test was built with.
func tags() (tags []string) {
	if !With("ofi") {
		tags = append(tags, "noofi")
	}
	if !crc32c.ISAL {
		tags = append(tags, "noisal")
	}
	return tags
}

func build(race bool, dir, at string, packages []string) error {
	args := []string{"build", "-o", dir}
	if race {
		args = append(args, "-race")
	}
	args = append(args, "-tags", strings.Join(tags(), ","))
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Dir = at
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the programs: %w\n%s", err, out)
	}
	return nil
}
