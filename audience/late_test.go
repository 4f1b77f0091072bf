package audience

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"lemma/audience/wire"
)

// lateWriter is a connection whose writes return only after much was read: their thread has no
// processor for a while.
type lateWriter struct {
	net.Conn
	mu   sync.Mutex
	more sync.Cond
	late bool
	read int
}

func (l *lateWriter) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read += n
	l.more.Broadcast()
	return n, err
}

func (l *lateWriter) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = false
	l.more.Broadcast()
	return l.Conn.Close()
}

func (l *lateWriter) Write(p []byte) (int, error) {
	n, err := l.Conn.Write(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	for begun := l.read; l.late && l.read < begun+2<<20; {
		l.more.Wait()
	}
	l.late = false
	return n, err
}

// pgx reads in the background while a write lasts for more than 15 ms. What it reads ahead is no large
// row.
func TestRowsThatAreReadWhileAWriteLasts(t *testing.T) {
	b := setup(t, dev)
	c, err := pgconn.ParseConfig(b.DSN)
	b.Must(err)
	slow := &lateWriter{}
	slow.more.L = &slow.mu
	var m *wire.Meter
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		slow.Conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		m = wire.NewMeter(slow, 1<<20, 1<<40)
		return m, err
	}
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(wire.NewPostgres(r, m), w)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), c)
	b.Must(err)
	defer conn.Close(context.Background())
	slow.mu.Lock()
	slow.late = true
	slow.mu.Unlock()
	const rows = 3000
	result := conn.ExecParams(t.Context(), "select repeat('x', 4000) from generate_series(1, 3000)", nil, nil, nil, nil)
	n := 0
	for m.Progress(); result.NextRow(); m.Progress() {
		n++
	}
	if _, err := result.Close(); err != nil || n != rows {
		t.Errorf("%d rows of %d, then %v (%v)", n, rows, err, m.Why())
	}
}
