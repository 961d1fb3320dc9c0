package cli

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	urfave "github.com/urfave/cli/v2"

	"github.com/pd-tools/pd-tools/internal/sock"
)

// Flag is one flag of a program: a value that a parse function fills from the
// command line, else from the environment, else from the default. Given twice
// it is an error, unless it is a List.
type Flag struct {
	name, alias, placeholder, def, usage string

	env      string // its variable, set by nameVariables
	envErr   error
	given    bool // on the command line
	fromEnv  bool
	many     bool
	bare     bool // stands alone, without a value
	optValue bool // --flag[=VALUE]
	parse    func(string) error
	reset    func() // List: forget what the environment said
}

// Var makes a flag with a value. An empty default is T's zero value, and help
// shows none. A default that does not parse is a programmer's error.
func Var[T any](dst *T, name, placeholder, def, usage string, parse func(string) (T, error)) *Flag {
	f := &Flag{name: name, placeholder: placeholder, def: def, usage: usage}
	f.parse = func(s string) (err error) {
		v, err := parse(s)
		if err == nil {
			*dst = v
		}
		return err
	}
	if def != "" {
		if err := f.parse(def); err != nil {
			panic(fmt.Sprintf("default of --%s: %v", name, err))
		}
	}
	return f
}

// Bool makes a flag without a value, with at most one alias.
func Bool(dst *bool, name, usage string, alias ...string) *Flag {
	f := Var(dst, name, "", "", usage, func(s string) (bool, error) {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return false, errors.New("is neither true nor false")
		}
		return v, nil
	})
	f.bare = true
	f.alias = strings.Join(alias, "")
	return f
}

// Short gives a flag a second name, of one letter.
func (f *Flag) Short(letter string) *Flag {
	f.alias = letter
	return f
}

// Optional makes a flag that may stand alone: --sink or --sink=2ms. Alone it
// means the value alone; left out, dst stays as it is and IsSet is false.
func Optional[T any](dst *T, name, placeholder, alone, usage string, parse func(string) (T, error)) *Flag {
	f := Var(dst, name, placeholder, "", usage, parse)
	withValue := f.parse
	f.parse = func(s string) error {
		if s == "true" {
			s = alone
		}
		return withValue(s)
	}
	f.bare, f.optValue = true, true
	return f
}

// List makes a flag that can be given several times; in its variable the
// values are separated by commas.
func List[T any](dst *[]T, name, placeholder, usage string, parse func(string) (T, error)) *Flag {
	f := &Flag{name: name, placeholder: placeholder, usage: usage, many: true}
	f.reset = func() { *dst = nil }
	f.parse = func(s string) error {
		v, err := parse(s)
		if err == nil {
			*dst = append(*dst, v)
		}
		return err
	}
	return f
}

// IsSet says whether the command line or the environment gave a value.
func (f *Flag) IsSet() bool { return f.given || f.fromEnv }

// Names is for urfave.
func (f *Flag) Names() []string {
	if f.alias == "" {
		return []string{f.name}
	}
	return []string{f.name, f.alias}
}

// String is for urfave.
func (f *Flag) String() string { return dashed(f.name) }

// Apply is for urfave: it takes the environment's value and adds the flag to
// the set that will parse the command line.
func (f *Flag) Apply(set *flag.FlagSet) error {
	if !f.given {
		f.envErr = f.readEnv()
	}
	for _, name := range f.Names() {
		set.Var(flagValue{f}, name, f.usage)
	}
	return nil
}

// readEnv takes an empty variable for one that is not there.
func (f *Flag) readEnv() error {
	text := os.Getenv(f.env)
	if f.env == "" || text == "" {
		return nil
	}
	parts := []string{text}
	if f.many {
		parts = strings.Split(text, ",")
		f.reset()
	}
	for _, part := range parts {
		if err := f.parse(part); err != nil {
			return blame("variable "+f.env, strconv.Quote(part), err.Error())
		}
	}
	f.fromEnv = true
	return nil
}

// envError is what was wrong with the variable, unless the command line
// overrides it.
func (f *Flag) envError() error {
	if f.given {
		return nil
	}
	return f.envErr
}

// flagValue is the flag package's view of a Flag.
type flagValue struct{ f *Flag }

func (v flagValue) String() string   { return "" }
func (v flagValue) IsBoolFlag() bool { return v.f.bare }

func (v flagValue) Set(s string) error {
	f := v.f
	if f.given && !f.many {
		return errors.New("is given twice")
	}
	if f.many && !f.given {
		f.reset()
	}
	f.given = true
	return f.parse(s)
}

// nameVariables gives each flag its variable: --queue-limit of pd-recv has
// PD_RECV_QUEUE_LIMIT. Help, version and completion have none.
func nameVariables(program string, flags []urfave.Flag) {
	for _, f := range flags {
		f := f.(*Flag)
		if slices.Contains([]string{"help", "version", "completion"}, f.name) {
			continue
		}
		f.env = strings.ToUpper(strings.ReplaceAll(program+"_"+f.name, "-", "_"))
	}
}

// Text takes any text.
func Text(s string) (string, error) { return s, nil }

// Provider takes the name of a libfabric provider.
func Provider(s string) (string, error) {
	if s == "" {
		return "", errors.New("is empty: name a provider that fi_info lists")
	}
	return s, nil
}

// ListenEndpoint takes an endpoint to listen on.
func ListenEndpoint(s string) (string, error) { return s, sock.CheckListen(s) }

// MonitorEndpoint takes an endpoint to publish on; "none" is none, and gives "".
func MonitorEndpoint(s string) (string, error) {
	if s == "none" || s == "" {
		return "", nil
	}
	return ListenEndpoint(s)
}

// DialEndpoint takes an endpoint to connect to.
func DialEndpoint(s string) (string, error) { return s, sock.CheckDial(s) }

// HTTPAddress takes an address to serve HTTP on: HOST:PORT, [IPv6]:PORT, or
// :PORT for every address; port * or 0 is a free one. "none" is none, and gives
// "".
func HTTPAddress(s string) (string, error) {
	if s == "none" || s == "" {
		return "", nil
	}
	if strings.Contains(s, "/") {
		return "", errors.New("is no address: write HOST:PORT, without http://")
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errors.New("is no address: write HOST:PORT, [IPv6]:PORT or :PORT")
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", errors.New("has no port from 1 to 65535, nor * for a free one")
	}
	if !isHost(host) {
		return "", fmt.Errorf("has host %q, which is neither a name nor an address", host)
	}
	return net.JoinHostPort(host, port), nil
}

// isHost says whether s may be one: an address, a name, or "" for all.
func isHost(s string) bool {
	if strings.Contains(s, ":") {
		ip, err := netip.ParseAddr(s)
		return err == nil && ip.Is6()
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("[];@?#", r) })
}

// IPAddress takes an address, not a name.
func IPAddress(s string) (string, error) {
	if _, err := netip.ParseAddr(s); err != nil {
		return "", errors.New("is no IP address")
	}
	return s, nil
}

// OneOf takes one of the given words.
func OneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("is none of %s", strings.Join(words, ", "))
		}
		return s, nil
	}
}

// ListOf takes words separated by commas, each once.
func ListOf(words ...string) func(string) ([]string, error) {
	one := OneOf(words...)
	return func(s string) ([]string, error) {
		list := strings.Split(s, ",")
		for i, word := range list {
			if _, err := one(word); err != nil {
				return nil, fmt.Errorf("%q %w", word, err)
			}
			if slices.Contains(list[:i], word) {
				return nil, fmt.Errorf("has %q twice", word)
			}
		}
		return list, nil
	}
}

// Int takes a whole number from low to high.
func Int(low, high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("is no whole number from %d to %d", low, high)
		}
		return n, nil
	}
}

// Count takes a whole number from 1; 0 and "inf" are no limit, and give 0.
func Count(s string) (int, error) {
	if s == "inf" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, errors.New("is no whole number from 1, nor 0 or inf for no limit")
	}
	return n, nil
}

// Size takes bytes: 4096, 64KiB, 1.5GiB (powers of 1024), 64MB (powers of
// 1000). It is at least 1.
func Size(s string) (int64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || strings.ContainsAny(s, "+-,") || n > math.MaxInt64 {
		return 0, errors.New("is no size: write bytes, or a number with KiB, MiB or GiB")
	}
	if n == 0 {
		return 0, errors.New("is less than a byte")
	}
	return int64(n), nil
}

// SizeLimit takes a Size; 0 and "inf" are no limit, and give 0.
func SizeLimit(s string) (int64, error) {
	if s == "0" || s == "inf" {
		return 0, nil
	}
	return Size(s)
}

// Duration takes a length of time in Go's form that is more than 0.
func Duration(s string) (time.Duration, error) {
	d, err := Delay(s)
	if err == nil && d == 0 {
		err = errors.New("is no time at all")
	}
	return d, err
}

// Delay takes a length of time in Go's form, 0 included.
func Delay(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, errors.New("is no length of time: write 250ms, 15s or 2m30s")
	case d < 0:
		return 0, errors.New("is negative")
	}
	return d, nil
}

// Limit takes a Delay; 0 and "inf" are no limit, and give 0.
func Limit(s string) (time.Duration, error) {
	if s == "inf" {
		return 0, nil
	}
	return Delay(s)
}

// Factor takes a number more than 0.
func Factor(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return 0, errors.New("is no number more than 0")
	}
	return v, nil
}
