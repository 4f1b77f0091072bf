package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/pgtest"
)

const settling = `select count(*) from campaigns where status in ('sending', 'paused') and settle_at <= now()`

// soon counts the campaigns that are not due, and are within a few seconds.
const soon = `select count(*) from campaigns where settle_at > now() - interval '1 minute' and settle_at < now() + interval '2 seconds'`

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

// A paused campaign is checked at its deadline, and often while calls are in flight.
func TestPausedCampaignsThatCanEndAreChecked(t *testing.T) {
	b := setup(t, 10)
	id := b.pausedWith()
	b.Exec(`update campaigns set send_deadline = now() + interval '1 minute', paused_at = now() - interval '10 minutes'`)
	b.settle()
	b.WantCount(1, `select count(*) from campaigns where settle_at = send_deadline`)
	b.Exec(`update campaigns set send_deadline = now() - interval '1 second', settle_at = now(), paused_at = now()`)
	b.settle()
	b.WantCount(1, soon)

	b.Exec(`update campaigns set send_deadline = null, settle_at = now()`)
	b.Exec(`update batches set status = 'leased', leased_by = 't', lease_until = now() where status = 'ready'`)
	b.settle()
	b.WantCount(1, soon)
	b.Exec(`update batches set status = 'done', sent = size, leased_by = null, lease_until = null, finished_at = now()`)
	b.BatchEnded(b.Workspace, id)
	if n := b.settle(); n != 1 {
		t.Errorf("%d campaigns were completed, want the paused one", n)
	}
}

// Many paused campaigns of a workspace do not delay the completion of others, and
// after some ticks none of them is checked.
func TestPausedCampaignsDoNotDelayOthers(t *testing.T) {
	b := setup(t, 10)
	b.settleMost = 20
	b.clones(b.pausedWith(), 60)
	other := b.another(pgtest.Workspace(t, b.Pool), 10)
	id := other.sent().ID
	other.fanout(id)
	other.endBatches()
	if n := b.settle(); n != 1 || other.get(id).Status != Completed {
		t.Errorf("%d campaigns were completed, want that of the other workspace: it is %s", n, other.get(id).Status)
	}
	b.WantCount(60+1-(20-1), settling)
	for range 3 {
		b.settle()
	}
	b.WantCount(0, settling)
}

// More campaigns than are checked at once are sending, and have been due for longer. They
// are due again later, so that a campaign of another workspace is completed.
func TestCampaignsThatAreSendingDoNotDelayOthers(t *testing.T) {
	b := setup(t, 10)
	b.settleMost = 4
	id := b.sent().ID
	b.fanout(id)
	b.clones(id, settleAmong*4)
	b.Exec(`update campaigns set settle_at = now() - interval '1 hour', sending_at = now() - interval '1 day'`)
	other := b.another(pgtest.Workspace(t, b.Pool), 10)
	id = other.sent().ID
	other.fanout(id)
	other.endBatches()
	_ = b.takeEnding() // as if another process had ended them
	for range settleAmong + 2 {
		b.settle()
	}
	if s := other.get(id).Status; s != Completed {
		t.Errorf("the campaign of the other workspace is %s", s)
	}
}

// Campaigns whose completion fails do not delay others, either.
func TestCampaignsThatCannotBeCompletedDoNotDelayOthers(t *testing.T) {
	b := setup(t, 10)
	b.settleMost = 1
	id := b.sent().ID
	b.fanout(id)
	b.endBatches()
	b.clones(id, settleAmong)
	_ = b.takeEnding()
	b.Exec(`update campaigns set settle_at = now() - interval '1 hour', sending_at = now() - interval '1 day' where id <> $1`, id)
	b.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`)
	b.Exec(`create trigger refuse before update of status on campaigns for each row when (new.id <> '` + id.String() +
		`') execute function refuse()`)
	var n, failed int
	for range settleAmong + 1 {
		completed, err := b.Settle(context.Background())
		if n += completed; err != nil {
			failed++
		}
	}
	if n != 1 || failed != settleAmong {
		t.Errorf("%d campaigns were completed, %d checks failed", n, failed)
	}
}

// The check of a campaign that is sending is postponed by a tenth of the time for which it
// has been sending, by a minute at most. The end of a batch has it checked at once.
func TestACampaignIsCheckedWhenABatchHasEnded(t *testing.T) {
	b := setup(t, 10)
	id := b.sent().ID
	b.fanout(id)
	b.settle()
	b.WantCount(1, soon)
	for ago, next := range map[string]string{"5 minutes": "30 seconds", "1 day": "1 minute"} {
		b.Exec(`update campaigns set settle_at = now(), sending_at = now() - $1::interval`, ago)
		b.settle()
		b.WantCount(1, `select count(*) from campaigns where settle_at between now() + $1::interval - interval '30 seconds'
			and now() + $1::interval + interval '1 second'`, next)
	}
	b.endBatches()
	_ = b.takeEnding()
	if n := b.settle(); n != 0 {
		t.Fatalf("%d campaigns were completed before the check was due", n)
	}
	b.BatchEnded(b.Workspace, id)
	b.BatchEnded(b.Workspace, uuid.New())
	if n := b.settle(); n != 1 {
		t.Errorf("%d campaigns were completed", n)
	}
}

// The end of a fan-out has its campaign checked at once, too: its batches may have ended
// before, or it may have none.
func TestACampaignIsCheckedWhenItsFanoutHasEnded(t *testing.T) {
	b := setup(t, 0)
	id := b.sent().ID
	b.Exec(`update campaigns set settle_at = now() + interval '1 hour'`)
	b.fanout(id)
	if n := b.settle(); n != 1 {
		t.Errorf("%d campaigns were completed", n)
	}
}

// The campaigns of ended batches that wait for a check are bounded. Others are checked when
// they are due.
func TestEndedBatchesThatWaitForACheckAreBounded(t *testing.T) {
	b := setup(t, 10)
	b.settleMost = 3
	id := b.sent().ID
	b.fanout(id)
	b.endBatches()
	_ = b.takeEnding()
	for range 5 {
		b.BatchEnded(b.Workspace, uuid.New())
	}
	b.BatchEnded(b.Workspace, id)
	if n := len(b.ending.of); n != 3 {
		t.Errorf("%d campaigns wait for a check", n)
	}
	if n := b.settle(); n != 1 {
		t.Errorf("%d campaigns were completed, want the one that is due", n)
	}
}

// A campaign with an experiment is not checked before its cut-off, and is due when a person has
// stopped the experiment.
func TestACampaignIsDueWhenItsExperimentIsDecided(t *testing.T) {
	b := experiments(t, 100)
	c, it := b.sampled(ab())
	b.endBatches()
	b.settle()
	b.WantCount(1, `select count(*) from campaigns c join iterations i on i.campaign_id = c.id where c.settle_at = i.cut_off_at`)
	checked, err := b.checkDue(context.Background())
	b.Must(err)
	if len(checked) != 0 {
		t.Errorf("%d campaigns are due", len(checked))
	}
	b.Exec(`update campaigns set settle_at = now()`)
	checked, err = b.checkDue(context.Background())
	b.Must(err)
	_, err = b.StopIteration(context.Background(), b.Workspace, it.ID, uuid.Nil)
	b.Must(err)
	b.Must(b.postpone(context.Background(), checked)) // of a check before the decision
	b.WantCount(1, settling)
	if n := b.settle(); n != 1 || b.get(c.ID).Status != Completed {
		t.Errorf("%d campaigns were completed", n)
	}
}

// A campaign that another transaction holds, such as a cancel, stops the check of no other.
// It stays due.
func TestACampaignThatIsLockedStopsNoCheck(t *testing.T) {
	b := setup(t, 10)
	id := b.sent().ID
	b.fanout(id)
	b.clones(id, 2)
	_ = b.takeEnding()
	b.Exec(`update campaigns set settle_at = now() - interval '1 hour', sending_at = now()`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `select from campaigns where id = $1 for update`, id)
	b.Must(err)
	_, err = b.Settle(ctx)
	b.Must(err)
	b.WantCount(1, settling)
}
