package receiver

import "sync"

// mailbox hands things from one goroutine to another without blocking the one
// that puts. What goes through one is bounded by what there is: a writer ends
// once, a slot is under revocation once.
type mailbox[T any] struct {
	mu    sync.Mutex
	items []T
	some  chan struct{} // has an element when items may not be empty
}

func newMailbox[T any]() *mailbox[T] {
	return &mailbox[T]{some: make(chan struct{}, 1)}
}

func (m *mailbox[T]) put(item T) {
	m.mu.Lock()
	m.items = append(m.items, item)
	m.mu.Unlock()
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// take is all that has been put since the last time.
func (m *mailbox[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := m.items
	m.items = nil
	return items
}
