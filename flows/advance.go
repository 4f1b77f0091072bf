package flows

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
	"lemma/flows/intake"
	"lemma/mail"
	"lemma/notifications"
	"lemma/webhooks"
)

// errNotMoving: the flow was paused or archived after its enrollments were read. They stay
// due, and are read again after a resume.
var errNotMoving = errors.New("the flow was paused or archived")

// commit writes the results of executions in one transaction. It needs no token of the
// shard: every move, also one by another worker, raises the step that it compares. Each
// enrollment that is still at the place where it was read moves, and only its steps are
// written. The others were moved by another transaction and count as conflicts. The update
// that moves enrollments also locks them, in the order of their ids; those that enter a
// wait for an event are locked first.
func (f *Flows) commit(ctx context.Context, t *shardLease, all []*execution.Execution) (moved []*execution.Execution, err error) {
	ws, flow := t.ws, t.flow
	var again intake.Reoffered
	err = f.Execution.Versions.Transact(ctx, f.pool, ws, execution.Request{}, func(tx pgx.Tx, versions *execution.Ready) (err error) {
		if err = f.lockMoving(ctx, tx, t); err != nil {
			return err
		}
		if err = f.Intake.LockProfiles(ctx, tx, ws, profilesRefused(all)); err != nil {
			return err
		}
		there := execution.Evaluated(all) // this may be a repetition
		if slices.ContainsFunc(all, (*execution.Execution).EntersWait) {
			if there, err = f.lockThere(ctx, tx, ws, there); err != nil {
				return err
			}
			if there, err = f.Execution.FindMissedEvents(ctx, tx, there); err != nil {
				return err
			}
		}
		if moved, err = moveThere(ctx, tx, ws, there); err != nil || len(moved) == 0 {
			return err
		}
		f.hook.At("locked")
		if err = f.sendAll(ctx, tx, ws, moved); err != nil {
			return err
		}
		if err = f.queueWebhooks(ctx, tx, ws, moved); err != nil {
			return err
		}
		f.hook.At("acted")
		if err = writeSteps(ctx, tx, ws, flow, t.shard, moved); err != nil {
			return err
		}
		again, err = f.Intake.Reoffer(ctx, tx, versions, ws, flow, refusedAmong(moved))
		return err
	})
	if err != nil {
		return nil, err
	}
	f.metrics.Conflicts.Add(float64(len(execution.Evaluated(all)) - len(moved)))
	f.Intake.CountReoffered(again)
	return moved, nil
}

// profilesRefused are the profiles of executions that are refused at their entry.
func profilesRefused(all []*execution.Execution) (profiles []string) {
	for _, t := range all {
		if t.Status == enrollment.Refused {
			profiles = append(profiles, t.ProfileKey)
		}
	}
	return profiles
}

// refusedAmong are the enrollments of executions that are refused at their entry.
func refusedAmong(all []*execution.Execution) (ids []uuid.UUID) {
	for _, t := range all {
		if t.Status == enrollment.Refused {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

// lockMoving locks a flow in share mode in a status in which enrollments advance: a pause
// waits for this transaction, or this one finds the flow paused. If the flow was paused and
// resumed after its enrollments were read, their profiles may have opted out in between.
// Resumes are compared for equality, so that it does not matter whether the clock was set back.
func (f *Flows) lockMoving(ctx context.Context, tx pgx.Tx, t *shardLease) error {
	share := enrollment.ShareFlow
	if t.briefly {
		share = enrollment.ShareFlowBriefly
	}
	if err := share(ctx, tx, t.flow); err != nil {
		return err
	}
	var status Status
	var resumed bool
	err := tx.QueryRow(ctx, `select status, resumed_at is distinct from $3 from flows where workspace_id = $1 and id = $2 for share`,
		t.ws, t.flow, t.pauseEnded).Scan(&status, &resumed)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("lock flow %s: %w", t.flow, err)
	case status != Live && status != Draining, resumed:
		return errNotMoving
	}
	return nil
}

// lockThere locks the enrollments in the order of their ids and returns those that are
// due and still at the place where they were read: a compare-and-set of node and step.
func (f *Flows) lockThere(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []*execution.Execution) ([]*execution.Execution, error) {
	of := execution.ByID(all)
	rows, _ := tx.Query(ctx, `
		select e.id, e.node, e.step, e.waiting_since is not null, e.matched_event, coalesce(e.answer_step, 0) from `+enrollment.OneByOne+` (
			select id, node, step, waiting_since, matched_event, answer_step from enrollments e
			where e.workspace_id = $1 and e.id = r.id and e.ended_at is null and (e.resume_at <= now()) is true for update
		) e`, ws, execution.IDs(all))
	var there []*execution.Execution
	var id, matched pgtype.UUID
	var at execution.Place
	var waiting bool
	var answer int
	_, err := pgx.ForEachRow(rows, []any{&id, &at.NodeID, &at.Step, &waiting, &matched, &answer}, func() error {
		t := of[id.Bytes]
		if t.From == at && t.FromWaiting == waiting && matched.Valid == t.FromMatched && answer == t.Read.AnswerStep {
			there = append(there, t)
		}
		return nil
	})
	return there, lemma.Wrap(err, "lock enrollments")
}

// messages are the notifications of one origin and one node.
type messages struct {
	origin uuid.UUID
	node   string
	*execution.Send
	*execution.Route
}

// sendAll writes the notifications of all steps: a batch for each node, and for each month
// of enrolling.
func (f *Flows) sendAll(ctx context.Context, tx pgx.Tx, ws uuid.UUID, moved []*execution.Execution) error {
	written := map[messages][]notifications.Recipient{}
	for _, t := range moved {
		for _, s := range t.Sends {
			l := messages{enrollment.OriginOf(t.FlowID, t.ID), s.NodeID, s.Send, t.Route}
			written[l] = append(written[l],
				notifications.Recipient{Key: enrollment.MessageKey(t.ID, s.NodeID, s.Number), EnrollmentID: t.ID, ProfileKey: t.ProfileKey,
					Address: s.Address, Payload: s.Payload, Skip: s.Skip})
		}
	}
	if len(written) == 0 {
		return nil
	}
	read := slices.MinFunc(moved, func(a, b *execution.Execution) int { return a.Now.Compare(b.Now) }).Now // the database's clock
	order := slices.SortedFunc(maps.Keys(written), func(a, b messages) int {
		return cmp.Or(bytes.Compare(a.origin[:], b.origin[:]), bytes.Compare(a.ContentID[:], b.ContentID[:]))
	})
	for _, l := range order {
		if err := f.prepare(ctx, tx, ws, l); err != nil {
			return err
		}
		chunk := notifications.Chunk{WorkspaceID: ws, OriginID: l.origin, ProviderID: l.ProviderID, ContentID: l.ContentID, Run: 1,
			MaxAttempts: l.MaxAttempts, ReadAt: read, BatchSize: f.cfg.Chunk, Recipients: written[l], OfFlow: true,
			Converts: l.Converts > 0}
		if l.ExpiresAfter > 0 {
			until := moved[0].Now.Add(l.ExpiresAfter) // the database's clock
			chunk.ExpiresAt = &until
		}
		if _, err := f.ledger.Insert(ctx, tx, chunk); err != nil {
			return err
		}
	}
	return nil
}

// prepare writes the content of a node's batches and the flow of their origin, unless they
// exist. A flow that has sent before costs one read.
func (f *Flows) prepare(ctx context.Context, tx pgx.Tx, ws uuid.UUID, l messages) error {
	n, _ := l.Node(l.node)
	var from graph.From
	lemma.Set(&from, n.From)
	envelope := mail.Envelope{FromEmail: from.Email, ReplyTo: n.ReplyTo}.Canonical() // the definition stays as written
	var conversion graph.Conversion
	lemma.Set(&conversion, n.Conversion)
	headers := n.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		insert into flow_origins (workspace_id, origin_id, flow_id) values ($1, $2, $3)
		on conflict (workspace_id, origin_id) do nothing`, ws, l.origin, l.FlowID)
	batch.Queue(`
		insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers, flow_id, node,
			transactional, topic_id, conversion_event, conversion_within)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, nullif($14, ''), nullif($15, '0'::interval))
		on conflict (workspace_id, id) do nothing`,
		ws, l.ContentID, l.Channel, l.TemplateID, l.TemplateVersion, from.Name, envelope.FromEmail, envelope.ReplyTo, headers, l.FlowID, l.node,
		n.Transactional, idOf(lemma.PrefixTopic, n.TopicID), conversion.Event, l.Converts)
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "write content of node %s", l.node)
}

// queueWebhooks writes the webhooks' messages of all steps.
func (f *Flows) queueWebhooks(ctx context.Context, tx pgx.Tx, ws uuid.UUID, moved []*execution.Execution) error {
	var all []webhooks.Message
	for _, t := range moved {
		for _, s := range t.Calls {
			all = append(all, webhooks.Message{WorkspaceID: ws, ID: enrollment.NodeKey(t.ID, s.NodeID), EndpointID: s.EndpointID,
				Body: s.Body, EnrollmentID: t.ID, Step: s.Step})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return f.webhooks.Write(ctx, tx, all)
}

// writeSteps appends the steps of the enrollments that moved, and counts them.
func writeSteps(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, shard int16, moved []*execution.Execution) error {
	var s enrollment.StepRows
	var r enrollment.RefusalRows
	var refused []pgtype.UUID
	counts := enrollment.NodeCounts{}
	for _, t := range moved {
		for _, l := range t.Log {
			s.Add(t.ID, l.Step, t.Version, l.NodeID, l.Event, l.Data)
			counts[enrollment.NodeEvent{Version: t.Version, Node: l.NodeID, Event: l.Event, Next: l.Next}]++
		}
		for _, s := range t.Sends {
			if s.Skip != "" {
				counts[enrollment.NodeEvent{Version: t.Version, Node: s.NodeID, Event: enrollment.CountSkipped, Next: s.Skip}]++
			}
		}
		if t.Status == enrollment.Refused {
			r.Add(refusalAtEntry(t))
			refused = append(refused, enrollment.PgUUID(t.ID))
		}
	}
	batch := &pgx.Batch{}
	if err := s.Write(ctx, tx, batch, ws); err != nil {
		return fmt.Errorf("write steps of enrollments: %w", err)
	}
	r.Queue(batch, ws)
	queueReleases(batch, ws, refused)
	counts.Queue(batch, ws, flow, shard)
	if batch.Len() == 0 {
		return nil
	}
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "write steps of enrollments")
}

// queueReleases releases the uniqueness keys of enrollments that were refused at the
// entry, so that a later trigger may enroll the profile.
func queueReleases(batch *pgx.Batch, ws uuid.UUID, refused []pgtype.UUID) {
	if len(refused) == 0 {
		return
	}
	batch.Queue(`
		delete from enrollment_keys k
		using (
			select e.workspace_id, e.flow_id, e.uniqueness_key, e.id from `+enrollment.OneByOne+` (
				select workspace_id, flow_id, uniqueness_key, id from enrollments where workspace_id = $1 and id = r.id limit 1
			) e limit $3
		) e
		where k.flow_id = e.flow_id and k.uniqueness_key = e.uniqueness_key and k.workspace_id = e.workspace_id and k.enrollment_id = e.id`,
		ws, refused, len(refused))
}

// refusalAtEntry is the refusal of an enrollment at its entry.
func refusalAtEntry(t *execution.Execution) enrollment.RefusalRow {
	r := enrollment.RefusalRow{FlowID: t.FlowID, Key: lemma.Key("refusal/2", string(t.ID[:])), ProfileKey: t.ProfileKey, Reason: t.Reason,
		Detail: t.Detail, Source: t.Source, EnrollmentID: &t.ID}
	if t.Source == enrollment.FromEvent {
		r.EnrolledAt = &t.EnrolledAt
	}
	return r
}

// moveThere moves the enrollments that are due and still at the place where they were
// read, and returns them: a compare-and-set of node and step.
func moveThere(ctx context.Context, tx pgx.Tx, ws uuid.UUID, there []*execution.Execution) (moved []*execution.Execution, err error) {
	if len(there) == 0 {
		return nil, nil
	}
	// Locks are taken in this order.
	there = slices.SortedFunc(slices.Values(there), func(a, b *execution.Execution) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	batch, of := &pgx.Batch{}, execution.ByID(there)
	queueMoves(batch, ws, there).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			moved = append(moved, of[id.Bytes])
			return nil
		})
		return err
	})
	err = tx.SendBatch(ctx, batch).Close()
	return moved, lemma.Wrap(err, "move enrollments")
}

// queueMoves moves the enrollments: see "limit parameter" and "workspace as a column" in
// enrollment/plans.go. Every update of many enrollments has this form. A matched event
// belongs to one wait, so leaving the wait clears it.
func queueMoves(batch *pgx.Batch, ws uuid.UUID, moved []*execution.Execution) *pgx.QueuedQuery {
	n := len(moved)
	ids, fromNodes, fromSteps := make([]pgtype.UUID, n), make([]string, n), make([]int32, n)
	fromWaiting, fromMatched, fromAnswers := make([]bool, n), make([]bool, n), make([]int32, n)
	nodes, toSteps, statuses, reasons := make([]string, n), make([]int32, n), make([]string, n), make([]string, n)
	resume, since := make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
	matched, due := make([]pgtype.UUID, n), make([]pgtype.Timestamptz, n)
	awaits, blockedReasons, failures, answers := make([]string, n), make([]string, n), make([]int16, n), make([]int32, n)
	for i, t := range moved {
		ids[i], fromNodes[i], fromSteps[i] = enrollment.PgUUID(t.ID), t.From.NodeID, int32(t.From.Step)
		fromWaiting[i], fromMatched[i], fromAnswers[i] = t.FromWaiting, t.FromMatched, int32(t.Read.AnswerStep)
		nodes[i], toSteps[i], statuses[i], reasons[i] = t.NodeID, int32(t.Step), t.Status, t.Reason
		resume[i] = pgtype.Timestamptz{Time: t.Until, Valid: t.Status == enrollment.Active}
		if t.Since != nil {
			since[i] = pgtype.Timestamptz{Time: *t.Since, Valid: true}
		}
		if t.MatchedEvent != nil {
			matched[i] = enrollment.PgUUID(*t.MatchedEvent)
		}
		if at, is := t.FirstDue(); is {
			due[i] = pgtype.Timestamptz{Time: at, Valid: true}
		}
		awaits[i], blockedReasons[i], failures[i], answers[i] = t.WaitsFor, t.Blocked, int16(min(t.Failures, 1000)), int32(t.AnswerStep)
	}
	return batch.Queue(`
		update enrollments e set node = r.node, step = r.step, status = r.status, exit_reason = nullif(r.reason, ''), resume_at = r.resume_at,
			waiting_since = r.since, awaits = nullif(r.awaits, ''), matched_event = r.matched_event, answer_step = nullif(r.answer_step, 0),
			first_due_at = r.first_due_at, blocked_reason = nullif(r.blocked_reason, ''), failures = coalesce(r.failures, 0),
			ended_at = case when r.status <> 'active' then now() end
		from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::text[], $4::int[], $5::text[], $6::int[], $7::text[], $8::text[],
			$9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::smallint[], $14::uuid[], $15::timestamptz[], $16::int[],
			$18::boolean[], $19::boolean[], $20::int[])
			as r (id, from_node, from_step, node, step, status, reason, resume_at, since, awaits, blocked_reason, failures, matched_event,
				first_due_at, answer_step, from_waiting, from_matched, from_answer) limit $17) r
		where e.workspace_id = r.workspace_id and e.id = r.id and e.node = r.from_node and e.step = r.from_step
			and e.ended_at is null and (e.resume_at <= now()) is true
			and (e.waiting_since is not null) = coalesce(r.from_waiting, false)
			and (e.matched_event is not null) = coalesce(r.from_matched, false)
			and coalesce(e.answer_step, 0) = coalesce(r.from_answer, 0)
		returning e.id`,
		ws, ids, fromNodes, fromSteps, nodes, toSteps, statuses, enrollment.OrNone(reasons), enrollment.OrNone(resume),
		enrollment.OrNone(since), enrollment.OrNone(awaits), enrollment.OrNone(blockedReasons), enrollment.OrNone(failures),
		enrollment.OrNone(matched), enrollment.OrNone(due), enrollment.OrNone(answers), n, enrollment.OrNone(fromWaiting),
		enrollment.OrNone(fromMatched), enrollment.OrNone(fromAnswers))
}
