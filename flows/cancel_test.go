package flows_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/lifecycle"
)

// archivedWithAMessage is an archived flow that has a message to send, and the origin
// of the message.
func (b *bundle) archivedWithAMessage() (flow, origin uuid.UUID) {
	b.T.Helper()
	flow = b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.Must(flowstest.Second(b.Archive(bg, b.Workspace, flow, nil)))
	b.Must(b.Tick(bg))
	return flow, enrollment.OriginOf(flow, b.Enrollment(flow, "c1").ID)
}

// pauseFor is what the sender asks when the provider fails.
func (b *bundle) pauseFor(origin uuid.UUID, reason string) {
	b.T.Helper()
	if found, _, err := b.PauseFor(bg, b.Workspace, origin, b.Provider, lifecycle.Cause{Reason: reason, Detail: "535"}); !found || err != nil {
		b.T.Fatalf("%v, %v", found, err)
	}
}

// The provider of an archived flow refuses for good. The message is cancelled, the API
// shows the cause, and the provider can be deleted.
func TestARefusedMessageOfAnArchivedFlowIsCancelled(t *testing.T) {
	b := setup(t, 1)
	flow, origin := b.archivedWithAMessage()
	for range 2 { // the second finds nothing to cancel
		b.pauseFor(origin, "provider_refused")
	}
	b.pauseFor(origin, "provider_errors") // the first reason is final
	f := b.Flow(flow)
	if f.Status != flows.Archived || f.StatusReason != "provider_refused" || f.StatusDetail != "535" {
		t.Errorf("%+v", f)
	}
	c, err := b.Counts(bg, b.Workspace, flow, 0)
	b.Must(err)
	if m := c.Nodes[1].Messages; m["cancelled"] != 1 || m["pending"] != 0 {
		t.Errorf("%v", m)
	}
	if n := flowstest.Counted(b.Metrics.Cancelled.WithLabelValues("provider_refused")); n != 1 {
		t.Errorf("%v messages are counted", n)
	}
	key := enrollment.NodeKey(b.Enrollment(flow, "c1").ID, "hello")
	e, err := b.Deps.Ledger.Explain(bg, b.Workspace, origin, key)
	b.Must(err)
	if last := e.Steps[len(e.Steps)-1]; e.Notification.Status != "cancelled" || last.Event != "cancelled" ||
		last.Data["reason"] != "provider_refused" || last.Data["detail"] != "535" {
		t.Errorf("%+v", e)
	}
	why, err := b.Explain(bg, b.Workspace, flow, "c1")
	b.Must(err)
	if !strings.Contains(why.Facts[0], "its unsent messages were cancelled (provider_refused)") {
		t.Error(why.Facts)
	}
	b.Must(b.Deps.Providers.Delete(bg, b.Workspace, b.Provider))
}

// One of two providers refuses: the messages of the other wait, until it refuses too.
func TestOnlyMessagesOfTheProviderThatRefusesAreCancelled(t *testing.T) {
	b := setup(t, 1)
	other := lemma.NewID()
	b.Exec(`insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, 'o', 'email', 'smtp', '{}')`,
		b.Workspace, other)
	send := strings.ReplaceAll(string(b.Definition("$send")), lemma.FormatID(lemma.PrefixProvider, b.Provider),
		lemma.FormatID(lemma.PrefixProvider, other))
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"one",
		"nodes":{"one":{$send,"next":"two"},"two":{` + send + `,"next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Must(flowstest.Second(b.Archive(bg, b.Workspace, flow, nil)))
	origin := enrollment.OriginOf(flow, b.Enrollment(flow, "c1").ID)
	gate := func(provider uuid.UUID) (gate string) {
		b.Must(b.Pool.QueryRow(bg, `select gate from batches where workspace_id = $1 and provider_id = $2`, b.Workspace, provider).Scan(&gate))
		return gate
	}
	b.pauseFor(origin, "provider_refused")
	if one, two := gate(b.Provider), gate(other); one != "cancelled" || two != "open" {
		t.Errorf("%s and %s", one, two)
	}
	_, _, err := b.PauseFor(bg, b.Workspace, origin, other, lifecycle.Cause{Reason: "provider_unusable"})
	b.Must(err)
	if two := gate(other); two != "cancelled" || b.Flow(flow).StatusReason != "provider_refused" {
		t.Errorf("%s: %+v", two, b.Flow(flow))
	}
	if n := flowstest.Counted(b.Metrics.Cancelled.WithLabelValues("provider_unusable")); n != 1 {
		t.Errorf("%v messages are counted", n)
	}
}

// An outage ends: the message of an archived flow waits for it, but not for ever.
func TestAnArchivedFlowWaitsForAProviderThatIsDown(t *testing.T) {
	b := setup(t, 1)
	flow, origin := b.archivedWithAMessage()
	b.pauseFor(origin, "provider_errors")
	b.pauseFor(origin, "batch_crashed") // of no provider
	if f := b.Flow(flow); f.StatusReason != "" || b.gates() != "open" {
		t.Errorf("the message is cancelled at once: %+v", f)
	}
	b.Exec(`update flow_log set at = at - $1::interval where action = 'archived'`, flows.GiveUpAfter+time.Minute)
	b.pauseFor(origin, "provider_errors")
	if f := b.Flow(flow); f.StatusReason != "provider_errors" || b.gates() != "cancelled" {
		t.Errorf("the message waits for ever: %+v", f)
	}
}

// A draining flow is archived when its last message is sent, not before: until then a
// provider that fails pauses it.
func TestADrainedFlowIsArchivedAfterItsLastMessage(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},
		"start":"hello","nodes":{"hello":{$send,"next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Must(flowstest.Second(b.Drain(bg, b.Workspace, flow, nil)))
	is := func(want flows.Status) {
		t.Helper()
		b.Must(b.ArchiveEmpty(bg, b.Workspace, flow)) // as if it had been empty when it was read
		b.Must(b.Tick(bg))
		if f := b.Flow(flow); f.Status != want {
			t.Fatalf("%+v", f)
		}
	}
	is(flows.Draining)
	b.pauseFor(enrollment.OriginOf(flow, b.Enrollment(flow, "c1").ID), "provider_refused")
	is(flows.Paused)
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, nil, nil)))
	is(flows.Draining)
	b.Exec(`update batches set status = 'leased', leased_by = 'w', lease_until = now() + interval '1 minute'`)
	is(flows.Draining)
	b.Wants(lemma.Conflict, b.Deps.Providers.Delete(bg, b.Workspace, b.Provider))
	b.Exec(`update batches set status = 'done', leased_by = null, lease_until = null, sent = size, finished_at = now()`)
	is(flows.Archived)
}

// The SQL of docs/guides/restore-a-backup.md: the messages of archived flows are listed, and expire.
func TestMessagesOfAnArchivedFlowExpireAfterARestore(t *testing.T) {
	b := setup(t, 1)
	flow, _ := b.archivedWithAMessage()
	page, err := os.ReadFile("../docs/guides/restore-a-backup.md")
	b.Must(err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?);\n *```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 4 {
		t.Fatalf("the guide has %d blocks of SQL", len(blocks))
	}
	blocks = blocks[2:] // the first are those of direct notifications
	listed := `select count(*) from (` + blocks[0][1] + `) a where id = $1 and messages = 1`
	b.WantCount(1, listed, flow)
	b.WantCount(0, `select count(*) from batches where expires_at <= now()`)
	b.Exec(strings.Replace(blocks[1][1], "...", flow.String(), 1))
	b.WantCount(1, `select count(*) from batches where expires_at <= now()`)
	b.Exec(`update batches set status = 'expired', skipped = size, finished_at = now()`)
	b.WantCount(0, listed, flow)
}

// The audience of an archived flow is not deleted while messages of it wait: it may be read again before they are sent.
func TestTheAudienceOfWaitingMessagesIsNotDeleted(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.Replace(flowstest.Welcome, `{`, `{"description":"half of a character: \ud83d",`, 1))
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	draft := b.NewAudience(b.Source, "select id, email, name from customers")
	b.Must(flowstest.Second(b.CreateVersion(bg, b.Workspace, flow, json.RawMessage(strings.ReplaceAll(string(b.Definition(flowstest.Welcome)),
		lemma.FormatID(lemma.PrefixAudience, b.Audience), lemma.FormatID(lemma.PrefixAudience, draft))))))
	b.Must(flowstest.Second(b.Archive(bg, b.Workspace, flow, nil)))
	b.Must(b.Audiences.Delete(bg, b.Workspace, draft))
	b.WantCount(1, `select count(*) from batches where workspace_id = $1 and status = 'ready'`, b.Workspace)
	if err := b.Audiences.Delete(bg, b.Workspace, b.Audience); lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("deleted: %v", err)
	}
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	b.Must(b.Audiences.Delete(bg, b.Workspace, b.Audience))
}
