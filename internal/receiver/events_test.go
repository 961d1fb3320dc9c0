package receiver

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pd-tools/pd-tools/internal/reservation"
)

func TestRecordLine(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_007_999, time.FixedZone("", 3600))
	base := reservation.Record{
		ReqID: "r\n", Sender: "s", Chunks: 2, TotalChunks: 1<<64 - 1, Bytes: 9, Waited: 1500 * time.Microsecond, Free: 3,
	}
	with := func(kind reservation.Kind, code, reason string) reservation.Record {
		r := base
		r.Kind, r.Code, r.Reason = kind, "too_large", reason
		if code == "" {
			r.Code = ""
		}
		return r
	}
	const head = `"time":"2026-01-02T02:04:05.006007Z","req_id":"r\n","sender":"s",`
	for _, tc := range []struct {
		rec  reservation.Record
		want string
	}{
		{with(reservation.Queued, "", ""), `{"event":"queued",` + head + `"total_chunks":18446744073709551615,"free":3}`},
		{with(reservation.Admitted, "", ""), `{"event":"admitted",` + head + `"total_chunks":18446744073709551615,"waited_ms":1.5,"free":3}`},
		{with(reservation.Ready, "", ""), `{"event":"ready",` + head + `"chunks":2,"total_chunks":18446744073709551615,"bytes":9,"free":3}`},
		{with(reservation.Rejected, "c", `a "b"`), `{"event":"rejected",` + head + `"total_chunks":18446744073709551615,"code":"too_large","reason":"a \"b\"","free":3}`},
		{with(reservation.TimedOut, "c", "r"), `{"event":"timed_out",` + head + `"chunks":2,"total_chunks":18446744073709551615,"bytes":9,"waited_ms":1.5,"code":"too_large","reason":"r","free":3}`},
	} {
		var c clockFace
		for range 2 { // the second time from the kept text
			if got := string(c.recordLine(nil, at, &tc.rec)); got != tc.want+"\n" {
				t.Errorf("got  %swant %s", got, tc.want)
			}
		}
	}
}

func TestClockFaceTurnsTheSecond(t *testing.T) {
	var c clockFace
	at := time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	if got := string(c.append(nil, at)) + " " + string(c.append(nil, at.Add(1))); got != "2026-12-31T23:59:59.999999Z 2027-01-01T00:00:00.000000Z" {
		t.Error(got)
	}
}

// What is written reads back as it was, and nothing in it could move a
// terminal's cursor.
func FuzzJSONString(f *testing.F) {
	for _, s := range []string{"", "plain", "a\"b\\c", "\x00\x1f\x7f", "\u0080\u009f\u00a0", "\u2028\u2029", "日本語 😀", "\xff\xfe", "\x1b]0;x\a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := appendJSONString(nil, s)
		var back string
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && back != want {
			t.Errorf("%q came back as %q", s, back)
		}
		for _, r := range string(b) {
			if unicode.IsControl(r) {
				t.Errorf("%q has control character %U", b, r)
			}
		}
	})
}
