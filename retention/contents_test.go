package retention_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/notifications"
	"lemma/pgtest"
	"lemma/retention"
)

// direct stores the contents of n direct notifications of a month, and the first of these,
// whose batch has a status.
func (o *old) direct(at time.Time, n int, status string) {
	o.T.Helper()
	for i := range n {
		o.Exec(`insert into contents (workspace_id, id, channel, inline, from_name, from_email, reply_to, headers)
			values ($1, $2, 'sms', '{"text": "Dear Ada"}', '', '', '', '{}')`, o.Workspace, contentOf(at, i))
	}
	origin, batch := notifications.DirectOrigin(o.Workspace, at), pgtest.IDAt(at)
	o.Exec(`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload)
		values ($1, $2, $3, $3, 0, '+491701234567', '+491701234567', '{}')`, o.Workspace, origin, batch)
	o.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, status, sent, due_at,
			finished_at)
		select $1, $2, $3, $3, $4, $5, 1, 1, $6, sent, now() + interval '20 days', case when sent > 0 then $7::timestamptz end
		from (select case when $6 = 'done' then 1 else 0 end) as s (sent)`,
		o.Workspace, origin, batch, o.Provider, contentOf(at, 0), status, at.Add(day))
}

func contentOf(at time.Time, n int) uuid.UUID {
	return notifications.DirectID(at, "direct-content/1", string(rune('a'+n)))
}

const directContents = `
	select count(*) from contents where inline is not null and substr(uuid_send(id), 1, 6) = substr(uuid_send($1), 1, 6)`

// The contents of direct notifications have personal data, too, and leave with them. Those of
// a campaign, and those of other months, stay.
func TestContentsLeaveWithTheirNotifications(t *testing.T) {
	for name, c := range map[string]struct {
		cfg    retention.Config
		status string
		want   int
	}{
		"after the retention":              {all, "done", 0},
		"kept for ever":                    {retention.Config{BatchLog: 60 * day}, "done", 3},
		"of a batch that is sent later on": {all, "ready", 3},
	} {
		t.Run(name, func(t *testing.T) {
			o := setup(t)
			next := month.AddDate(0, 5, 0)
			o.direct(month.Add(2*day), 3, c.status)
			o.direct(next.Add(2*day), 2, "done")
			first := pgtest.IDAt(month)
			o.Exec(`insert into contents select workspace_id, $1, channel, template_id, template_version, from_name, from_email, reply_to, headers
				from contents where id = $2`, first, o.campaign)
			o.run(c.cfg, now)
			o.WantCount(c.want, directContents, contentOf(month, 0))
			o.WantCount(2, directContents, contentOf(next, 0))
			o.WantCount(1, `select count(*) from contents where id = $1`, o.campaign)
			o.WantCount(1, `select count(*) from contents where id = $1`, first)
		})
	}
}

// Notifications of the default partition stay, and their contents with them.
func TestContentsOfTheDefaultPartitionAreKept(t *testing.T) {
	o := setup(t)
	o.direct(month, 2, "done")
	o.Exec(`create table kept as select * from notifications where profile_key = '+491701234567'`)
	o.Exec(`delete from notifications where origin_id in (select origin_id from kept)`)
	o.Exec(`alter table notifications detach partition notifications_2019_05`)
	o.Exec(`insert into notifications select * from kept`)
	o.run(all, now)
	o.WantCount(2, directContents, contentOf(month, 0))
}

// A run that ends before all contents are deleted leaves the partition to the next one.
func TestContentsAreDeletedByALaterRun(t *testing.T) {
	o := setup(t)
	o.direct(month, 2, "done")
	o.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise 'no space'; end $$`)
	o.Exec(`create trigger refuse before delete on contents execute function refuse()`)
	pgtest.SetClock(t, o.Pool, now)
	r := o.retention(all)
	if _, err := r.Run(context.Background()); err == nil {
		t.Error("contents that cannot be deleted are no error")
	}
	o.WantCount(1, `select count(*) from pg_class where relname = 'notifications_2019_05'`)
	o.Exec(`drop trigger refuse on contents`)
	_, err := r.Run(context.Background())
	o.Must(err)
	o.WantCount(0, directContents, contentOf(month, 0))
	o.WantCount(0, `select count(*) from pg_class where relname = 'notifications_2019_05'`)
}
