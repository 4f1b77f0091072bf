package tracking

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma/links"
	"lemma/message"
)

// Signer makes the pixel and the links of the messages of one content. It is safe for
// concurrent use.
type Signer struct {
	signer *links.Signer
	track  message.Track
	left   func(number int, reason string) // counts links that are too long
}

// Signer returns the signer of a content that was created at a time, and tracks this.
func (t *Tracking) Signer(ctx context.Context, ws uuid.UUID, created time.Time, track message.Track) (*Signer, error) {
	s, err := t.Links.Signer(ctx, ws, created)
	if err != nil {
		return nil, fmt.Errorf("make links that are tracked: %w", err)
	}
	return &Signer{s, track, func(_ int, reason string) { t.Metrics.left.WithLabelValues(reason).Inc() }}, nil
}

// Of is the pixel and the links of a notification. base is the result of Base; URLs that
// begin with own are not tracked.
func (s *Signer) Of(base, own string, origin, key uuid.UUID) message.Tracking {
	made := message.Tracking{Own: own, Left: s.left}
	if s.track.Opens {
		made.Open = s.url(base, OpenPath, links.Open, target{origin: origin, key: key})
	}
	if s.track.Clicks {
		made.Click = func(number int, url string) string {
			return s.url(base, ClickPath, links.Click, target{origin, key, number, url})
		}
	}
	return made
}

func (s *Signer) url(base, path string, p links.Purpose, of target) string {
	var memory [256]byte
	return s.signer.URL(p, of.payload(memory[:0]), base, path)
}

// target is the payload of a token. link and url are those of a click.
type target struct {
	origin, key uuid.UUID // the notification
	link        int
	url         string
}

// payload appends the payload.
func (t *target) payload(out []byte) []byte {
	out = append(append(out, t.origin[:]...), t.key[:]...)
	if t.url == "" {
		return out
	}
	out = binary.AppendUvarint(out, uint64(t.link))
	return append(out, t.url...)
}

// parse reads a payload. A click has a URL, an open has none.
func parse(payload []byte, click bool) (t target, ok bool) {
	if len(payload) < 2*16 {
		return t, false
	}
	t.origin, t.key = uuid.UUID(payload[:16]), uuid.UUID(payload[16:32])
	rest := payload[32:]
	if !click {
		return t, len(rest) == 0
	}
	number, n := binary.Uvarint(rest)
	if n <= 0 || number > 1<<30 || len(rest) == n {
		return t, false
	}
	t.link, t.url = int(number), string(rest[n:])
	return t, true
}
