package intake

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/eventsout"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/pgerr"
)

// lockProfiles serializes two transactions on one profile where it matters: an event
// searches active enrollments, and a trigger inserts one that this event could end or
// wake. Concurrently neither would see the other, and the event would be lost. An event
// that only searches takes the lock in share mode. An enrollment into a flow that listens
// takes it exclusively, and its time begins when it has the lock: what it waited for came
// before.
//
// Each round of a transaction writes keys and locks enrollments in one order, and the next
// one begins again, so that Postgres may have to abort one of two transactions with the same
// profiles. After it has, a profile with several rounds is locked exclusively for a while; others
// that may enroll are locked in share mode always. Then no two triggers wait for each other.
// Without it, transactions of many profiles would wait for each other for nothing: profiles share
// buckets.
//
// Buckets of share mode are returned if there are no others: an event locks them in the
// round trip of its insert.
func (t *transaction) lockProfiles(ctx context.Context, all []*Trigger) (shared []int32, err error) {
	t.base = pgtype.Timestamptz{}
	if err := t.needVersions(all); err != nil {
		return nil, err
	}
	buckets, err := t.bucketsOf(ctx, all)
	if err != nil {
		return nil, err
	}
	numbers := slices.Sorted(maps.Keys(buckets))
	exclusive := make([]bool, len(numbers))
	for i, b := range numbers {
		exclusive[i] = buckets[b]
	}
	if !slices.Contains(exclusive, true) {
		return numbers, nil
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		select case when b.exclusive then pg_advisory_xact_lock($1, b.number) else pg_advisory_xact_lock_shared($1, b.number) end
		from (select number, exclusive from unnest($2::int[], $3::bool[]) as b (number, exclusive) order by number) b`,
		eventsout.LockSpace(t.ws), numbers, exclusive)
	batch.Queue(`select greatest(clock_timestamp(), now())`).QueryRow(func(row pgx.Row) error { return row.Scan(&t.base) })
	return nil, lemma.Wrap(t.tx.SendBatch(ctx, batch).Close(), "lock profiles")
}

// bucketsOf returns the buckets of triggers that search or enroll, and whether each is locked
// exclusively.
func (t *transaction) bucketsOf(ctx context.Context, all []*Trigger) (exclusive map[int32]bool, err error) {
	exclusive = map[int32]bool{}
	times, alone, meet, crossing := map[string]int{}, false, []int32{}, t.crossings.seen(t.ws)
	for _, o := range all {
		searches, enrolls, err := t.meets(ctx, o)
		if err != nil {
			return nil, err
		}
		if !searches && len(t.into(o)) == 0 {
			continue
		}
		b := bucketOf(o.profile)
		times[o.profile]++
		exclusive[b] = exclusive[b] || times[o.profile] > 1 && crossing
		if alone = alone || enrolls; searches || enrolls {
			meet = append(meet, b)
		}
	}
	for _, b := range meet {
		exclusive[b] = exclusive[b] || alone
	}
	return exclusive, nil
}

// crossings are the workspaces of which Postgres has aborted a transaction, with the times.
type crossings struct {
	mu sync.Mutex
	at map[uuid.UUID]time.Time
}

const (
	crossingFor   = 5 * time.Minute // how long an abort counts
	mostCrossings = 1000
)

// note notes the error of a round.
func (c *crossings) note(ws uuid.UUID, err error) {
	if !pgerr.Retryable(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil || len(c.at) >= mostCrossings {
		c.at = map[uuid.UUID]time.Time{}
	}
	c.at[ws] = time.Now()
}

func (c *crossings) seen(ws uuid.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[ws]
	return ok && time.Since(at) < crossingFor
}

// lockNow is lockProfiles for triggers that are no events.
func (t *transaction) lockNow(ctx context.Context, all []*Trigger) error {
	shared, err := t.lockProfiles(ctx, all)
	if err != nil || len(shared) == 0 {
		return err
	}
	_, err = t.tx.Exec(ctx, `select pg_advisory_xact_lock_shared`+eachBucket, eventsout.LockSpace(t.ws), shared)
	return lemma.Wrap(err, "lock profiles")
}

// eachBucket locks buckets in their order.
const eachBucket = `($1, b) from (select unnest($2::int[]) as b order by 1) b`

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
