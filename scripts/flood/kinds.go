package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pd-tools/pd-tools/internal/peertest"
	"github.com/pd-tools/pd-tools/wire"
)

// kinds is all of them.
func kinds() (all []kind) {
	for _, more := range [][]kind{strangers(), badFrames(), badPayloads(), badRequests(), forgeries(), liars(), connections(), proxies(), watchers(), doors(), keysOnly()} {
		all = append(all, more...)
	}
	return all
}

// connection is how much a kind costs that connects for each message: it stands
// for so many.
const connection = 8

// Other protocols, at the port of the senders and at that of the proxy.

var babble = []struct{ name, said string }{
	{"nothing, and gone", ""},
	{"zeros", string(make([]byte, 4096))},
	{"HTTP GET", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
	{"HTTP POST of 64 KiB", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n" + strings.Repeat("x", 65536)},
	{"TLS hello", "\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + strings.Repeat("\x5a", 189)},
	{"SSH banner", "SSH-2.0-OpenSSH_9.9\r\n"},
	{"redis", "*1\r\n$4\r\nPING\r\n"},
	{"ten bytes of a greeting", string(greeting("NULL")[:10])},
	{"greeting of ZMTP 1.0", "\x01\x00"},
	{"greeting of ZMTP 2.0", "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05\x00\x00"},
	{"greeting for CURVE", string(greeting("CURVE"))},
	{"greeting for an unknown mechanism", string(greeting("TRUSTME"))},
	{"greeting and no socket type", string(append(greeting("NULL"), appendFrame(nil, frameCommand, []byte("\x05READY"))...))},
	{"greeting and a wrong socket type", string(append(greeting("NULL"), ready("PUB", "")...))},
	{"greeting and absurd properties", string(append(greeting("NULL"), appendFrame(nil, frameCommand, []byte("\x05READY\xffSocket-Type\xff\xff\xff\xffDEALER"))...))},
	{"greeting and a message before the handshake", string(append(greeting("NULL"), appendMessage(nil, nil, []byte("x"))...))},
}

func strangers() (all []kind) {
	for _, b := range babble {
		all = append(all,
			kind{name: "port of pd-recv: " + b.name, weight: connection, send: func(a *attacker) error { return a.once(a.recv.endpoint, []byte(b.said)) }},
			kind{name: "port of pd-proxy: " + b.name, weight: 4 * connection, send: func(a *attacker) error { return a.once(a.proxy.endpoint, []byte(b.said)) }},
			kind{name: "port of monitor: " + b.name, weight: 4 * connection, send: func(a *attacker) error { return a.once(a.recv.monitor, []byte(b.said)) }},
			kind{name: "port of metrics: " + b.name, weight: 8 * connection, send: func(a *attacker) error { return a.once(a.recv.metrics, []byte(b.said)) }},
		)
	}
	return append(all,
		kind{name: "noise", weight: connection, send: func(a *attacker) error { return a.once(a.recv.endpoint, a.noise(1+a.rng.IntN(4096))) }},
		kind{name: "half a greeting, and stays", weight: connection, send: func(a *attacker) error {
			return a.stays(a.recv.endpoint, greeting("NULL")[:11+a.rng.IntN(50)], 50)
		}},
		kind{name: "noise after the handshake", weight: connection, send: func(a *attacker) error {
			return a.once(a.recv.endpoint, append(append(greeting("NULL"), ready("DEALER", "")...), a.noise(1+a.rng.IntN(4096))...))
		}},
	)
}

// said is what a connected peer says, one connection a time.
func said(name string, what func(*attacker) []byte) kind {
	return kind{name: name, weight: connection, send: func(a *attacker) error {
		return a.once(a.recv.endpoint, append(append(greeting("NULL"), ready("DEALER", "")...), what(a)...))
	}}
}

func badFrames() []kind {
	frames := func(name string, what func(a *attacker) [][]byte) kind {
		return kind{name: name, send: func(a *attacker) error { return a.talk(what(a)...) }}
	}
	some := func(n int, size int, more ...[]byte) (all [][]byte) {
		for range n {
			all = append(all, bytes.Repeat([]byte("f"), size))
		}
		return append(all, more...)
	}
	stat := encode(&wire.StatRequest{})
	return []kind{
		said("a frame of 2^63 bytes", func(*attacker) []byte { return []byte("\x02\x80\x00\x00\x00\x00\x00\x00\x00xx") }),
		said("a frame a byte over the limit", func(*attacker) []byte { return appendFrame(nil, 0, make([]byte, wire.MaxMessage+1)) }),
		said("a frame that is cut off", func(*attacker) []byte { return appendFrame(nil, 0, make([]byte, 1000))[:500] }),
		said("a message without its last frame", func(*attacker) []byte { return appendFrame(nil, frameMore, []byte("x")) }),
		said("an unknown command", func(a *attacker) []byte {
			return appendFrame(nil, frameCommand, append([]byte("\x04EVIL"), a.noise(100)...))
		}),
		said("an ERROR command", func(*attacker) []byte { return appendFrame(nil, frameCommand, []byte("\x05ERROR\x04dead")) }),
		said("pings", func(*attacker) []byte {
			return bytes.Repeat(appendFrame(nil, frameCommand, []byte("\x04PING\x00\x0acontext")), 20)
		}),
		said("flags that do not exist", func(*attacker) []byte { return appendFrame(nil, 0xf8, []byte("x")) }),
		frames("an empty message", func(*attacker) [][]byte { return [][]byte{{}} }),
		frames("two empty frames", func(*attacker) [][]byte { return [][]byte{{}, {}} }),
		frames("no delimiter, junk", func(a *attacker) [][]byte { return [][]byte{a.noise(50)} }),
		frames("no delimiter, a message", func(*attacker) [][]byte { return [][]byte{stat} }),
		frames("frames and no delimiter", func(*attacker) [][]byte { return some(5, 10) }),
		frames("a payload of two frames", func(*attacker) [][]byte { return [][]byte{[]byte("c"), {}, stat, stat} }),
		frames("16 frames", func(*attacker) [][]byte { return some(14, 1, nil) }),
		frames("17 frames", func(*attacker) [][]byte { return some(15, 1, nil, stat) }),
		{name: "1000 frames", weight: 50, send: func(a *attacker) error { return a.talk(some(1000, 1, nil, stat)...) }},
		frames("an envelope over its limit", func(*attacker) [][]byte { return some(3, 1500, nil, stat) }),
		{name: "an envelope of 4 MiB and no reader", weight: 100, send: func(a *attacker) error {
			c, err := a.as(a.recv.endpoint, "DEALER", "", false)
			if err != nil {
				return err
			}
			return c.send(some(4, wire.MaxMessage, nil, stat)...)
		}},
	}
}

// payload is a kind that sends bytes where a message belongs.
func payload(name string, what func(*attacker) []byte) kind {
	return kind{name: name, send: func(a *attacker) error { return a.ask(what(a)) }}
}

func fixed(name string, b []byte) kind { return payload(name, func(*attacker) []byte { return b }) }

func badPayloads() []kind {
	good := batch("odd", 4, false, "k0", "k1")
	return []kind{
		payload("random bytes", func(a *attacker) []byte { return a.noise(a.rng.IntN(300)) }),
		payload("a message cut short", func(a *attacker) []byte { return good[:a.rng.IntN(len(good))] }),
		payload("trailing bytes", func(a *attacker) []byte { return append(bytes.Clone(good), a.noise(1+a.rng.IntN(9))...) }),
		payload("a message with bytes changed", func(a *attacker) []byte {
			b := bytes.Clone(good)
			for range 1 + a.rng.IntN(4) {
				b[a.rng.IntN(len(b))] = byte(a.rng.Uint32())
			}
			return b
		}),
		fixed("arrays 10,000 deep", bytes.Repeat([]byte("\x91"), 10_000)),
		fixed("maps 10,000 deep", bytes.Repeat([]byte("\x81\xa1a"), 10_000)),
		fixed("arrays deep in a field nobody knows", claims("z", strings.Repeat("\x91", 10_000))),
		fixed("an array of 2^32 keys", claims("keys", "\xdd\xff\xff\xff\xff")),
		fixed("a map of 2^32 fields", []byte("\xdf\xff\xff\xff\xff")),
		fixed("a text of 2^32 bytes", claims("req_id", "\xdb\xff\xff\xff\xff")),
		fixed("binary of 2^32 bytes", claims("z", "\xc6\xff\xff\xff\xff")),
		fixed("a type nobody knows", fields("type", str("Evil"))),
		fixed("no type", fields("req_id", str("x"))),
		fixed("a type that is a number", fields("type", "\x01")),
		fixed("one field a thousand times", append([]byte("\xde\x03\xe8"), bytes.Repeat([]byte(str("type")+str(wire.NameStatRequest)), 1000)...)),
		fixed("an answer instead of a question", encode(&wire.AllocResponse{RemoteIndexes: []int64{1}})),
		fixed("a notification for the proxy", encode(&wire.ProxyNotif{ReqID: "x"})),
		fixed("a Snapshot", encode(&wire.Snapshot{Kind: wire.KindReceiver})),
		fixed("a float for a number", claims("total_chunks", "\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00")),
		fixed("nil for a list", claims("keys", "\xc0")),
		fixed("binary for a text", claims("req_id", "\xc4\x01x")),
		fixed("a number for a flag", claims("is_last_batch", "\x01")),
		fixed("text that is not UTF-8", claims("req_id", "\xa2\xff\xfe")),
		fixed("an extension type", claims("fmt", "\xd4\x01\x00")),
	}
}

// request is a kind that asks for what cannot be had.
func badRequests() []kind {
	num := func(v uint64) string { return string(binary.BigEndian.AppendUint64([]byte{0xcf}, v)) }
	neg := func(v int64) string { return string(binary.BigEndian.AppendUint64([]byte{0xd3}, uint64(v))) }
	return []kind{
		fixed("2^64-1 chunks", claims("total_chunks", num(math.MaxUint64))),
		fixed("-1 chunks", claims("total_chunks", neg(-1))),
		fixed("no chunks", claims("total_chunks", "\x00")),
		fixed("more chunks than the buffer has", claims("total_chunks", num(slots+1))),
		fixed("a shape of 2^63", claims("shape", "\x91"+num(1<<63))),
		fixed("a shape whose product is beyond counting", claims("shape", "\x94"+strings.Repeat(num(1<<40), 4))),
		fixed("a shape of 10,000 dimensions", claims("shape", "\xdc\x27\x10"+strings.Repeat("\x01", 10_000))),
		fixed("a negative shape", claims("shape", "\x91"+neg(math.MinInt64))),
		fixed("a chunk larger than a slot", claims("shape", "\x91"+num(slotBytes+1))),
		fixed("an unknown fmt", claims("fmt", num(99))),
		fixed("an unknown dtype", claims("dtype", str("float1024"))),
		fixed("last_chunk_toks of 2^63", claims("last_chunk_toks", num(1<<63))),
		fixed("a key twice", batch("twice", 2, true, "k", "k")),
		fixed("an empty req_id", batch("", 1, true, "k")),
		fixed("a req_id of 513 bytes", batch(strings.Repeat("r", wire.MaxReqID+1), 1, true, "k")),
		fixed("a key of 4097 bytes", batch("long", 1, true, strings.Repeat("k", wire.MaxKey+1))),
		{name: "8193 keys", weight: 20, send: func(a *attacker) error { return a.ask(batch(a.fresh(), 1, true, many(wire.MaxKeys+1, 16)...)) }},
		{name: "a message of 1 MiB, the limit", weight: 50, send: func(a *attacker) error {
			b := batch(a.fresh(), 1, true, many(8000, 120)...)
			return a.ask(append(b, make([]byte, wire.MaxMessage-len(b))...))
		}},
		payload("a last batch without keys", func(a *attacker) []byte { return batch(a.fresh(), 1, true) }),
		payload("more keys than declared", func(a *attacker) []byte { return batch(a.fresh(), 1, true, "a", "b", "c") }),
		payload("an epoch of nobody's", func(a *attacker) []byte {
			m := peertest.Alloc(a.fresh(), 1, true, slotBytes, "k")
			m.Epoch = a.rng.Uint64() | 1
			return encode(m)
		}),
		payload("slots asked for and left", func(a *attacker) []byte { return batch(a.fresh(), 1, false, a.fresh()) }),
		{name: "8192 refusals and no reader", weight: 20, send: func(a *attacker) error { return a.mute(batch("", 1, true, many(wire.MaxKeys, 8)...)) }},
	}
}

// forgeries name what belongs to others.
func forgeries() []kind {
	return []kind{
		payload("a request of another's name", func(a *attacker) []byte { return batch(a.theirs(), 4, true, "k") }),
		payload("a cancel of another's request", func(a *attacker) []byte { return encode(&wire.CancelNotif{ReqID: a.theirs()}) }),
		{name: "a cancel of another's request, with 5000 keys", weight: 20, send: func(a *attacker) error {
			return a.ask(encode(&wire.CancelNotif{ReqID: a.theirs(), Keys: many(5000, 8)}))
		}},
		payload("a commit of another's request", func(a *attacker) []byte {
			return encode(&wire.CommitRequest{ReqID: a.theirs(), Slots: []int64{int64(a.rng.IntN(slots))}, Lengths: []int64{slotBytes}, CRCs: []uint32{1}})
		}),
		payload("a batch of another's keys", func(a *attacker) []byte { return batch(a.fresh(), 1, true, a.theirs()+"-0") }),
		payload("a release of what is not taken", func(a *attacker) []byte { return encode(&wire.ReleaseRequest{ReqID: a.fresh()}) }),
		payload("a take given back that nobody took", func(a *attacker) []byte { return encode(&wire.ReleaseRequest{ReqID: a.fresh(), Keep: true}) }),
		payload("a take of what is not there", func(a *attacker) []byte { return encode(&wire.TakeRequest{ReqID: a.fresh()}) }),
		payload("a cancel of what is not there", func(a *attacker) []byte { return encode(&wire.CancelNotif{ReqID: a.fresh()}) }),
		payload("a commit of what is not there", func(a *attacker) []byte {
			return encode(&wire.CommitRequest{ReqID: a.fresh(), Slots: []int64{-1, 1 << 62}, Lengths: []int64{-1, 1 << 62}, CRCs: []uint32{0, 0}})
		}),
		payload("a commit of lists that differ", func(a *attacker) []byte {
			return encode(&wire.CommitRequest{ReqID: a.fresh(), Slots: []int64{1, 2, 3}, Lengths: []int64{1}})
		}),
		{name: "ready, taken and never released", send: func(a *attacker) error {
			id := a.fresh()
			if err := a.ask(batch(id, 1, true, id)); err != nil {
				return err
			}
			return a.ask(encode(&wire.TakeRequest{ReqID: id}))
		}},
		payload("one request again and again", func(*attacker) []byte { return batch("again", 2, false, "again") }),
		{name: "an identity that two fight for", weight: connection, send: func(a *attacker) error {
			c, err := handshake(a.recv.endpoint, "DEALER", "the same", true, &a.answers)
			if err != nil {
				return err
			}
			a.hold(c, 2)
			return c.send(nil, batch(a.fresh(), 1, false, "k"))
		}},
		{name: "an identity of 255 bytes", weight: connection, send: func(a *attacker) error {
			c, err := handshake(a.recv.endpoint, "DEALER", strings.Repeat("i", 255), true, &a.answers)
			if err != nil {
				return err
			}
			a.hold(c, 1)
			return c.send(nil, encode(&wire.StatRequest{}))
		}},
	}
}

// liars attach, or do not read, or do not mean what they say.
func liars() []kind {
	attach := func(name string, what func(*attacker) *wire.AttachRequest) kind {
		return payload(name, func(a *attacker) []byte { return encode(what(a)) })
	}
	return []kind{
		attach("attaches without end", func(*attacker) *wire.AttachRequest {
			return &wire.AttachRequest{Name: "again", Version: wire.ProtocolVersion, Engines: []string{"shm"}}
		}),
		attach("attaches of another version", func(*attacker) *wire.AttachRequest {
			return &wire.AttachRequest{Name: "old", Version: 99, Engines: []string{"shm"}}
		}),
		attach("attaches by unknown engines", func(a *attacker) *wire.AttachRequest {
			return &wire.AttachRequest{Name: strings.Repeat("n", wire.MaxName), Version: wire.ProtocolVersion, Engines: many(wire.MaxEngines, wire.MaxName)}
		}),
		attach("attaches with absurd slots", func(*attacker) *wire.AttachRequest {
			return &wire.AttachRequest{Version: wire.ProtocolVersion, SlotSize: math.MaxInt64, Engines: []string{"shm"}, ByteOrder: "middle"}
		}),
		{name: "heartbeats of a wrong epoch, attached", send: func(a *attacker) error {
			if a.conn == nil {
				if err := a.ask(encode(&wire.AttachRequest{Name: "wrong", Version: wire.ProtocolVersion, Engines: []string{"shm"}})); err != nil {
					return err
				}
			}
			return a.ask(encode(&wire.Heartbeat{Epoch: a.rng.Uint64()}))
		}},
		payload("heartbeats of a wrong epoch", func(a *attacker) []byte { return encode(&wire.Heartbeat{Epoch: a.rng.Uint64()}) }),
		fixed("stat without end", encode(&wire.StatRequest{})),
		{name: "stat and no reader", send: func(a *attacker) error { return a.mute(encode(&wire.StatRequest{})) }},
		{name: "junk and no reader", send: func(a *attacker) error { return a.mute([]byte("junk")) }},
		{name: "takes and no reader", send: func(a *attacker) error { return a.mute(encode(&wire.TakeRequest{ReqID: a.theirs()})) }},
		{name: "a request that waits and no reader", send: func(a *attacker) error { return a.mute(batch(a.fresh(), slots+1, true, "k")) }},
	}
}

func connections() []kind {
	return []kind{
		{name: "connected, and gone", weight: connection, send: func(a *attacker) error {
			return a.once(a.recv.endpoint, append(greeting("NULL"), ready("DEALER", a.fresh())...))
		}},
		{name: "a request, and gone before its answer", weight: connection, send: func(a *attacker) error {
			return a.once(a.recv.endpoint, appendMessage(append(greeting("NULL"), ready("DEALER", "")...), nil, batch(a.fresh(), 1, false, "k")))
		}},
		{name: "identities by the thousand", weight: connection, send: func(a *attacker) error {
			c, err := handshake(a.recv.endpoint, "DEALER", a.fresh(), true, &a.answers)
			if err != nil {
				return err
			}
			a.hold(c, 100)
			return c.send(nil, batch(a.fresh(), 1, false, "k"))
		}},
		{name: "attached, and gone", weight: connection, send: func(a *attacker) error {
			hello := encode(&wire.AttachRequest{Name: "gone", Version: wire.ProtocolVersion, Engines: []string{"shm"}})
			return a.once(a.recv.endpoint, appendMessage(append(greeting("NULL"), ready("DEALER", a.fresh())...), nil, hello))
		}},
	}
}

func proxies() []kind {
	push := func(name string, what func(*attacker) [][]byte) kind {
		return kind{name: "pd-proxy: " + name, send: func(a *attacker) error { return a.push(what(a)...) }}
	}
	one := func(name string, what func(*attacker) []byte) kind {
		return push(name, func(a *attacker) [][]byte { return [][]byte{what(a)} })
	}
	return []kind{
		one("random bytes", func(a *attacker) []byte { return a.noise(a.rng.IntN(300)) }),
		one("a message cut short", func(a *attacker) []byte { return encode(&wire.ProxyNotif{ReqID: "x"})[:a.rng.IntN(15)] }),
		one("no req_id", func(*attacker) []byte { return encode(&wire.ProxyNotif{}) }),
		one("a req_id of 513 bytes", func(*attacker) []byte { return encode(&wire.ProxyNotif{ReqID: strings.Repeat("r", wire.MaxReqID+1)}) }),
		one("a question for a receiver", func(*attacker) []byte { return encode(&wire.StatRequest{}) }),
		one("arrays 10,000 deep", func(*attacker) []byte { return bytes.Repeat([]byte("\x91"), 10_000) }),
		one("a reason of 60,000 bytes", func(a *attacker) []byte {
			return encode(&wire.FailNotif{ReqID: a.fresh(), Reason: strings.Repeat("\x1b[2J", 15_000)})
		}),
		one("requests that never were", func(a *attacker) []byte { return encode(&wire.ProxyNotif{ReqID: a.fresh()}) }),
		one("failures that never were", func(a *attacker) []byte { return encode(&wire.FailNotif{ReqID: a.fresh(), Reason: "no"}) }),
		one("one request again and again", func(*attacker) []byte { return encode(&wire.ProxyNotif{ReqID: "again"}) }),
		{name: "pd-proxy: 1000 frames", weight: 50, send: func(a *attacker) error { return a.push(make([][]byte, 1000)...) }},
		push("two frames", func(*attacker) [][]byte { return [][]byte{[]byte("x"), []byte("y")} }),
	}
}

// watchers are at the ports of --monitor and --metrics.
func watchers() []kind {
	subscribe := func(a *attacker, topic []byte, reads bool) error {
		c, err := a.as(a.recv.monitor, "SUB", "", reads)
		if err != nil {
			return err
		}
		return c.send(append([]byte{1}, topic...))
	}
	return []kind{
		{name: "monitor: subscribed and no reader", weight: connection, send: func(a *attacker) error { return subscribe(a, nil, false) }},
		{name: "monitor: one subscription again and again", weight: 2, send: func(a *attacker) error { return subscribe(a, nil, true) }},
		{name: "monitor: topics without end", send: func(a *attacker) error { return subscribe(a, a.noise(60), true) }},
		{name: "monitor: a topic of 200 bytes", weight: connection, send: func(a *attacker) error { return subscribe(a, a.noise(200), true) }},
		{name: "monitor: a message that is no subscription", send: func(a *attacker) error {
			c, err := a.as(a.recv.monitor, "XSUB", "", true)
			if err != nil {
				return err
			}
			return c.send([]byte("\x07what"), nil, []byte("more"))
		}},
		{name: "monitor: subscribed and gone", weight: connection, send: func(a *attacker) error {
			return a.once(a.recv.monitor, appendMessage(append(greeting("NULL"), ready("SUB", "")...), []byte{1}))
		}},
		{name: "metrics: a request that never ends", weight: 4 * connection, send: func(a *attacker) error {
			return a.stays(a.recv.metrics, []byte("GET /metrics HTTP/1.1\r\nHost: x\r\nX: "), 20)
		}},
		{name: "metrics: headers without end", weight: 4 * connection, send: func(a *attacker) error {
			return a.once(a.recv.metrics, []byte("GET /metrics HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("X: y\r\n", 20_000)))
		}},
		{name: "metrics: asked, and no reader", weight: 8 * connection, send: func(a *attacker) error {
			return a.stays(a.recv.metrics, []byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), 5)
		}},
	}
}

// keysOnly is what nothing stops but CURVE: ZeroMQ takes it before anybody can
// look at it, or it is what a good peer may do.
func keysOnly() (all []kind) {
	endless := appendFrame(nil, frameMore, make([]byte, wire.MaxMessage))
	all = []kind{
		{name: "a message without end", weight: 100, send: func(a *attacker) error {
			c, err := a.as(a.recv.endpoint, "DEALER", "", true)
			if err != nil {
				return err
			}
			if err := c.SetWriteDeadline(time.Now().Add(dialTime)); err != nil {
				return err
			}
			_, err = c.Write(endless)
			return err
		}},
		{name: "messages of 14 MiB", weight: 100, send: func(a *attacker) error {
			return a.talk(append(slices.Repeat([][]byte{make([]byte, wire.MaxMessage)}, 14), nil, encode(&wire.StatRequest{}))...)
		}},
		{name: "connections by the thousand, and all stay", weight: connection, send: func(a *attacker) error {
			c, err := handshake(a.recv.endpoint, "DEALER", a.fresh(), true, &a.answers)
			if err != nil {
				return err
			}
			a.hold(c, 10_000)
			return c.send(nil, encode(&wire.StatRequest{}))
		}},
		{name: "the whole buffer, asked for and left", send: func(a *attacker) error { return a.ask(batch(a.fresh(), slots, false, "k")) }},
	}
	for i := range all {
		all[i].keysOnly = true
	}
	return all
}

// doors are where data connections begin.
func doors() (all []kind) {
	shm := func(a *attacker) string {
		sum := sha256.Sum256([]byte(a.id))
		return fmt.Sprintf("@pd-tools/shm/%x", sum[:16])
	}
	ofi := func(a *attacker) string { return a.fabric }
	for _, d := range []struct {
		engine, magic string
		addr          func(*attacker) string
	}{{"shm", "pdshm/1\n", shm}, {"ofi", "pdofi/1\n", ofi}} {
		hello := func(a *attacker, kind string) []byte { return append([]byte(d.magic+kind), a.noise(40)...) }
		at := func(name string, what func(*attacker) []byte) kind {
			return kind{name: "data port of " + d.engine + ": " + name, engine: d.engine, weight: connection, send: func(a *attacker) error { return a.once(d.addr(a), what(a)) }}
		}
		all = append(all,
			at("noise", func(a *attacker) []byte { return a.noise(a.rng.IntN(200)) }),
			at("HTTP", func(*attacker) []byte {
				return []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nand more, so that it is long enough")
			}),
			at("half a hello", func(a *attacker) []byte { return hello(a, "w")[:20] }),
			at("a token of nobody's", func(a *attacker) []byte { return hello(a, "w") }),
			at("a reader's token of nobody's", func(a *attacker) []byte { return hello(a, "r") }),
			at("another version", func(a *attacker) []byte { return append([]byte("pdshm/9\n"), a.noise(41)...) }),
			kind{name: "data port of " + d.engine + ": silent, and stays", engine: d.engine, weight: connection, send: func(a *attacker) error {
				return a.stays(d.addr(a), nil, 40)
			}},
		)
	}
	return all
}
