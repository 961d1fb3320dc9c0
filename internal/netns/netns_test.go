package netns

import (
	"fmt"
	"os"
	"testing"
)

// What a later run may remove: only names of ours, and only of runs that are
// over.
func TestAbandoned(t *testing.T) {
	const (
		prefix = "pd-test-"
		never  = 1 << 30 // no pid
	)
	for name, want := range map[string]bool{
		fmt.Sprint(prefix, never, "-1"):              true,
		fmt.Sprint(prefix, never, "-1-decode"):       true,
		fmt.Sprint(prefix, os.Getpid(), "-1-decode"): true, // a process of today that got its pid
		Name(prefix):                                false,
		Name(prefix) + "-decode":                    false,
		fmt.Sprint(prefix, 1, "-", started(1)):      false,
		fmt.Sprint("my-", prefix, never, "-1-host"): false,
		fmt.Sprint(prefix, never, "-decode"):        false,
		prefix + "decode":                           false,
		"decode":                                    false,
		"":                                          false,
	} {
		if got := abandoned(prefix, name); got != want {
			t.Errorf("%q: abandoned is %t", name, got)
		}
	}
}
