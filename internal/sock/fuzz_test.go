package sock

import (
	"strings"
	"testing"

	"github.com/pebbe/zmq4"
)

const fuzzKey = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID" // a public key of the CURVE specification

// FuzzAllowFile: whatever an allow file holds, it is refused with its line or
// read as what it says: written anew it is the same list.
func FuzzAllowFile(f *testing.F) {
	for _, text := range []string{
		"", "# nobody\n\n", fuzzKey, fuzzKey + " # send\r\n", fuzzKey + " tcp://127.0.0.1:7600 # recv\n", fuzzKey + " tcp://[::1]:7600\n" + fuzzKey,
		fuzzKey + " ipc:///run/pd\n", fuzzKey + " tcp://*:1\n", fuzzKey[1:] + "\n", fuzzKey + " a b\n",
		fuzzKey + " TCP://HOST:07600/\n" + fuzzKey + " tcp://host:7600\n", strings.Repeat(fuzzKey[1:]+fuzzKey[:1]+" tcp://[0::1]:1\n"+fuzzKey+" tcp://[::1]:1\n", 2),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseAllow(text)
		if err != nil {
			if list != nil || !strings.HasPrefix(err.Error(), "line ") {
				t.Fatalf("%v, %v", list, err)
			}
			return
		}
		var again strings.Builder
		for key := range list.peers {
			again.WriteString(key + "\n")
		}
		for endpoint, s := range list.servers {
			again.WriteString(s.key + " " + endpoint + " # it\n")
		}
		same, err := parseAllow(again.String())
		if err != nil || len(same.peers) != len(list.peers) || len(same.servers) != len(list.servers) {
			t.Fatalf("%q is read as %v, and as %v when written anew: %v", text, list, same, err)
		}
		if doubts := same.doubts("F"); len(doubts) > 0 {
			t.Fatalf("one key for each endpoint, and yet %q", doubts)
		}
		f := &allowFile{name: "F"}
		f.list.Store(list)
		for endpoint, s := range list.servers {
			if got := same.servers[endpoint]; got.key != s.key {
				t.Fatalf("%s has %v, and %v when written anew", endpoint, s, got)
			}
			if key, err := f.server(endpoint, true); key != s.key || err != nil {
				t.Fatalf("%s has %v, and %q when asked for: %v", endpoint, s, key, err)
			}
			if told := strings.Contains(strings.Join(list.doubts("F"), "\n")+"\n", "keys for "+endpoint+", in"); told != (len(s.old) > 0) {
				t.Fatalf("%s has %v, and people are told so: %v", endpoint, s, told)
			}
		}
	})
}

// FuzzKeyFile: what is taken from a key file is a key, and no text of one makes
// ZeroMQ fail otherwise than with an error.
func FuzzKeyFile(f *testing.F) {
	for _, text := range []string{
		"", "curve\n    public-key = \"" + fuzzKey + "\"\n    secret-key = \"" + fuzzKey + "\"\n", "secret-key=" + fuzzKey, "secret-key = \"\"\n", "secret-key = \"#" + fuzzKey[1:] + "\"",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		secret := certified(text, "secret-key")
		if secret == "" {
			return
		}
		if !isKey(secret) {
			t.Fatalf("%q is taken for a key", secret)
		}
		if public, err := zmq4.AuthCurvePublic(secret); err == nil && !isKey(public) {
			t.Fatalf("the public key of %q is %q", secret, public)
		}
	})
}
