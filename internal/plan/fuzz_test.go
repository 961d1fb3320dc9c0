package plan

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pd-tools/pd-tools/internal/reservation"
)

// FuzzRead reads anything as a trace or a manifest, and replays what can be read:
// memory goes by the input, and every request ends, or the run says that it stands
// still.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":1000,"output_length":5,"hash_ids":[1,2]}` + "\n" + `{"timestamp":27,"input_length":600,"output_length":9,"hash_ids":[1]}`))
	f.Add([]byte(lines("A 2 0", "B 3 1")))
	f.Add([]byte(`{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","length":100}],"last":false}` + "\n" + `{"cancel":"A"}`))
	f.Add([]byte(`{"timestamp":1e300,"input_length":9223372036854775807,"hash_ids":[]}`))
	f.Add([]byte("# nothing\n\n{\"hash_ids\":" + strings.Repeat("[", 1000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		l, err := Read(bytes.NewReader(data), "test", Options{BytesPerToken: 10, TokensPerChunk: 512, Batch: 4, Limit: 100})
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20+uint64(len(data))*4000 {
			t.Fatalf("%d bytes took %d bytes of memory", len(data), got)
		}
		if err != nil {
			if err.Error() == "" || l != nil {
				t.Fatalf("%v, and error %q", l, err)
			}
			return
		}
		if l.Largest > 200 || l.Chunks > 2000 {
			return
		}
		w := World{Pace: 1, Senders: 2, LinkRate: 1 << 20, RoundTrip: time.Millisecond, AdmitTimeout: time.Minute, Consume: time.Millisecond}
		for _, mode := range []reservation.Mode{reservation.Reserve, reservation.Serial, reservation.None} {
			r := Run(l, w, Policy{Mode: mode}, max(l.Largest, 1))
			if r.Requests != l.Requests() {
				t.Fatalf("%v: %d requests of %d", mode, r.Requests, l.Requests())
			}
		}
	})
}
