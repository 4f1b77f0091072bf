package notifications_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/pgtest"
)

// A repeated chunk adds no notification, no batch and no job.
func TestARepeatedChunkAddsNothing(t *testing.T) {
	f := setup(t)
	if w := f.insert(recipients(25)); w.Created != 25 {
		t.Errorf("added %+v", w)
	}
	jobs := f.Count(`select count(*) from river_job`)
	for _, run := range []int{1, 2} {
		if w := f.insert(recipients(25), func(c *notifications.Chunk) { c.Run = run }); w.Created != 0 || len(w.Skipped) != 0 {
			t.Errorf("run %d added %+v", run, w)
		}
	}
	f.WantCount(3, `select count(*) from batches`)
	if n := f.Count(`select count(*) from river_job`); n != jobs || jobs != 3 {
		t.Errorf("%d jobs, then %d", jobs, n)
	}
	if c := f.counts(); c.Audience != 25 || c.Pending != 25 || !c.Balanced {
		t.Errorf("%+v", c)
	}
}

// A chunk with Copy set inserts all its rows or none.
func TestACopyReportsAStoredKey(t *testing.T) {
	f := setup(t)
	byCopy := func(c *notifications.Chunk) { c.Copy = true }
	f.insert(recipients(5), byCopy)
	chunk := notifications.Chunk{WorkspaceID: f.Workspace, OriginID: f.origin, ProviderID: f.origin, ContentID: f.origin,
		Run: 1, MaxAttempts: 2, BatchSize: 10, Copy: true, Recipients: recipients(6)}
	err := pgx.BeginFunc(t.Context(), f.Pool, func(tx pgx.Tx) error { _, err := f.Insert(t.Context(), tx, chunk); return err })
	if !errors.Is(err, notifications.ErrRepeated) {
		t.Errorf("got %v", err)
	}
	if c := f.counts(); c.Audience != 5 || !c.Balanced {
		t.Errorf("%+v", c)
	}
}

// Two profiles share an address, in two chunks or in one: the holder of the key
// keeps it, and a repeated chunk adds nothing.
func TestTheHolderOfAnAddressKeepsIt(t *testing.T) {
	f := setup(t)
	write := func(profiles ...string) notifications.Written {
		var all []notifications.Recipient
		for _, p := range profiles {
			r := recipient(0)
			r.ProfileKey = p
			all = append(all, r)
		}
		return f.insert(all)
	}
	write("B")
	write("A")
	if w := write("A", "B"); w.Created != 0 || len(w.Skipped) != 0 {
		t.Errorf("a repeated chunk added %+v", w)
	}
	if c := f.counts(); c.Audience != 2 || c.Pending != 1 || c.SkippedBy["duplicate_address"] != 1 {
		t.Errorf("%+v", c)
	}
}

// A recipient that is skipped when the audience is read has ended at once, and an
// opted-out address is not used for another profile.
func TestSkippedHaveEnded(t *testing.T) {
	f := setup(t)
	optedOut, missing := recipient(0), notifications.Recipient{ProfileKey: "x", Skip: notifications.MissingAddress}
	optedOut.Skip, optedOut.Holds = notifications.Unsubscribed, true
	f.insert([]notifications.Recipient{optedOut, missing})
	other := recipient(0)
	other.ProfileKey = "other"
	f.insert([]notifications.Recipient{other})
	if n := f.get(0); n.Status != "skipped" || *n.Reason != "unsubscribed" || n.EndedAt == nil {
		t.Errorf("%+v", n)
	}
	want := map[string]int64{"unsubscribed": 1, "missing_address": 1, "duplicate_address": 1}
	c := f.counts()
	if d := cmp.Diff(want, c.SkippedBy); d != "" || c.Skipped != 3 || c.Audience != 3 || !c.Balanced {
		t.Errorf("%+v: %s", c, d)
	}
}

// Explain of a recipient that was skipped when the audience was read has one step,
// with the reason.
func TestExplainOfASkippedRow(t *testing.T) {
	f := setup(t)
	optedOut := recipient(0)
	optedOut.Skip, optedOut.Holds = notifications.Unsubscribed, true
	f.insert([]notifications.Recipient{optedOut, recipient(1)})
	e, err := f.Explain(t.Context(), f.Workspace, f.origin, optedOut.Key)
	if err != nil || len(e.Steps) != 1 || e.Steps[0].Event != "skipped" || e.Steps[0].Data["reason"] != "unsubscribed" {
		t.Errorf("%+v, %v", e.Steps, err)
	}
	if e.Waiting != nil || e.DeliveriesPossible != 0 || !strings.Contains(e.Summary, "not sent (unsubscribed)") {
		t.Errorf("%+v", e)
	}
	e, err = f.Explain(t.Context(), f.Workspace, f.origin, recipient(1).Key)
	if err != nil || len(e.Steps) != 1 || e.Steps[0].Event != "written" || e.Steps[0].Data["reason"] != "" {
		t.Errorf("%+v, %v", e.Steps, err)
	}
}

// Counts are balanced only while every row and batch is there.
func TestALostBatchIsNotBalanced(t *testing.T) {
	f := setup(t)
	f.insert(recipients(20))
	f.Exec(`delete from batches where id = (select id from batches limit 1)`)
	if c := f.counts(); c.Balanced || c.Audience != 20 || c.Pending != 10 {
		t.Errorf("%+v", c)
	}
}

// Attempts are dropped by the month of their batch, and only after the notifications, whose month
// is that of their origin. A process whose clock is behind that of the process that made the
// origin makes no batch of an earlier month.
func TestABatchIsNotOlderThanItsOrigin(t *testing.T) {
	f := setup(t)
	ahead := time.Now().AddDate(0, 2, 0)
	f.origin = pgtest.IDAt(ahead)
	f.insert(recipients(30))
	direct := notifications.DirectOrigin(f.Workspace, ahead)
	f.Exec(`insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, 'p', 'email', 'http', '{}')`,
		f.Workspace, f.origin)
	f.inTx(func(tx pgx.Tx) error {
		_, err := f.InsertDirect(t.Context(), tx, f.Workspace, []notifications.Direct{{OriginID: direct, Key: keyOf(1), ProviderID: f.origin,
			ContentID: f.origin, Address: address(1), Payload: `{}`, MaxAttempts: 1}})
		return err
	})
	for _, id := range pgtest.Column[uuid.UUID](f.T, f.Pool, `select root_id from batches`) {
		if bytes.Compare(id[:6], direct[:6]) < 0 {
			t.Errorf("batch %s of origins %s and %s", id, f.origin, direct)
		}
	}
	f.WantCount(4, `select count(*) from batches`)
}
