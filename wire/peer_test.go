package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// goldenCase is a message as msgspec writes it.
type goldenCase struct {
	Name   string          `json:"name"`
	Hex    string          `json:"hex"`
	Fields json.RawMessage `json:"fields"`
}

// toleranceCase is a payload and what msgspec says to it.
type toleranceCase struct {
	Name     string `json:"name"`
	Hex      string `json:"hex"`
	Accepted bool   `json:"accepted"`
	Msgspec  string `json:"msgspec"`
}

func load[T any](t testing.TB, file string) (cases []T) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err == nil {
		err = json.Unmarshal(b, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatalf("%s has no cases", file)
	}
	return cases
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// UnmarshalJSON lets a test say Ints as JSON numbers.
func (n *Int) UnmarshalJSON(b []byte) error {
	var v int64
	if err := json.Unmarshal(b, &v); err == nil {
		*n = I(v)
		return nil
	}
	var u uint64
	err := json.Unmarshal(b, &u)
	*n = U(u)
	return err
}

// message is what the case's fields say.
func (c *goldenCase) message(t *testing.T) Message {
	t.Helper()
	var f struct {
		Type          string   `json:"type"`
		Keys          []string `json:"keys"`
		Fmt           Int      `json:"fmt"`
		Shape         []Int    `json:"shape"`
		Dtype         string   `json:"dtype"`
		LastChunkToks Int      `json:"last_chunk_toks"`
		ReqID         string   `json:"req_id"`
		IsLastBatch   bool     `json:"is_last_batch"`
		TotalChunks   Int      `json:"total_chunks"`
		Remote        []int64  `json:"remote_indexes"`
		AlreadySent   []int64  `json:"already_sent_indexes"`
	}
	if err := json.Unmarshal(c.Fields, &f); err != nil {
		t.Fatal(err)
	}
	switch f.Type {
	case NameAllocRequest:
		return &AllocRequest{
			Keys: f.Keys, Fmt: f.Fmt, Shape: f.Shape, Dtype: f.Dtype, LastChunkToks: f.LastChunkToks,
			ReqID: f.ReqID, IsLastBatch: f.IsLastBatch, TotalChunks: f.TotalChunks,
		}
	case NameAllocResponse:
		return &AllocResponse{RemoteIndexes: f.Remote, AlreadySentIndexes: f.AlreadySent}
	case NameProxyNotif:
		return &ProxyNotif{ReqID: f.ReqID}
	case NameCancelNotif:
		return &CancelNotif{ReqID: f.ReqID, Keys: f.Keys}
	}
	t.Fatalf("no such message: %q", f.Type)
	return nil
}

func TestGolden(t *testing.T) {
	for _, c := range load[goldenCase](t, "golden.json") {
		t.Run(c.Name, func(t *testing.T) {
			want := c.message(t)
			if got := hex.EncodeToString(Append(nil, want)); got != c.Hex {
				t.Errorf("Append:\n got %s\nwant %s", got, c.Hex)
			}
			got, err := Decode(unhex(t, c.Hex))
			if err != nil {
				t.Fatal(err)
			}
			if !same(got, want) {
				t.Errorf("Decode:\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

var msgspecField = regexp.MustCompile("(?:at `\\$\\.|required field `)([^`]+)`")

func TestTolerance(t *testing.T) {
	for _, c := range load[toleranceCase](t, "tolerance.json") {
		t.Run(c.Name, func(t *testing.T) {
			m, err := Decode(unhex(t, c.Hex))
			if accepted := err == nil; accepted != c.Accepted {
				t.Fatalf("accepted %v (%v), msgspec says: %s", accepted, err, c.Msgspec)
			}
			if err == nil {
				saysWhatMsgspecSays(t, m, c.Msgspec)
				return
			}
			var de *DecodeError
			if m != nil || !errors.As(err, &de) {
				t.Fatalf("got %v and error %T", m, err)
			}
			if f := msgspecField.FindStringSubmatch(c.Msgspec); f != nil && (de.Field != f[1] || !strings.Contains(err.Error(), f[1])) {
				t.Errorf("error %q is in field %q, msgspec says: %s", err, de.Field, c.Msgspec)
			}
		})
	}
}

// saysWhatMsgspecSays compares m with the start of the struct that the verdict
// shows, where it shows one.
func saysWhatMsgspecSays(t *testing.T, m Message, verdict string) {
	t.Helper()
	_, shown, ok := strings.Cut(verdict, "-> ")
	if !ok {
		return
	}
	if got := pythonRepr(m); !strings.HasPrefix(got, shown) {
		t.Errorf("got %s, msgspec has %s", got, shown)
	}
}

// pythonRepr is m as msgspec shows it, of LMCache's own fields.
func pythonRepr(m Message) string {
	var b strings.Builder
	b.WriteString(m.name() + "(")
	for i, f := range m.(layout).fields(nil) {
		if f.rule == omitEmpty {
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.name + "=")
		pythonValue(&b, reflect.ValueOf(f.to).Elem())
	}
	return b.String() + ")"
}

func pythonValue(b *strings.Builder, v reflect.Value) {
	switch x := v.Interface().(type) {
	case Int:
		b.WriteString(x.String())
	case string:
		b.WriteString("'" + strings.ReplaceAll(x, "\x00", `\x00`) + "'")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[x])
	case int64:
		b.WriteString(I(x).String())
	default:
		b.WriteString("[")
		for i := range v.Len() {
			if i > 0 {
				b.WriteString(", ")
			}
			pythonValue(b, v.Index(i))
		}
		b.WriteString("]")
	}
}

// same reports whether a and b are equal, a nil list being an empty one.
func same(a, b Message) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) &&
		reflect.DeepEqual(normal(reflect.ValueOf(a).Elem()).Interface(), normal(reflect.ValueOf(b).Elem()).Interface())
}

// normal is a copy of v in which no list is empty and not nil.
func normal(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	switch {
	case v.Type() == reflect.TypeFor[Int](), v.Type() == reflect.TypeFor[time.Time]():
		return v
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			c.Field(i).Set(normal(v.Field(i)))
		}
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0:
	case v.Kind() == reflect.Slice && slices.Contains([]reflect.Kind{reflect.Struct, reflect.Slice}, v.Type().Elem().Kind()):
		c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			c.Index(i).Set(normal(v.Index(i)))
		}
	default:
		return v
	}
	return c
}
