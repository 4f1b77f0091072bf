package execution

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
)

// Again returns executions as they were read.
func Again(chunk []*Execution) []*Execution {
	fresh := make([]*Execution, len(chunk))
	for i, t := range chunk {
		fresh[i] = t.asRead()
	}
	return fresh
}

// Due is an enrollment as it was read.
type Due struct {
	ID           uuid.UUID
	Version      int
	key          string
	source       string
	at           Place
	enrolledAt   time.Time
	failures     int
	blocked      string // by what the failures were
	moved        bool
	waitingSince *time.Time
	awaits       string
	matchedEvent *uuid.UUID
	AnswerStep   int
	dueAt        time.Time // when it first became due
	resumeAt     time.Time // when it became due by its last delay
	releasedAt   time.Time // when it was released after a pause; zero: it did not become due in one
	now          time.Time

	Held bool // it became due in a pause, and counts as released when it has advanced
}

// ReadDue reads the enrollments of one shard that became due after one time and until
// another, the earliest first. Both times are parameters: see "values as bounds" in
// enrollment/plans.go.
func ReadDue(ctx context.Context, q enrollment.Querier, s enrollment.Shard, after, until time.Time, limit int) ([]Due, error) {
	rows, _ := q.Query(ctx, `
		select id, version, profile_key, source, node, step, enrolled_at, failures, coalesce(blocked_reason, ''), moved,
			waiting_since, coalesce(awaits, ''),
			matched_event, coalesce(answer_step, 0), coalesce(first_due_at, resume_at), resume_at, now()
		from enrollments
		where workspace_id = $1 and flow_id = $2 and shard = $3 and resume_at > $4 and resume_at <= $5
		order by resume_at limit $6`, s.Workspace, s.Flow, s.Number, after, until, limit)
	return pgx.CollectRows(rows, scanDue)
}

func scanDue(row pgx.CollectableRow) (d Due, err error) {
	var matched pgtype.UUID
	err = row.Scan((*[16]byte)(&d.ID), &d.Version, &d.key, &d.source, &d.at.NodeID, &d.at.Step, &d.enrolledAt, &d.failures, &d.blocked,
		&d.moved, &d.waitingSince, &d.awaits, &matched, &d.AnswerStep, &d.dueAt, &d.resumeAt, &d.now)
	if matched.Valid {
		key := uuid.UUID(matched.Bytes)
		d.matchedEvent = &key
	}
	return d, err
}

// Release records that an enrollment which became due until resumed, in a pause or before
// it, was held until now: but no longer than until caughtUp, when all have been released.
func (d *Due) Release(resumed, caughtUp time.Time) {
	if d.resumeAt.After(resumed) {
		return
	}
	d.releasedAt = d.now
	if caughtUp.Before(d.now) {
		d.releasedAt = caughtUp
	}
}

// delayedUntil is the end of what kept an enrollment from advancing other than a late
// worker: it was blocked, its entry was spread over a release or followed a refused one, or
// a pause held it. Zero: nothing did.
func (d Due) delayedUntil() time.Time {
	delayed := d.releasedAt
	if (d.blocked != "" || d.at.NodeID == "") && d.resumeAt.After(delayed) {
		delayed = d.resumeAt
	}
	return delayed
}

// Execution starts the evaluation of an enrollment.
func (d Due) Execution(r *Route, shard int16) *Execution {
	t := &Execution{Route: r, ID: d.ID, Shard: shard, ProfileKey: d.key, Source: d.source, EnrolledAt: d.enrolledAt, moved: d.moved,
		Now: d.now, Read: d}
	*t = *t.asRead()
	return t
}

// asRead is the execution before its first step.
func (t *Execution) asRead() *Execution {
	d := t.Read
	arrived := d.dueAt
	if d.at.NodeID == "" {
		arrived = d.enrolledAt
	}
	return &Execution{Arrived: arrived, delayed: d.delayedUntil(), Route: t.Route, ID: d.ID, Shard: t.Shard, ProfileKey: d.key,
		Source: d.source, EnrolledAt: d.enrolledAt, Failures: d.failures, moved: d.moved,
		waitingSince: d.waitingSince, awaits: d.awaits, MatchedEvent: d.matchedEvent, AnswerStep: d.AnswerStep, Now: d.now, Read: d,
		From: d.at, FromWaiting: d.waitingSince != nil, FromMatched: d.matchedEvent != nil, Place: d.at, Status: enrollment.Active}
}
