package clock

import (
	"testing"
	"time"

	"lemma/pgtest"
)

// The time is that of the database. When its clock is set, it is followed by the next reading.
func TestNowIsTheTimeOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	c := New(pool)
	wants := func(what string, at time.Time) {
		t.Helper()
		if got, err := c.Now(t.Context()); err != nil || got.Sub(at).Abs() > 2*time.Second {
			t.Errorf("%s: %s instead of %s, %v", what, got, at, err)
		}
	}
	first, second := time.Now().AddDate(0, -4, 0), time.Now().AddDate(0, 4, 0)
	pgtest.SetClock(t, pool, first)
	wants("first", first)
	pgtest.SetClock(t, pool, second)
	wants("a fresh reading", first)
	c.age(maxAge)
	wants("an old reading", second)
}

// Callers do not wait for the one that reads, and the last reading counts while the database
// does not answer.
func TestTheLastReadingCounts(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	c := New(pool)
	at := time.Now().Add(-time.Hour)
	pgtest.SetClock(t, pool, at)
	if _, err := c.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.age(time.Minute)
	c.one.Lock()
	got, err := c.Now(t.Context())
	c.one.Unlock()
	pool.Close()
	for range 2 {
		if want := at.Add(time.Minute); err != nil || got.Sub(want).Abs() > 2*time.Second {
			t.Errorf("%s instead of %s, %v", got, want, err)
		}
		got, err = c.Now(t.Context())
	}
	if _, err := New(pool).Now(t.Context()); err == nil {
		t.Error("a clock without a reading has a time")
	}
}

// age makes the reading older.
func (c *Clock) age(by time.Duration) {
	r := *c.last.Load()
	r.Begun, r.Ended = r.Begun.Add(-by), r.Ended.Add(-by)
	c.last.Store(&r)
}
