package chaos

import (
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// link is a TCP port that leads to a Postgres. While it is bad, each connection
// has a short life and one of three ends.
type link struct {
	port net.Listener
	to   string // the socket's file
	bad  atomic.Bool
	ends [3]atomic.Int64

	mu   sync.Mutex
	dice *rand.Rand
}

const (
	cutEnd  = iota // both sides are closed
	lostEnd        // the next statement is carried out, and its answer never arrives
	lateEnd        // the next statement reaches Postgres after the client has given it up
)

func openLink(t *testing.T, pool *pgxpool.Pool, dice *rand.Rand) *link {
	t.Helper()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := pool.Config().ConnConfig
	l := &link{port: port, to: filepath.Join(at.Host, ".s.PGSQL."+strconv.Itoa(int(at.Port))), dice: dice}
	t.Cleanup(func() { _ = port.Close() })
	go l.serve()
	return l
}

// dsn leads to the pool's database through the link.
func (l *link) dsn(pool *pgxpool.Pool) string {
	at := pool.Config().ConnConfig
	return "postgres://" + at.User + "@" + l.port.Addr().String() + "/" + at.Database + "?sslmode=disable"
}

func (l *link) serve() {
	for {
		client, err := l.port.Accept()
		if err != nil {
			return
		}
		go l.carry(client)
	}
}

// random is a time up to most.
func (l *link) random(most time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.dice.Int64N(int64(most)))
}

// draw is how long a connection lives, and how it ends.
func (l *link) draw() (life time.Duration, end int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration((0.3 + 1.5*l.dice.ExpFloat64()) * float64(time.Second)), l.dice.Int32N(3)
}

const working = -1

func (l *link) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", l.to)
	if err != nil {
		return
	}
	defer server.Close()
	var state atomic.Int32
	state.Store(working)
	life, end := l.draw()
	over := time.AfterFunc(life, func() {
		if !l.bad.Load() {
			return
		}
		l.ends[end].Add(1)
		if state.Store(end); end == cutEnd {
			server.Close()
		}
		time.AfterFunc(100*time.Millisecond, func() { client.Close() })
	})
	defer over.Stop()
	go func() {
		defer client.Close()
		for buffer := make([]byte, piece); ; {
			n, err := server.Read(buffer)
			if n > 0 && state.Load() == working {
				_, _ = client.Write(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	for buffer := make([]byte, piece); ; {
		n, err := client.Read(buffer)
		now := state.Load()
		if n > 0 && now == lateEnd {
			client.Close()
			time.Sleep(l.random(2500 * time.Millisecond))
		}
		if n > 0 && now != cutEnd {
			_, _ = server.Write(buffer[:n])
		}
		if n > 0 && now != working { // the backend may be busy with it for a while
			client.Close()
			time.Sleep(l.random(time.Second))
			return
		}
		if err != nil {
			return
		}
	}
}
