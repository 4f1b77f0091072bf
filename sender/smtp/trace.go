package smtp

import (
	"bytes"
	"strconv"

	"lemma/sender/trace"
)

// record records the session from now on. Of a server at a private address only the
// numbers of the replies are recorded until the login is complete: otherwise a user could
// read the banner of any service in the operator's network by entering its address.
func (s *session) record(t *trace.Trace, server string, hidden bool) {
	s.trace, s.hidden = t, hidden
	t.Connected(server)
}

func (s *session) recordReply(a reply, err error) {
	switch {
	case s.trace == nil || err != nil: // lost and refused record the error
	case s.hidden:
		s.trace.Received(trace.PartLine, numbers(a)+" [hidden: the server has a private address]")
	default:
		lines := bytes.Split(a.text, []byte{'\n'})
		for i, line := range lines {
			between := "-"
			if i == len(lines)-1 {
				between = " "
			}
			s.trace.Received(trace.PartLine, strconv.Itoa(a.code)+between+string(line))
		}
	}
}

// recordLines records the lines of an envelope.
func (s *session) recordLines(lines []byte) {
	if s.trace == nil {
		return
	}
	for line := range bytes.Lines(lines) {
		s.trace.Sent(trace.PartLine, string(bytes.TrimRight(line, "\r\n")))
	}
}

// recordMail records the headers of a message and the size of its body.
func (s *session) recordMail(mail []byte, size int) {
	if s.trace == nil {
		return
	}
	header, _, _ := bytes.Cut(mail, []byte("\r\n\r\n"))
	s.trace.Sent(trace.PartHeader, string(bytes.ReplaceAll(header, []byte("\r\n"), []byte{'\n'})))
	s.trace.SentBody("", max(0, size-len(header)-len("\r\n\r\n")))
}
