//go:build !noofi

package ofi

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// FuzzLines has a target say anything on the control connection: it is read line
// by line, and a line never costs more than its limit.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"endpoint":"AAAA","probe":"AAAAAAAAAAAAAAAAAAAAAA=="}` + "\n" + `{"ended":true}` + "\n"))
	f.Add([]byte(`{"error":"no"}`))
	f.Add([]byte(strings.Repeat("x", maxLine+1) + "\n"))
	f.Add([]byte(strings.Repeat(`{"endpoint":[`, 300) + "\n{}\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		in := newLines(bytes.NewReader(said))
		for range len(said) + 1 {
			m, err := in.next()
			if len(m.Error)+len(m.Endpoint)+len(m.Probe) > 3*maxLine {
				t.Fatalf("a line of %d bytes at most reads as %d, %d and %d", maxLine, len(m.Error), len(m.Endpoint), len(m.Probe))
			}
			if err != nil {
				if errors.Is(err, io.EOF) && bytes.Count(said, []byte("\n")) == 0 && len(said) > maxLine {
					t.Fatal("a line over the limit is read as the end")
				}
				return
			}
		}
		t.Fatal("more lines than bytes")
	})
}
