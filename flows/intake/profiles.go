package intake

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// lockProfiles serializes two transactions on one profile where it matters: an event
// searches active enrollments, and a trigger inserts one that this event could end or
// wake. Concurrently neither would see the other, and the event would be lost. An event
// that only searches takes the lock in share mode. An enrollment into a flow that listens
// takes it exclusively, and its time begins when it has the lock: what it waited for came
// before. Share mode is only for events: their buckets are returned, and keep locks them
// in the round trip of its insert.
func (t *transaction) lockProfiles(ctx context.Context, all []*Trigger) (shared []int32, err error) {
	t.base = pgtype.Timestamptz{}
	if err := t.needVersions(all); err != nil {
		return nil, err
	}
	found, alone := map[int32]bool{}, false
	for _, o := range all {
		searches, enrolls, err := t.meets(ctx, o)
		if err != nil {
			return nil, err
		}
		if searches || enrolls {
			found[bucketOf(o.profile)] = true
			alone = alone || enrolls
		}
	}
	buckets := slices.Collect(maps.Keys(found))
	if !alone {
		return buckets, nil
	}
	batch := &pgx.Batch{} // one mode for all, so that they are locked in one order
	batch.Queue(`select pg_advisory_xact_lock`+eachBucket, lockSpace(t.ws), buckets)
	batch.Queue(`select greatest(clock_timestamp(), now())`).QueryRow(func(row pgx.Row) error { return row.Scan(&t.base) })
	return nil, lemma.Wrap(t.tx.SendBatch(ctx, batch).Close(), "lock profiles")
}

// eachBucket locks buckets in their order.
const eachBucket = `($1, b) from (select unnest($2::int[]) as b order by 1) b`

// lockSpace is the number of a workspace's locks.
func lockSpace(ws uuid.UUID) int32 { return int32(binary.BigEndian.Uint32(ws[12:])) }

// meets reports whether a trigger searches active enrollments, and whether it may
// enroll into a flow that is searched. An event that may enroll searches those that
// refuse it, if they may be refused at their entry: a version of the flow has had an
// audience. See LockProfiles.
func (t *transaction) meets(ctx context.Context, o *Trigger) (searches, enrolls bool, err error) {
	if o.source == enrollment.FromEvent {
		for _, l := range t.listeners[o.Name] {
			searches = searches || l.use != UseTrigger
		}
	}
	for _, f := range t.into(o) {
		if f.status != flowLive || searches && enrolls {
			continue
		}
		g, err := t.versions.Get(ctx, t.tx, f.id, f.version)
		if err != nil && lemma.KindOf(err) == lemma.Internal {
			return searches, enrolls, err
		}
		if err != nil {
			continue // nothing enrolls into a version that cannot be read
		}
		searches = searches || o.source == enrollment.FromEvent && f.audience
		for _, uses := range g.Listens() {
			enrolls = enrolls || slices.ContainsFunc(uses, func(use string) bool { return use != UseTrigger })
		}
	}
	return searches, enrolls, nil
}

// needVersions checks that the versions into which the triggers may enroll are compiled.
func (t *transaction) needVersions(all []*Trigger) error {
	need := map[execution.VersionID]bool{}
	for _, o := range all {
		for _, f := range t.into(o) {
			if f.status == flowLive {
				need[execution.VersionID{Flow: f.id, Version: f.version}] = true
			}
		}
	}
	return t.versions.Need(need)
}

// bucketOf maps profiles to 256 locks of a workspace, so that a bulk does not fill the lock table.
func bucketOf(profile string) int32 { return int32(xxhash.Sum64String(profile) % 256) }
