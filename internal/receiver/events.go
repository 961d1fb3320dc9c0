package receiver

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/pd-tools/pd-tools/internal/reservation"
)

// recordLine appends one event as a line of JSON. By hand: this is on the path
// of every message, and encoding/json costs more than the decision it reports.
func (c *clockFace) recordLine(dst []byte, at time.Time, rec *reservation.Record) []byte {
	dst = append(dst, `{"event":"`...)
	dst = append(dst, rec.Kind.String()...)
	dst = append(dst, `","time":"`...)
	dst = c.append(dst, at)
	dst = append(dst, `","req_id":`...)
	dst = appendJSONString(dst, rec.ReqID)
	dst = append(dst, `,"sender":`...)
	dst = appendJSONString(dst, rec.Sender)
	switch rec.Kind {
	case reservation.Queued, reservation.Admitted, reservation.Rejected:
	default:
		dst = append(dst, `,"chunks":`...)
		dst = strconv.AppendInt(dst, int64(rec.Chunks), 10)
	}
	dst = append(dst, `,"total_chunks":`...)
	dst = strconv.AppendUint(dst, rec.TotalChunks, 10)
	switch rec.Kind {
	case reservation.Queued, reservation.Admitted, reservation.Rejected:
	default:
		dst = append(dst, `,"bytes":`...)
		dst = strconv.AppendInt(dst, rec.Bytes, 10)
	}
	if rec.Kind == reservation.Admitted || rec.Kind == reservation.TimedOut {
		dst = append(dst, `,"waited_ms":`...)
		dst = appendMillis(dst, rec.Waited)
	}
	if rec.Code != "" {
		dst = append(dst, `,"code":`...)
		dst = appendJSONString(dst, string(rec.Code))
	}
	if rec.Reason != "" {
		dst = append(dst, `,"reason":`...)
		dst = appendJSONString(dst, rec.Reason)
	}
	dst = append(dst, `,"free":`...)
	dst = strconv.AppendInt(dst, int64(rec.Free), 10)
	return append(dst, "}\n"...)
}

// appendMillis writes a duration in milliseconds, to the microsecond.
func appendMillis(dst []byte, d time.Duration) []byte {
	return strconv.AppendFloat(dst, float64(d.Microseconds())/1000, 'f', -1, 64)
}

// clockFace writes times as RFC 3339 in UTC, to the microsecond, and keeps the
// part that changes once a second.
type clockFace struct {
	second int64
	text   []byte // "2006-01-02T15:04:05."
}

func (c *clockFace) append(dst []byte, t time.Time) []byte {
	if s := t.Unix(); s != c.second || c.text == nil {
		c.second = s
		c.text = t.UTC().AppendFormat(c.text[:0], "2006-01-02T15:04:05.")
	}
	dst = append(dst, c.text...)
	us := t.Nanosecond() / 1000
	for div := 100_000; div > 0; div /= 10 {
		dst = append(dst, byte('0'+us/div%10))
	}
	return append(dst, 'Z')
}

// appendJSONString quotes a text. Control characters are escaped, those above
// ASCII too: the text came from a peer and the reader may be a terminal.
func appendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if plainRune(r, size) {
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = appendEscape(dst, r)
		i += size
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func plainRune(r rune, size int) bool {
	invalid := r == utf8.RuneError && size == 1
	return !invalid && r > 0x9f && r != '\u2028' && r != '\u2029'
}

func appendEscape(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\n':
		return append(dst, `\n`...)
	case '\t':
		return append(dst, `\t`...)
	}
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
