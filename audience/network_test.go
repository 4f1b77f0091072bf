package audience

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience/wire"
	"lemma/pgtest"
)

// line is a proxy between Lemma and the shop that fails on command.
type line struct {
	listener net.Listener
	limit    atomic.Int64  // bytes that the source may still send; below 0 there is no limit
	cut      atomic.Bool   // at the limit, close the connection instead of blocking
	callers  chan struct{} // each connection
	mutex    sync.Mutex
	open     []net.Conn
}

func newLine(t *testing.T, source wire.Target) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &line{listener: l, callers: make(chan struct{}, 1000)}
	p.limit.Store(-1)
	go p.serve(source)
	t.Cleanup(p.close)
	return p
}

func (l *line) serve(source wire.Target) {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := dialShop(source)
		if err != nil {
			client.Close()
			continue
		}
		l.mutex.Lock()
		l.open = append(l.open, client, server)
		l.mutex.Unlock()
		l.callers <- struct{}{}
		go func() { io.Copy(server, client); server.Close() }()
		go l.forward(client, server)
	}
}

func dialShop(source wire.Target) (net.Conn, error) {
	return wire.Rules{AllowPrivate: true, AllowUnix: true}.Dial(context.Background(), source)
}

// forward forwards what the source sends, up to the limit.
func (l *line) forward(client, server net.Conn) {
	buffer := make([]byte, 4096)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			client.Close()
			return
		}
		for left := l.limit.Load(); left >= 0; left = l.limit.Load() {
			if l.limit.CompareAndSwap(left, max(0, left-int64(n))) {
				n = int(min(left, int64(n)))
				break
			}
		}
		client.Write(buffer[:n])
		if l.limit.Load() == 0 && l.cut.Load() {
			client.Close()
			server.Close()
		}
	}
}

func (l *line) close() {
	l.listener.Close()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, c := range l.open {
		c.Close()
	}
}

// through makes a source that connects to the shop by a line.
func (b bundle) through(t *testing.T) (*line, uuid.UUID) {
	t.Helper()
	direct, err := wire.Parse(Postgres, b.DSN, b.rules())
	if err != nil {
		t.Fatal(err)
	}
	l := newLine(t, direct)
	return l, b.addSource(t, Postgres, "postgres://"+b.Role+"@"+l.listener.Addr().String()+"/"+direct.Database+"?sslmode=disable")
}

func quick() Options {
	o := dev
	o.ConnectTimeout, o.QueryTimeout, o.FetchTimeout, o.RunTimeout = 2*time.Second, 5*time.Second, 2*time.Second, time.Minute
	return o
}

func TestSourceThatFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut  bool
		want string
	}{
		"sends nothing more": {false, CodeTimeout},
		"hangs up":           {true, CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, quick())
			pgtest.Exec(t, b.DB, "insert into customers (id, email) select i, 'm' || i || '@example.com' from generate_series(100, 300000) i")
			l, source := b.through(t)
			b.source = source
			x := b.addAudience(t, "select id, email from customers")
			l.cut.Store(c.cut)
			n, started := 0, time.Now()
			_, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error {
				if n++; n == 10_000 {
					l.limit.Store(50_000)
				}
				return nil
			})
			wantCode(t, err, c.want)
			if lemma.KindOf(err) != lemma.Unavailable {
				t.Errorf("kind %s", lemma.KindOf(err))
			}
			if d := time.Since(started); d > 40*time.Second || n < 10_000 {
				t.Errorf("%d rows in %s", n, d)
			}
		})
	}
}

func TestSourceThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, quick())
	l, source := b.through(t)
	l.limit.Store(0)
	started := time.Now()
	report, err := b.TestSource(t.Context(), b.Workspace, source)
	wantCode(t, err, CodeTimeout)
	if d := time.Since(started); d > 30*time.Second {
		t.Errorf("it took %s", d)
	}
	if report.Source.Status != "failed" || report.Source.TestError != "the source does not respond" {
		t.Errorf("stored as %+v", report.Source)
	}
	l.close()
	_, err = b.TestSource(t.Context(), b.Workspace, source)
	wantCode(t, err, CodeUnavailable)
}

// TestSlowSourceDelaysNoOther has a source that does not respond while another is read.
func TestSlowSourceDelaysNoOther(t *testing.T) {
	t.Parallel()
	const callers = 20
	o := dev
	o.ConnectTimeout, o.QueryTimeout = time.Minute, time.Minute
	b := setup(t, o)
	l, slow := b.through(t)
	l.limit.Store(0)
	x := b.addAudience(t, shopSQL)
	ctx, cancel := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	var over atomic.Int64
	defer hanging.Wait()
	defer cancel()
	for range callers {
		hanging.Go(func() { b.TestSource(ctx, b.Workspace, slow); over.Add(1) })
	}
	for range callers {
		<-l.callers
	}
	started := time.Now()
	if _, err := b.collect(t, x.ID); err != nil {
		t.Error(err)
	}
	if d := time.Since(started); d > 20*time.Second {
		t.Errorf("it took %s", d)
	}
	if n := over.Load(); n != 0 {
		t.Errorf("%d reads that should wait do not", n)
	}
}

// TestSlowYieldIsNotTheSource has a callback that is slower than the timeout of the source.
func TestSlowYieldIsNotTheSource(t *testing.T) {
	t.Parallel()
	b := setup(t, quick())
	x := b.addAudience(t, "select i as id, 'p' || i || '@example.com' as email from generate_series(1, 50000) i")
	n := 0
	read, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error {
		if n++; n == 700 { // in the second and full round trip
			<-time.After(b.options.FetchTimeout * 3 / 2)
		}
		return nil
	})
	if err != nil || read != 50_000 {
		t.Errorf("%d rows, %v", read, err)
	}
}

func TestRunIsBoundedInAll(t *testing.T) {
	t.Parallel()
	o := dev
	o.FetchTimeout, o.RunTimeout = 5*time.Second, time.Second
	b := setup(t, o)
	x := b.addAudience(t, "select generate_series(1, 1e12::bigint) as id, 'x@example.com' as email")
	_, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error { return nil })
	wantCode(t, err, CodeTimeout)
	if err != nil && !strings.Contains(err.Error(), "longer than 1s") {
		t.Error(err)
	}
	b.waitForNoSessions(t)
}

// TestCancelledCallerIsNotTheSource keeps a shutdown from looking like a fault.
func TestCancelledCallerIsNotTheSource(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, "select 1 as id, pg_sleep(30)::text as email")
	err := b.cancelled(t, func(ctx context.Context) error {
		_, err := b.Stream(ctx, b.Workspace, x.ID, nil, func(Row) error { return nil })
		return err
	})
	var known *lemma.Error
	if !errors.Is(err, context.Canceled) || errors.As(err, &known) {
		t.Errorf("%v", err)
	}
	b.waitForNoSessions(t)
}
