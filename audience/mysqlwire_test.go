package audience

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lemma/audience/wire"
	"lemma/pgtest"
)

// Numbers of the protocols, and the bounds of package wire.
const (
	comPrepare         = 0x16
	clientSSL          = 1 << 11
	clientDeprecateEOF = 1 << 24
	maxIterations      = 100_000
	maxResultColumn    = 4096
)

// fakeMySQL is a server that accepts every login and returns for every query
// two columns and no row, unless reply returns something else. The text of an
// execution is that of the statement.
type fakeMySQL struct {
	net.Listener
	greeting []byte                                       // nil: a valid one
	reply    func(text string, command byte) (out []byte) // nil: the valid response
	endless  func(text string) bool                       // a response that never ends: a row is sent from time to time
	open     sync.WaitGroup
}

func newFakeMySQL(t testing.TB) *fakeMySQL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeMySQL{Listener: l, reply: func(string, byte) []byte { return nil }, endless: func(string) bool { return false }}
	t.Cleanup(func() { l.Close(); f.open.Wait() })
	return f
}

// serve is called once greeting, reply and endless are set.
func (f *fakeMySQL) serve() {
	f.open.Go(func() {
		for {
			conn, err := f.Accept()
			if err != nil {
				return
			}
			f.open.Go(func() { defer conn.Close(); f.answer(conn) })
		}
	})
}

func (f *fakeMySQL) target() wire.Target {
	address := f.Addr().(*net.TCPAddr)
	return wire.Target{Kind: MySQL, Host: "127.0.0.1", Port: uint16(address.Port), Database: "shop", User: "u", Password: "p", TLS: "disable"}
}

func (f *fakeMySQL) answer(conn net.Conn) {
	greeting := f.greeting
	if greeting == nil {
		greeting = packet(0, validGreeting())
	}
	if _, err := conn.Write(greeting); err != nil {
		return
	}
	if _, err := readPacket(conn); err != nil {
		return
	}
	login := f.reply("login", 0)
	if login == nil {
		login = packet(2, []byte{0, 0, 0, 2, 0, 0, 0})
	}
	conn.Write(login)
	prepared := ""
	for {
		command, err := readPacket(conn)
		if err != nil || len(command) == 0 || command[0] == 0x01 {
			return
		}
		text := string(command[1:])
		switch command[0] {
		case comPrepare:
			prepared = text
		case comExecute:
			text = prepared
		}
		out := f.reply(text, command[0])
		if out == nil {
			out = validReply(text, command[0])
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
		row := noValues
		if command[0] == comQuery {
			row = []byte{0, 0} // two empty texts
		}
		for number := byte(4); command[0] != comPrepare && f.endless(text); number++ {
			if _, err := conn.Write(packet(number, row)); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

const (
	comQuery   = 0x03
	comExecute = 0x17
)

// noValues is a row of two columns in the binary protocol.
var noValues = []byte{0, 0b1100}

func readPacket(r io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	body := make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	_, err := io.ReadFull(r, body)
	return body, err
}

func packet(number byte, body []byte) []byte {
	return append([]byte{byte(len(body)), byte(len(body) >> 8), byte(len(body) >> 16), number}, body...)
}

func validGreeting() []byte {
	const capabilities = 1<<9 | 1<<15 | 1<<19 | 1<<24 | 1<<3 // protocol 4.1, salted, plugins, no EOF packets, with a database
	g := append([]byte{10}, "8.0.0\x00\x01\x00\x00\x00saltsalt\x00"...)
	g = binary.LittleEndian.AppendUint16(g, capabilities&0xffff)
	g = append(g, 45, 2, 0)
	g = binary.LittleEndian.AppendUint16(g, capabilities>>16)
	g = append(g, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	return append(g, "saltsaltsalt\x00mysql_native_password\x00"...)
}

func column(name string, kind byte) []byte {
	b := append([]byte{3}, "def\x00\x00\x00"...)
	b = append(append(b, byte(len(name))), name...)
	return append(b, 0, 12, 45, 0, 255, 0, 0, 0, kind, 0, 0, 0, 0, 0)
}

func validReply(text string, command byte) []byte {
	end := []byte{0xfe, 0, 0, 2, 0, 0, 0}
	switch {
	case command == comPrepare:
		return slicesOf(packet(1, []byte{0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0}), packet(2, column("id", 8)), packet(3, column("email", 253)))
	case command == 0x19: // closing a statement has no response
		return []byte{}
	case strings.HasPrefix(text, "show grants"):
		return slicesOf(packet(1, []byte{1}), packet(2, column("g", 253)),
			packet(3, append([]byte{33}, "GRANT SELECT ON `shop`.* TO `u`@`"...)), packet(4, end))
	case strings.HasPrefix(text, "select connection_id"):
		return slicesOf(packet(1, []byte{2}), packet(2, column("id", 253)), packet(3, column("version", 253)),
			packet(4, []byte("\x011\x058.0.0")), packet(5, end))
	case strings.HasPrefix(text, "select @@"):
		return keptSettings(strings.Count(text, "<=>"), "shop")
	case strings.HasPrefix(text, "select"):
		return slicesOf(twoColumns(), packet(4, end))
	}
	return packet(1, []byte{0, 0, 0, 2, 0, 0, 0})
}

// keptSettings is the answer of a session that keeps so many settings, except those at
// the given positions.
func keptSettings(settings int, database string, lost ...int) []byte {
	row := make([]string, settings+1, settings+3) // with the clock
	for i := range row {
		row[i] = "1"
		if slices.Contains(lost, i) {
			row[i] = "0"
		}
	}
	row = append(row, "utf8mb4_general_ci", database)
	bodies, values := [][]byte{{byte(len(row))}}, []byte(nil)
	for _, value := range row {
		bodies = append(bodies, column("kept", 253))
		values = append(append(values, byte(len(value))), value...)
	}
	return packetsOf(append(bodies, values, []byte{0xfe, 0, 0, 2, 0, 0, 0}))
}

func twoColumns() []byte {
	return slicesOf(packet(1, []byte{2}), packet(2, column("id", 8)), packet(3, column("email", 253)))
}

func slicesOf(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// use is what a stream does with a source: describe, read all.
func use(sql string) func(r *run) error {
	return func(r *run) error {
		if _, err := r.describe(r.ctx, sql); err != nil {
			return err
		}
		c, err := r.open(r.ctx, sql, []string{"id", "email"}, 0)
		if err != nil {
			return err
		}
		for {
			if more, err := c.next(make([][]byte, 2)); err != nil || !more {
				return err
			}
		}
	}
}

// hostileOptions bound a read to about a second, so that a read that is blocked fails.
var hostileOptions = Options{AllowPrivate: true, ConnectTimeout: 500 * time.Millisecond, QueryTimeout: time.Second,
	LookupTimeout: time.Second,
	MaxRowBytes:   64 << 10, MaxLookupBytes: 1 << 20}

// attack reads a hostile source once and checks the cost.
func attack(t *testing.T, a *Audiences, source wire.Target, what string) error {
	t.Helper()
	return attackWith(t, a, source, "select id, email from people", what)
}

func attackWith(t *testing.T, a *Audiences, source wire.Target, sql, what string) error {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := time.Now()
	err := a.within(t.Context(), openedSource{target: source}, a.readSpan(), use(sql))
	took := time.Since(begun)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("%s: %d MB were allocated", what, grown>>20)
	}
	if took > 30*time.Second {
		t.Errorf("%s: it blocked the reader for %s", what, took)
	}
	return err
}

// TestRepliesThatMySQLServersMustNotSend has the replies that made the driver
// allocate without bound, panic or block. It is not parallel, since it
// measures allocations and counts goroutines.
func TestRepliesThatMySQLServersMustNotSend(t *testing.T) {
	a := New(nil, nil, hostileOptions)
	huge := packet(1, []byte{0xfe, 0, 0, 0, 0x10, 0, 0, 0, 0}) // 2^28 columns in 9 bytes
	on := func(prefix string, out []byte) func(string, byte) []byte {
		return func(text string, command byte) []byte {
			if command != comPrepare && strings.HasPrefix(text, prefix) {
				return out
			}
			return nil
		}
	}
	goroutines := runtime.NumGoroutine()
	for name, c := range map[string]struct {
		greeting []byte
		reply    func(string, byte) []byte
		want     string
	}{
		"an honest server":                     {nil, on("never", nil), "fine"},
		"2^28 columns":                         {nil, on("select audience", huge), CodeMalformed},
		"2^28 columns for the first statement": {nil, on("select connection_id", huge), CodeMalformed},
		"2^63 columns": {nil,
			on("select audience", packet(1, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})), CodeMalformed},
		"2^28 columns behind a success": {nil,
			on("select audience", append(packet(1, []byte{0, 0, 0, 8, 0, 0, 0}), packet(2, huge[4:])...)), CodeMalformed},
		"no columns in three bytes": {nil, on("select audience", append(packet(1, []byte{0xfc, 0, 0}), packet(2, huge[4:])...)),
			CodeMalformed},
		"a success that is cut":            {nil, on("set session sql", packet(1, []byte{0})), CodeMalformed},
		"an error that is cut":             {nil, on("set session sql", packet(1, []byte{0xff})), CodeMalformed},
		"a number of columns that is cut":  {nil, on("select audience", packet(1, []byte{0xfe, 1})), CodeMalformed},
		"a prepared statement that is cut": {nil, func(_ string, command byte) []byte { return cutPrepare(command) }, CodeMalformed},
		"a column that is cut": {nil,
			on("select audience", append(packet(1, []byte{1}), packet(2, []byte{3, 'd', 'e', 'f'})...)), CodeMalformed},
		"a row that is cut": {nil, on("select audience", slicesOf(packet(1, []byte{2}), packet(2, column("id", 8)),
			packet(3, column("email", 253)), packet(4, []byte{0xfd, 1}))), CodeMalformed},
		"a packet of 16 MB": {nil, on("select audience", []byte{0xff, 0xff, 0xff, 1}), CodeLimit},
		"a grant of 200 KB": {nil, on("show grants", slicesOf(packet(1, []byte{1}), packet(2, column("g", 253)),
			packet(3, append([]byte{0xfd, 0x40, 0x0d, 0x03}, ("GRANT SELECT ON `"+strings.Repeat("x", 200_000-26)+"` TO `u`@")...)),
			packet(4, []byte{0xfe, 0, 0, 2, 0, 0, 0}))), CodeRefused},
		"an empty packet":             {nil, on("select audience", []byte{0, 0, 0, 1}), CodeMalformed},
		"a greeting that is cut":      {packet(0, []byte{10, '8', 0, 1}), nil, CodeMalformed},
		"a greeting of 16 MB":         {[]byte{0xff, 0xff, 0xff, 0}, nil, CodeMalformed},
		"an empty greeting":           {[]byte{0, 0, 0, 0}, nil, CodeMalformed},
		"a greeting of Postgres":      {[]byte("R\x00\x00\x00\x08\x00\x00\x00\x00"), nil, CodeTimeout},
		"a login error that is cut":   {nil, on("login", packet(2, []byte{0xff, 1})), CodeMalformed},
		"a login success that is cut": {nil, on("login", packet(2, []byte{0})), CodeMalformed},
		"another method with a short salt": {nil, on("login", packet(2, []byte("\xfemysql_native_password\x00salt\x00"))),
			CodeMalformed},
		"a login of an odd kind": {nil, on("login", packet(2, []byte{0x77})), CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeMySQL(t)
			f.greeting = c.greeting
			if c.reply != nil {
				f.reply = c.reply
			}
			f.serve()
			if got := codeOf(attack(t, a, f.target(), name)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	waitForGoroutines(t, goroutines)
}

func cutPrepare(command byte) []byte {
	if command == comPrepare {
		return packet(1, []byte{0, 1, 0})
	}
	return nil
}

// waitForGoroutines waits until no more than before are left.
func waitForGoroutines(t *testing.T, before int) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// atOnce runs work for each number below n, some at a time. Most attacks wait for a
// timeout. The bound of one attack then applies to all that run at the same time.
func atOnce(n int, work func(i int)) {
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error { work(i); return nil })
	}
	_ = group.Wait()
}

// TestResultWithoutAnEnd has a server that sends rows from time to time, for ever.
func TestResultWithoutAnEnd(t *testing.T) {
	a := New(nil, nil, hostileOptions)
	goroutines := runtime.NumGoroutine()
	f := newFakeMySQL(t)
	f.endless = func(text string) bool { return strings.Contains(text, "where audience") }
	f.reply = func(text string, command byte) []byte {
		switch {
		case command == comPrepare && f.endless(text):
			return slicesOf(packet(1, []byte{0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0}), packet(2, column("?", 253)),
				packet(3, column("id", 8)), packet(4, column("email", 253)))
		case command == comExecute:
			return twoColumns()
		}
		return nil
	}
	f.serve()
	done := make(chan error, 1)
	go func() {
		done <- a.withConnection(context.Background(), openedSource{target: f.target()}, func(r *run, _ *connection) error {
			c, _, err := r.lookup(r.ctx, "select id, email from people", "id", []string{"id", "email"}, []string{"1"})
			for more := err == nil; more && err == nil; {
				more, err = c.next(make([][]byte, 2))
			}
			return err
		})
	}()
	select {
	case err := <-done:
		wantCode(t, err, CodeTimeout)
	case <-time.After(10 * time.Second):
		t.Fatal("the reader is blocked")
	}
	f.Close()
	waitForGoroutines(t, goroutines)
}
