package plan

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

var columns = []string{
	"BUFFER", "SLOTS", "POLICY", "READY", "TIMED OUT", "TOO LARGE", "LOST", "WAIT P50", "P99", "MAX", "LARGE P99",
	"TO READY P50", "P99", "USED", "GOODPUT", "DEADLOCKS",
}

// Table writes results as a table for people, a blank line between buffer sizes,
// and under it where the policies first deadlocked.
func Table(w io.Writer, results []Result) error {
	rows := [][]string{columns}
	for i := range results {
		r := &results[i]
		if i > 0 && r.Slots != results[i-1].Slots {
			rows = append(rows, nil)
		}
		rows = append(rows, []string{
			Size(r.Bytes), fmt.Sprint(r.Slots), r.Policy.String(), fmt.Sprint(r.Ready), count(r.TimedOut), count(r.TooLarge), count(r.Lost),
			Time(r.Wait.P50), Time(r.Wait.P99), Time(r.Wait.Max), Time(r.Large.P99), Time(r.ToReady.P50), Time(r.ToReady.P99),
			fmt.Sprintf("%.0f%%", 100*r.Utilisation), Size(int64(r.Goodput)) + "/s", count(r.Deadlocks),
		})
	}
	var b strings.Builder
	align(&b, rows)
	gap := "\n"
	for i := range results {
		if r := &results[i]; r.Deadlock != nil {
			fmt.Fprintf(&b, "%s%v with %d slots deadlocks %v\n", gap, r.Policy, r.Slots, r.Deadlock)
			gap = ""
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// align writes rows with columns as wide as they need, numbers to the right.
func align(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				b.WriteString("  ")
			}
			if columns[i] == "POLICY" {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		b.WriteByte('\n')
	}
}

func count(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// Size shows bytes.
func Size(bytes int64) string { return humanize.IBytes(uint64(bytes)) }

// Time shows a time by three digits at most.
func Time(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return "<1ms"
	case d < time.Second-500*time.Microsecond:
		return fmt.Sprintf("%dms", (d+500*time.Microsecond)/time.Millisecond)
	case d < 10*time.Second-5*time.Millisecond:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < 100*time.Second-50*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}
