package sender

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	addresses "lemma/address"
	"lemma/notifications"
)

// Recipients that have waited for long (a pause, a slow rate, a failing provider) may
// have unsubscribed meanwhile. If the rows of a batch were read longer than
// Config.RecheckAfter ago, or before their campaign was resumed, their audience is read
// again before the call, outside of any transaction. While it cannot be read, no row of the batch is called: the batch
// is due again later.

// AudienceRow is a row that an audience has of a profile now.
type AudienceRow struct {
	Addresses []string // of the channel, in canonical form
	OptedOut  bool
}

// Recheck reads the audience of an origin again and yields the rows of some profiles, also
// some before an error. A profile without rows has left the audience. channel is that of the
// content. known is false when the origin has no audience.
type Recheck func(ctx context.Context, workspaceID, origin, content uuid.UUID, channel lemma.Channel, profiles []string,
	yield func(profile string, now AudienceRow)) (known bool, err error)

// recheck ends the rows of a claim that must not be called any more. With a wait the
// batch must be given back.
func (s *Sender) recheck(ctx context.Context, c *claim, channel lemma.Channel) (gone []outcome, wait time.Duration, err error) {
	if s.again == nil || len(c.rows) == 0 || !s.mustReadAgain(c) {
		return nil, 0, nil
	}
	profiles, err := s.profilesOf(ctx, c)
	if err != nil {
		return nil, s.cfg.DeferFor / 6, err
	}
	rows := newCalled(channel, c.rows, profiles)
	known, wait, err := s.readAgain(ctx, c, channel, profiles, rows.compare)
	if wait > 0 || err != nil || !known {
		return nil, wait, err
	}
	left := make([]row, 0, len(c.rows))
	for i, r := range c.rows {
		reason := rows.skipReason(channel, profiles[i], r.Address)
		s.metrics.rechecked(reason)
		if reason == "" {
			left = append(left, r)
			continue
		}
		gone = append(gone, outcome{ordinal: r.Ordinal, kind: skipped, basis: "gate", reason: reason,
			detail: fmt.Sprintf("the audience was read again after %s", c.age.Round(time.Second))})
	}
	if len(gone) == 0 {
		s.rechecks.record(c.BatchID, c.resumed, s.cfg.RecheckAfter)
	}
	c.rows = left
	return gone, 0, nil
}

// mustReadAgain reports that the rows of a claim were read from their audience too long
// ago, or before the last resume.
func (s *Sender) mustReadAgain(c *claim) bool {
	bound := s.cfg.RecheckAfter
	switch {
	case c.resumed != nil: // unless they were read since
	case c.age < 0: // its rows were written by a clock that was set back since
		bound = 0
	case c.age < bound:
		return false
	}
	return !s.rechecks.fresh(c.BatchID, c.resumed, bound)
}

// skipOptedOut ends the rows of a claim whose profile or address a later run of
// the fan-out has found opted out. A profile may have opted out at another address.
func (s *Sender) skipOptedOut(ctx context.Context, c *claim) (gone []outcome, err error) {
	if !c.optOuts || len(c.rows) == 0 {
		return nil, nil
	}
	of, err := s.profilesOf(ctx, c)
	if err != nil {
		return nil, err
	}
	keys, profiles := make([]uuid.UUID, len(c.rows)), make([]uuid.UUID, len(c.rows))
	for i, r := range c.rows {
		keys[i], profiles[i] = r.Key, notifications.OptOutOf(of[i])
	}
	rows, _ := s.pool.Query(ctx, `
		select r.i::int - 1 from unnest($3::uuid[], $4::uuid[]) with ordinality as r (key, profile, i)
		cross join lateral (
			(select from opt_outs o where o.workspace_id = $1 and o.origin_id = $2 and o.id = r.key limit 1)
			union all
			(select from opt_outs o where o.workspace_id = $1 and o.origin_id = $2 and o.id = r.profile limit 1)
			limit 1
		) o`, c.WorkspaceID, c.OriginID, keys, profiles)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("read opt-outs of batch %s: %w", c.BatchID, err)
	}
	for _, i := range found {
		gone = append(gone, outcome{ordinal: c.rows[i].Ordinal, kind: skipped, basis: "gate", reason: notifications.UnsubscribedSince,
			detail: "a later run of the fan-out found the opt-out"})
	}
	c.rows = slices.DeleteFunc(c.rows, func(r row) bool {
		return slices.ContainsFunc(gone, func(o outcome) bool { return o.ordinal == r.Ordinal })
	})
	return gone, nil
}

// called are the profiles of the rows of a claim, by what their audience has of them now. An
// audience may have any number of rows of one profile.
type called map[string]*profileNow

type profileNow struct {
	found, optedOut bool            // in any of its rows
	addresses       map[string]bool // in canonical form, of the rows of the claim: whether the audience has them
}

// newCalled returns the profiles, of which the audience has no row yet.
func newCalled(channel lemma.Channel, rows []row, profiles []string) called {
	c := make(called, len(rows))
	for i, r := range rows {
		if c[profiles[i]] == nil {
			c[profiles[i]] = &profileNow{addresses: map[string]bool{}}
		}
		c[profiles[i]].addresses[addresses.Parse(channel, r.Address).Canonical] = false
	}
	return c
}

// compare notes a row that the audience has of a profile.
func (c called) compare(profile string, now AudienceRow) {
	p := c[profile]
	if p == nil {
		return
	}
	p.found, p.optedOut = true, p.optedOut || now.OptedOut
	for _, address := range now.Addresses {
		if _, of := p.addresses[address]; of {
			p.addresses[address] = true
		}
	}
}

// skipReason returns why an address of a profile must not be called, or "". An opt-out in any row is
// one of the profile.
func (c called) skipReason(channel lemma.Channel, profile, address string) string {
	switch p := c[profile]; {
	case !p.found:
		return notifications.LeftAudience
	case p.optedOut:
		return notifications.UnsubscribedSince
	case p.addresses[addresses.Parse(channel, address).Canonical]:
		return ""
	}
	return notifications.AddressChanged
}

// profilesOf reads the profile keys of a claim's rows, in their order.
func (s *Sender) profilesOf(ctx context.Context, c *claim) ([]string, error) {
	ordinals := make([]int16, len(c.rows))
	for i, r := range c.rows {
		ordinals[i] = r.Ordinal
	}
	rows, _ := s.pool.Query(ctx, `
		select n.profile_key from notifications n
		where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = $3 and n.ordinal = any($4) order by n.ordinal`,
		c.WorkspaceID, c.OriginID, c.root, ordinals)
	profiles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(profiles) != len(ordinals) {
		err = fmt.Errorf("%d of %d rows found", len(profiles), len(ordinals))
	}
	return profiles, lemma.Wrap(err, "read profiles of batch %s", c.BatchID)
}

// rechecks hold which batches were checked recently, and the failures of reads by origin.
type rechecks struct {
	mu      sync.Mutex
	checked map[uuid.UUID]check          // by batch: the last check that ended no row
	reads   map[uuid.UUID]*audienceReads // by origin
}

// check is when the rows of a batch were checked, and the last resume before: they are checked
// again after the next one, whatever the clock of the database does.
type check struct {
	at      time.Time
	resumed *time.Time
}

func (k check) since(resumed *time.Time) bool {
	return resumed == nil || k.resumed != nil && k.resumed.Equal(*resumed)
}

const mostChecked = 10_000

func (r *rechecks) fresh(batch uuid.UUID, resumed *time.Time, bound time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.checked[batch]
	return ok && time.Since(last.at) < bound && last.since(resumed)
}

func (r *rechecks) record(batch uuid.UUID, resumed *time.Time, bound time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checked == nil {
		r.checked = map[uuid.UUID]check{}
	}
	if len(r.checked) >= mostChecked {
		for id, last := range r.checked {
			if time.Since(last.at) >= bound {
				delete(r.checked, id)
			}
		}
	}
	if len(r.checked) < mostChecked { // a batch that is not in the map is checked once more
		r.checked[batch] = check{time.Now(), resumed}
	}
}
