package reservation

// queue holds the requests that wait for admission, in arrival order. It
// answers in logarithmic time which is the first that needs no more than so
// many slots, and how often the head has been passed.
//
// Passing: whoever overtakes passes everybody ahead of it, a prefix of the
// queue. So the head has been passed most often, and it is enough to bound
// the head. The count of a waiting request is the sum of the marks from it to
// the tail: one mark is left on the place just ahead of each that overtook.
type queue struct {
	first, last *request
	size        int
	bytes       int64 // of the waiting batches
	passed      int   // how often the head has been passed: the sum of all marks

	// A tournament tree over places: leaf i is place i, counted from the last
	// rebuild. Node n has children 2n and 2n+1; the root is 1.
	least  []int32    // smallest need below, noNeed where nobody waits
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
	prev, next *request
}

const (
	noNeed       = 1<<31 - 1
	minimalPlace = 16
)

func (q *queue) leaves() int { return len(q.least) / 2 }

func (q *queue) push(r *request, need int, since Time) {
	r.place = place{need: need, since: since, waits: true, prev: q.last}
	if q.last != nil {
		q.last.place.next = r
	} else {
		q.first = r
	}
	q.last = r
	q.size++
	if q.nextAt == q.leaves() {
		q.rebuild()
		return
	}
	q.settle(r)
}

// settle gives r the next place.
func (q *queue) settle(r *request) {
	r.place.at = q.nextAt
	q.who[q.nextAt] = r
	q.nextAt++
	q.set(r.place.at, int32(min(r.place.need, noNeed-1)), 1)
}

// rebuild closes the gaps that those who left have made. A tree is rebuilt
// only after at least half as many pushes as it has leaves.
func (q *queue) rebuild() {
	n := minimalPlace
	for n < 2*q.size {
		n *= 2
	}
	q.least = make([]int32, 2*n)
	q.count = make([]int32, 2*n)
	q.who = make([]*request, n)
	for i := range q.least {
		q.least[i] = noNeed
	}
	q.nextAt = 0
	for r := q.first; r != nil; r = r.place.next {
		q.settle(r)
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
	if p.prev != nil {
		p.prev.place.next = p.next
		p.prev.place.mark += p.mark
	} else {
		q.first = p.next
		q.passed -= p.mark
	}
	if p.next != nil {
		p.next.place.prev = p.prev
	} else {
		q.last = p.prev
	}
	q.set(p.at, noNeed, 0)
	q.who[p.at] = nil
	q.size--
	*p = place{}
}

// overtaken notes that r, about to be removed, passes everybody ahead of it.
func (q *queue) overtaken(r *request) {
	if ahead := r.place.prev; ahead != nil {
		ahead.place.mark++
		q.passed++
	}
}

// passedBy notes that one that never waited passes everybody who does.
func (q *queue) passedBy() {
	if q.last != nil {
		q.last.place.mark++
		q.passed++
	}
}

// firstWithin is the first that needs at most so many slots, or nil.
func (q *queue) firstWithin(slots int) *request {
	if q.size == 0 || int(q.least[1]) > slots {
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
