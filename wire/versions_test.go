package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

var record = flag.Bool("record", false, "write testdata/own.json anew: only together with another ProtocolVersion")

// ownMessages are one of each of our own messages, all fields filled; the four
// of LMCache are in golden.json.
func ownMessages() (ms []Message) {
	for _, m := range everyMessage() {
		switch m := m.(type) {
		case *AllocRequest, *AllocResponse, *ProxyNotif, *CancelNotif:
		case *AttachResponse:
			first := *m
			first.OneFrame = false // came later
			ms = append(ms, &first)
		default:
			ms = append(ms, m)
		}
	}
	return append(ms,
		// What we add to LMCache's.
		&AllocRequest{Keys: []string{"k"}, Fmt: I(4), Shape: ints(16), Dtype: "uint8", LastChunkToks: I(16), ReqID: "r", TotalChunks: I(1), Epoch: 7},
		&AllocResponse{RemoteIndexes: []int64{3}, Error: "no", Code: CodeRolledBack, Epoch: 7, Regions: []int64{2}, Access: [][]byte{{1}}})
}

// recorded is a message as the release that wrote the file sent it.
type recorded struct {
	Name string `json:"name"`
	Hex  string `json:"hex"`
}

// TestOwnGolden: bytes that were recorded are still read, as they were meant, and
// still written: processes of two versions run beside each other while a site is
// upgraded.
func TestOwnGolden(t *testing.T) {
	own := ownMessages()
	if *record {
		var file []recorded
		for _, m := range own {
			file = append(file, recorded{m.name(), hex.EncodeToString(Append(nil, m))})
		}
		b, err := json.MarshalIndent(file, "", " ")
		if err == nil {
			err = os.WriteFile("testdata/own.json", append(b, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cases := load[recorded](t, "own.json")
	if len(cases) != len(own) {
		t.Fatalf("%d messages are recorded, there are %d", len(cases), len(own))
	}
	for i, c := range cases {
		want, b := own[i], unhex(t, c.Hex)
		got, err := Decode(b)
		if err != nil || want.name() != c.Name {
			t.Errorf("%s, now %s: %v", c.Name, want.name(), err)
			continue
		}
		if _, ok := want.(report); ok { // it may have got fields since
			if was, is := generic(t, b), generic(t, Append(nil, got)); !within(was, is) {
				t.Errorf("%s was\n%v\nis\n%v", c.Name, was, is)
			}
			continue
		}
		if !same(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.Name, got, want)
		}
		if now := hex.EncodeToString(Append(nil, want)); now != c.Hex {
			t.Errorf("%s is written as\n%s, recorded is\n%s", c.Name, now, c.Hex)
		}
	}
}

func generic(t *testing.T, b []byte) (v any) {
	t.Helper()
	if err := msgpack.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// within says whether all that was is still so.
func within(was, is any) bool {
	switch was := was.(type) {
	case map[string]any:
		is, ok := is.(map[string]any)
		for name, value := range was {
			ok = ok && within(value, is[name])
		}
		return ok
	case []any:
		is, ok := is.([]any)
		if !ok || len(is) != len(was) {
			return false
		}
		for i := range was {
			ok = ok && within(was[i], is[i])
		}
		return ok
	}
	return reflect.DeepEqual(was, is)
}

// remap decodes a message by another library, changes its fields and encodes it.
func remap(t *testing.T, b []byte, change func(fields map[string]any)) []byte {
	t.Helper()
	var fields map[string]any
	if err := msgpack.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	var out bytes.Buffer
	e := msgpack.NewEncoder(&out)
	e.UseCompactInts(true)
	if err := e.Encode(fields); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestNewerPeer: what a later version adds is ignored.
func TestNewerPeer(t *testing.T) {
	for _, want := range ownMessages() {
		newer := remap(t, Append(nil, want), func(fields map[string]any) {
			fields["a_new_number"] = 1 << 40
			fields["a_new_list"] = []any{"x", nil, map[string]any{"deep": []byte{1}}}
			fields["z"] = nil
		})
		if got, err := Decode(newer); err != nil || !same(got, want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", want.name(), err, got, want)
		}
	}
}

// TestOlderPeer: each field that is not required may be missing, and means
// nothing then.
func TestOlderPeer(t *testing.T) {
	for _, full := range ownMessages() {
		l, ok := full.(layout)
		if !ok {
			continue // TestOlderReport
		}
		for i, f := range l.fields(nil) {
			older := remap(t, Append(nil, full), func(fields map[string]any) { delete(fields, f.name) })
			got, err := Decode(older)
			if f.rule == required {
				if err == nil || !strings.Contains(err.Error(), f.name) {
					t.Errorf("%s without %s: %v", full.name(), f.name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s without %s: %v", full.name(), f.name, err)
				continue
			}
			for j, g := range got.(layout).fields(nil) {
				is := reflect.ValueOf(g.to).Elem()
				if j == i && !(is.IsZero() || is.Kind() == reflect.Slice && is.Len() == 0) {
					t.Errorf("%s without %s has %v there", full.name(), f.name, is)
				}
				if j != i && !reflect.DeepEqual(is.Interface(), reflect.ValueOf(l.fields(nil)[j].to).Elem().Interface()) {
					t.Errorf("%s without %s: %s is %v", full.name(), f.name, g.name, is)
				}
			}
		}
	}
}

// TestOlderReport: a Snapshot or an Event may lack anything but its kind.
func TestOlderReport(t *testing.T) {
	for _, full := range ownMessages() {
		if _, ok := full.(report); !ok {
			continue
		}
		var fields map[string]any
		if err := msgpack.Unmarshal(Append(nil, full), &fields); err != nil {
			t.Fatal(err)
		}
		for name := range fields {
			if name == "type" || name == "kind" {
				continue
			}
			older := remap(t, Append(nil, full), func(fields map[string]any) { delete(fields, name) })
			got, err := Decode(older)
			if err != nil || reflect.TypeOf(got) != reflect.TypeOf(full) {
				t.Errorf("%s without %s: %T, %v", full.name(), name, got, err)
			}
		}
	}
}
