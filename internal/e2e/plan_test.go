package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/internal/built"
)

// TestPlanAgrees compares what pd-recv plan says of 300 requests of the trace
// with what becomes of them: three times they are sent, at the same pace, to a
// buffer of the same size whose decoder takes as long. The median of the runs'
// admission waits is within 20% or 20 ms of the plan's. The race detector
// slows the programs, and so does what else runs: make test-plan runs it.
func TestPlanAgrees(t *testing.T) {
	trace := realTrace(t)
	if built.Race {
		t.Skip("compares times: make test-plan runs it, without the race detector and with the machine to itself")
	}
	const requests, slots, chunk, runs = 300, 256, 16 << 10, 3
	const pace, consume = "10", "250ms"
	manifest := output(t, 0, "pd-send", "manifest", "--chunk-size", fmt.Sprint(chunk), "--limit", fmt.Sprint(requests), trace)
	plan := start(t, strings.NewReader(manifest), "pd-recv", "plan", "--json", "--buffer-size", fmt.Sprint(slots*chunk),
		"--admission", "reserve", "--overtake", "0", "--pace", pace, "--consume", consume, "--link-rate", "inf", "--admit-timeout", "60s")
	if code := plan.exits(); code != 0 {
		t.Fatalf("plan ends with %d", code)
	}
	var said struct {
		Slots int
		Ready int
		Wait  struct{ P50, P90 float64 } `json:"admit_wait_ms"`
	}
	if err := json.Unmarshal([]byte(plan.stdout()[1]), &said); err != nil {
		t.Fatal(err)
	}
	if said.Slots != slots || said.Ready != requests || said.Wait.P50 <= 100 {
		t.Fatalf("plan: %+v: want %d slots, %d ready, and p50 above 100 ms", said, slots, requests)
	}
	var p50, p90 []float64
	for range runs {
		waits := pacedWaits(t, manifest, slots, chunk, pace, consume)
		if len(waits) != requests {
			t.Fatalf("%d requests were admitted, want %d", len(waits), requests)
		}
		p50, p90 = append(p50, percentile(waits, 50)), append(p90, percentile(waits, 90))
	}
	t.Logf("planned p50 %.1f ms, p90 %.1f ms; p50 was %.1f, p90 was %.1f", said.Wait.P50, said.Wait.P90, p50, p90)
	for _, c := range []struct {
		name    string
		planned float64
		was     []float64
	}{{"p50", said.Wait.P50, p50}, {"p90", said.Wait.P90, p90}} {
		if was := percentile(c.was, 50); math.Abs(was-c.planned) > max(20, c.planned/5) {
			t.Errorf("%s of the admission wait: planned %.1f ms, was %.1f of %.1f", c.name, c.planned, was, c.was)
		}
	}
}

// pacedWaits sends a manifest and returns how long each request waited for
// admission, in milliseconds.
func pacedWaits(t *testing.T, manifest string, slots, chunk int, pace, consume string) []float64 {
	t.Helper()
	recv := receiveChunks(t, slots, chunk, "--admit-timeout", "60s", "--sink="+consume)
	send := start(t, strings.NewReader(manifest), "pd-send", "--to", recv.endpoint, "--pace", pace, "--timeout", "90s")
	if code := send.exits(); code != 0 {
		t.Errorf("pd-send ends with %d", code)
	}
	recv.empty()
	var waits []float64
	for _, l := range recv.lines("event", "admitted") {
		ms, _ := l["waited_ms"].(float64)
		waits = append(waits, ms)
	}
	return waits
}

// percentile is the smallest value that so many percent are not above.
func percentile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*percent+99)/100-1]
}
