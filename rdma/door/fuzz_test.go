package door

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/rdma"
)

// FuzzHello has somebody say anything: who is not told a token does not come in,
// and who is comes in all the same.
func FuzzHello(f *testing.F) {
	f.Add([]byte(nil), []byte(nil), 0)
	f.Add([]byte(magic+"w"+strings.Repeat("x", 40)), []byte{0, 1}, 0)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.long.enough.name.of.a.host\r\n\r\n"), []byte{7: 1}, 1)
	f.Add([]byte(magic), []byte{8: 'w' ^ 'r'}, 3)
	f.Add([]byte(magic+"r\x01"+strings.Repeat("\x00", 39)), []byte{48: 1}, 49)
	f.Fuzz(func(t *testing.T, junk, mask []byte, cut int) {
		if len(junk) > 4096 || len(mask) > len(magic)+tokenLen {
			return
		}
		inBubble(t, nil, func(t *testing.T, d *testDoor) {
			good := d.grant(t, 1)
			bent := bytes.Clone(good)
			for i, b := range mask {
				bent[i] ^= b
			}
			if cut < 0 || cut > len(bent) {
				cut = 0
			}
			for _, hello := range [][]byte{junk, bent[:len(bent)-cut]} {
				if bytes.HasPrefix(hello, good) {
					continue
				}
				c := d.dial()
				go func() { c.Write(hello) }() // nobody need read all of it
				if cut > 0 && len(hello) < len(good) {
					c.Close()
					continue
				}
				if a := answer(c); strings.HasPrefix(a, "in ") || strings.HasPrefix(a, "reader") {
					t.Fatalf("%q lets one in: %q", hello, a)
				}
				c.Close()
			}
			c, a := d.knock(t, good)
			if a != "in 1" {
				t.Fatalf("the token is answered %q", a)
			}
			c.Close()
			d.wantGone(t, rdma.Writer(1))
		})
	})
}
