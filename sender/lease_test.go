package sender

import (
	"context"
	"testing"

	"lemma/notifications"
)

// A leased batch is not claimed a second time.
func TestALeasedBatchIsNotClaimed(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	ctx := context.Background()
	holder := b.sender()
	reached, release := pauseAt(holder, "opened", 1)
	done := make(chan error)
	go func() { _, err := holder.Work(ctx, refs[0]); done <- err }()
	<-reached
	if _, err := b.sender().Work(ctx, refs[0]); err != nil {
		t.Fatal(err)
	}
	if n := b.carrier.called(addressOf(0)); n != 0 {
		t.Errorf("called %d times without the lease", n)
	}
	close(release)
	b.Must(<-done)
	b.wantCounts(notifications.Counts{Sent: 10})
	if _, err := b.sender().Work(ctx, refs[0]); err != nil {
		t.Fatal(err)
	}
	b.wantCalledOnce(1)
}

// A worker that was paused before it called any row finds its batch leased by another:
// its token opens no window, whether the other has opened one or not.
func TestAnOldTokenOpensNoWindow(t *testing.T) {
	for _, point := range []string{"claimed", "opened"} {
		t.Run(point, func(t *testing.T) { testAnOldToken(t, point) })
	}
}

func testAnOldToken(t *testing.T, point string) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	ctx := context.Background()
	old, young := b.sender(), b.sender()
	reached, release := pauseAt(old, "committing", 1)
	done := make(chan error, 2)
	go func() { _, err := old.Work(ctx, refs[0]); done <- err }()
	<-reached
	if r := b.reap(b.sender()); r.Freed != 10 {
		t.Fatalf("reaped %+v", r)
	}
	holding, letGo := pauseAt(young, point, 1)
	go func() { _, err := young.Work(ctx, refs[0]); done <- err }()
	<-holding
	close(release)
	b.Must(<-done)
	if n := b.carrier.called(addressOf(0)); n != 0 {
		t.Errorf("called %d times under a token that was lost", n)
	}
	close(letGo)
	b.Must(<-done)
	b.wantCounts(notifications.Counts{Sent: 10})
}

// A worker is paused past its lease, the reaper decides, the worker continues: known
// outcomes are kept, and no row is called again whose acceptance is known.
func TestALostLeaseKeepsWhatIsKnown(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	slow, s := b.sender(), b.sender()
	finish := b.pausedWork(slow, refs[0], "committing", 2)
	if r := b.reap(s); r.Retried != 10 {
		t.Fatalf("reaped %+v", r)
	}
	finish()
	b.work(s) // the retry batch
	b.wantCalledOnce(10)
	b.wantCounts(notifications.Counts{Sent: 10})
}

// The same for rejections: a rejected row is not called again.
func TestALostLeaseKeepsRejections(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	for i := range 10 {
		b.carrier.then[addressOf(i)] = []Outcome{Rejected, Accepted}
	}
	slow, s := b.sender(), b.sender()
	finish := b.pausedWork(slow, refs[0], "committing", 2)
	b.reap(s)
	finish()
	b.work(s) // the retry batch
	if n := b.carrier.called(addressOf(3)); n != 1 {
		t.Errorf("called %d times although its rejection was known", n)
	}
	b.wantCounts(notifications.Counts{Failed: 10})
}

// The second attempt is over before the first worker continues: its commit changes no
// row that has ended.
func TestALateCommitChangesNoTerminalRow(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	slow, s := b.sender(), b.sender()
	finish := b.pausedWork(slow, refs[0], "committing", 2)
	b.reap(s)
	b.work(s)
	before := b.dump()
	finish()
	if after := b.dump(); after != before {
		t.Errorf("terminal rows changed:\n%s\n%s", before, after)
	}
	b.wantCounts(notifications.Counts{Sent: 10})
}

func (b *bundle) dump() string {
	b.T.Helper()
	var s string
	err := b.Pool.QueryRow(context.Background(), `
		select (select string_agg(a::text, E'\n' order by batch_id, ordinal, attempt) from attempts a where workspace_id = $1)
			|| (select string_agg(b::text, E'\n' order by id) from batches b where workspace_id = $1)`, b.Workspace).Scan(&s)
	b.Must(err)
	return s
}
