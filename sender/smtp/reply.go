package smtp

import (
	"bytes"
	"io"

	"lemma/dial"
)

// reply is a server's answer to one command. text is the text of its lines without the
// codes, joined by newlines; it is valid until the next reply is read.
type reply struct {
	code int
	text []byte
}

// Longer replies are invalid: RFC 5321 (4.5.3.1.5) allows 512 bytes for a line.
const (
	mostLine  = 2048
	mostReply = 16 << 10
)

const (
	errReplyLong = dial.Sentence("the server's answer is too long")
	errReplyForm = dial.Sentence("the server's answer is not an SMTP reply")
	errSurplus   = dial.Sentence("the server answers more than it was asked")
)

// replies reads answers from a connection into its own buffer, without allocating.
type replies struct {
	src        io.Reader
	buf        [2 * mostLine]byte
	start, end int
	text       []byte // of an answer with several lines
}

// pending is how many bytes have arrived that belong to no command.
func (r *replies) pending() int { return r.end - r.start }

// drop discards what arrived before a handshake: it may be an attacker's (RFC 3207, 4.2).
func (r *replies) drop() { r.start, r.end = 0, 0 }

// next reads one answer, which may have several lines (RFC 5321, 4.2.1).
func (r *replies) next() (reply, error) {
	line, err := r.line()
	if err != nil {
		return reply{}, err
	}
	code, last, text, err := split(line)
	if err != nil || last {
		return reply{code, text}, err
	}
	r.text = append(r.text[:0], text...)
	for !last {
		if line, err = r.line(); err != nil {
			return reply{}, err
		}
		var again int
		if again, last, text, err = split(line); err != nil || again != code {
			return reply{}, errReplyForm
		}
		r.text = append(append(r.text, '\n'), text...)
		if len(r.text) > mostReply {
			return reply{}, errReplyLong
		}
	}
	return reply{code, r.text}, nil
}

// line returns the next line without its end.
func (r *replies) line() ([]byte, error) {
	seen := r.start
	for {
		if i := bytes.IndexByte(r.buf[seen:r.end], '\n'); i >= 0 {
			line := r.buf[r.start : seen+i]
			r.start = seen + i + 1
			return bytes.TrimSuffix(line, []byte{'\r'}), nil
		}
		if r.end-r.start > mostLine {
			return nil, errReplyLong
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
		seen = r.start
	}
}

func (r *replies) fill() error {
	if r.start > 0 {
		copy(r.buf[:], r.buf[r.start:r.end])
		r.start, r.end = 0, r.end-r.start
	}
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// split parses a line: three digits, then a hyphen when lines follow, a blank, or
// nothing.
func split(line []byte) (code int, last bool, text []byte, err error) {
	if len(line) < 3 || (len(line) > 3 && line[3] != ' ' && line[3] != '-') {
		return 0, false, nil, errReplyForm
	}
	for _, c := range line[:3] {
		if c < '0' || c > '9' {
			return 0, false, nil, errReplyForm
		}
		code = code*10 + int(c-'0')
	}
	if code < 200 || code > 599 {
		return 0, false, nil, errReplyForm
	}
	if len(line) == 3 {
		return code, true, nil, nil
	}
	return code, line[3] == ' ', line[4:], nil
}
