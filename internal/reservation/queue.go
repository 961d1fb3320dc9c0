package reservation

import "iter"

// queue holds the requests that wait for admission, in arrival order. Those that
// their tenant's share holds back have a place in it and stand in nobody's way;
// the others are in line. It answers in logarithmic time which is the first in
// line that needs no more than so many slots, and how often the head of the line
// has been passed.
//
// Passing: whoever overtakes passes everybody ahead of it, a prefix of the
// line. So the head has been passed most often, and it is enough to bound
// the head. The count of one in line is the sum of the marks from it to the
// end: one mark is left on the place just ahead of each that overtook. One that
// was held back counts as passed as often as whoever is behind it.
type queue struct {
	line   line
	size   int   // of the line and held back
	bytes  int64 // of the waiting batches
	passed int   // how often the head has been passed: the sum of all marks

	// A tournament tree over places: leaf i is place i, counted from the last
	// rebuild. Node n has children 2n and 2n+1; the root is 1.
	least  []int32    // smallest need below, noNeed where nobody is in line
	count  []int32    // how many wait below
	who    []*request // at each place
	nextAt int        // the next place
}

// place is a request's own part of the queue.
type place struct {
	need       int
	at         int
	mark       int
	since      Time // it has waited from here
	waits      bool
	held       bool // by its tenant's share
	prev, next *request
}

// line is some of the requests that wait, in arrival order.
type line struct{ first, last *request }

// insert puts r behind ahead, which is nil at the front.
func (l *line) insert(r, ahead *request) {
	p := &r.place
	p.prev, p.next = ahead, l.first
	if ahead != nil {
		p.next = ahead.place.next
		ahead.place.next = r
	} else {
		l.first = r
	}
	if p.next != nil {
		p.next.place.prev = r
	} else {
		l.last = r
	}
}

func (l *line) remove(r *request) {
	p := &r.place
	if p.prev != nil {
		p.prev.place.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.place.prev = p.prev
	} else {
		l.last = p.prev
	}
}

const (
	noNeed       = 1<<31 - 1
	minimalPlace = 16
)

func (q *queue) leaves() int { return len(q.least) / 2 }

func (q *queue) push(r *request, need int, since Time, held bool) {
	r.place = place{need: need, since: since, waits: true, held: held}
	if held {
		r.tenant.held.insert(r, r.tenant.held.last)
	} else {
		q.line.insert(r, q.line.last)
	}
	q.size++
	if q.nextAt == q.leaves() {
		q.rebuild()
	}
	q.settle(r)
}

// settle gives r the next place.
func (q *queue) settle(r *request) {
	r.place.at = q.nextAt
	q.who[q.nextAt] = r
	q.nextAt++
	need := int32(min(r.place.need, noNeed-1))
	if r.place.held {
		need = noNeed
	}
	q.set(r.place.at, need, 1)
}

// all are those who wait, in arrival order.
func (q *queue) all() iter.Seq[*request] {
	return func(yield func(*request) bool) {
		for _, r := range q.who[:q.nextAt] {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// rebuild closes the gaps that those who left have made. A tree is rebuilt
// only after at least half as many pushes as it has leaves.
func (q *queue) rebuild() {
	n := minimalPlace
	for n < 2*q.size {
		n *= 2
	}
	before := q.who
	q.least = make([]int32, 2*n)
	q.count = make([]int32, 2*n)
	q.who = make([]*request, n)
	for i := range q.least {
		q.least[i] = noNeed
	}
	q.nextAt = 0
	for _, r := range before {
		if r != nil {
			q.settle(r)
		}
	}
}

func (q *queue) set(at int, need, count int32) {
	n := at + q.leaves()
	q.least[n], q.count[n] = need, count
	for n /= 2; n > 0; n /= 2 {
		q.least[n] = min(q.least[2*n], q.least[2*n+1])
		q.count[n] = q.count[2*n] + q.count[2*n+1]
	}
}

// remove takes r out. Those ahead of it stay passed as often as they were.
func (q *queue) remove(r *request) {
	p := &r.place
	switch {
	case p.held:
		r.tenant.held.remove(r)
	case p.prev != nil:
		p.prev.place.mark += p.mark
		q.line.remove(r)
	default:
		q.passed -= p.mark
		q.line.remove(r)
	}
	q.set(p.at, noNeed, 0)
	q.who[p.at] = nil
	q.size--
	*p = place{}
}

// letIn puts one that was held back into the line, at its place.
func (q *queue) letIn(r *request) {
	r.tenant.held.remove(r)
	r.place.held = false
	q.line.insert(r, q.ahead(r.place.at))
	q.set(r.place.at, int32(min(r.place.need, noNeed-1)), 1)
}

// ahead is who in line is next ahead of a place, or nil.
func (q *queue) ahead(at int) *request {
	n := at + q.leaves()
	for n > 1 && (n%2 == 0 || q.least[n-1] == noNeed) {
		n /= 2
	}
	if n <= 1 {
		return nil
	}
	for n--; n < q.leaves(); {
		n = 2*n + 1
		if q.least[n] == noNeed {
			n--
		}
	}
	return q.who[n-q.leaves()]
}

// overtaken notes that r, about to be removed, passes everybody ahead of it.
func (q *queue) overtaken(r *request) {
	if ahead := r.place.prev; ahead != nil {
		ahead.place.mark++
		q.passed++
	}
}

// passedBy notes that one that never waited passes everybody in line.
func (q *queue) passedBy() {
	if last := q.line.last; last != nil {
		last.place.mark++
		q.passed++
	}
}

// firstWithin is the first in line that needs at most so many slots, or nil.
func (q *queue) firstWithin(slots int) *request {
	if q.line.first == nil || int(q.least[1]) > slots {
		return nil
	}
	n := 1
	for n < q.leaves() {
		n *= 2
		if int(q.least[n]) > slots {
			n++
		}
	}
	return q.who[n-q.leaves()]
}

// position is r's place counted from 1.
func (q *queue) position(r *request) int {
	n := r.place.at + q.leaves()
	pos := 1
	for ; n > 1; n /= 2 {
		if n%2 == 1 {
			pos += int(q.count[n-1])
		}
	}
	return pos
}
