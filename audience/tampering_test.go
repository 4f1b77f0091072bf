package audience

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"lemma"
	"lemma/audience/wire"
	"lemma/pgtest"
)

// tamperingProxy is a proxy between Lemma and the shop that changes messages of Postgres.
type tamperingProxy struct {
	listener  net.Listener
	tampering atomic.Bool
	// tamper returns what is sent instead of a message, including its header.
	tamper func(kind byte, body []byte) []byte
}

func newTampering(t *testing.T, source wire.Target, tamper func(kind byte, body []byte) []byte) *tamperingProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &tamperingProxy{listener: l, tamper: tamper}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client, source)
		}
	}()
	return p
}

func (l *tamperingProxy) port() int { return l.listener.Addr().(*net.TCPAddr).Port }

func (l *tamperingProxy) serve(client net.Conn, source wire.Target) {
	defer client.Close()
	server, err := dialShop(source)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { io.Copy(server, client); server.Close() }()
	for {
		var header [5]byte
		if _, err := io.ReadFull(server, header[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		out := message(header[0], body)
		if l.tampering.Load() {
			out = l.tamper(header[0], body)
		}
		if _, err := client.Write(out); err != nil {
			return
		}
	}
}

func message(kind byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

// TestTamperedResponses has a proxy that tampers with the responses in the middle of a stream.
func TestTamperedResponses(t *testing.T) {
	t.Parallel()
	rows := 0
	for name, c := range map[string]struct {
		tamper func(kind byte, body []byte) []byte
		want   string
	}{
		"leaves rows out": {func(kind byte, body []byte) []byte {
			if kind == 'D' {
				if rows++; rows%3 == 0 {
					return nil
				}
			}
			return message(kind, body)
		}, CodeUnavailable},
		"sends the response to an empty query": {func(kind byte, body []byte) []byte {
			switch kind {
			case 'D':
				return nil
			case 'C':
				return message('I', nil)
			}
			return message(kind, body)
		}, CodeUnavailable},
		"sends another column": {func(kind byte, body []byte) []byte {
			if kind == 'D' {
				body = append(body, 0, 0, 0, 1, 'x')
				binary.BigEndian.PutUint16(body, binary.BigEndian.Uint16(body)+1)
			}
			return message(kind, body)
		}, CodeMalformed},
		"describes and sends another column": {func(kind byte, body []byte) []byte {
			switch kind {
			case 'T':
				body = append(body, "x\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00"...)
			case 'D':
				body = append(body, 0, 0, 0, 1, 'x')
			default:
				return message(kind, body)
			}
			binary.BigEndian.PutUint16(body, binary.BigEndian.Uint16(body)+1)
			return message(kind, body)
		}, CodeChanged},
		"announces a huge row": {func(kind byte, body []byte) []byte {
			if kind == 'D' {
				return append([]byte{'D', 0x3f, 0xff, 0xff, 0xff}, make([]byte, 1<<20)...)
			}
			return message(kind, body)
		}, CodeMalformed},
		"sends noise": {func(byte, []byte) []byte { return []byte("HTTP/1.1 200 OK\r\n\r\nnothing to see here\r\n") }, CodeMalformed},
		"sends values of another type": {func(kind byte, body []byte) []byte {
			if kind == 'D' { // two bytes of count, four of length: the first value is the id
				body[6] = '"'
			}
			return message(kind, body)
		}, "fine"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, dev)
			pgtest.Exec(t, b.DB, "insert into customers (id, email) select i, 'm' || i || '@example.com' from generate_series(100, 5000) i")
			direct, err := wire.Parse(Postgres, b.DSN, b.rules())
			b.Must(err)
			l := newTampering(t, direct, c.tamper)
			b.source = b.addSource(t, Postgres, "postgres://"+b.Role+"@"+l.listener.Addr().String()+"/"+direct.Database+"?sslmode=disable")
			x := b.addAudience(t, "select id, email from customers")
			n := 0
			_, err = b.Stream(t.Context(), b.Workspace, x.ID, []string{"id"}, func(r Row) error {
				if n++; n == 100 {
					l.tampering.Store(true)
				}
				if !json.Valid([]byte(r.Payload)) {
					t.Errorf("not JSON: %s", r.Payload)
				}
				return nil
			})
			wantCode(t, err, c.want)
		})
	}
}

// TestRowsThatAreTooBig has a source that sends more bytes than a row may have.
func TestRowsThatAreTooBig(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	m := wire.NewMeter(ours, 100_000, 1<<40)
	_ = m.Fail(wire.ErrRowTooBig)
	if err := broken(m, io.EOF); err.Code != CodeLimit || err.Kind != lemma.TooLarge ||
		err.Message != "a row of the source has more than 100000 bytes" {
		t.Errorf("%v", err)
	}
}
