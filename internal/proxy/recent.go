package proxy

import (
	"container/list"
	"iter"
)

// recent is a map of bounded size: to make room it drops what was put in
// first. Every operation takes constant time.
type recent[V any] struct {
	limit int
	order *list.List // of item[V], oldest first
	byKey map[string]*list.Element
}

type item[V any] struct {
	key   string
	value V
}

func newRecent[V any](limit int) *recent[V] {
	return &recent[V]{limit: limit, order: list.New(), byKey: map[string]*list.Element{}}
}

func (r *recent[V]) len() int { return r.order.Len() }

// get returns the zero value for a key that is not there.
func (r *recent[V]) get(key string) (value V, ok bool) {
	e, ok := r.byKey[key]
	if ok {
		value = e.Value.(item[V]).value
	}
	return value, ok
}

// put sets the key's value and says whether another had to go. A key that is
// there keeps its age.
func (r *recent[V]) put(key string, value V) (dropped bool) {
	if e, ok := r.byKey[key]; ok {
		e.Value = item[V]{key, value}
		return false
	}
	if r.order.Len() == r.limit {
		r.remove(r.order.Front().Value.(item[V]).key)
		dropped = true
	}
	r.byKey[key] = r.order.PushBack(item[V]{key, value})
	return dropped
}

// all yields everything, what was put in first first.
func (r *recent[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for e := r.order.Front(); e != nil; e = e.Next() {
			if i := e.Value.(item[V]); !yield(i.key, i.value) {
				return
			}
		}
	}
}

func (r *recent[V]) remove(key string) {
	if e, ok := r.byKey[key]; ok {
		r.order.Remove(e)
		delete(r.byKey, key)
	}
}
