package manifest

import (
	"errors"
	"strings"
	"testing"
)

func TestTracker(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		says        string // of the last line; "" when it is right
	}{
		{"two lines", `{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","length":1}]}
			{"req_id":"A","total_chunks":2,"chunks":[{"key":"b","length":1}],"last":true}`, ""},
		{"last with nothing left", `{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1}]}
			{"req_id":"A","total_chunks":1,"last":true}`, ""},
		{"no chunks at all", `{"req_id":"A","total_chunks":0,"last":true}`, ""},
		{"to on the first line only", `{"req_id":"A","total_chunks":1,"to":1}
			{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1}],"last":true}`, ""},
		{"same key in two requests", `{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1}],"last":true}
			{"req_id":"B","total_chunks":1,"chunks":[{"key":"a","length":1}],"last":true}`, ""},
		{"cancel", `{"cancel":"A"}`, ""},
		{"ends early", `{"req_id":"A","total_chunks":3,"chunks":[{"key":"a","length":1}]}
			{"req_id":"A","total_chunks":3,"chunks":[{"key":"b","length":1}],"last":true}`, "last after 2 of 3 chunks"},
		{"too many", `{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1}]}
			{"req_id":"A","total_chunks":1,"chunks":[{"key":"b","length":1}]}`, "2 chunks with those of earlier lines, total_chunks is 1"},
		{"behind last", `{"req_id":"A","total_chunks":1,"chunks":[{"key":"a","length":1}],"last":true}
			{"req_id":"A","total_chunks":1,"chunks":[{"key":"b","length":1}]}`, "follows the line that said last"},
		{"other total", `{"req_id":"A","total_chunks":2,"chunks":[{"key":"a","length":1}]}
			{"req_id":"A","total_chunks":3,"chunks":[{"key":"b","length":1}]}`, "total_chunks is 3, it was 2"},
		{"other receiver", `{"req_id":"A","total_chunks":2,"to":0}
			{"req_id":"A","total_chunks":2,"to":1}`, "to is 1"},
		{"key twice", `{"req_id":"A","total_chunks":9,"chunks":[{"key":"a","length":1}]}
			{"req_id":"A","total_chunks":9,"chunks":[{"key":"b","length":1},{"key":"a","length":1}]}`, `chunks[1]: key "a" stood on an earlier line`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tr Tracker
			in := NewReader(strings.NewReader(c.lines), "m")
			n := strings.Count(c.lines, "\n") + 1
			for no := 1; no <= n; no++ {
				line, err := in.Next()
				if err != nil {
					t.Fatal(err)
				}
				err = tr.Check(line)
				if no < n || c.says == "" {
					if err != nil {
						t.Errorf("line %d: %v", no, err)
					}
					continue
				}
				bad := (*LineError)(nil)
				if !errors.As(err, &bad) || bad.ReqID != "A" || bad.No != n || !strings.Contains(bad.Error(), c.says) {
					t.Errorf("error %v, want %q", err, c.says)
				}
			}
		})
	}
}

func TestTrackerEndForgets(t *testing.T) {
	var tr Tracker
	line := Line{File: "m", No: 1, Batch: &Batch{ReqID: "A", Total: 1, Chunks: []Chunk{{Key: "a", Length: 1}}, Last: true}}
	if err := tr.Check(line); err != nil {
		t.Fatal(err)
	}
	if tr.Check(line) == nil {
		t.Error("a line behind the last one is right")
	}
	tr.End("A")
	if err := tr.Check(line); err != nil {
		t.Errorf("after End: %v", err)
	}
	tr.End("A")
	if len(tr.live) != 0 {
		t.Errorf("%d requests remembered", len(tr.live))
	}
}

func TestTrackerRemembersNothingOfABadLine(t *testing.T) {
	var tr Tracker
	if tr.Check(Line{Batch: &Batch{ReqID: "A", Total: 2, Last: true}}) == nil {
		t.Fatal("a request that ends early is right")
	}
	if len(tr.live) != 0 {
		t.Errorf("%d requests remembered", len(tr.live))
	}
}
