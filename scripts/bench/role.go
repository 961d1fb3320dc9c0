package main

import (
	"fmt"
	"io"
	"os"
)

// roleArg as first argument makes this binary one of the processes that are
// measured; the second names which.
const roleArg = "role"

// roles end when their stdin does, so none outlives the bench.
var roles = map[string]func(stdin io.Reader, stdout io.Writer) error{
	"echo":       echo,
	"copier":     copier,
	"writer":     writer,
	"target":     target,
	"initiator":  initiator,
	"subscriber": subscriber,
}

func runRole(name string) error {
	role := roles[name]
	if role == nil {
		return fmt.Errorf("there is no role %q", name)
	}
	return role(os.Stdin, os.Stdout)
}
