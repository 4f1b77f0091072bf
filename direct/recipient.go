package direct

import (
	"encoding/json"
	"hash/maphash"
	"strings"

	"lemma"
	"lemma/address"
	"lemma/audience"
	"lemma/notifications"
)

// MaxOthers is how many further addresses of a profile are counted.
const MaxOthers = 100

// recipient is what a request needs of the rows of its profile: the first address that can
// be sent to, with the data of its row. The others, such as the tokens of further devices,
// are counted: a key has one notification, whose end decides about it.
type recipient struct {
	*request
	inAudience, optedOut bool
	addresses            map[uint64]struct{} // hashes of those that can be sent to
}

var seed = maphash.MakeSeed()

func newRecipient(r *request) *recipient {
	r.row.ProfileKey, r.row.Skip = r.To.ProfileKey, notifications.MissingAddress
	return &recipient{request: r, addresses: map[uint64]struct{}{}}
}

// add adds a row. It keeps no memory of the row.
func (t *recipient) add(row audience.Row, m *memory) error {
	t.inAudience = true
	t.optedOut = t.optedOut || row.OptedOut
	var buffer [1]address.Address
	for _, a := range row.Addresses(buffer[:0], t.content.channel) {
		if a.Fault == "" && len(t.addresses) <= MaxOthers {
			t.addresses[maphash.String(seed, a.Canonical)] = struct{}{}
		}
		if t.row.Address != "" {
			continue
		}
		if t.row.Skip = a.Fault; a.Fault == "" {
			t.row.Address = strings.Clone(a.Text)
			if err := t.keepPayload(row.Payload, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepPayload keeps the data of the first address. A payload that is not an object has none.
func (t *recipient) keepPayload(text string, m *memory) error {
	var profile map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &profile)
	payload := t.payload(profile)
	if err := m.take(len(payload)); err != nil {
		return err
	}
	t.row.Payload = payload
	return nil
}

// fill completes the request, after the last row. An opt-out in any row is one of the profile.
func (t *recipient) fill() {
	t.others = max(len(t.addresses)-1, 0)
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
