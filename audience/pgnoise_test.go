package audience

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"lemma/audience/wire"
	"lemma/pgtest"
)

// TestSettingsBetweenRows has a server that reports a setting with a new name
// with each row: the driver keeps them all. It is not parallel, since it counts
// allocations.
func TestSettingsBetweenRows(t *testing.T) {
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "insert into customers (id, email) select i, 'm' || i || '@example.com' from generate_series(100, 5000) i")
	direct, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	sent := 0
	l := newTampering(t, direct, func(kind byte, body []byte) []byte {
		if kind != 'D' {
			return message(kind, body)
		}
		sent++
		setting := append([]byte(fmt.Sprintf("setting_%d\x00", sent)), bytes.Repeat([]byte("x"), 40_000)...)
		return append(message('S', append(setting, 0)), message(kind, body)...)
	})
	l.tampering.Store(true)
	b.source = b.addSource(t, Postgres, "postgres://"+b.Role+"@"+l.listener.Addr().String()+"/"+direct.Database+"?sslmode=disable")
	source, err := b.opened(t.Context(), b.Workspace, b.source)
	b.Must(err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = b.within(t.Context(), source, b.readSpan(), use("select id, email from customers"))
	runtime.ReadMemStats(&after)
	wantCode(t, err, CodeMalformed)
	if sent > 20 {
		t.Errorf("%d settings were accepted, %d MB allocated", sent, (after.TotalAlloc-before.TotalAlloc)>>20)
	}
}

// TestNoiseFromPostgresServers replaces one message of a real server by
// noise, a different one each time.
func TestNoiseFromPostgresServers(t *testing.T) {
	b := setup(t, dev)
	direct, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	goroutines := runtime.NumGoroutine()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	o := hostileOptions
	o.AllowUnix = true
	a := New(nil, nil, o)
	targets, noises := make([]int, 120), make([][]byte, 120)
	for i := range noises {
		targets[i], noises[i] = random.IntN(120), noiseMessage(random)
	}
	atOnce(len(noises), func(i int) {
		seen := 0
		l := newTampering(t, direct, func(kind byte, body []byte) []byte {
			if seen++; seen == targets[i] {
				return noises[i]
			}
			return message(kind, body)
		})
		l.tampering.Store(true)
		source := direct
		source.Socket, source.Host, source.Port, source.TLS = "", "127.0.0.1", uint16(l.port()), "disable"
		attackWith(t, a, source, "select id, email from customers", fmt.Sprintf("message %d is %x", targets[i], noises[i]))
		l.listener.Close()
	})
	waitForGoroutines(t, goroutines)
}

// noiseMessage is a message of a known kind with a random body, one of a
// random kind, or one with a wrong length.
func noiseMessage(random *rand.Rand) []byte {
	body := make([]byte, random.IntN(60))
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	kinds := "RSKZTDCE123NAntsIVvGHWdc"
	out := message(kinds[random.IntN(len(kinds))], body)
	switch random.IntN(6) {
	case 0:
		out[0] = byte(random.Uint32())
	case 1:
		out[1+random.IntN(4)] = byte(random.Uint32())
	}
	return out
}

// TestLoginsThatTakeLongToCompute has a server that demands more iterations of
// SCRAM than a login may have: the password is not hashed, and nothing of it is sent.
func TestLoginsThatTakeLongToCompute(t *testing.T) {
	t.Parallel()
	for iterations, want := range map[int]string{4096: CodeUnavailable, maxIterations: CodeUnavailable, maxIterations + 1: CodeRefused,
		10_000_000: CodeRefused} {
		proofs := make(chan bool, 1)
		port := scramServer(t, iterations, proofs)
		source := wire.Target{Kind: Postgres, Host: "127.0.0.1", Port: port, User: "u", Password: "p", Database: "d", TLS: "disable"}
		o := hostileOptions
		o.AllowPrivate, o.ConnectTimeout = true, time.Minute
		a := New(nil, nil, o)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := a.connectPostgres(ctx, source, span{time.Minute, time.Minute, 1 << 20})
		cancel()
		if proof := <-proofs; proof == (want == CodeRefused) || codeOf(err) != want {
			t.Errorf("%d iterations: proof %t, %v", iterations, proof, err)
		}
	}
}

// scramServer begins one SCRAM login and closes the connection after the
// client's proof. It reports whether there was one.
func scramServer(t *testing.T, iterations int, proofs chan<- bool) (port uint16) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buffer := make([]byte, 4096)
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		conn.Write(message('R', []byte("\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00")))
		n, _ := conn.Read(buffer)
		_, nonce, _ := strings.Cut(string(buffer[:n]), "r=")
		conn.Write(message('R', fmt.Appendf(nil, "\x00\x00\x00\x0br=%sxyz,s=c2FsdHNhbHQ=,i=%d", nonce, iterations)))
		n, err = conn.Read(buffer)
		proofs <- err == nil && n > 0
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
