package sender

import "sync"

// mailbox hands values from many goroutines to one, in order. put never blocks:
// what may be under way is bounded by whoever puts.
type mailbox[T any] struct {
	mu   sync.Mutex
	list []T
	wake func() // tells the reader; must not block
}

func (m *mailbox[T]) put(v T) {
	m.mu.Lock()
	m.list = append(m.list, v)
	m.mu.Unlock()
	m.wake()
}

// take returns what has come and keeps empty, which the reader is done with,
// for what comes next.
func (m *mailbox[T]) take(empty []T) []T {
	clear(empty)
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.list
	m.list = empty[:0]
	return list
}
