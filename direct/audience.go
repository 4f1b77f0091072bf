package direct

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/address"
	"lemma/audience"
	"lemma/notifications"
)

// reading is what is read from one audience together.
type reading struct {
	audience uuid.UUID
	columns  string
}

// readAudiences fills in the recipients of requests that name a profile. Keys are locked
// before an audience is read, and unlocked if the recipient cannot be found.
func (d *Direct) readAudiences(ctx context.Context, ws uuid.UUID, all []*request) error {
	var open []*request
	for _, r := range all {
		if !r.done && r.To.AudienceID != nil {
			open = append(open, r)
		}
	}
	if len(open) == 0 {
		return nil
	}
	if err := d.inSlot(ctx, ws, func() error { return d.lockKeys(ctx, ws, open) }); err != nil {
		return err
	}
	d.at(ctx, "locked")
	together := map[reading][]*request{}
	for _, r := range open {
		if !r.done {
			of := reading{*r.To.AudienceID, strings.Join(r.missing(), "\x00")}
			together[of] = append(together[of], r)
		}
	}
	for of, some := range together {
		if err := d.readAudience(ctx, ws, of.audience, some); err != nil {
			if lemma.KindOf(err) == lemma.Internal || lemma.KindOf(err) == lemma.Unavailable {
				d.unlock(ctx, ws, all)
				return err
			}
			for _, r := range some {
				r.fail(err)
			}
		}
	}
	d.unlock(ctx, ws, slices.DeleteFunc(slices.Clone(open), func(r *request) bool { return r.result.Err == nil }))
	return nil
}

// readAudience reads the profiles of requests that need the same columns.
func (d *Direct) readAudience(ctx context.Context, ws, id uuid.UUID, some []*request) error {
	of, err := d.Audiences.Get(ctx, ws, id)
	if lemma.KindOf(err) == lemma.NotFound && err != nil {
		return lemma.Fault("/to/audience_id", "unknown_id", "must be an audience of this workspace")
	}
	if err != nil {
		return err
	}
	if of.AddressColumn(some[0].content.channel) == "" {
		return lemma.Fault("/to/audience_id", "wrong_channel", "must be an audience with addresses for %s, the channel of the content",
			some[0].content.channel)
	}
	columns := some[0].missing()
	for _, name := range columns {
		if !slices.ContainsFunc(of.Columns, func(c audience.Column) bool { return c.Name == name }) {
			return lemma.Fault("/data", "unknown_variable", "must have %s, which the content uses and the audience does not have", name)
		}
	}
	var keys []string
	for _, r := range some {
		keys = append(keys, r.To.ProfileKey)
	}
	slices.Sort(keys)
	rows := map[string][]audience.Row{}
	err = d.Audiences.LookupEach(ctx, ws, id, columns, slices.Compact(keys), func(row audience.Row) {
		row.Key = strings.Clone(row.Key)
		rows[row.Key] = append(rows[row.Key], cloned(row))
	})
	if err != nil {
		return err
	}
	for _, r := range some {
		r.fill(rows[r.To.ProfileKey])
	}
	return nil
}

// cloned is a row that shares no memory with others.
func cloned(row audience.Row) audience.Row {
	for _, text := range []*string{&row.Email, &row.Phone, &row.Region, &row.Push, &row.Payload} {
		*text = strings.Clone(*text)
	}
	return row
}

// fill sets the recipient: the first address of the profile that can be sent to. The
// others, such as the tokens of further devices, are counted: a key has one notification,
// whose end decides about it. An opt-out in any row is one of the profile.
func (r *request) fill(rows []audience.Row) {
	if len(rows) == 0 {
		r.fail(lemma.Fault("/to/profile_key", "unknown_profile", "must be a profile of the audience"))
		return
	}
	r.row.ProfileKey, r.row.Skip = r.To.ProfileKey, notifications.MissingAddress
	var profile map[string]json.RawMessage
	found := map[string]bool{}
	for i := range rows {
		var buffer [1]address.Address
		for _, a := range rows[i].Addresses(buffer[:0], r.content.channel) {
			if a.Fault == "" {
				found[a.Canonical] = true
			}
			if r.row.Address == "" && a.Fault == "" {
				r.row.Address, r.row.Skip = a.Text, ""
				_ = json.Unmarshal([]byte(rows[i].Payload), &profile)
			} else if r.row.Skip != "" {
				r.row.Skip = a.Fault
			}
		}
	}
	if slices.ContainsFunc(rows, func(row audience.Row) bool { return row.OptedOut }) {
		r.row.Skip = notifications.Unsubscribed
	}
	r.others = max(len(found)-1, 0)
	if r.row.Skip == "" {
		r.row.Payload = r.payload(profile)
		if err := r.render(); err != nil {
			r.fail(err)
		}
	}
}

// Recheck returns the current rows of some profiles in the audience of a content, by
// profile key. The sender calls it for notifications that have waited for long. found is
// false for a content without an audience. An audience that was deleted has no profiles.
func (d *Direct) Recheck(ctx context.Context, ws, content uuid.UUID, profiles []string) (
	now map[string][]audience.Row, found bool, err error,
) {
	var of uuid.NullUUID
	err = d.Pool.QueryRow(ctx, `select audience_id from contents where workspace_id = $1 and id = $2`, ws, content).Scan(&of)
	if err != nil || !of.Valid {
		return nil, false, err
	}
	now = make(map[string][]audience.Row, len(profiles))
	for some := range slices.Chunk(profiles, audience.MaxLookup) {
		err = d.Audiences.LookupEach(ctx, ws, of.UUID, nil, some, func(row audience.Row) { now[row.Key] = append(now[row.Key], row) })
		if err != nil {
			break
		}
	}
	if e, ok := errors.AsType[*lemma.Error](err); ok && e.Kind == lemma.NotFound {
		return now, true, nil
	}
	return now, true, err
}
