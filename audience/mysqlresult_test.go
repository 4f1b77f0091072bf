package audience

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

func portOf(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// resultOf is a response of three rows, one body for each packet. They are those of a
// prepared statement, or of a text.
func resultOf(prepared, marked bool) [][]byte {
	bodies := [][]byte{{2}, column("id", 8), column("email", 253)}
	mark := []byte{0xfe, 0, 0, 2, 0}
	if marked {
		bodies = append(bodies, mark)
	}
	for n := range byte(3) {
		row := []byte("\x01" + string('1'+n) + "\x05a@b.c")
		if prepared {
			row = append([]byte{0, 0, n + 1, 0, 0, 0, 0, 0, 0, 0, 5}, "a@b.c"...)
		}
		bodies = append(bodies, row)
	}
	if marked {
		return append(bodies, mark)
	}
	return append(bodies, []byte{0xfe, 0, 0, 2, 0, 0, 0})
}

func packetsOf(bodies [][]byte) (out []byte) {
	for i, body := range bodies {
		out = append(out, packet(byte(i+1), body)...)
	}
	return out
}

// rowsOf counts the rows that a read returns.
func rowsOf(c cursor, columns int, err error) (rows int, _ error) {
	for more := err == nil; more && err == nil; {
		if more, err = c.next(make([][]byte, columns)); more && err == nil {
			rows++
		}
	}
	return rows, err
}

// TestPacketsThatAreCut has a proxy that shortens one packet of a result and its header:
// a read has all rows or an error.
func TestPacketsThatAreCut(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{true, false} {
		for _, marked := range []bool{true, false} {
			t.Run(fmt.Sprintf("prepared %t, marked %t", prepared, marked), func(t *testing.T) {
				t.Parallel()
				bodies := resultOf(prepared, marked)
				if rows, err := rowsFrom(t, prepared, marked, packetsOf(bodies)); rows != 3 || err != nil {
					t.Fatalf("%d rows, %v", rows, err)
				}
				for i, body := range bodies {
					atOnce(len(body), func(n int) {
						short := slices.Clone(bodies)
						short[i] = body[:n]
						if rows, err := rowsFrom(t, prepared, marked, packetsOf(short)); rows != 3 && err == nil {
							t.Errorf("%d bytes of packet %d: %d rows and no error", n, i, rows)
						}
					})
				}
			})
		}
	}
}

// TestResponsesWithoutAResult has a server that reports success where rows are expected.
func TestResponsesWithoutAResult(t *testing.T) {
	t.Parallel()
	success := []byte{0, 0, 0, 2, 0, 0, 0}
	more := []byte{0, 0, 0, 10, 0, 0, 0} // SERVER_MORE_RESULTS_EXISTS
	for name, response := range map[string][]byte{
		"success":                      packet(1, success),
		"success twice":                slicesOf(packet(1, more), packet(2, success)),
		"success, then a cut result":   slicesOf(packet(1, more), packet(2, []byte{2}), packet(3, []byte{3, 'd'})),
		"an end instead of the result": slicesOf(packet(1, []byte{2}), packet(2, []byte{0xfe, 0, 0, 2, 0, 0, 0})),
	} {
		for _, prepared := range []bool{true, false} {
			if rows, err := rowsFrom(t, prepared, false, response); err == nil {
				t.Errorf("%s, prepared %t: %d rows and no error", name, prepared, rows)
			}
		}
	}
}

// rowsFrom reads once from a server that sends the response.
func rowsFrom(t *testing.T, prepared, marked bool, response []byte) (rows int, err error) {
	t.Helper()
	f := newFakeMySQL(t)
	if marked {
		f.greeting = packet(0, withoutDeprecateEOF(validGreeting()))
	}
	f.reply = func(text string, command byte) []byte {
		switch {
		case command == comPrepare && marked:
			return slicesOf(packet(1, []byte{0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0}), packet(2, column("id", 8)),
				packet(3, column("email", 253)), packet(4, []byte{0xfe, 0, 0, 2, 0}))
		case command == comExecute && prepared, command == comQuery && strings.HasPrefix(text, "select id"):
			return response
		case command == comQuery && marked && strings.HasPrefix(text, "s"):
			return withMarks(validReply(text, command))
		}
		return nil
	}
	f.serve()
	a := New(nil, nil, hostileOptions)
	err = a.within(t.Context(), openedSource{target: f.target()}, a.readSpan(), func(r *run) error {
		if prepared {
			c, err := r.open(r.ctx, "select id, email from people", []string{"id", "email"}, 0)
			rows, err = rowsOf(c, 2, err)
			return err
		}
		list, err := r.session.(*mysqlSession).query(r.ctx, "select id, email from people")
		rows = len(list)
		return err
	})
	f.Close()
	f.open.Wait()
	return rows, err
}

// withoutDeprecateEOF removes the capability from a greeting.
func withoutDeprecateEOF(greeting []byte) []byte {
	end := slices.Index(greeting, 0)
	greeting[end+1+4+8+1+2+3+1] &^= clientDeprecateEOF >> 24
	return greeting
}

// withMarks adds the packet after the definitions to a result, and ends it with another.
func withMarks(reply []byte) []byte {
	var bodies [][]byte
	for rest := reply; len(rest) > 0; {
		n := int(rest[0]) | int(rest[1])<<8
		bodies, rest = append(bodies, rest[4:4+n]), rest[4+n:]
	}
	if bodies[0][0] == 0 {
		return reply
	}
	mark := []byte{0xfe, 0, 0, 2, 0}
	columns := 1 + int(bodies[0][0])
	bodies = slices.Insert(bodies, columns, mark)
	bodies[len(bodies)-1] = mark
	return packetsOf(bodies)
}
