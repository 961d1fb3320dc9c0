// Package noquery keeps bubbletea v1 from asking the terminal for its colours
// when a program starts, before main and whether or not there will be a screen:
// a terminal that does not answer costs five seconds then, and output that is
// no screen begins with escape sequences. Nobody here needs the answer.
//
// To a terminal that calls itself dumb no question is put. Packages that are
// ready to be initialised are so in the order of their paths: this one needs
// only os and comes before golang.org/x/sys, which bubbletea needs. The main
// package calls Restore before it looks at TERM.
package noquery

import "os"

var term, isSet = os.LookupEnv("TERM")

func init() { os.Setenv("TERM", "dumb") }

// Restore puts TERM back.
func Restore() {
	if isSet {
		os.Setenv("TERM", term)
	} else {
		os.Unsetenv("TERM")
	}
}
