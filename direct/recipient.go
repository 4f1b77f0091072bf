package direct

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/address"
	"lemma/audience"
	"lemma/notifications"
	"lemma/suppression"
)

// What is kept of the further addresses of a profile.
const (
	MaxOthers     = 100      // further addresses of a profile that are counted
	MaxOthersData = 64 << 10 // bytes of data of a profile's further rows, beyond which their addresses are only counted
)

// recipient is what a request needs of the rows of its profile: the first address that can
// be sent to, with the data of its row. The others, such as the tokens of further devices,
// are counted: a key has one notification, whose end decides about it.
type recipient struct {
	*request
	inAudience, optedOut bool
	addresses            []profileAddress // that are valid and differ, in the order of the audience
	canonical            map[uint64]struct{}
	othersData           int // bytes
}

type profileAddress struct {
	text, payload string
	only          bool // counted: it has no payload
	suppressed    bool
}

var seed = maphash.MakeSeed()

func newRecipient(r *request) *recipient {
	r.row.ProfileKey, r.row.Skip = r.To.ProfileKey, notifications.MissingAddress
	return &recipient{request: r, canonical: map[uint64]struct{}{}}
}

// add adds a row. It keeps no memory of the row.
func (t *recipient) add(row audience.Row, m *memory) error {
	t.inAudience = true
	t.optedOut = t.optedOut || row.OptedOut
	var buffer [1]address.Address
	payload, read, only := "", false, false
	for _, a := range row.Addresses(buffer[:0], t.content.channel) {
		if a.Fault != "" {
			if len(t.addresses) == 0 {
				t.row.Skip = a.Fault
			}
			continue
		}
		hash := maphash.String(seed, a.Canonical)
		if _, known := t.canonical[hash]; known || len(t.addresses) > MaxOthers {
			continue
		}
		t.canonical[hash] = struct{}{}
		if !read {
			payload, read = t.payloadOf(row.Payload), true
			if only = len(t.addresses) > 0 && t.othersData+len(payload) > MaxOthersData; only {
				payload = ""
			} else if len(t.addresses) > 0 {
				t.othersData += len(payload)
			}
			if err := m.take(len(payload)); err != nil {
				return err
			}
		}
		if err := m.take(len(a.Text)); err != nil {
			return err
		}
		t.addresses = append(t.addresses, profileAddress{text: strings.Clone(a.Text), payload: payload, only: only})
	}
	return nil
}

// payloadOf is the data that the content uses of a row. A payload that is not an object has none.
func (t *recipient) payloadOf(text string) string {
	var profile map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &profile)
	return t.payload(profile)
}

// checkSuppressed finds the suppressed addresses of profiles that have several. That of a profile
// with one is checked before it is sent to, as each one is.
func (d *Direct) checkSuppressed(ctx context.Context, ws uuid.UUID, all map[string][]*recipient) error {
	together := map[suppression.Message][]*profileAddress{}
	for _, some := range all {
		for _, t := range some {
			if len(t.addresses) > 1 && !t.optedOut {
				row := t.content.row
				m := suppression.Message{Channel: t.content.channel, Transactional: row.transactional, TopicID: row.topic.UUID}
				for i := range t.addresses {
					together[m] = append(together[m], &t.addresses[i])
				}
			}
		}
	}
	for m, addresses := range together {
		texts := make([]string, len(addresses))
		for i, a := range addresses {
			texts[i] = a.text
		}
		found, err := suppression.Check(ctx, d.Pool, ws, m, texts)
		if err != nil {
			return err
		}
		for _, f := range found {
			addresses[f.Index].suppressed = true
		}
	}
	return nil
}

// choose takes the first address that is not suppressed. If all are, it takes the first, so that
// the notification is skipped with the cause.
func (t *recipient) choose() {
	if len(t.addresses) == 0 {
		return
	}
	isFree := func(a profileAddress) bool { return !a.suppressed && !a.only }
	chosen := t.addresses[max(slices.IndexFunc(t.addresses, isFree), 0)]
	t.row.Address, t.row.Payload, t.row.Skip = chosen.text, chosen.payload, ""
	for _, a := range t.addresses {
		if !a.suppressed && a.text != chosen.text {
			t.others++
		}
	}
}

// fill completes the request, after the last row. An opt-out in any row is one of the profile.
func (t *recipient) fill() {
	t.choose()
	if t.optedOut {
		t.row.Skip, t.row.Payload = notifications.Unsubscribed, ""
	}
	switch {
	case !t.inAudience:
		t.fail(lemma.Fault("/to/profile_key", "unknown_profile", "must be a profile of the audience"))
	case t.row.Skip == "":
		if err := t.render(); err != nil {
			t.fail(err)
		}
	}
}
