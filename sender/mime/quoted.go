package mime

const digits = "0123456789ABCDEF"

// fullLine is how many columns of text a quoted-printable line has before the
// '=' of a soft line break (RFC 2045, 6.7: 76 with it).
const fullLine = 75

// literal are the bytes that quoted-printable may write unencoded. For blanks and dots
// it depends on their position.
var literal = func() (t [256]bool) {
	for c := ' '; c <= '~'; c++ {
		t[c] = c != '='
	}
	t['\t'] = true
	return t
}()

// appendQuoted writes a text in quoted-printable. LF and CRLF end a line; other
// controls are encoded. No line begins with a dot or ends with a blank, so dot
// stuffing and careless relays change no byte.
func appendQuoted(out []byte, s string) []byte {
	column := 0
	for i := 0; i < len(s); {
		if column == 0 && s[i] == '.' {
			out = append(out, "=2E"...)
			column, i = 3, i+1
			continue
		}
		end := min(len(s), i+fullLine-column)
		j := i
		for j < end && literal[s[j]] {
			j++
		}
		out = append(out, s[i:j]...)
		column += j - i
		if i = j; i == len(s) {
			break
		}
		switch n := lineEnd(s, i); {
		case n > 0:
			out = append(guard(out, column), "\r\n"...)
			column, i = 0, i+n
		case literal[s[i]] || column+3 > fullLine:
			out = append(out, "=\r\n"...)
			column = 0
		default:
			out = append(out, '=', digits[s[i]>>4], digits[s[i]&15])
			column, i = column+3, i+1
		}
	}
	return guard(out, column)
}

// lineEnd is the length of the line end at i: 2 for CRLF, 1 for LF, else 0.
func lineEnd(s string, i int) int {
	switch {
	case s[i] == '\n':
		return 1
	case s[i] == '\r' && i+1 < len(s) && s[i+1] == '\n':
		return 2
	}
	return 0
}

// guard encodes a blank at the end of a line, which a relay may remove.
func guard(out []byte, column int) []byte {
	last := len(out) - 1
	if column == 0 || !isBlank(out[last]) {
		return out
	}
	c := out[last]
	out = out[:last]
	if column-1+3 > fullLine+1 {
		out = append(out, "=\r\n"...)
	}
	return append(out, '=', digits[c>>4], digits[c&15])
}
