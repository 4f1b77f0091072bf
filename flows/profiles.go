package flows

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// lockProfiles lets what two transactions do about one profile happen one after
// the other, where it matters: an event looks for who is on the way, and a
// trigger puts somebody on the way whom that event could end or wake. Beside
// each other neither would see the other, and the event would be lost. Who only
// looks shares; who enrolls into a flow that listens does not, and its time
// begins when it has the lock: what it waited for came before.
func (t *take) lockProfiles(ctx context.Context, all []*occurrence) error {
	t.base = pgtype.Timestamptz{}
	buckets, alone := map[int32]bool{}, false
	for _, o := range all {
		looks, enrolls, err := t.meets(ctx, o)
		if err != nil {
			return err
		}
		if looks || enrolls {
			buckets[bucketOf(o.profile)] = true
			alone = alone || enrolls
		}
	}
	if len(buckets) == 0 {
		return nil
	}
	lock := "pg_advisory_xact_lock_shared"
	if alone { // one way for all, so that they are locked in one order
		lock = "pg_advisory_xact_lock"
	}
	var at pgtype.Timestamptz
	batch := &pgx.Batch{}
	batch.Queue(`select `+lock+`($1, b) from (select unnest($2::int[]) as b order by 1) b`,
		int32(binary.BigEndian.Uint32(t.ws[12:])), slices.Collect(maps.Keys(buckets)))
	batch.Queue(`select greatest(clock_timestamp(), now())`).QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("lock profiles: %w", err)
	}
	if alone {
		t.base = at
	}
	return nil
}

// meets says whether an occurrence looks for people who are on the way, and
// whether it may enroll into a flow in which they are looked for.
func (t *take) meets(ctx context.Context, o *occurrence) (looks, enrolls bool, err error) {
	if o.source == fromEvent {
		for _, l := range t.listeners[o.name] {
			looks = looks || l.use != useTrigger
		}
	}
	for _, f := range t.into(o) {
		if f.status != Live || enrolls {
			continue
		}
		g, err := t.graphs.get(ctx, t.tx, t.ws, f.id, f.version)
		if err != nil && lemma.KindOf(err) == lemma.Internal {
			return looks, enrolls, err
		}
		if err != nil {
			continue // nobody is enrolled into what cannot be read
		}
		for _, uses := range g.Listens() {
			enrolls = enrolls || slices.ContainsFunc(uses, func(use string) bool { return use != useTrigger })
		}
	}
	return looks, enrolls, nil
}

// bucketOf deals profiles to 256 locks of a workspace: a bulk of a thousand must
// not fill the table of locks. Two profiles that share one wait for each other,
// and nothing worse.
func bucketOf(profile string) int32 { return int32(xxhash.Sum64String(profile) % 256) }
