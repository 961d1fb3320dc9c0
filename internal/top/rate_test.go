package top

import (
	"math"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/wire"
)

// at is a snapshot of a receiver that has been up for so long and has written
// so much.
func at(up float64, epoch uint64, bytes int64) *wire.Snapshot {
	return &wire.Snapshot{
		ID: "recv-0", Epoch: epoch, UptimeS: up, Time: wire.StampOf(start.Add(time.Duration(up * float64(time.Second)))),
		Admission: "reserve", Slots: wire.SnapshotSlots{Total: 10, Free: 10, Bytes: chunk},
		Counters: wire.Counters{WrittenBytes: bytes, Ready: bytes / 100, Admitted: bytes / 50},
	}
}

func report(m *Model, s wire.Message, came float64) {
	m.Update(Report{Msg: s, At: start.Add(time.Duration(came * float64(time.Second)))})
}

func one() *Model {
	m := New(Options{Endpoints: endpoints3[:1]})
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	return m
}

func wantRate(t *testing.T, m *Model, known bool, bytes float64) {
	t.Helper()
	r := m.sources[0].frame.rates
	if r.known != known || math.Abs(r.bytes-bytes) > 1e-6*max(bytes, 1) {
		t.Errorf("known %v, %f bytes/s; want %v, %f", r.known, r.bytes, known, bytes)
	}
}

// F70: rates are by the clock of whoever is watched, whenever the snapshot came
// and whatever that clock says.
func TestRateBySourceClock(t *testing.T) {
	for name, came := range map[string][]float64{
		"at once": {0, 1, 2}, "late": {3, 4, 5}, "one late": {0, 4, 4.1}, "clock off": {-300, -299, -298}, "all at once": {9, 9, 9},
	} {
		t.Run(name, func(t *testing.T) {
			m := one()
			report(m, at(100, 1, 0), came[0])
			wantRate(t, m, false, 0)
			report(m, at(101, 1, 5000), came[1])
			wantRate(t, m, true, 5000)
			report(m, at(102, 1, 6000), came[2])
			wantRate(t, m, true, 1000)
			if r := m.sources[0].frame.rates; r.peak != 5000 || r.avg != 3000 || r.ready != 10 || r.admitted != 20 {
				t.Errorf("rates are %+v", r)
			}
		})
	}
}

// The wall clock of the source may be set while it is watched.
func TestRateClockStep(t *testing.T) {
	m := one()
	report(m, at(100, 1, 0), 0)
	s := at(101, 1, 5000)
	s.Time = wire.StampOf(start.Add(-time.Hour))
	report(m, s, 1)
	wantRate(t, m, true, 5000)
}

// A snapshot that came twice, or late, changes nothing.
func TestRateOldSnapshot(t *testing.T) {
	m := one()
	report(m, at(100, 1, 0), 0)
	report(m, at(102, 1, 5000), 2)
	for _, s := range []*wire.Snapshot{at(102, 1, 5000), at(101, 1, 100), at(100, 1, 0)} {
		report(m, s, 3)
		wantRate(t, m, true, 2500)
	}
	report(m, at(103, 1, 6000), 4)
	wantRate(t, m, true, 1000)
}

// The rate of now is over about a second, also where snapshots come oftener.
func TestRateOverASecond(t *testing.T) {
	m := one()
	for i := range 41 {
		bytes := int64(0)
		if i == 40 {
			bytes = 1000
		}
		report(m, at(100+float64(i)/4, 1, bytes), float64(i)/4)
	}
	wantRate(t, m, true, 1000)
}

// A restart is said for three seconds, and no rate is negative or reaches over it.
func TestRestart(t *testing.T) {
	for name, second := range map[string]*wire.Snapshot{"new epoch": at(0.5, 2, 10), "counters begin again": at(104, 1, 10)} {
		t.Run(name, func(t *testing.T) {
			m := one()
			report(m, at(100, 1, 1<<40), 0)
			report(m, at(101, 1, 2<<40), 1)
			report(m, second, 4)
			wantRate(t, m, false, 0)
			if v := m.View(); !strings.Contains(v, "RESTARTED") || strings.Contains(v, " -1") {
				t.Error(v)
			}
			report(m, at(second.UptimeS+1, second.Epoch, 510), 5)
			wantRate(t, m, true, 500)
			if r := m.sources[0].frame.rates; r.peak != 500 {
				t.Errorf("the peak is from before: %+v", r)
			}
			if !strings.Contains(m.View(), "RESTARTED") {
				t.Error("RESTARTED is gone after a second")
			}
			m.Update(Status{State: Live, Now: start.Add(7 * time.Second)})
			if v := m.View(); strings.Contains(strings.Split(v, "\n")[0], "RESTARTED") {
				t.Error("RESTARTED after three seconds")
			}
		})
	}
}

// Random counters and clocks never make a negative rate.
func TestNoNegativeRate(t *testing.T) {
	c := newChaos(7)
	m := one()
	for range 1000 {
		report(m, at(c.Float64()*10, uint64(c.IntN(2)), c.Int64N(1000)), c.Float64()*10)
		f := m.sources[0].frame
		r := f.rates
		for _, v := range []float64{r.bytes, r.avg, r.peak, r.ready, r.admitted, r.failed} {
			if !(v >= 0) || math.IsInf(v, 0) {
				t.Fatalf("rates are %+v", r)
			}
		}
		for _, v := range f.spark {
			if v < 0 || math.IsInf(v, 0) {
				t.Fatalf("the seconds are %v", f.spark)
			}
		}
	}
}

// What the line of bars shows adds up to what was written, each second at its
// place, however often snapshots come.
func TestSparkAddsUp(t *testing.T) {
	for _, step := range []float64{0.25, 0.4, 1, 2.5, 7} {
		m := one()
		for up := 100.0; up <= 170; up += step {
			report(m, at(up, 1, int64((up-100)*1000)), up)
		}
		v := m.sources[0].frame.spark
		if len(v) < 60 {
			t.Fatalf("every %v: %d seconds", step, len(v))
		}
		for i, x := range v {
			if math.Abs(x-1000) > 5 {
				t.Errorf("every %v: second %d has %f", step, i, x)
			}
		}
	}
}

// A request's rate is what was written of it; one that is new had nothing.
func TestRequestRate(t *testing.T) {
	m := one()
	snap := func(up float64, a, b int) *wire.Snapshot {
		s := at(up, 1, int64(up)*1000)
		s.Requests = []wire.SnapshotRequest{req("a", "s", "admitted", 16, 16, a, 10, 0)}
		if b > 0 {
			s.Requests = append(s.Requests, req("b", "s", "admitted", 16, 8, b, 10, 0))
		}
		return s
	}
	report(m, snap(100, 4, 0), 0)
	report(m, snap(102, 10, 6), 2)
	f := m.sources[0].frame
	if f.reqRate["a"] != 3*chunk || f.reqRate["b"] != 3*chunk {
		t.Errorf("rates are %v, want 3 chunks each", f.reqRate)
	}
}

// What a source keeps stays small, for hours at the shortest delay.
func TestSourceStaysSmall(t *testing.T) {
	m := one()
	for i := range 8000 {
		report(m, at(float64(i)/10, 1, int64(i)), float64(i)/10)
		m.Update(Events{Event: &wire.Event{Events: make([]wire.EventEntry, 3)}})
	}
	s := m.sources[0]
	held := 0
	for i := range s.samples {
		if s.samples[i].reqs != nil {
			held++
		}
	}
	if len(s.samples) > 1100 || held > 20 || len(s.spark.sums) > 2*sparkSeconds || len(s.events) > 2*keptEvents {
		t.Errorf("%d samples, %d with requests, %d seconds, %d events", len(s.samples), held, len(s.spark.sums), len(s.events))
	}
}

func TestNumbers(t *testing.T) {
	u := units{}
	for n, want := range map[int64]string{0: "0", 999: "999", 318_402: "318,402", 999_999: "999,999", 1_000_000: "1.0 M", 1_019_777_182: "1.02 B", 1_000_000_000: "1.0 B", 999_600_000: "1.0 B", -5: "-5", 12_345_678: "12.3 M"} {
		if got := u.count(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0 B", 999: "999 B", 1024: "1.0 KiB", 1023 * 1024: "1.0 MiB", 9.41 * (1 << 30): "9.41 GiB", 512 << 20: "512 MiB", 11.8 * (1 << 30): "11.8 GiB"} {
		if got := u.bytes(v); got != want {
			t.Errorf("%f is %q, want %q", v, got, want)
		}
	}
	if got := (units{raw: true}).bytes(1 << 30); got != "1,073,741,824 B" {
		t.Error(got)
	}
	for v, want := range map[float64]string{-1: "-", 0: "0ms", 0.34: "0.3ms", 3.14: "3.1ms", 212: "212ms", 999.4: "999ms", 999.6: "1.00s", 4820: "4.82s", 61_000: "61.0s", 99_960: "1m39s", 3_600_000: "1h00m", 90_000_000: "1d01h", math.NaN(): "-", math.Inf(1): "-"} {
		if got := millis(v); got != want {
			t.Errorf("%f ms is %q, want %q", v, got, want)
		}
	}
	for _, tt := range []struct {
		part, all int
		want      string
	}{{0, 0, "-"}, {0, 10, "0%"}, {219, 256, "86%"}, {9999, 10_000, "99%"}, {1, 10_000, "1%"}, {256, 256, "100%"}} {
		if got := percent(tt.part, tt.all); got != tt.want {
			t.Errorf("%d of %d is %q, want %q", tt.part, tt.all, got, tt.want)
		}
	}
}

// The parts of the gauge fill it, and none that is there is left out.
func TestShare(t *testing.T) {
	c := newChaos(9)
	for range 1000 {
		sizes := make([]int, 6)
		total, some := 0, 0
		for i := range sizes {
			if c.IntN(3) > 0 {
				sizes[i] = c.IntN(1 << c.IntN(40))
			}
			total += sizes[i]
			if sizes[i] > 0 {
				some++
			}
		}
		n := 6 + c.IntN(300)
		got := 0
		for i, k := range share(sizes, n) {
			if (k > 0) != (sizes[i] > 0) {
				t.Fatalf("%v in %d: %v", sizes, n, share(sizes, n))
			}
			got += k
		}
		if total > 0 && got != n {
			t.Fatalf("%v in %d: %v", sizes, n, share(sizes, n))
		}
	}
}
