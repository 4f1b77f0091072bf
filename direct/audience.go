package direct

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
)

// reading is what is read from one audience together.
type reading struct {
	audience uuid.UUID
	columns  string
}

// readAudiences fills in the recipients of requests that name a profile. Keys are locked
// before an audience is read, and unlocked if the recipient cannot be found.
func (d *Direct) readAudiences(ctx context.Context, ws uuid.UUID, all []*request, m *memory) error {
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
		if err := d.readParts(ctx, ws, of.audience, some, m, new(mostReads)); err != nil {
			d.unlock(ctx, ws, all)
			return err
		}
	}
	d.unlock(ctx, ws, slices.DeleteFunc(slices.Clone(open), func(r *request) bool { return r.result.Err == nil }))
	return nil
}

// mostReads is how many reads of an audience a request or bulk causes because of profiles whose rows are
// too long: ten for each, if they are few.
const mostReads = 60

// readParts reads the profiles of requests. If a row is longer than a source may return, only the
// requests of its profile fail: it is found by halves. reads is how many reads are left.
func (d *Direct) readParts(ctx context.Context, ws, id uuid.UUID, some []*request, m *memory, reads *int) error {
	before := m.bytes
	err := d.readAudience(ctx, ws, id, some, m)
	if err == nil {
		return nil
	}
	if lemma.KindOf(err) == lemma.Internal || lemma.KindOf(err) == lemma.Unavailable {
		return err
	}
	e, _ := errors.AsType[*lemma.Error](err)
	if e != nil && e.Code == audience.CodeLimit && !m.full && len(some) > 1 && *reads > 0 {
		m.d.data.Resize(m.of, m.bytes, before)
		m.bytes = before
		*reads -= 2
		half := len(some) / 2
		if err := d.readParts(ctx, ws, id, some[:half], m, reads); err != nil {
			return err
		}
		return d.readParts(ctx, ws, id, some[half:], m, reads)
	}
	for _, r := range some {
		r.fail(err)
	}
	return nil
}

// readAudience reads the profiles of requests that need the same columns.
func (d *Direct) readAudience(ctx context.Context, ws, id uuid.UUID, some []*request, m *memory) error {
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
	recipients := map[string][]*recipient{}
	for _, r := range some {
		keys = append(keys, r.To.ProfileKey)
		recipients[r.To.ProfileKey] = append(recipients[r.To.ProfileKey], newRecipient(r))
	}
	slices.Sort(keys)
	err = d.Audiences.LookupEach(ctx, ws, id, columns, slices.Compact(keys), func(row audience.Row) error {
		for _, to := range recipients[row.Key] {
			if err := to.add(row, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = d.checkSuppressed(ctx, ws, recipients)
	}
	if err != nil {
		return err
	}
	return d.inSlot(ctx, ws, func() error {
		for _, all := range recipients {
			for _, to := range all {
				to.fill()
			}
		}
		return nil
	})
}

// Recheck yields the current rows of some profiles in the audience of a content. The
// sender calls it for notifications that have waited for long. found is false for a
// content without an audience. An audience that was deleted has no profiles.
func (d *Direct) Recheck(ctx context.Context, ws, content uuid.UUID, profiles []string, yield func(audience.Row) error) (
	found bool, err error,
) {
	var of uuid.NullUUID
	err = d.Pool.QueryRow(ctx, `select audience_id from contents where workspace_id = $1 and id = $2`, ws, content).Scan(&of)
	if err != nil || !of.Valid {
		return false, err
	}
	for some := range slices.Chunk(profiles, audience.MaxLookup) {
		if err = d.Audiences.CurrentEach(ctx, ws, of.UUID, some, yield); err != nil {
			break
		}
	}
	if e, ok := errors.AsType[*lemma.Error](err); ok && e.Kind == lemma.NotFound {
		return true, nil
	}
	return true, err
}
