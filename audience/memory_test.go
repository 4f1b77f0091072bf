package audience

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma/audience/wire"
)

// memoryOptions allow more bytes than a guard of memory does.
var memoryOptions = Options{AllowPrivate: true, AllowUnix: true, ConnectTimeout: 20 * time.Second, QueryTimeout: 20 * time.Second,
	LookupTimeout: 20 * time.Second, MaxRowBytes: 1 << 20, MaxLookupBytes: 64 << 20}

// pgNulls is a row of nulls in the protocol of Postgres.
func pgNulls(columns int) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(columns))
	return message('D', append(body, bytes.Repeat([]byte{0xff}, 4*columns)...))
}

// pgDescription describes columns of type text.
func pgDescription(columns int) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(columns))
	column := []byte("a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00")
	return message('T', append(body, bytes.Repeat(column, columns)...))
}

// TestMemoryOfPostgresRows has servers whose rows need more memory than bytes. It is
// not parallel, since it measures allocations.
func TestMemoryOfPostgresRows(t *testing.T) {
	b := setup(t, dev)
	direct, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	a := New(nil, nil, memoryOptions)
	for name, c := range map[string]struct {
		description, rows []byte
		want              string
	}{
		"rows of more columns than are described": {nil, bytes.Repeat(pgNulls(65535), 80), CodeMalformed},
		"a description of 50,000 columns":         {pgDescription(50_000), bytes.Repeat(pgNulls(50_000), 80), CodeMalformed},
		"rows of nulls":                           {pgDescription(maxResultColumn), bytes.Repeat(pgNulls(maxResultColumn), 1500), CodeLimit},
	} {
		l := newTampering(t, direct, func(kind byte, body []byte) []byte {
			switch {
			case kind == 'T' && c.description != nil:
				return c.description
			case kind == 'D' && c.rows != nil:
				return c.rows
			}
			return message(kind, body)
		})
		l.tampering.Store(true)
		source := direct
		source.Socket, source.Host, source.Port, source.TLS = "", "127.0.0.1", uint16(l.port()), "disable"
		wantCode(t, attackWith(t, a, source, "select id, email from customers", name), c.want)
		l.listener.Close()
	}
}

// TestMemoryOfMySQLRows has servers whose rows need more memory than bytes. It is not
// parallel, since it measures allocations.
func TestMemoryOfMySQLRows(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector allocates more")
	}
	a := New(nil, nil, memoryOptions)
	nulls := mysqlRows4096(2000)
	long := "GRANT " + strings.Repeat("a,", 400_000) + "a ON `shop`.* TO `u`@`%`"
	roles, several := make([]string, 60), make([]string, 40)
	for i := range roles {
		roles[i] = fmt.Sprintf("GRANT `r%d` TO `u`@`%%`", i)
	}
	for i := range several {
		several[i] = "GRANT " + strings.Repeat("a,", 900) + "a ON `shop`.* TO `u`@`%`"
	}
	for name, c := range map[string]struct {
		statement string
		reply     []byte
		of        []byte // the reply for the grants of a role
		want      string
	}{
		"rows of nulls":            {"select connection_id", nulls, nil, CodeLimit},
		"a grant of 400,000 words": {"show grants", mysqlTexts(long), nil, CodeRefused},
		"the grants of 60 roles":   {"show grants", mysqlTexts(roles...), mysqlTexts(several...), CodeLimit},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeMySQL(t)
			f.reply = func(text string, _ byte) []byte {
				switch {
				case c.of != nil && strings.Contains(text, "current_user()"):
					return c.of
				case strings.HasPrefix(text, c.statement):
					return c.reply
				}
				return nil
			}
			f.serve()
			wantCode(t, attack(t, a, f.target(), name), c.want)
		})
	}
}

// mysqlRows4096 is a result with as many columns as one may have, and rows of nulls.
func mysqlRows4096(rows int) []byte {
	out, number := packet(1, []byte{0xfc, 0, 16}), byte(2)
	for range 4096 {
		out = append(out, packet(number, column("a", 253))...)
		number++
	}
	row := bytes.Repeat([]byte{0xfb}, 4096)
	for range rows {
		out = append(out, packet(number, row)...)
		number++
	}
	return append(out, packet(number, []byte{0xfe, 0, 0, 2, 0, 0, 0})...)
}

// mysqlTexts is a result of one column.
func mysqlTexts(texts ...string) []byte {
	out, number := slicesOf(packet(1, []byte{1}), packet(2, column("g", 253))), byte(3)
	for _, text := range texts {
		length := []byte{0xfd, byte(len(text)), byte(len(text) >> 8), byte(len(text) >> 16)}
		out = append(out, packet(number, append(length, text...))...)
		number++
	}
	return append(out, packet(number, []byte{0xfe, 0, 0, 2, 0, 0, 0})...)
}

// TestSettingsThatAreKept has a server that returns each setting of Lemma a thousand
// times.
func TestSettingsThatAreKept(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	direct, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	l := newTampering(t, direct, func(kind byte, body []byte) []byte {
		if kind == 'D' {
			return bytes.Repeat(message(kind, body), 1000)
		}
		return message(kind, body)
	})
	l.tampering.Store(true)
	source := direct
	source.Socket, source.Host, source.Port, source.TLS = "", "127.0.0.1", uint16(l.port()), "disable"
	a := New(nil, nil, memoryOptions)
	span := a.readSpan()
	s, err := a.connectPostgres(t.Context(), source, span)
	b.Must(err)
	defer s.close()
	if kept, sent := len(s.(*pgSession).settings), len(pgSettings(span)); kept == 0 || kept > sent {
		t.Errorf("%d of %d settings are kept", kept, sent)
	}
}

// A server returns more privileges than a statement asked for: to compare the names of thousands would
// take seconds.
func TestMorePrivilegesThanWereAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	source, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	s, err := b.connectPostgres(t.Context(), source, b.readSpan())
	b.Must(err)
	defer s.close()
	for n, want := range map[int]string{mostPrivileges: "fine", mostPrivileges + 1: CodeMalformed} {
		_, err := s.(*pgSession).findings(t.Context(), "%s", fmt.Sprintf("select 'f' || i, '' from generate_series(1, %d) i", n))
		wantCode(t, err, want)
	}
}

// TestPowersThatAnErrorShows has a role with more powers than an error should have.
func TestPowersThatAnErrorShows(t *testing.T) {
	t.Parallel()
	found := make([]finding, 20_000)
	for i := range found {
		found[i] = finding{"has a power", []string{strings.Repeat("x", 500)}}
	}
	if err := tooPowerful(found); len(err.Error()) > 64<<10 || !strings.Contains(err.Error(), "19950 more") {
		t.Errorf("%d bytes", len(err.Error()))
	}
}
