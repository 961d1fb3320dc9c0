package reservation

import "hash/maphash"

// memory remembers ended requests: "An ended request, released ones included,
// is remembered by (sender, req_id) for 60 s, at most 65,536 of them; it never
// becomes ready or admitted again in that time."
//
// Of the names it keeps hashes: peers choose them, up to 767 bytes a request. That
// one request is taken for another has a chance of 2^-48 with a full memory, and
// refuses it; who does not know the seed cannot bring it about.
type memory struct {
	seed    maphash.Seed
	known   map[uint64]Kind
	expired map[uint64]int // of req_ids that expired, for decoders
	ring    []endedAt      // oldest first, from head
	head, n int
}

type endedAt struct {
	name, req uint64 // of sender and req_id, and of req_id
	at        Time
}

func newMemory(size int) memory {
	return memory{
		seed:    maphash.MakeSeed(),
		known:   make(map[uint64]Kind),
		expired: make(map[uint64]int),
		ring:    make([]endedAt, size),
	}
}

func (e *memory) name(sender, req string) uint64 {
	return maphash.Comparable(e.seed, [2]string{sender, req})
}

func (e *memory) req(req string) uint64 { return maphash.String(e.seed, req) }

func (e *memory) has(sender, req string) bool {
	_, ok := e.known[e.name(sender, req)]
	return ok
}

func (e *memory) how(sender, req string) Kind { return e.known[e.name(sender, req)] }

// hasExpired says whether a request of that name, whoever's, has expired.
func (e *memory) hasExpired(req string) bool { return e.expired[e.req(req)] > 0 }

// add remembers one that is not remembered yet.
func (e *memory) add(sender, req string, how Kind, now Time) {
	if e.n == len(e.ring) {
		e.forgetOldest()
	}
	ended := endedAt{e.name(sender, req), e.req(req), now}
	e.known[ended.name] = how
	if how == Expired {
		e.expired[ended.req]++
	}
	e.ring[(e.head+e.n)%len(e.ring)] = ended
	e.n++
}

func (e *memory) forgetOldest() {
	old := e.ring[e.head]
	if e.known[old.name] == Expired {
		if e.expired[old.req]--; e.expired[old.req] == 0 {
			delete(e.expired, old.req)
		}
	}
	delete(e.known, old.name)
	e.head = (e.head + 1) % len(e.ring)
	e.n--
}

func (e *memory) forgetBefore(t Time) {
	for e.n > 0 && e.ring[e.head].at <= t {
		e.forgetOldest()
	}
}
