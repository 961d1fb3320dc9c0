package sock

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// resolveTimeout bounds the look-up of a host name.
const resolveTimeout = 5 * time.Second

// unixPathMax is what a unix socket's path may have, bytes (sun_path less its
// closing zero).
const unixPathMax = 107

// address is a parsed endpoint.
type address struct {
	scheme string // "tcp" or "ipc"
	host   string // tcp: IP, name, or "*"; IPv6 without brackets
	port   string // tcp: number or "*"
	path   string // ipc
}

func (a address) String() string {
	if a.scheme == "ipc" {
		return "ipc://" + a.path
	}
	return "tcp://" + net.JoinHostPort(a.host, a.port)
}

// CheckListen says what is wrong with an endpoint to listen on, or nil:
// tcp://HOST:PORT, IPv6 in brackets, host "*" for every address, port "*" or 0
// for a free one; or ipc://PATH.
func CheckListen(endpoint string) error {
	_, err := parseListen(endpoint)
	return err
}

// CheckDial says what is wrong with an endpoint to connect to, or nil: as for
// CheckListen, with one host and one port.
func CheckDial(endpoint string) error {
	_, err := parseDial(endpoint)
	return err
}

// IsPublic says whether others than this host can reach the endpoint.
func IsPublic(endpoint string) bool {
	a, err := parse(endpoint)
	if err != nil || a.scheme != "tcp" || a.host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(a.host)
	return err != nil || !ip.IsLoopback()
}

// Host is the host that a peer reaches by an endpoint to connect to: an address
// without brackets, or a name. Behind ipc it is this one.
func Host(endpoint string) string {
	a, err := parseDial(endpoint)
	if err != nil || a.scheme == "ipc" {
		return "localhost"
	}
	return a.host
}

// ListenAddress is the IP address that an endpoint to listen on means, "" if it
// is every one of this host's. Behind ipc it is the loopback.
func ListenAddress(endpoint string) (string, error) {
	a, err := parseListen(endpoint)
	if err != nil {
		return "", err
	}
	if a.scheme == "ipc" {
		return "127.0.0.1", nil
	}
	if card, err := net.InterfaceByName(a.host); err == nil {
		return cardAddress(card)
	}
	if err := a.resolveToBind(); err != nil {
		return "", err
	}
	if ip, err := netip.ParseAddr(a.host); err != nil || ip.IsUnspecified() {
		return "", nil
	}
	return a.host, nil
}

// cardAddress is a network card's first address, IPv4 if it has one.
func cardAddress(card *net.Interface) (first string, err error) {
	addrs, err := card.Addrs()
	for _, addr := range addrs {
		prefix, err := netip.ParsePrefix(addr.String())
		if err == nil && prefix.Addr().Is4() {
			return prefix.Addr().String(), nil
		}
		if err == nil && first == "" {
			first = prefix.Addr().String()
		}
	}
	if err == nil && first == "" {
		err = fmt.Errorf("network card %s has no address", card.Name)
	}
	return first, err
}

func parseListen(endpoint string) (address, error) { return parse(endpoint) }

// parseDial gives equal addresses for endpoints that are only spelled otherwise.
// Names are not looked up: localhost is not 127.0.0.1 here.
func parseDial(endpoint string) (address, error) {
	a, err := parse(endpoint)
	if err != nil || a.scheme == "ipc" {
		return a, err
	}
	if a.host == "*" {
		return a, fmt.Errorf("endpoint %q: * is only for listening: name a host", endpoint)
	}
	if a.port == "*" || a.port == "0" {
		return a, fmt.Errorf("endpoint %q: port %s is only for listening: name the port", endpoint, a.port)
	}
	a.host = strings.ToLower(a.host)
	if ip, err := netip.ParseAddr(a.host); err == nil {
		a.host = ip.String()
	}
	return a, nil
}

func parse(endpoint string) (address, error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return address{}, fmt.Errorf("endpoint %q has no scheme: write tcp://HOST:PORT", endpoint)
	case strings.EqualFold(scheme, "ipc"):
		return parseIPC(endpoint, rest)
	case !strings.EqualFold(scheme, "tcp"):
		return address{}, fmt.Errorf("endpoint %q: scheme %q is unknown: write tcp://HOST:PORT", endpoint, scheme)
	}
	rest = strings.TrimSuffix(rest, "/") // as of a URL
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 || strings.HasSuffix(rest, "]") {
		return address{}, fmt.Errorf("endpoint %q has no port: write tcp://HOST:PORT", endpoint)
	}
	a := address{scheme: "tcp", host: rest[:colon], port: rest[colon+1:]}
	if err := a.checkHost(); err != nil {
		return address{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if err := checkPort(a.port); err != nil {
		return address{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	a.host = strings.Trim(a.host, "[]")
	if n, err := strconv.ParseUint(a.port, 10, 16); err == nil {
		a.port = strconv.FormatUint(n, 10) // without zeros in front
	}
	return a, nil
}

func parseIPC(endpoint, path string) (address, error) {
	if path == "" || path == "*" {
		return address{}, fmt.Errorf("endpoint %q has no path: write ipc://PATH", endpoint)
	}
	if len(path) > unixPathMax {
		return address{}, fmt.Errorf("endpoint %q: path has %d bytes, at most %d fit", endpoint, len(path), unixPathMax)
	}
	return address{scheme: "ipc", path: path}, nil
}

func (a address) checkHost() error {
	if inner, ok := strings.CutPrefix(a.host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		if ip, err := netip.ParseAddr(inner); err != nil || !closed || !ip.Is6() {
			return fmt.Errorf("host %q is no IPv6 address in brackets", a.host)
		}
		return nil
	}
	switch {
	case a.host == "":
		return fmt.Errorf("host is empty")
	case strings.Contains(a.host, ":"):
		return fmt.Errorf("an IPv6 address needs brackets and a port: write tcp://[::1]:PORT")
	case strings.ContainsFunc(a.host, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("[]/;@?#", r) }):
		return fmt.Errorf("host %q has a character that no host has", a.host)
	}
	return nil
}

func checkPort(port string) error {
	if port == "*" {
		return nil
	}
	if port == "" {
		return fmt.Errorf("port is empty")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return fmt.Errorf("port %q is not 0 to 65535 or *", port)
	}
	return nil
}

// wantsIPv6 says whether to bind with IPv6 on: a wildcard then takes IPv4 too.
func (a address) wantsIPv6() bool {
	return a.host == "*" || strings.Contains(a.host, ":")
}

// resolveToBind turns a host name into an address, IPv4 first, since ZeroMQ
// binds only to addresses and interfaces.
func (a *address) resolveToBind() error {
	if a.scheme != "tcp" || a.host == "*" || isIP(a.host) {
		return nil
	}
	if _, err := net.InterfaceByName(a.host); err == nil {
		return nil
	}
	ips, err := lookup(a.host)
	if err != nil {
		return err
	}
	a.host = ips[0].String()
	return nil
}

// resolveToDial says whether ZeroMQ needs IPv6 to reach the host. It keeps the
// name, which ZeroMQ looks up at each new connection; with IPv6 on it would
// try the name's IPv6 addresses only.
func (a address) resolveToDial() (ipv6 bool, err error) {
	if a.scheme != "tcp" {
		return false, nil
	}
	if isIP(a.host) {
		return strings.Contains(a.host, ":"), nil
	}
	ips, err := lookup(a.host)
	if err != nil {
		return false, err
	}
	return ips[0].Is6(), nil
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// lookup returns at least one address, IPv4 before IPv6.
func lookup(host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("host %q is not to be found: %w", host, err)
	}
	var v4, v6 []netip.Addr
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() {
			v4 = append(v4, ip)
		} else {
			v6 = append(v6, ip)
		}
	}
	if ips = append(v4, v6...); len(ips) == 0 {
		return nil, fmt.Errorf("host %q has no address", host)
	}
	return ips, nil
}

// taken says whether somebody listens on the path of an ipc endpoint; ZeroMQ
// would take the path away from them.
func (a address) taken() bool {
	if a.scheme != "ipc" {
		return false
	}
	conn, err := net.DialTimeout("unix", a.path, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// SamePort is an endpoint to listen on anew: with the port, where it may be any,
// that was had the first time, when Listen said actual.
func SamePort(endpoint, actual string) string {
	a, err := parseListen(endpoint)
	b, err2 := parse(actual)
	if err != nil || err2 != nil || a.scheme != "tcp" {
		return endpoint
	}
	a.port = b.port
	return a.String()
}

// advertise turns the endpoint that ZeroMQ bound into one that a peer can use:
// a wildcard becomes this host's first public address, else its loopback.
func advertise(bound string) string {
	a, err := parse(bound)
	if err != nil || a.scheme != "tcp" {
		return bound
	}
	ip, err := netip.ParseAddr(a.host)
	if err != nil || !ip.IsUnspecified() {
		return bound
	}
	a.host = hostAddress()
	return a.String()
}

func hostAddress() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, addr := range addrs {
		if ipnet, ok := addr.(*net.IPNet); ok && ipnet.IP.IsGlobalUnicast() && ipnet.IP.To4() != nil {
			return ipnet.IP.String()
		}
	}
	return "127.0.0.1"
}
