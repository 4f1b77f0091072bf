package campaigns

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"lemma/pgtest"
)

const settling = `select count(*) from campaigns where status in ('sending', 'paused') and settle_at <= now()`

// pausedWith returns a campaign that is paused while its notifications wait.
func (b *bundle) pausedWith() uuid.UUID {
	b.T.Helper()
	id := b.sent().ID
	b.fanout(id)
	_, err := b.Pause(context.Background(), b.Workspace, id, id)
	b.Must(err)
	return id
}

func (b *bundle) settle() int {
	b.T.Helper()
	n, err := b.Settle(context.Background())
	b.Must(err)
	return n
}

// clones copies a campaign with its fan-out and batches. The ids of the copies
// precede those of other campaigns.
func (b *bundle) clones(id uuid.UUID, n int) {
	b.T.Helper()
	b.Exec(`
		create table clones as select lpad(to_hex(i), 32, '0')::uuid as id from generate_series(1, $1::int) i`, n)
	for _, of := range [][2]string{{"campaigns", "id"}, {"fanouts", "campaign_id"}, {"batches", "origin_id"}} {
		table, key := of[0], of[1]
		var columns string
		b.Must(b.Pool.QueryRow(context.Background(), `
			select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
			where attrelid = $1::regclass and attnum > 0 and not attisdropped and attname <> $2`, table, key).Scan(&columns))
		b.Exec(`insert into `+table+` (`+key+`, `+columns+`) select n.new, `+columns+`
			from `+table+` t cross join (select id as new from clones) n where t.`+key+` = $1`, id)
	}
}

// A paused campaign that waits is checked ever less often, and a resume makes it due.
func TestPausedCampaignsThatWaitAreNotCheckedEachTime(t *testing.T) {
	b := setup(t, 10)
	id := b.pausedWith()
	b.WantCount(1, settling)
	b.settle()
	b.WantCount(0, settling)
	b.Exec(`update campaigns set settle_at = now(), paused_at = now() - interval '10 minutes'`)
	b.settle()
	b.WantCount(1, `select count(*) from campaigns where settle_at between now() + interval '290 seconds' and now() + interval '310 seconds'`)

	_, err := b.Resume(context.Background(), b.Workspace, id, uuid.Nil)
	b.Must(err)
	b.WantCount(1, settling)
	b.endBatches()
	if n := b.settle(); n != 1 {
		t.Errorf("%d campaigns were completed, want the resumed one", n)
	}
}

// A paused campaign is checked at its deadline, and is due while calls are in flight.
func TestPausedCampaignsThatCanEndAreChecked(t *testing.T) {
	b := setup(t, 10)
	b.pausedWith()
	b.Exec(`update campaigns set send_deadline = now() + interval '2 seconds'`)
	b.settle()
	b.WantCount(1, `select count(*) from campaigns where settle_at = send_deadline`)
	b.Exec(`update campaigns set send_deadline = now() - interval '1 second', settle_at = now()`)
	b.settle()
	b.WantCount(1, settling)

	b.Exec(`update campaigns set send_deadline = null`)
	b.Exec(`update batches set status = 'leased', leased_by = 't', lease_until = now() where status = 'ready'`)
	b.settle()
	b.WantCount(1, settling)
	b.Exec(`update batches set status = 'done', sent = size, leased_by = null, lease_until = null, finished_at = now()`)
	if n := b.settle(); n != 1 {
		t.Errorf("%d campaigns were completed, want the paused one", n)
	}
}

// Many paused campaigns of a workspace do not delay the completion of others, and
// after some ticks none of them is checked.
func TestPausedCampaignsDoNotDelayOthers(t *testing.T) {
	b := setup(t, 10)
	b.clones(b.pausedWith(), 3*settleMost)
	other := b.another(pgtest.Workspace(t, b.Pool), 10)
	id := other.sent().ID
	other.fanout(id)
	other.endBatches()
	if n := b.settle(); n != 1 || other.get(id).Status != Completed {
		t.Errorf("%d campaigns were completed, want that of the other workspace: it is %s", n, other.get(id).Status)
	}
	b.WantCount(3*settleMost+1-(settleMost-1), settling)
	for range 3 {
		b.settle()
	}
	b.WantCount(0, settling)
}
