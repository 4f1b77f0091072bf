package smtp

import (
	"fmt"

	"lemma/sender"
	"lemma/sender/mime"
)

// draft is a message in its wire format, with the final dot. Its buffer is reused.
type draft struct {
	index    int
	from, to string
	mail     []byte
	size     int // as SIZE counts it (RFC 1870, 3): without the final dot
}

// write is a pure function of the message and the account's settings, so that two
// attempts send the same bytes.
func (d *draft) write(w *mime.Writer, m *sender.Message, s *settings) error {
	out, body, err := w.Append(d.mail[:0], m, s.own)
	if err != nil {
		return err
	}
	d.from, d.to = m.FromEmail, m.To
	if s.returnPath != "" {
		d.from = s.returnPath
	}
	if s.dkim != nil {
		if out, err = s.dkim.sign(out, body, m.Date); err != nil {
			return fmt.Errorf("sign: %w", err)
		}
	}
	d.size = len(out)
	out = append(out, ".\r\n"...)
	d.mail = out
	return nil
}
