package monitor

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Whoever comes and whatever happens: never two messages within a gap, Events
// at least a period apart, and neither sort keeps the other from going.
func TestPace(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var p pace
		now := time.Unix(1000, 0)
		var last, lastSnapshot, lastEvent time.Time
		snapshots, events := 0, 0
		joins, happens := rng.IntN(3) == 0, rng.IntN(3) > 0
		p.joined(now)
		for end := now.Add(time.Minute); now.Before(end); {
			if joins && rng.IntN(2) == 0 {
				p.joined(now)
			}
			what, in := p.next(now, happens)
			if what != sendNothing && now.Sub(last) < gap {
				t.Fatalf("seed %d: a message %v after the one before", seed, now.Sub(last))
			}
			switch what {
			case sendNothing:
				if in <= 0 || in > period {
					t.Fatalf("seed %d: waits %v", seed, in)
				}
				now = now.Add(min(in, time.Duration(1+rng.Int64N(int64(50*time.Millisecond)))))
			case sendSnapshot:
				p.asked()
				now = now.Add(time.Duration(rng.Int64N(int64(5 * time.Millisecond))))
				p.snapshotSent(now, 0)
				last, lastSnapshot = now, now
				snapshots++
			case sendEvent:
				if now.Sub(lastEvent) < period {
					t.Fatalf("seed %d: an Event %v after the one before", seed, now.Sub(lastEvent))
				}
				p.eventSent(now)
				last, lastEvent = now, now
				events++
			}
			if !lastSnapshot.IsZero() && now.Sub(lastSnapshot) > period+2*gap {
				t.Fatalf("seed %d: no Snapshot for %v", seed, now.Sub(lastSnapshot))
			}
		}
		if least := 60 * 2; snapshots < least || happens && events < least {
			t.Errorf("seed %d: %d Snapshots and %d Events in a minute", seed, snapshots, events)
		}
	}
}

func TestPaceOfLongSnapshots(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	p.joined(now)
	p.asked()
	p.snapshotSent(now, manyEntries+1)
	if what, in := p.next(now, false); what != sendNothing || in != longPeriod {
		t.Errorf("next in %v, want %v", in, longPeriod)
	}
	p.joined(now.Add(gap / 2))
	if what, in := p.next(now.Add(gap/2), false); what != sendNothing || in != gap/2 {
		t.Errorf("a new subscriber waits %v, want %v", in, gap/2)
	}
	// One who came while the answer was awaited may have missed it.
	p.asked()
	p.joined(now.Add(2 * gap))
	p.snapshotSent(now.Add(2*gap), manyEntries+1)
	if what, _ := p.next(now.Add(3*gap), false); what != sendSnapshot {
		t.Error("nothing for who came while a Snapshot was awaited")
	}
}
