package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// everyMessage has one message of each type, all fields filled.
func everyMessage() []Message {
	regions := []Region{{ID: 0, Desc: []byte{0xff, 0}}, {ID: 70000, Desc: []byte("fd")}}
	return []Message{
		batch(20),
		&AllocResponse{
			RemoteIndexes: []int64{3, -1, 1 << 40}, AlreadySentIndexes: []int64{1}, Error: "needs 12 chunks, buffer holds 10",
			Code: CodeTooLarge, Epoch: 1<<64 - 1, Regions: []int64{0, 2, 0},
			Access: [][]byte{{1, 0xff}, nil, bytes.Repeat([]byte{7}, MaxAccess)},
		},
		&ProxyNotif{ReqID: "req-a"},
		&CancelNotif{ReqID: "req-a", Keys: []string{"k0", "k1"}},
		&AttachRequest{Name: "prefill-0", Version: ProtocolVersion, SlotSize: 1 << 20, Engines: []string{"shm", "ofi"}, ByteOrder: BigEndian},
		&AttachResponse{
			Error: "no", Code: CodeInternal, Version: ProtocolVersion, Engine: "shm", Token: []byte("secret"), Regions: regions,
			SlotSize: 1 << 20, SlotCount: 1024, LeaseMS: 15000, ReceiverID: "r-1", Epoch: 7, MaxMessage: MaxMessage, MaxKeys: MaxKeys, OneFrame: true,
		},
		&CommitRequest{ReqID: "req-a", Slots: []int64{1, 2}, Lengths: []int64{10, 1 << 33}, CRCs: []uint32{0, 1<<32 - 1}, Epoch: 7},
		&CommitResponse{Error: "no", Code: CodeRolledBack, Ready: true},
		&Heartbeat{Epoch: 7},
		&TakeRequest{ReqID: "req-a"},
		&TakeResponse{
			Error: "no", Code: CodeTaken, ReqID: "req-a",
			Chunks: []TakenChunk{
				{Key: "k0", Slot: 5, Region: 1, Length: 100, CRC: 1<<32 - 1, HasCRC: true},
				{Key: "k1", Slot: 6, Length: 7},
			},
			SlotSize: 1 << 20, SlotCount: 1024, LeaseMS: 15000, ReceiverID: "r-1", Token: []byte{0}, Regions: regions,
		},
		&ReleaseRequest{ReqID: "req-a", Keep: true},
		&ReleaseResponse{Error: "no", Code: CodeUnknownRequest},
		&StatRequest{},
		fullSnapshot(), fullSender(), fullProxy(), fullEvent(),
		&FailNotif{ReqID: "req-a", Reason: "expired"},
		&ReadyRequest{Epoch: 7, After: 1 << 40},
		&ReadyResponse{Error: "no", Code: CodeInternal, Epoch: 7, Entries: []ReadyEntry{{3, "req-a"}, {1<<64 - 1, "req-b"}}, More: true},
	}
}

func fullSnapshot() *Snapshot {
	return &Snapshot{
		Time: Stamp{time.Date(2026, 11, 29, 20, 33, 7, 123456789, time.UTC)}, Kind: "receiver", ID: "r-1", Epoch: 1<<64 - 1,
		Endpoint: "tcp://127.0.0.1:7600", Engine: "shm", Admission: "reserve", UptimeS: 12.5,
		Slots:     SnapshotSlots{Total: 100, Promised: 10, Held: 40, Written: 30, Ready: 20, Quarantined: 1, Free: 49, Peak: 90, Bytes: 1 << 20},
		Requests:  []SnapshotRequest{{ReqID: "a", Sender: "s", State: "admitted", TotalChunks: 8, Allocated: 4, Written: 3, Shared: 1, Bytes: 4 << 20, AgeMS: 20, IdleMS: 3, Taken: true, AdmittedMS: 1, FirstWriteMS: 5, LastWriteMS: 6, ReadyMS: -1}},
		Queue:     []SnapshotWaiter{{Pos: 1, ReqID: "b", Sender: "s", Need: 60, Lacks: 11, WaitedMS: 250, AtShare: true}},
		Senders:   []SnapshotSender{{Sender: "s", Requests: 2, Queued: 1, Attached: true, Engine: "ofi", LeaseLeftMS: 14000, Slots: 9, Ready: 8, Bytes: 7}},
		Totals:    SnapshotTotals{Requests: 1, Queue: 1, Senders: 1},
		Counters:  Counters{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17},
		AdmitWait: SnapshotWait{P50: 0.5, P99: 212, Max: 1e9}, WriteTime: SnapshotWait{P50: 1}, ReadyTime: SnapshotWait{P99: 2},
		Limits:   SnapshotLimits{30000, 15000, 120000, 600000, 4, 100000, 1 << 28, 65536, 50, 25},
		Refusals: map[string]int64{string(CodeTooLarge): 3}, Draining: true,
	}
}

func fullSender() *SenderSnapshot {
	return &SenderSnapshot{
		Time: Stamp{time.Date(2026, 11, 30, 0, 0, 0, 1, time.UTC)}, Kind: KindSender, ID: "pd-send-1", Epoch: 5, UptimeS: 0.25,
		Staging:   Staging{Total: 64, Used: 63, Bytes: 1 << 20, Blocked: []Blocked{{"a", 1, 7, 250}}},
		Requests:  []SenderRequest{{ReqID: "a", Receiver: 1, State: "writing", TotalChunks: 8, Sent: 1, Shared: 2, Bytes: 3, AgeMS: 4, AdmittedMS: -1}},
		Receivers: []SenderLink{{"tcp://127.0.0.1:7600", "attached", "shm", 1, 2, 3, -1, 1 << 40}},
		Totals:    SenderTotals{1, 1},
		Counters:  SenderCounters{1, 2, 3, 4, 5, 6, 7, 8, 9},
		AdmitWait: SnapshotWait{1, 2, 3}, WriteTime: SnapshotWait{4, 5, 6}, ReadyTime: SnapshotWait{7, 8, 9},
	}
}

func fullProxy() *ProxySnapshot {
	return &ProxySnapshot{
		Time: Stamp{time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)}, Kind: KindProxy, ID: "p", Epoch: 6, Endpoint: "tcp://127.0.0.1:7700", UptimeS: 1,
		Expect: 2, Pending: 1, Waiting: []ProxyRequest{{"a", 1, 250}}, Counters: ProxyCounters{1, 2, 3, 4, 5, 6, 7, 8},
	}
}

func fullEvent() *Event {
	return &Event{
		Time: Stamp{time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)}, Kind: KindReceiver, ID: "r-1", Epoch: 7, Dropped: 8,
		Events: []EventEntry{{Stamp{time.Date(2026, 11, 30, 0, 0, 1, 0, time.UTC)}, "expired", "a", "s", 1, 1<<64 - 1, 3, 4.5, 5.5, "c", "lease", 10}},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, m := range everyMessage() {
		t.Run(m.name(), func(t *testing.T) {
			prefix := []byte("prefix")
			b := Append(prefix, m)
			if string(b[:len(prefix)]) != "prefix" {
				t.Fatal("Append changed what was there")
			}
			got, err := Decode(b[len(prefix):])
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, m) {
				t.Errorf("got %+v\nwant %+v", got, m)
			}
			for i := range b {
				b[i] = 0xee
			}
			if !reflect.DeepEqual(got, m) {
				t.Error("the message refers to the bytes it came from")
			}
		})
	}
}

// setKind makes a Snapshot say of which kind it is: it decodes to that.
func setKind(m Message) {
	switch m := m.(type) {
	case *Snapshot:
		m.Kind = KindReceiver
	case *SenderSnapshot:
		m.Kind = KindSender
	case *ProxySnapshot:
		m.Kind = KindProxy
	}
}

// TestZero sends each message with nothing in it: what is empty may be left
// out but must not turn into something else.
func TestZero(t *testing.T) {
	for _, full := range everyMessage() {
		t.Run(full.name(), func(t *testing.T) {
			m := reflect.New(reflect.TypeOf(full).Elem()).Interface().(Message)
			setKind(m)
			got, err := Decode(Append(nil, m))
			if err != nil {
				t.Fatal(err)
			}
			if !same(got, m) {
				t.Errorf("got %+v\nwant %+v", got, m)
			}
		})
	}
}

// TestNames pins the names on the wire, as another msgpack library reads them.
func TestNames(t *testing.T) {
	want := map[string]string{
		NameAllocRequest:          "type keys fmt shape dtype last_chunk_toks req_id is_last_batch total_chunks epoch",
		NameAllocResponse:         "type remote_indexes already_sent_indexes error code epoch regions access",
		NameProxyNotif:            "type req_id",
		NameCancelNotif:           "type req_id keys",
		NameAttachRequest:         "type name version slot_size engines byte_order",
		NameAttachResponse:        "type error code version engine token regions slot_size slot_count lease_ms receiver_id epoch max_message max_keys one_frame",
		NameCommitRequest:         "type req_id slots lengths crcs epoch",
		NameCommitResponse:        "type error code ready",
		NameHeartbeat:             "type epoch",
		NameTakeRequest:           "type req_id",
		NameTakeResponse:          "type error code req_id chunks slot_size slot_count lease_ms receiver_id token regions",
		NameReleaseRequest:        "type req_id keep",
		NameReleaseResponse:       "type error code",
		NameStatRequest:           "type",
		NameSnapshot:              "type time kind id epoch endpoint engine admission uptime_s slots requests queue senders totals counters admit_wait_ms write_ms ready_ms limits refusals draining",
		NameSnapshot + KindSender: "type time kind id epoch uptime_s staging requests receivers totals counters admit_wait_ms write_ms ready_ms",
		NameSnapshot + KindProxy:  "type time kind id epoch endpoint uptime_s expect pending waiting counters",
		NameEvent:                 "type time kind id epoch events dropped",
		NameFailNotif:             "type req_id reason",
		NameReadyRequest:          "type epoch after",
		NameReadyResponse:         "type error code epoch entries more",
	}
	for _, m := range everyMessage() {
		b := Append(nil, m)
		r := msgpack.NewDecoder(bytes.NewReader(b))
		n, err := r.DecodeMapLen()
		var names []string
		for range n {
			var name string
			if name, err = r.DecodeString(); err != nil {
				break
			}
			names = append(names, name)
			if err = r.Skip(); err != nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", m.name(), err)
		}
		kind := m.name()
		switch m.(type) {
		case *SenderSnapshot:
			kind += KindSender
		case *ProxySnapshot:
			kind += KindProxy
		}
		if got := strings.Join(names, " "); got != want[kind] {
			t.Errorf("%s:\n got %s\nwant %s", kind, got, want[kind])
		}
		var byLibrary map[string]any
		if err := msgpack.Unmarshal(b, &byLibrary); err != nil || byLibrary["type"] != m.name() || len(byLibrary) != len(names) {
			t.Errorf("%s: the library reads %v, %v", m.name(), byLibrary, err)
		}
	}
}

// TestLeftOut checks that an answer without our fields is LMCache's, byte for
// byte.
func TestLeftOut(t *testing.T) {
	plain := Append(nil, &AllocResponse{RemoteIndexes: []int64{1, 2}})
	zeros := Append(nil, &AllocResponse{RemoteIndexes: []int64{1, 2}, Regions: []int64{0, 0}})
	if string(plain) != string(zeros) {
		t.Errorf("regions that are all 0 are written: %x", zeros)
	}
	empty := Append(nil, &AllocResponse{RemoteIndexes: []int64{1, 2}, Access: [][]byte{nil, {}}})
	if string(plain) != string(empty) {
		t.Errorf("accesses that are all empty are written: %x", empty)
	}
	if strings.Contains(string(plain), "regions") || strings.Contains(string(plain), "access") {
		t.Errorf("what is empty is written: %x", plain)
	}
	if attach := Append(nil, &AttachRequest{}); strings.Contains(string(attach), "byte_order") {
		t.Errorf("a byte order that is not said is written: %x", attach)
	}
}

// frame is a map of names and values; the values are msgpack already.
func frame(pairs ...string) []byte {
	b := encoded(func(e *msgpack.Encoder) error { return e.EncodeMapLen(len(pairs) / 2) })
	for i := 0; i < len(pairs); i += 2 {
		b += str(pairs[i]) + pairs[i+1]
	}
	return []byte(b)
}

// encoded is what write writes.
func encoded(write func(*msgpack.Encoder) error) string {
	var out bytes.Buffer
	if err := write(msgpack.NewEncoder(&out)); err != nil {
		panic(err)
	}
	return out.String()
}

func str(s string) string {
	return encoded(func(e *msgpack.Encoder) error { return e.EncodeString(s) })
}

func strs(ss ...string) string {
	return encoded(func(e *msgpack.Encoder) error { return e.Encode(ss) })
}

// bin is n bytes.
func bin(n int) string {
	return encoded(func(e *msgpack.Encoder) error { return e.EncodeBytes(make([]byte, n)) })
}

// many is an array of n times elem.
func many(n int, elem string) string {
	return encoded(func(e *msgpack.Encoder) error { return e.EncodeArrayLen(n) }) + strings.Repeat(elem, n)
}

func alloc(more ...string) []byte {
	return frame(append([]string{
		"type", str(NameAllocRequest), "keys", strs("k0", "k1"), "fmt", "\x04", "shape", "\x91\x05", "dtype", str("uint8"),
		"last_chunk_toks", "\x05",
	}, more...)...)
}

func TestDecodeErrors(t *testing.T) {
	long := func(n int) string { return str(strings.Repeat("x", n)) }
	attach := func(more ...string) []byte {
		return frame(append([]string{"type", str(NameAttachRequest), "version", "\x01", "engines", "\x90"}, more...)...)
	}
	commit := func(slots, lengths, crcs string) []byte {
		return frame("type", str(NameCommitRequest), "req_id", "\xa1r", "slots", slots, "lengths", lengths, "crcs", crcs)
	}
	take := func(chunk string) []byte {
		return frame("type", str(NameTakeResponse), "chunks", "\x92"+chunkOK+chunk)
	}
	snapshot := func(more ...string) []byte {
		return frame(append([]string{"type", str(NameSnapshot), "time", str("2026-11-29T20:33:07Z")}, more...)...)
	}
	ready := func(entries string) []byte { return frame("type", str(NameReadyResponse), "entries", entries) }
	response := func(more ...string) []byte {
		return frame(append([]string{"type", str(NameAllocResponse)}, more...)...)
	}
	cases := []struct {
		name string
		b    []byte
		want string // error text; empty: accepted
	}{
		{"as many keys as allowed", alloc("keys", many(MaxKeys, "\xa1k")), ""},
		{"one key too many", alloc("keys", many(MaxKeys+1, "\xa1k")), "keys: 8193 keys, the limit is 8192"},
		{"longest key", alloc("keys", "\x91"+long(MaxKey)), ""},
		{"key too long", alloc("keys", "\x92\xa1k"+long(MaxKey+1)), "keys[1]: 4097 bytes, the limit is 4096"},
		{"longest req_id", alloc("req_id", long(MaxReqID)), ""},
		{"req_id too long", alloc("req_id", long(MaxReqID+1)), "req_id: 513 bytes, the limit is 512"},
		{"most dimensions", alloc("shape", many(MaxShape, "\x01")), ""},
		{"one dimension too many", alloc("shape", many(MaxShape+1, "\x01")), "shape: 65 elements, the limit is 64"},
		{"longest dtype", alloc("dtype", long(MaxName)), ""},
		{"dtype too long", alloc("dtype", long(MaxName+1)), "dtype: 257 bytes, the limit is 256"},
		{"largest message", padded(MaxMessage), ""},
		{"message too large", padded(MaxMessage + 1), "AllocRequest has 1048577 bytes, the limit is 1048576"},
		{"far too large", make([]byte, MaxResponse+1), "message has 67108865 bytes, the limit is 67108864"},
		{"unknown field as deep as allowed", alloc("z", strings.Repeat("\x91", maxDepth-1)+"\x90"), ""},
		{"unknown field too deep", alloc("z", strings.Repeat("\x91", maxDepth)+"\x90"), `"z": arrays and maps lie more than 998 deep`},
		{"epoch beyond int64", alloc("epoch", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), ""},
		{"negative epoch", alloc("epoch", "\xff"), "epoch: -1 is negative"},
		{"nil epoch", alloc("epoch", "\xc0"), "epoch: expected int, got nil"},
		{"most indexes", response("remote_indexes", many(MaxKeys, "\xff")), ""},
		{"too many indexes", response("remote_indexes", many(MaxKeys+1, "\xff")), "remote_indexes: 8193 elements, the limit is 8192"},
		{"index beyond int64", response("remote_indexes", "\x92\x01\xcf\x80\x00\x00\x00\x00\x00\x00\x00"), "remote_indexes[1]: 9223372036854775808 is over 2^63-1"},
		{"most accesses", response("remote_indexes", "\x90", "access", many(MaxKeys, bin(MaxAccess))), ""},
		{"too many accesses", response("remote_indexes", "\x90", "access", many(MaxKeys+1, "\xc4\x00")), "access: 8193 elements, the limit is 8192"},
		{"access too long", response("remote_indexes", "\x90", "access", "\x92\xc4\x00"+bin(MaxAccess+1)), "access[1]: 65 bytes, the limit is 64"},
		{"access as str", response("remote_indexes", "\x90", "access", "\x91\xa1x"), "access[0]: expected bin, got str"},
		{"nil access", response("remote_indexes", "\x90", "access", "\xc0"), "access: expected array, got nil"},
		{"error as bin", response("remote_indexes", "\x90", "error", "\xc4\x01x"), "error: expected str, got bin"},
		{"code not UTF-8", response("remote_indexes", "\x90", "code", "\xa1\xff"), "code: not valid UTF-8"},
		{"key of a cancel too long", frame("type", str(NameCancelNotif), "req_id", "\xa1r", "keys", "\x91"+long(MaxKey+1)), "keys[0]: 4097 bytes, the limit is 4096"},
		{"longest name", attach("name", long(MaxName)), ""},
		{"name too long", attach("name", long(MaxName+1)), "name: 257 bytes, the limit is 256"},
		{"most engines", attach("engines", many(MaxEngines, str("shm"))), ""},
		{"too many engines", attach("engines", many(MaxEngines+1, str("shm"))), "engines: 17 names, the limit is 16"},
		{"a byte order nobody has", attach("byte_order", str("middle")), ""},
		{"byte order too long", attach("byte_order", long(MaxName+1)), "byte_order: 257 bytes, the limit is 256"},
		{"byte order as bin", attach("byte_order", "\xc4\x01x"), "byte_order: expected str, got bin"},
		{"no version", frame("type", str(NameAttachRequest), "engines", "\x90"), "version: missing"},
		{"commit", commit("\x92\x01\x02", "\x92\x01\x02", "\x92\x01\x02"), ""},
		{"lengths short", commit("\x92\x01\x02", "\x91\x01", "\x92\x01\x02"), "lengths: 1 elements for 2 slots"},
		{"crcs long", commit("\x91\x01", "\x91\x01", "\x92\x01\x02"), "crcs: 2 elements for 1 slots"},
		{"crc beyond 32 bits", commit("\x91\x01", "\x91\x01", "\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00"), "crcs[0]: 4294967296 is over 2^32-1"},
		{"too many slots", commit(many(MaxKeys+1, "\x01"), "\x90", "\x90"), "slots: 8193 elements, the limit is 8192"},
		{"take and release need req_id only", frame("type", str(NameReleaseRequest), "req_id", "\xa1r"), ""},
		{"no req_id", frame("type", str(NameTakeRequest)), "req_id: missing"},
		{"stat needs nothing", frame("type", str(NameStatRequest)), ""},
		{"what is ready may be asked without a number", frame("type", str(NameReadyRequest)), ""},
		{"after a negative number", frame("type", str(NameReadyRequest), "after", "\xff"), "after: -1 is negative"},
		{"nothing is ready", frame("type", str(NameReadyResponse)), ""},
		{"most that are ready", ready(many(MaxReadyList, "\x82\xa3seq\x01\xa6req_id\xa1r")), ""},
		{"too many that are ready", ready(many(MaxReadyList+1, "\x82\xa3seq\x01\xa6req_id\xa1r")), "entries: 1001 elements, the limit is 1000"},
		{"ready without a number", ready("\x91\x81\xa6req_id\xa1r"), "entries[0].seq: missing"},
		{"ready with a long req_id", ready("\x91\x82\xa3seq\x01\xa6req_id" + long(MaxReqID+1)), "entries[0].req_id: 513 bytes, the limit is 512"},
		{"no reason", frame("type", str(NameFailNotif), "req_id", "\xa1r"), "reason: missing"},
		{"chunk", take(chunkOK), ""},
		{"chunk without slot", take("\x82\xa3key\xa1k\xa6length\x05"), "chunks[1].slot: missing"},
		{"type is nothing special in a chunk", take("\x84\xa3key\xa1k\xa4slot\x05\xa6length\x05\xa4type\x01"), ""},
		{"chunk as array", take("\x90"), "chunks[1]: expected map, got array"},
		{"token as str", frame("type", str(NameTakeResponse), "token", "\xa1x"), "token: expected bin, got str"},
		{"no entries", snapshot(), ""},
		{"most entries", snapshot("requests", many(MaxSnapshotList, "\x80")), ""},
		{"too many entries", snapshot("requests", many(MaxSnapshotList+1, "\x80")), `"requests": 10001 entries, the limit is 10000`},
		{"no time", frame("type", str(NameSnapshot), "time", str("noon")), `Snapshot: "noon" is no RFC 3339 time`},
		{"snapshot of unknown fields", snapshot("newer", "\x92\x80\xd4\x01\x02", "slots", "\x82\xa5total\x05\xa1x\x91\xc0"), ""},
		{"snapshot with a tail", append(snapshot(), 0), "1 bytes behind the message"},
		{"long unknown name", frame("type", str(strings.Repeat("n", 100))), `type: unknown message "` + strings.Repeat("n", 64) + `"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, err := Decode(c.b)
			switch {
			case err == nil && c.want != "":
				t.Fatalf("accepted, want %q", c.want)
			case err != nil && m != nil:
				t.Fatalf("both %v and %v", m, err)
			case err != nil && err.Error() != c.want:
				t.Fatalf("\n got %q\nwant %q", err, c.want)
			}
		})
	}
}

const chunkOK = "\x83\xa3key\xa1k\xa4slot\x05\xa6length\x05"

// padded is an AllocRequest of n bytes.
func padded(n int) []byte {
	b := alloc("pad", "")
	need := n - len(b) - 5 // a bin32 head
	b = append(b, 0xc6, byte(need>>24), byte(need>>16), byte(need>>8), byte(need))
	return append(b, make([]byte, need)...)
}

// TestSalvage checks what a refused AllocRequest still tells.
func TestSalvage(t *testing.T) {
	cases := []struct {
		name  string
		b     []byte
		reqID string
		keys  int
	}{
		{"too many keys", alloc("keys", many(MaxKeys+1, "\xa1k"), "req_id", "\xa1r"), "r", MaxKeys + 1},
		{"bad fmt behind req_id", alloc("req_id", "\xa1r", "fmt", "\xc0"), "r", 2},
		{"bad fmt before req_id", alloc("fmt", "\xc0", "req_id", "\xa1r"), "r", 2},
		{"req_id at fault", alloc("req_id", "\xc0"), "", 2},
		{"req_id too long", alloc("req_id", str(strings.Repeat("x", MaxReqID+1))), "", 2},
		{"keys at fault", alloc("keys", "\x05", "req_id", "\xa1r"), "r", 0},
		{"last req_id counts", alloc("req_id", "\xa1a", "req_id", "\xa1b", "fmt", "\xc0"), "b", 2},
		{"missing field", frame("type", str(NameAllocRequest), "keys", strs("k"), "req_id", "\xa1r"), "r", 1},
		{"trailing byte", append(alloc("req_id", "\xa1r"), 0), "r", 2},
		{"truncated behind req_id", alloc("req_id", "\xa1r", "total_chunks", ""), "r", 2},
		{"keys claim more than there is", frame("type", str(NameAllocRequest), "req_id", "\xa1r", "keys", "\xdd\xff\xff\xff\xff"), "r", 0},
		{"no name", frame("req_id", "\xa1r"), "", 0},
		{"another message", frame("type", str(NameTakeRequest), "req_id", "\xa1r", "req_id", "\xc0"), "", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Decode(c.b)
			var de *DecodeError
			if !errors.As(err, &de) {
				t.Fatalf("got %v", err)
			}
			if de.ReqID != c.reqID || de.Keys != c.keys {
				t.Errorf("got req_id %q and %d keys, want %q and %d (%v)", de.ReqID, de.Keys, c.reqID, c.keys, err)
			}
		})
	}
	if errTruncated.ReqID != "" || errTruncated.Keys != 0 {
		t.Error("salvage wrote into a shared error")
	}
}

// TestSnapshotJSON checks that what came over the wire prints as what was
// sent, and that lists print as lists.
func TestSnapshotJSON(t *testing.T) {
	for _, s := range []report{
		fullSnapshot(), &Snapshot{}, fullSender(), &SenderSnapshot{Kind: KindSender}, fullProxy(), &ProxySnapshot{Kind: KindProxy}, fullEvent(), &Event{},
	} {
		m, err := Decode(Append(nil, s))
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		s.fillLists()
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) || strings.Contains(string(got), "null") {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	}
}

// TestKeysDoNotPin checks that who keeps one key of a message keeps little
// else of it.
func TestKeysDoNotPin(t *testing.T) {
	const messages = 32
	b := alloc("pad", str(strings.Repeat("x", MaxMessage/2)))
	kept := make([]string, 0, messages)
	before := liveHeap()
	for range messages {
		m, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, m.(*AllocRequest).Keys[0])
	}
	if grown := liveHeap() - before; grown > messages*2*MaxKey {
		t.Errorf("%d keys of %d bytes keep %d bytes", len(kept), len(kept[0]), grown)
	}
}

// liveHeap is how many bytes of the heap are reachable.
func liveHeap() int64 {
	var ms runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&ms)
	return int64(ms.HeapAlloc)
}

func TestInt(t *testing.T) {
	cases := []struct {
		n      Int
		text   string
		sign   int
		i64    int64
		isI64  bool
		u64    uint64
		isU64  bool
		onWire string
	}{
		{Int{}, "0", 0, 0, true, 0, true, "\x00"},
		{I(127), "127", 1, 127, true, 127, true, "\x7f"},
		{I(128), "128", 1, 128, true, 128, true, "\xcc\x80"},
		{I(-1), "-1", -1, -1, true, 0, false, "\xff"},
		{I(-32), "-32", -1, -32, true, 0, false, "\xe0"},
		{I(-33), "-33", -1, -33, true, 0, false, "\xd0\xdf"},
		{I(-1 << 63), "-9223372036854775808", -1, -1 << 63, true, 0, false, "\xd3\x80\x00\x00\x00\x00\x00\x00\x00"},
		{I(1<<63 - 1), "9223372036854775807", 1, 1<<63 - 1, true, 1<<63 - 1, true, "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"},
		{U(1 << 63), "9223372036854775808", 1, 0, false, 1 << 63, true, "\xcf\x80\x00\x00\x00\x00\x00\x00\x00"},
		{U(1<<64 - 1), "18446744073709551615", 1, 0, false, 1<<64 - 1, true, "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"},
	}
	for _, c := range cases {
		i64, isI64 := c.n.Int64()
		u64, isU64 := c.n.Uint64()
		if c.n.String() != c.text || c.n.Sign() != c.sign || i64 != c.i64 || isI64 != c.isI64 || u64 != c.u64 || isU64 != c.isU64 {
			t.Errorf("%s: got %v, sign %d, %d %v, %d %v", c.text, c.n, c.n.Sign(), i64, isI64, u64, isU64)
		}
		want := str("total_chunks") + c.onWire
		if got := Append(nil, &AllocRequest{TotalChunks: c.n}); !strings.HasSuffix(string(got), want) {
			t.Errorf("%s: written as %x, want %x at the end", c.text, got, want)
		}
	}
	if I(5) != U(5) {
		t.Error("I(5) and U(5) differ")
	}
}

func TestNameOf(t *testing.T) {
	for _, m := range everyMessage() {
		if name, err := NameOf(Append(nil, m)); name != m.name() || err != nil {
			t.Errorf("%T: %q, %v", m, name, err)
		}
	}
	if name, err := NameOf([]byte("\x82\xa1a\xc0\xa4type\xa3New")); name != "New" || err != nil {
		t.Errorf("an unknown message, its name last: %q, %v", name, err)
	}
	for _, b := range hostile() {
		if name, err := NameOf(b); (name == "") != (err != nil) {
			t.Errorf("%q: %q, %v", b, name, err)
		}
	}
	if _, err := NameOf(nil); err == nil {
		t.Error("nothing has a name")
	}
}
