package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// nobody is an endpoint where nobody listens.
const nobody = "tcp://127.0.0.1:9"

// outcome is what became of a program that has ended.
type outcome struct {
	code           int // minus the signal, if one ended it
	stdout, stderr string
}

// run runs a program to its end, with variables added to its environment.
func run(t *testing.T, env []string, name string, args ...string) outcome {
	t.Helper()
	p := startWith(t, with{env: env}, name, args...)
	code := p.exits()
	return outcome{code, strings.Join(p.stdout(), "\n"), p.stderr()}
}

// wrongUsage checks that a program refuses how it is called: exit 2, nothing on
// stdout, and on stderr what is wrong and where help is.
func (o outcome) wrongUsage(t *testing.T, says ...string) {
	t.Helper()
	lines := strings.Split(o.stderr, "\n")
	ok := o.code == 2 && o.stdout == "" && len(lines) == 3 &&
		strings.HasPrefix(lines[0], "pd-") && regexp.MustCompile(`^Try 'pd-[a-z -]+ --help'$`).MatchString(lines[1])
	for _, text := range says {
		ok = ok && strings.Contains(lines[0], text)
	}
	if !ok {
		t.Errorf("exit %d, stdout %q, stderr %q; want 2 and %q", o.code, o.stdout, o.stderr, says)
	}
}

// Values that flags of a kind do not take, and what is said of each.
var badValues = map[string]map[string]string{
	"listen": {
		"7600": "write tcp://HOST:PORT", "tcp://127.0.0.1": "no port", "tcp://127.0.0.1:70000": "0 to 65535",
		"tcp://::1:7600": "tcp://[::1]:PORT", "http://127.0.0.1:1": "write tcp://HOST:PORT", "": "write tcp://HOST:PORT",
	},
	"monitor":  {"7602": "write tcp://HOST:PORT", "tcp://127.0.0.1": "no port", "off": "write tcp://HOST:PORT"},
	"dial":     {"tcp://*:7600": "name a host", "tcp://127.0.0.1:0": "name the port", "localhost:1": "write tcp://HOST:PORT"},
	"size":     {"0": "less than a byte", "-1": "write bytes", "lots": "KiB", "NaN": "write bytes", "9999999TiB": "write bytes", "": "write bytes"},
	"limit":    {"-1": "write bytes", "lots": "KiB", "": "write bytes"}, // a size that may be off
	"duration": {"-1s": "negative", "NaN": "write 250ms", "5": "write 250ms", "": "write 250ms"},
	"count":    {"-1": "whole number", "1.5": "whole number", "some": "whole number", "": "whole number"},
	"number":   {"0": "more than 0", "-1": "more than 0", "NaN": "more than 0", "inf": "more than 0"},
	"bool":     {"maybe": "neither true nor false"},
	"share":    {"-1": "nor 0 or inf", "some": "nor 0 or inf", "101%": "1% to 100%", "0%": "1% to 100%", "": "nor 0 or inf"},
	"text":     {},
	"file":     {"": "name a file"},
	"choice":   {"wrong": "none of", "": "none of"},
	"provider": {"": "fi_info"},
	"address":  {"eth0": "no IP address", "10.0.0.1:7600": "no IP address", "": "no IP address"},
	"port":     {"70000": "1 to 65535", "-1": "1 to 65535", "http": "1 to 65535", "": "1 to 65535"},
	"name":     {strings.Repeat("n", 257): "at most 256"},
	"http":     {"9100": "write HOST:PORT", "http://127.0.0.1:9100": "without http://", "[::1]": "write HOST:PORT", "localhost:http": "1 to 65535", "a b:1": "neither a name"},
}

// TestBadFlags gives every flag of every program each bad value of its kind, on
// the command line and in its variable.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, p := range []struct {
		call  []string
		flags map[string]string
	}{
		{[]string{"pd-recv"}, map[string]string{
			"listen": "listen", "buffer-size": "size", "chunk-size": "size", "engine": "choice", "admission": "choice",
			"fabric": "provider", "fabric-addr": "address", "fabric-service": "port",
			"admit-timeout": "duration", "lease": "duration", "legacy-lease": "duration", "ready-ttl": "duration", "overtake": "count",
			"queue-limit": "count", "queue-bytes": "limit", "sink": "duration", "proxy": "dial", "monitor": "monitor", "metrics": "http",
			"shutdown-timeout": "duration", "max-prefill": "count", "tokens-per-chunk": "count",
			"sender-requests": "count", "sender-queue": "count", "sender-share": "share", "curve-key": "file", "curve-allow": "file",
		}},
		{[]string{"pd-recv", "stat"}, map[string]string{"timeout": "duration", "curve-key": "file", "curve-allow": "file"}},
		{[]string{"pd-recv", "take"}, map[string]string{"o": "file", "keep": "bool", "timeout": "duration", "curve-key": "file", "curve-allow": "file"}},
		{[]string{"pd-recv", "drop"}, map[string]string{"timeout": "duration", "curve-key": "file", "curve-allow": "file"}},
		{[]string{"pd-send"}, map[string]string{
			"to": "dial", "proxy": "dial", "notify": "choice", "staging-size": "size", "batch": "count", "engine": "choice",
			"fabric": "provider", "fabric-addr": "address", "timeout": "duration", "pending": "limit", "pace": "number", "name": "name", "monitor": "listen", "metrics": "http", "shutdown-timeout": "duration",
			"curve-key": "file", "curve-allow": "file",
		}},
		{[]string{"pd-send", "manifest"}, map[string]string{
			"chunk-size": "size", "tokens-per-chunk": "count", "limit": "count", "interleave": "count", "batch": "count", "prefix": "text",
		}},
		{[]string{"pd-proxy"}, map[string]string{
			"listen": "listen", "json": "bool", "expect": "count", "recover": "dial", "n": "count", "timeout": "duration", "monitor": "listen", "metrics": "http", "shutdown-timeout": "duration",
			"curve-key": "file", "curve-allow": "file",
		}},
		{[]string{"pd-top"}, map[string]string{
			"delay": "duration", "count": "count", "batch": "bool", "once": "bool", "json": "bool", "wait": "bool", "stall": "duration",
			"sort": "choice", "reverse": "bool", "filter": "text", "units": "choice", "color": "choice", "ascii": "bool",
			"curve-key": "file", "curve-allow": "file",
		}},
	} {
		t.Run(strings.Join(p.call, " "), func(t *testing.T) {
			t.Parallel()
			for _, flag := range flagNames(t, p.call) {
				kind, known := p.flags[flag]
				if !known {
					t.Errorf("--%s is not tested", flag)
				}
				for value, says := range badValues[kind] {
					badFlag(t, p.call, flag, value, says)
				}
				badVariable(t, p.call, flag, badValues[kind])
			}
		})
	}
}

// flagNames lists the flags that --help names, but for the common ones.
func flagNames(t *testing.T, call []string) (flags []string) {
	t.Helper()
	help := output(t, 0, call[0], append(call[1:], "--help")...)
	for _, m := range regexp.MustCompile(`(?m)^\s+(?:-[a-z], )?--?([a-z-]+)`).FindAllStringSubmatch(help, -1) {
		if !slices.Contains([]string{"help", "h", "version", "completion"}, m[1]) {
			flags = append(flags, m[1])
		}
	}
	return flags
}

func badFlag(t *testing.T, call []string, flag, value, says string) {
	t.Helper()
	dashed := "--" + flag
	if len(flag) == 1 {
		dashed = "-" + flag
	}
	run(t, nil, call[0], append(call[1:], dashed+"="+value)...).wrongUsage(t, dashed, fmt.Sprintf("%q", value), says)
}

// badVariable gives a flag's variable one of the values; an empty one is as
// none.
func badVariable(t *testing.T, call []string, flag string, values map[string]string) {
	t.Helper()
	variable := strings.ToUpper(strings.ReplaceAll(call[0]+"_"+flag, "-", "_"))
	for value, says := range values {
		if value != "" {
			run(t, []string{variable + "=" + value}, call[0], call[1:]...).wrongUsage(t, variable, fmt.Sprintf("%q", value), says)
			return
		}
	}
}

// TestBadCalls calls the programs in ways that no flag's value is to blame for.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ call, says string }{
		{"pd-recv --nope", "unknown flag --nope"},
		{"pd-recv -x", "unknown flag -x"},
		{"pd-recv serv", `unknown command "serv": have serve, stat, take, drop`},
		{"pd-recv serve x", `unexpected argument "x"`},
		{"pd-recv --buffer-size 1023 --chunk-size 1KiB", "at least 1024 bytes"},
		{"pd-recv --listen", "--listen needs a value"},
		{"pd-recv --lease 1s --lease 2s", "given twice"},
		{"pd-recv stat", "missing ENDPOINT"},
		{"pd-recv stat here", "write tcp://HOST:PORT"},
		{"pd-recv stat tcp://127.0.0.1:1 --timeout", `flag "--timeout" stands behind an argument: flags come first`},
		{"pd-recv take tcp://127.0.0.1:1", "missing REQ_ID"},
		{"pd-recv take tcp://127.0.0.1:1 A -o=x", `flag "-o=x" stands behind an argument: flags come first`},
		{"pd-recv take tcp://127.0.0.1:1 A B", `unexpected argument "B"`},
		{"pd-recv drop", "missing ENDPOINT and REQ_ID"},
		{"pd-recv drop --keep tcp://127.0.0.1:1 A", "unknown flag --keep"},
		{"pd-send", "missing --to: name a receiver"},
		{"pd-send file", "missing --to: name a receiver"},
		{"pd-send --to tcp://127.0.0.1:1 file --batch 2", `flag "--batch" stands behind an argument: flags come first`},
		{"pd-recv take -- tcp://127.0.0.1:1 -A --keep", `unexpected argument "--keep"`},
		{"pd-send --to tcp://127.0.0.1:1 manifest", "--to is no flag of pd-send manifest"},
		{"pd-send manifest a b", `unexpected argument "b"`},
		{"pd-proxy x", `unexpected argument "x"`},
		{"pd-proxy --completion tcsh", "bash, zsh, fish"},
		{"pd-top", "missing ENDPOINT"},
		{"pd-top here", "write tcp://HOST:PORT"},
		{"pd-top --nope", "unknown flag --nope"},
	} {
		words := strings.Fields(tt.call)
		run(t, nil, words[0], words[1:]...).wrongUsage(t, tt.says)
	}
}

// badLine is lines of a manifest of which the last cannot be used.
type badLine struct {
	reqID string // the request that fails; "": the line names none
	lines string
	says  string // what is wrong and what to do
}

// badLines has one of each kind. It makes the files that some of them name.
func badLines(t *testing.T) []badLine {
	t.Helper()
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	const chunk = `{"key":"k","length":10}`
	request := func(id, fields string) string { return fmt.Sprintf(`{"req_id":%q,%s}`, id, fields) }
	from := func(file string, offset, length int) string {
		return fmt.Sprintf(`"total_chunks":1,"chunks":[{"key":"k","file":%q,"offset":%d,"length":%d}],"last":true`, file, offset, length)
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	return []badLine{
		{"", `nonsense`, `a line is a record, or a comment that begins with #`},
		{"", `[1]`, `wants an object`},
		{"", `{"total_chunks":1,"chunks":[],"last":true}`, `req_id is empty or missing: give 1 to 512 bytes`},
		{"", request("", `"total_chunks":1`), `req_id is empty or missing`},
		{"", `{"req_id":7,"total_chunks":1}`, `req_id: wants a string`},
		{"", request(long(513), `"total_chunks":1`), `at most 512 are allowed`},
		{"", "{\"req_id\":\"\xff\",\"total_chunks\":1}", `not UTF-8`},
		{"too long", `{"req_id":"too long","total_chunks":1,"chunks":[],"at":` + strings.Repeat(" ", 4<<20) + `1}`, `break it into several lines`},
		{"", `{"cancel":7}`, `cancel: wants a string`},
		{"", `{"cancel":""}`, `cancel is empty`},
		{"cut", `{"req_id":"cut","total_chunks":1`, `its writer stopped early`},
		{"two", request("two", `"total_chunks":1`) + `{}`, `a line is one record`},
		{"field", request("field", `"total_chunks":1,"colour":1`), `a line has req_id, total_chunks`},
		{"cancelled", request("cancelled", `"total_chunks":1,"cancel":"x"`), `put it on a line of its own`},
		{"no total", request("no total", `"chunks":[`+chunk+`]`), `every line has req_id and total_chunks`},
		{"negative", request("negative", `"total_chunks":-1`), `counts from 0`},
		{"half", request("half", `"total_chunks":1.5`), `total_chunks: wants a whole number`},
		{"huge", request("huge", `"total_chunks":99999999999999999999`), `total_chunks: wants a whole number`},
		{"text", request("text", `"total_chunks":"1"`), `total_chunks: wants a whole number`},
		{"nothing", request("nothing", `"total_chunks":0,"chunks":[],"last":false`), `"last":true for a request without any`},
		{"no list", request("no list", `"total_chunks":1,"chunks":{}`), `chunks: wants an array`},
		{"no object", request("no object", `"total_chunks":1,"chunks":["k"]`), `wants an object`},
		{"chunk field", request("chunk field", `"total_chunks":1,"chunks":[{"key":"k","size":1}]`), `a chunk has key, file, offset, length`},
		{"no key", request("no key", `"total_chunks":1,"chunks":[{"length":10}]`), `chunks[0]: key is empty or missing`},
		{"long key", request("long key", `"total_chunks":1,"chunks":[{"key":"`+long(4097)+`","length":10}]`), `at most 4096`},
		{"no length", request("no length", `"total_chunks":1,"chunks":[{"key":"k"}]`), `a chunk has at least 1 byte`},
		{"minus length", request("minus length", `"total_chunks":1,"chunks":[{"key":"k","length":-1}]`), `a chunk has at least 1 byte`},
		{"minus offset", request("minus offset", `"total_chunks":1,"chunks":[{"key":"k","offset":-1,"length":1}]`), `counts from 0`},
		{"far", request("far", `"total_chunks":1,"chunks":[{"key":"k","offset":9223372036854775807,"length":1}]`), `beyond any file`},
		{"twice", request("twice", `"total_chunks":2,"chunks":[`+chunk+`,`+chunk+`]`), `needs its own`},
		{"last", request("last", `"total_chunks":1,"last":"yes"`), `last: wants true or false`},
		{"at", request("at", `"total_chunks":1,"at":-1`), `give seconds from 0`},
		{"to", request("to", `"total_chunks":1,"to":-1`), `counts from 0`},
		{"nobody", request("nobody", `"total_chunks":1,"to":1,"chunks":[`+chunk+`],"last":true`), `there are 1 receivers, the first is 0`},
		{"many", request("many", `"total_chunks":1,"chunks":[`+chunk+`,{"key":"l","length":1}]`), `correct either`},
		{"more", batch("more", 2, 0, 1) + batchOf("more", 2, false, keys("x", 0, 2)), `correct either`},
		{"other total", batch("other total", 4, 0, 1) + batch("other total", 3, 1, 1), `all lines of a request say the same`},
		{"early", batch("early", 4, 0, 1) + batchOf("early", 4, true, keys("x", 0, 1)), `must not end a request early`},
		{"again", batch("again", 4, 0, 1) + batch("again", 4, 0, 1), `needs its own`},
		{"elsewhere", batch("elsewhere", 2, 0, 1) + batch("elsewhere", 2, 1, 1, `"to":0`), `not what the request's first line says`},
		{"missing", request("missing", from("none", 0, 10)), `name it as seen from where this program runs`},
		{"folder", request("folder", from(dir, 0, 10)), `is a directory: name a file`},
		{"fifo", request("fifo", from(filepath.Join(dir, "fifo"), 0, 10)), `write its bytes to a file first`},
		{"short", request("short", from(short, 900, 101)), `has 1000 bytes, chunk wants 101 at offset 900`},
		{"beyond", request("beyond", from(short, 2000, 1)), `has 1000 bytes, chunk wants 1 at offset 2000`},
		{"large", request("large", `"total_chunks":1,"chunks":[{"key":"k","length":1025}],"last":true`), `raise its --chunk-size or send smaller chunks`},
		{"too many", batch("too many", 11, 0, 11), `needs 11 chunks, buffer holds 10: raise --buffer-size`},
		{"open", batch("open", 4, 0, 1), `the input ended before the last line`},
	}
}

// TestBadManifest has a manifest with one line of each kind that cannot be
// used, and behind each a request that can: the bad line's request fails and no
// other, and what is said names the line, what is wrong and what to do.
func TestBadManifest(t *testing.T) {
	t.Parallel()
	r := receive(t, 10, "--sink")
	var manifest strings.Builder
	at := map[string]int{} // the numbers of the bad lines, by what is said of them
	bad := badLines(t)
	for i, b := range bad {
		manifest.WriteString(strings.TrimSuffix(b.lines, "\n") + "\n")
		at[b.lines] = strings.Count(manifest.String(), "\n")
		manifest.WriteString("# a comment, and a blank line\n\n" + batch(fmt.Sprint("good", i), 1, 0, 1))
	}
	file := filepath.Join(t.TempDir(), "manifest")
	if err := os.WriteFile(file, []byte(manifest.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, nil, "pd-send", "--to", r.endpoint, file)
	if code := s.exits(); code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	failed, ready := 0, 0
	for i, b := range bad {
		if l := s.lines("req_id", fmt.Sprint("good", i), "status", "ready"); len(l) == 1 {
			ready++
		}
		place := fmt.Sprintf("%s:%d: ", file, at[b.lines])
		said := lineWith(s.stderr(), place, b.says)
		if b.reqID == "" {
			if !said {
				t.Errorf("of %.80s stderr does not say %q at %s", b.lines, b.says, place)
			}
			continue
		}
		failed++
		l := s.lines("req_id", b.reqID)
		if len(l) != 1 || l[0].str("status") != "failed" || !strings.Contains(l[0].str("error"), b.says) ||
			l[0].str("code") == "bad_manifest" && !said {
			t.Errorf("of %.80s we have %v, want %q at %s", b.lines, l, b.says, place)
		}
	}
	if n := len(s.stdout()); ready != len(bad) || n != ready+failed {
		t.Errorf("%d of %d good requests are ready; %d lines, want %d", ready, len(bad), n, ready+failed)
	}
	if !strings.Contains(s.stderr(), fmt.Sprintf("%d ready, %d failed", ready, failed)) {
		t.Errorf("the summary does not say %d ready, %d failed: %s", ready, failed, tail(s.stderr(), 400))
	}
	r.empty()
}

// lineWith says whether a line of text has all parts.
func lineWith(text string, parts ...string) bool {
next:
	for line := range strings.Lines(text) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue next
			}
		}
		return true
	}
	return false
}
