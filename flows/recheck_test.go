package flows_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/admission"
	"lemma/flows/flowstest"
	"lemma/flows/query"
	"lemma/pgtest"
)

// A message that has waited is looked up in the audience of the version that wrote it,
// whatever is published since.
func TestRecheckOfASendNode(t *testing.T) {
	b := setup(t, 4)
	flow := b.Live(flowstest.Welcome)
	for i := 1; i <= 4; i++ {
		b.RecordEvent(fmt.Sprintf("c%d", i), "signed_up")
	}
	b.Settle()
	b.PublishNext(flow, `{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"end",
		"nodes":{"end":{"type":"exit"}}}`, flows.InFlight{Mode: "stay"})
	content := pgtest.One[uuid.UUID](b.T, b.Pool, `select distinct content_id from batches where workspace_id = $1`, b.Workspace)
	b.ExecDB(`update customers set opted_out = true where id = 'c1'`)
	b.ExecDB(`delete from customers where id = 'c2'`)
	b.ExecDB(`update customers set email = 'new@shop.example' where id = 'c3'`)

	now := map[string]audience.Row{}
	keep := func(r audience.Row) error { now[r.Key] = r; return nil }
	found, err := b.Recheck(bg, b.Workspace, content, []string{"c1", "c2", "c3", "c4"}, keep)
	if err != nil || !found || len(now) != 3 || !now["c1"].OptedOut || now["c3"].Email != "new@shop.example" ||
		now["c4"].Email != "c4@shop.example" {
		t.Errorf("%v, %v, %v", now, found, err)
	}
	if found, err := b.Recheck(bg, b.Workspace, lemma.NewID(), []string{"c1"}, keep); found || err != nil {
		t.Errorf("of a content of no flow: %v, %v", found, err)
	}

	_, err = b.Archive(bg, b.Workspace, flow, nil)
	b.Must(err)
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	b.Must(b.Deps.Audiences.Delete(bg, b.Workspace, b.Audience))
	clear(now)
	if found, err := b.Recheck(bg, b.Workspace, content, []string{"c1", "c4"}, keep); err != nil || !found || len(now) != 0 {
		t.Errorf("of an audience that was deleted: %v, %v, %v", now, found, err)
	}
}

// The wait of a message counts from the read of its profile and not from the write: the
// process may have stalled in between.
func TestTheWaitCountsFromTheReading(t *testing.T) {
	b := setup(t, 1)
	b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	var read time.Time
	b.Hook.Do = func(stage string) {
		if stage == "evaluated" && read.IsZero() {
			b.Must(b.Pool.QueryRow(bg, `select clock_timestamp()`).Scan(&read))
		}
	}
	b.Settle()
	since := pgtest.One[time.Time](b.T, b.Pool, `select max(created_at) from batches where workspace_id = $1`, b.Workspace)
	if read.IsZero() || !since.Before(read) {
		t.Errorf("read before %v, and the wait counts from %v", read, since)
	}
}

// While the audience cannot be read, the counts of the version show why its messages wait:
// the first failure of a kind, until the audience can be read or no message waits.
func TestCountsOfMessagesThatCannotBeReadAgain(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	content := pgtest.One[uuid.UUID](b.T, b.Pool, `select distinct content_id from batches where workspace_id = $1`, b.Workspace)
	blocked := func() *query.MessagesBlocked {
		t.Helper()
		c, err := b.Counts(bg, b.Workspace, flow, 0)
		b.Must(err)
		return c.MessagesBlocked
	}
	node := b.Process
	recheck := func() error {
		_, err := node.Recheck(bg, b.Workspace, content, []string{"c1"}, func(audience.Row) error { return nil })
		return err
	}
	b.Must(recheck())
	if got := blocked(); got != nil {
		t.Errorf("the audience can be read: %+v", got)
	}

	b.ExecDB(`alter table customers rename to gone`)
	if recheck() == nil {
		t.Fatal("a missing table was read")
	}
	first := blocked()
	if first == nil || first.Reason != audience.CodeChanged || !strings.Contains(first.Detail,
		"customers") || time.Since(first.Since) > time.Minute {
		t.Fatalf("%+v", first)
	}
	b.Exec(`update flow_versions set recheck_failed_at = recheck_failed_at - interval '1 hour' where flow_id = $1`, flow)
	if recheck() == nil {
		t.Fatal("a missing table was read")
	}
	if again := blocked(); again == nil || first.Since.Sub(again.Since) != time.Hour {
		t.Errorf("%+v after %+v", again, first)
	}
	if failed := b.RecheckFailed(b.Workspace, flow, 1, admission.Busy()); failed != nil || blocked().Reason != audience.CodeChanged {
		t.Errorf("a source without a free slot hides the failure: %+v, %v", blocked(), failed)
	}

	b.ExecDB(`alter table gone rename to customers`)
	node = flowstest.NewProcess(b.Deps, b.Config) // with a closed breaker
	b.Must(recheck())
	if got := blocked(); got != nil {
		t.Errorf("it could be read again: %+v", got)
	}
	b.ExecDB(`alter table customers rename to gone`)
	if recheck() == nil || blocked() == nil {
		t.Fatal("a missing table was read")
	}
	b.Exec(`update batches set status = 'cancelled', cancelled = size, finished_at = now() where workspace_id = $1`, b.Workspace)
	if got := blocked(); got != nil {
		t.Errorf("no message waits: %+v", got)
	}
}
