package exports

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// pasts are the attempts of the notifications of a batch, in the order of their ordinals.
var pasts = []string{
	"", "(1, 'accepted', true, 'response', null)", "(1, 'rejected', true, 'response', null)", "(1, 'refused', true, 'response', 'quota')",
	"(1, 'unknown', true, 'reaper', null)", "(1, 'unknown', false, 'reaper', null)", "(1, 'skipped', true, 'gate', 'cancelled')",
	"(1, 'skipped', true, 'gate', 'expired')", "(1, 'unknown', false, 'reaper', null), (2, 'accepted', true, 'response', null)",
	"(1, 'unknown', false, 'reaper', null), (2, 'rejected', true, 'response', null)",
	"(1, 'unknown', false, 'reaper', null), (2, 'unknown', true, 'reaper', null)",
	"(1, 'unknown', false, 'reaper', null), (2, 'accepted', true, 'evidence', 'first_attempt_accepted')",
	"(1, 'unknown', false, 'reaper', null), (2, 'rejected', true, 'evidence', 'first_attempt_rejected')",
	"(1, 'unknown', false, 'reaper', null), (2, 'skipped', true, 'gate', 'cancelled')",
	"", "(1, 'unknown', false, 'reaper', null)", // in no derived batch
}

// store stores a batch with a notification of each past, and, unless it is empty, a batch
// that was derived from it for the unknown ones.
func (f fixture) store(origin uuid.UUID, status, derived string) {
	f.t.Helper()
	id, size := lemma.NewID(), len(pasts)
	insert := `insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts, status,
			leased_by, lease_until, finished_at, sent, called_through, open, members)
		select $1, $2, $3, $4, $2, $2, $5::int, $6, 2, $7, case when $7 = 'leased' then 'w' end, case when $7 = 'leased' then now() end,
			case when $7 not in ('ready', 'leased') then now() end, case when $7 in ('ready', 'leased') then 0 else $5 end, 8,
			$8::smallint[], case when $3::uuid <> $4::uuid then $8 end`
	open := []int16{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15}
	pgtest.Exec(f.t, f.pool, insert, f.ws, origin, id, id, size, 1, status, open)
	if derived != "" {
		pgtest.Exec(f.t, f.pool, insert, f.ws, origin, lemma.NewID(), id, 2, 2, derived, []int16{0, 5})
	}
	for ordinal, past := range pasts {
		pgtest.Exec(f.t, f.pool, `insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address)
			values ($1, $2, $3, $4, $5, $6, 'a@example.com')`, f.ws, origin, lemma.NewID(), id, ordinal, fmt.Sprint(ordinal))
		if past != "" {
			pgtest.Exec(f.t, f.pool, `insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason)
				select $1, $2, $3, p.* from (values `+past+`) p`, f.ws, id, ordinal)
		}
	}
}

// table exports the rows of a type, and returns them sorted, as a function writes them.
func (f fixture) table(kind string, write func(map[string]string) string) (all []string) {
	f.t.Helper()
	x := f.create(NewExport{Type: kind})
	f.run()
	body, _ := f.download(x.ID)
	read, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	f.must(err)
	for _, values := range read[1:] {
		row := map[string]string{}
		for i, name := range read[0] {
			row[name] = values[i]
		}
		all = append(all, write(row))
	}
	slices.Sort(all)
	return all
}

// An export reads batches by a statement of its own, which must derive what the view does.
func TestNotificationsAreAsTheViewHasThem(t *testing.T) {
	f := setup(t)
	for range 2 {
		origin := lemma.NewID()
		for _, status := range []string{"ready", "leased", "done", "cancelled", "expired"} {
			for _, derived := range []string{"", "ready", "leased", "done", "cancelled", "expired"} {
				f.store(origin, status, derived)
			}
		}
		pgtest.Exec(t, f.pool, `insert into notifications (workspace_id, origin_id, key, profile_key, skip_reason)
			select $1, $2, gen_random_uuid(), i::text, 'missing_address' from generate_series(1, 20) i`, f.ws, origin)
		pgtest.Exec(t, f.pool, `insert into deliveries (workspace_id, origin_id, key, state, rank, at)
			select workspace_id, origin_id, key, 'delivered', 4, now() from notifications where origin_id = $1 and ordinal = 1`, origin)
	}
	other := process(t, f.pool, f.dir, pgtest.Workspace(t, f.pool))
	other.store(lemma.NewID(), "done", "")
	want := pgtest.Column[string](t, f.pool, `
		select concat_ws(',', n.origin_id, n.key, n.profile_key, n.status, n.reason, n.attempts, coalesce(d.state, 'unknown'), n.ended_at is null)
		from notification_status n left join deliveries d using (workspace_id, origin_id, key) where workspace_id = $1`, f.ws)
	slices.Sort(want)
	got := f.table("notifications", func(row map[string]string) string {
		origin, key, _ := lemma.ParseNotificationID(row["id"])
		parts := []string{origin.String(), key.String(), row["profile_key"], row["status"]}
		if row["reason"] != "" {
			parts = append(parts, row["reason"])
		}
		return strings.Join(append(parts, row["attempts"], row["delivery"], fmt.Sprint(row["ended_at"] == "")[:1]), ",")
	})
	if d := cmp.Diff(want, got); d != "" || len(want) != 2*(30*len(pasts)+20) {
		t.Errorf("%d notifications: %s", len(want), d)
	}
	want = pgtest.Column[string](t, f.pool, `
		select concat_ws(',', n.origin_id, n.key, a.attempt, a.outcome, a.basis)
		from notifications n join attempts a using (workspace_id, batch_id, ordinal) where workspace_id = $1`, f.ws)
	slices.Sort(want)
	got = f.table("attempts", func(row map[string]string) string {
		origin, key, _ := lemma.ParseNotificationID(row["notification_id"])
		return strings.Join([]string{origin.String(), key.String(), row["attempt"], row["outcome"], row["basis"]}, ",")
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
