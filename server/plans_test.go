package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lemma/pgtest"
)

// finds lists the tables that grow with profiles, each with columns of which one must be in
// the index condition. The others (workspace, origin, flow, status) match a fraction of all
// rows, so a scan by them alone grows with the table.
var finds = map[string][]string{
	"enrollments":        {"id", "profile_key", "resume_at"},
	"enrollment_keys":    {"uniqueness_key"},
	"enrollment_steps":   {"enrollment_id"},
	"trigger_events":     {"key", "profile_key"},
	"refusals":           {"key", "profile_key", "enrollment_id", "at"},
	"notifications":      {"key", "batch_id", "profile_key"},
	"batches":            {"id", "root_id"},
	"attempts":           {"batch_id"},
	"batch_log":          {"batch_id"},
	"provider_events":    {"batch_id", "key", "id"},
	"outbox":             {"id", "enrollment_id", "body_of", "due_at", "finished_at"},
	"fanout_chunks":      {"campaign_id", "origin_id"},
	"opt_outs":           {"id"},
	"deliveries":         {"key"},
	"soft_bounces":       {"key"},
	"suppressions":       {"key", "id", "written_by"},
	"topic_unsubscribes": {"key", "written_by"},
	"direct_keys":        {"key"},
	"contents":           {"id"},
	"event_queue":        {"id"},
	"tracking_queue":     {"key", "occurred_at"},
	"conversion_queue":   {"key"},
	"settlement_queue":   {"batch_id"},
	"tracking_events":    {"key"},
	"engagements":        {"key"},
}

// reads are intended scans without such a column, by a part of the statement and the
// index. Something else than the index condition bounds them.
var reads = []struct{ caller, index, why string }{
	{"(*Flows).claimShard", "enrollments_waiting", "the first by resume_at, of one shard"},
	{"(*Flows).findIdle", "enrollments_waiting", "the first by resume_at, of one shard"},
	{"enrollment.RaiseBounds", "enrollments_waiting", "the first by resume_at, of one shard"},
	{"(*Flows).archiveDrained", "enrollments_waiting", "the first by resume_at, of one shard"},
	{"(*Flows).archiveDrained", "workspace_id_origin_id_id_idx", "the first batch of one origin that has not ended (batches_live)"},
	{"(*Flows).leftBehind", "enrollments_waiting", "in the order of the index, until there are enough for a hundred chunks"},
	{"flows.countGroups", "enrollments_", "counts the active enrollments in a flow that is published"},
	{"(*Campaigns).Settle.func1", "batches_", "the batches of one campaign that has ended: one for some hundreds of people"},
	{"(*Campaigns).refs", "batches_", "the batches of one campaign, until one is found that has not ended"},
	{"(*Campaigns).refs", "tracking_queue_pkey", "the events of one campaign that wait, until one is found before its cut-off"},
	{"(*Campaigns).checkDue", "workspace_id_origin_id_id_idx", "the batches of one campaign that have not ended (batches_live)"},
	{"campaigns.settle", "batches_", "the batches of one campaign that has ended: one for some hundreds of people"},
	{"notifications.ReadCounts", "batches_", "the batches of one campaign, whose status is asked for"},
	{"(*Campaigns).countProfiles.func1", "notifications_", "the notifications of one push campaign, once, when its fan-out ends"},
	{"notifications.untilNone", "workspace_id_origin_id_id_idx", "the first batch of one origin whose gate is to be changed (batches_live)"},
	{"(*Ledger).Hold.func1", "workspace_id_origin_id_id_idx", "the batches of one origin that have not ended (batches_live)"},
	{"notifications.unhold", "workspace_id_origin_id_id_idx", "the first batches of one origin that are held (batches_held)"},
	{"(*Ledger).Unhold", "workspace_id_origin_id_id_idx", "the first batch of one origin that is held (batches_held)"},
	{"(*Ledger).openPage", "workspace_id_origin_id_id_idx", "the first batch of one origin that is held (batches_held)"},
	{"(*Ledger).Cancel", "workspace_id_origin_id_id_idx", "the batches of one origin that have not ended (batches_live)"},
	{"(*Sender).claimAs", "opt_outs_pkey", "whether one campaign has any"},
	{"(*Sender).readLate", "batches_", "skips from one workspace with batches that expire to the next"},
	{"(*Sender).withoutJob", "batches_", "the batches that are due, once a sweep"},
	{"(*fairness).readWorkspaces", "batches_", "skips from one workspace with batches that are ready to the next"},
	{"(*Sender).idleProviders", "batches_", "skips from one provider with batches that were never claimed to the next"},
	{"(*Sender).makeNextDue.func1", "workspace_id_provider_id_due_at_idx", "the first by due_at, of one provider (batches_never_claimed)"},
	{"(*Sender).makeNextDue.func1", "_id_idx", "the batches that are leased (batches_leased)"},
	{"(*Sender).dueFirst", "batches_", "the first by due_at, of one workspace"},
	{"(*Sender).dueOfOther", "batches_", "the last by due_at, of one workspace"},
	{"(*Sender).expired", "batches_", "the batches that are leased"},
	{"(*Sender).repairLeases", "batches_", "the batches that are leased"},
	{"(*Sender).readAhead", "batches_", "the first by due_at after those of the run before"},
	{"webhooks.readReady", "outbox_ready", "skips from one endpoint with messages to the next"},
	{"webhooks.readReady", "outbox_woken", "the first by due_at, whose wait is over"},
	{"(*readyEndpoints).wakeInTurn", "outbox_waiting", "skips from one endpoint with waiting messages to the next"},
	{"(*Sender).claimAs", "suppressions_", "whether the workspace has any"},
	{"(*Sender).claimAs", "topic_unsubscribes_", "whether the workspace has any"},
	{"suppression.check", "suppressions_", "whether the workspace has any"},
	{"suppression.check", "topic_unsubscribes_", "whether the workspace has any"},
	{"(*Direct).drop.func1", "direct_keys", "the keys of one period without a partition, once a day"},
	{"tracking.advance", "contents_converting", "the contents that have a conversion"},
	{"tracking.advance", "_at_idx", "attempts that evidence has settled, since the last run"},
	{"(*Tracking).queue.func1", "_at_idx", "attempts that evidence has settled, since the last run"},
	{"(*Queue).waiting", "_queue_", "skips from one workspace with waiting rows to the next"},
	{"events.Take", "event_queue_pkey", "the first by id, of one workspace"},
	{"(*Tracking).queue.func1", "contents_converting", "whether there is a content with one event, or with any"},
	{"tracking.advance", "trigger_events_age", "events that were received since the last run"},
	{"(*Tracking).queue.func1", "trigger_events_age", "events that were received since the last run"},
	{"(*Flows).assumeWaiting", "enrollments_blocked", "the first that is blocked of each flow, once a process"},
	{"(*Flows).findEventsBy", "trigger_events_age", "a page of the oldest events"},
	{"tracking.takeEvents", "conversion_queue_pkey", "the first by received_at, of one workspace"},
	{"tracking.takeSettled", "settlement_queue_pkey", "the first by settled_at, of one workspace"},
	{"(*Webhooks).failingLong", "webhook_endpoints_failing", "the endpoints that have failed for long"},
	{"(*Blobs).takeEnded", "blobs_cleaning", "skips from one workspace with ended content to the next"},
	{"events.Purge", "recorded_at_idx", "events that match no notification, once an hour"},
}

// inOrder are the callers of statements that read the rows of a profile in the order of an
// index, until they have enough.
var inOrder = []string{"execution.(*search).ask", "intake.(*transaction).readExits", "tracking.readEvents"}

// TestHotStatementsHaveGoodPlans runs a process with flows and campaigns, and checks the
// plan of every statement that it sent: in a database without rows, in one that was filled
// and never analyzed, in those that have grown since they were analyzed with some profiles, or
// with one that had many events, in one with current statistics, in one whose queues were
// vacuumed when they were empty, and in one whose enrollments had all ended when it was analyzed. A prepared statement
// may keep the plan of any of them.
func TestHotStatementsHaveGoodPlans(t *testing.T) {
	t.Parallel()
	hot := &pgtest.Statements{Settings: session}
	p := startPlanned(t, hot)
	p.live()
	startPlanned(t, hot).inherits()

	young, grown, drained, alone, ended := pgtest.DB(t), pgtest.DB(t), pgtest.DB(t), pgtest.DB(t), pgtest.DB(t)
	p.fill(young, 30_000)
	p.fill(grown, 60)
	pgtest.Exec(t, grown, `analyze`)
	small := hot.Scans(t, grown)
	p.fill(grown, 30_000)
	big := hot.Scans(t, grown)
	pgtest.Exec(t, grown, `analyze`)
	pgtest.Exec(t, drained, `vacuum event_queue, tracking_queue, conversion_queue, settlement_queue`) // autovacuum does so after a peak
	p.fill(alone, 60)
	pgtest.Exec(t, alone, `insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'p1', 'joined', now(), now() - i * interval '1 second' from generate_series(1, 20000) i`, p.Workspace)
	pgtest.Exec(t, alone, `analyze`)
	single := hot.Scans(t, alone)
	p.fill(alone, 30_000)
	p.fill(ended, 30_000)
	pgtest.Exec(t, ended, `update enrollments set status = 'completed', ended_at = now(), resume_at = null, waiting_since = null,
		first_due_at = null, awaits = null, matched_event = null, answer_step = null, blocked_reason = null where status = 'active'`)
	pgtest.Exec(t, ended, `vacuum analyze enrollments`)
	for _, state := range []struct {
		name  string
		scans []pgtest.Scan
	}{
		{"empty", hot.Scans(t, pgtest.DB(t))}, {"young, never analyzed", hot.Scans(t, young)}, {"analyzed when it was small", small},
		{"analyzed when it was small, and grown", big}, {"large", hot.Scans(t, grown)},
		{"with drained queues", hot.Scans(t, drained)}, {"analyzed with the events of one profile", single},
		{"analyzed with the events of one profile, and grown", hot.Scans(t, alone)},
		{"analyzed when all enrollments had ended", hot.Scans(t, ended)},
	} {
		shown := map[string]bool{}
		for _, s := range state.scans {
			if fault := badScan(s); fault != "" && !shown[s.SQL] {
				shown[s.SQL] = true
				t.Errorf("%s database: %s: %s\n%s\n%s", state.name, s.Caller, fault, s.SQL, s.Plan)
			}
		}
	}
}

// badScan describes what is wrong with a scan of a table that grows.
func badScan(s pgtest.Scan) string {
	by, grows := finds[s.Table]
	switch {
	case !grows:
		return ""
	case slices.ContainsFunc(reads, func(r struct{ caller, index, why string }) bool {
		return strings.HasSuffix(s.Caller, r.caller) && strings.Contains(s.Index, r.index)
	}):
		return ""
	case s.Type == "Tid Scan":
		return ""
	case s.Index == "":
		return s.Type + " on " + s.Table
	}
	if slices.ContainsFunc(by, s.By) {
		sorts := strings.Contains(s.Plan, "Sort")
		if sorts && slices.ContainsFunc(inOrder, func(caller string) bool { return strings.HasSuffix(s.Caller, caller) }) {
			return "a sort, which reads all rows before the first"
		}
		return ""
	}
	return fmt.Sprintf("%s on %s by %s with %q", s.Type, s.Table, s.Index, s.Cond)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
