package metrics

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// conns is a listener that keeps at most so many connections open. A new one is
// always taken: who has been open longest without having asked anything makes
// room for it, so that peers that connect and say nothing keep nobody out.
type conns struct {
	net.Listener
	most int

	mu   sync.Mutex
	open list.List // *conn, oldest first
}

type conn struct {
	net.Conn
	of *conns

	// Guarded by of.mu.
	at    *list.Element // nil: closed
	asked bool
}

func (l *conns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	added := &conn{Conn: c, of: l}
	l.mu.Lock()
	added.at = l.open.PushBack(added)
	var out *conn
	if l.open.Len() > l.most {
		out = l.idlest()
	}
	l.mu.Unlock()
	if out != nil {
		_ = out.Close()
	}
	return added, nil
}

// idlest is the oldest but the newest that has asked nothing, or else just the
// oldest.
func (l *conns) idlest() *conn {
	for e := l.open.Front(); e != l.open.Back(); e = e.Next() {
		if c := e.Value.(*conn); !c.asked {
			return c
		}
	}
	return l.open.Front().Value.(*conn)
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	if c.at != nil {
		c.of.open.Remove(c.at)
		c.at = nil
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// connKey is where a request's context has its connection.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// noteAsked is next, told apart from connections that ask nothing.
func noteAsked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		c.of.mu.Lock()
		c.asked = true
		c.of.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}
