package direct

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/notifications"
	"lemma/pgtest"
)

// Notifications that are skipped when they are stored have an event, with their reasons.
func TestSkippedNotificationsHaveAnEvent(t *testing.T) {
	b := setup(t)
	b.Subscribe("notification.skipped")
	b.ExecDB(`update customers set opted_out = true where id = 'c1'`)
	b.ExecDB(`update customers set email = null where id = 'c2'`)
	var all []Request
	for _, id := range []string{"c1", "c2", "c3"} {
		all = append(all, b.ofProfile("", func(r *Request) { r.To.ProfileKey = id }))
	}
	_, err := b.process().SendAll(context.Background(), b.Workspace, all)
	b.Must(err)
	b.WantCount(1, `select count(*) from events_out where type = 'notification.skipped' and count = 2`)
	got := pgtest.Column[string](t, b.Pool, `select unnest(details) from events_out order by 1`)
	want := []string{notifications.MissingAddress, notifications.Unsubscribed}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
