package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/pd-tools/pd-tools/internal/cli"
)

// share is a part of the buffer: a percentage of its slots or a number of them;
// the zero value is all.
type share struct{ percent, slots int }

// parseShare takes 25%, or a number of slots, or what is no limit.
func parseShare(s string) (share, error) {
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.Atoi(percent)
		if err != nil || n < 1 || n > 100 {
			return share{}, errors.New("is no percentage from 1% to 100%")
		}
		return share{percent: n}, nil
	}
	n, err := cli.Count(s)
	if err != nil {
		err = errors.New("is no number of slots, no percentage of them (25%), nor 0 or inf for no limit")
	}
	return share{slots: n}, err
}

func (q share) String() string {
	if q.percent > 0 {
		return strconv.Itoa(q.percent) + "%"
	}
	return strconv.Itoa(q.slots)
}

// of is how many of so many slots it is, at least one; 0: all.
func (q share) of(slots int) int {
	n := q.slots
	if q.percent > 0 {
		n = max(1, slots*q.percent/100)
	}
	if n >= slots {
		return 0
	}
	return n
}
