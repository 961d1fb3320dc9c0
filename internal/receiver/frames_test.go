package receiver

import (
	"bytes"
	"testing"
)

func TestOpen(t *testing.T) {
	long := bytes.Repeat([]byte("x"), maxEnvelope)
	b := func(frames ...string) (out [][]byte) {
		for _, f := range frames {
			out = append(out, []byte(f))
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		frames  [][]byte
		carried int // frames that go back
		payload string
		fault   string
	}{
		{"no delimiter", b("id", "p"), 1, "p", ""},
		{"one frame with a mark", b("id", "\xc1correlatp"), 1, "p", ""},
		{"half a mark", b("id", "\xc1correla"), 1, "\xc1correla", ""},
		{"a mark alone", b("id", "\xc1correlat"), 1, "", ""},
		{"a mark behind a delimiter", b("id", "", "\xc1correlatp"), 2, "\xc1correlatp", ""},
		{"LMCache, REQ", b("id", "", "p"), 2, "p", ""},
		{"correlation", b("id", "corr", "", "p"), 3, "p", ""},
		{"through a device", b("id", "hop", "hop", "", "p"), 4, "p", ""},
		{"nothing", b("id"), 1, "", "message has no payload"},
		{"delimiter only", b("id", ""), 2, "", "message has no payload"},
		{"correlation and delimiter", b("id", "corr", ""), 3, "", "message has no payload"},
		{"empty payload", b("id", "", ""), 2, "", ""},
		{"several without delimiter", b("id", "a", "b", "c"), 1, "", "payload has more than one frame"},
		{"several behind it", b("id", "", "a", "b"), 2, "", "payload has more than one frame"},
		{"two delimiters", b("id", "", "", "p"), 2, "", "payload has more than one frame"},
		{"long correlation", [][]byte{[]byte("id"), long, nil, []byte("p")}, 3, "", "frames before the payload are too long"},
	} {
		env, payload, fault := open(tc.frames)
		if string(payload) != tc.payload || fault != tc.fault || env.sender != "id" || len(env.frames) != tc.carried {
			t.Errorf("%s: %d frames carried, payload %q, fault %q", tc.name, len(env.frames), payload, fault)
		}
	}
}
