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

// postgresProxy is a TCP port that forwards to Postgres. While it is faulty, each
// connection ends soon, in one of three ways.
type postgresProxy struct {
	port   net.Listener
	to     string // the socket's file
	faulty atomic.Bool
	ends   [3]atomic.Int64

	mu   sync.Mutex
	rng  *rand.Rand
	next int32 // how the next connection ends
}

const (
	cutEnd  = iota // both sides are closed
	lostEnd        // the next statement is executed, and its answer is lost
	lateEnd        // the next statement reaches Postgres after the client has cancelled it
)

func startPostgresProxy(t *testing.T, pool *pgxpool.Pool, random *rand.Rand) *postgresProxy {
	t.Helper()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := pool.Config().ConnConfig
	l := &postgresProxy{port: port, to: filepath.Join(at.Host, ".s.PGSQL."+strconv.Itoa(int(at.Port))), rng: random}
	t.Cleanup(func() { _ = port.Close() })
	go l.serve()
	return l
}

// dsn connects to the pool's database through the proxy.
func (l *postgresProxy) dsn(pool *pgxpool.Pool) string {
	at := pool.Config().ConnConfig
	return "postgres://" + at.User + "@" + l.port.Addr().String() + "/" + at.Database + "?sslmode=disable"
}

func (l *postgresProxy) serve() {
	for {
		client, err := l.port.Accept()
		if err != nil {
			return
		}
		go l.carry(client)
	}
}

// random is a random duration below most.
func (l *postgresProxy) random(most time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.rng.Int64N(int64(most)))
}

// lifetime is how long a connection lasts, and how it ends: in each way in turn.
func (l *postgresProxy) lifetime() (life time.Duration, end int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = (l.next + 1) % int32(len(l.ends))
	return time.Duration((0.3 + 1.5*l.rng.ExpFloat64()) * float64(time.Second)), l.next
}

// hasEnded reports that enough connections have ended in each way.
func (l *postgresProxy) hasEnded() bool {
	for i := range l.ends {
		if l.ends[i].Load() < faultyEnds {
			return false
		}
	}
	return true
}

const working = -1

func (l *postgresProxy) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", l.to)
	if err != nil {
		return
	}
	defer server.Close()
	var state atomic.Int32
	state.Store(working)
	life, end := l.lifetime()
	over := time.AfterFunc(life, func() {
		if !l.faulty.Load() {
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
		if n > 0 && now != working { // the backend may execute it for a while
			client.Close()
			time.Sleep(l.random(time.Second))
			return
		}
		if err != nil {
			return
		}
	}
}
