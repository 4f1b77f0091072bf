package events_test

import (
	"testing"
	"time"

	"lemma/events"
	"lemma/pgtest"
)

// The time of an event is compared with the clock of the database, and is that without one of
// its own: an event from the future, and one whose time no carrier can mean, has no watermark.
func TestTheTimeOfAnEventIsThatOfTheDatabase(t *testing.T) {
	t.Parallel()
	shop := pgtest.NewShop(t)
	now := time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC)
	pgtest.SetClock(t, shop.Pool, now)
	for name, c := range map[string]struct {
		given, stored time.Time
		watermark     bool
	}{
		"none":                 {time.Time{}, now, true},
		"the past":             {now.Add(-time.Hour), now.Add(-time.Hour), true},
		"five minutes ahead":   {now.Add(5 * time.Minute), now.Add(5 * time.Minute), true},
		"more":                 {now.Add(5*time.Minute + time.Second), now.Add(5*time.Minute + time.Second), false},
		"a year ahead":         {now.AddDate(1, 0, 0), now, false},
		"before 2000":          {time.Unix(0, 0), now, false},
		"beyond what can be":   {time.Date(20_000, 1, 1, 0, 0, 0, 0, time.UTC), now, false},
		"that of this process": {time.Now(), now, false},
	} {
		account := shop.NewProvider("http")
		_, err := events.Receive(t.Context(), shop.Pool, shop.Workspace, []events.Received{{ProviderID: account,
			Report: events.Report{ID: name, Type: events.TypeDelivered, OccurredAt: c.given}}})
		shop.Must(err)
		stored := pgtest.One[time.Time](t, shop.Pool, `select occurred_at from provider_events where provider_id = $1`, account)
		if !stored.Equal(c.stored) {
			t.Errorf("%s: %s is stored as %s", name, c.given, stored)
		}
		n := shop.Count(`select count(*) from provider_watermarks where provider_id = $1 and occurred_at <= $2`, account, now)
		if (n == 1) != c.watermark {
			t.Errorf("%s: %d watermarks", name, n)
		}
	}
}

// The effects of an event have the time of its receipt, if it is dated ahead.
func TestTheEffectsOfAnEventHaveTheTimeOfItsReceipt(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	ahead, past := event("ahead", events.Accepted, 1), event("past", events.Accepted, 2)
	ahead.OccurredAt, past.OccurredAt = time.Now().Add(time.Hour), time.Now().Add(-time.Hour).Truncate(time.Second)
	if _, err := events.Record(t.Context(), pool, ws, []events.Event{ahead, past}); err != nil {
		t.Fatal(err)
	}
	got := pgtest.Column[bool](t, pool,
		`select occurred_at = case ordinal when 1 then recorded_at else $1 end from event_queue`, past.OccurredAt)
	if len(got) != 2 || !got[0] || !got[1] {
		t.Error(got)
	}
}
