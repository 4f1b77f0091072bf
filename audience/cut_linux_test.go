package audience

import (
	"testing"

	"lemma/audience/wire"
)

// readings are the ways to read a source, each of five rows.
var readings = map[string]func(r *run) (int, error){
	"a stream": func(r *run) (int, error) {
		c, err := r.open(r.ctx, "select id, email from customers", []string{"id", "email"}, 5)
		return rowsOf(c, 2, err)
	},
	"a lookup": func(r *run) (int, error) {
		c, _, err := r.lookup(r.ctx, "select id, email from customers", "id", []string{"id", "email"}, []string{"1", "2", "3", "4", "5"})
		return rowsOf(c, 2, err)
	},
	"a matching query": func(r *run) (int, error) {
		c, _, err := r.matching(r.ctx, "select id from customers where id < 6", []Person{{Key: "1"}})
		return rowsOf(c, 1, err)
	},
	"an own statement": func(r *run) (int, error) {
		s, err := r.tables(r.ctx)
		if err != nil || len(s.Tables) == 0 || len(s.Tables[0].Columns) < 10 {
			return 0, err
		}
		return 5, nil
	},
}

// TestResultsThatAreCut ends the connection at each byte of a result: a read has all rows
// or an error.
func TestResultsThatAreCut(t *testing.T) {
	t.Parallel()
	my, _ := mariadbShop(t, dev)
	for kind, b := range map[string]bundle{MySQL: my, Postgres: setup(t, dev)} {
		source, err := wire.Parse(kind, b.DSN, b.rules())
		b.Must(err)
		source.TLS = "disable"
		for name, read := range readings {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				const whole = 1 << 30
				if rows, left, err := readVia(t, b, source, whole, read); rows != 5 || err != nil {
					t.Fatalf("%d rows, %v", rows, err)
				} else {
					size := int(whole - left)
					atOnce(size, func(bytes int) {
						if rows, _, err := readVia(t, b, source, int64(bytes), read); err == nil {
							t.Errorf("%d of %d bytes: %d rows and no error", bytes, size, rows)
						}
					})
				}
			})
		}
	}
}

// TestLookupsWithoutAllRows has a proxy that leaves rows out of a result, or the tag that counts
// them: a profile that is left out is not a profile that the audience does not have.
func TestLookupsWithoutAllRows(t *testing.T) {
	t.Parallel()
	for name, tamper := range map[string]func(kind byte, body []byte) []byte{
		"the rows are left out": func(kind byte, body []byte) []byte {
			if kind == 'D' {
				return nil
			}
			return message(kind, body)
		},
		"the response is that to an empty query": func(kind byte, body []byte) []byte {
			switch kind {
			case 'D':
				return nil
			case 'C':
				return message('I', nil)
			}
			return message(kind, body)
		},
	} {
		for _, reading := range []string{"a lookup", "a matching query"} {
			t.Run(name+", "+reading, func(t *testing.T) {
				b := setup(t, dev)
				source, err := wire.Parse(Postgres, b.DSN, b.rules())
				b.Must(err)
				source.TLS = "disable"
				l := newTampering(t, source, tamper)
				source.Host, source.Port, source.Socket = "127.0.0.1", portOf(l.listener), ""
				err = b.within(t.Context(), openedSource{target: source}, b.readSpan(), func(r *run) error {
					l.tampering.Store(true)
					_, err := readings[reading](r)
					return err
				})
				wantCode(t, err, CodeUnavailable)
			})
		}
	}
}

// readVia reads through a proxy that closes the connection after so many bytes of the result.
func readVia(t *testing.T, b bundle, source wire.Target, bytes int64, read func(r *run) (int, error)) (rows int, left int64, err error) {
	t.Helper()
	l := newLine(t, source)
	defer l.close()
	l.cut.Store(true)
	source.Host, source.Port, source.Socket = "127.0.0.1", portOf(l.listener), ""
	err = b.within(t.Context(), openedSource{target: source}, b.readSpan(), func(r *run) (err error) {
		l.limit.Store(bytes)
		rows, err = read(r)
		left = l.limit.Load()
		return err
	})
	return rows, left, err
}
