package webhooks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
)

// Subscription selects events for an endpoint: of these types, and of all origins or
// of some. An event must satisfy the ids and the metadata.
type Subscription struct {
	Types       []string          `json:"types"`
	CampaignIDs []uuid.UUID       `json:"campaign_ids,omitempty"` // with FlowIDs: only of these; both empty: of all
	FlowIDs     []uuid.UUID       `json:"flow_ids,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"` // only of a campaign, flow or direct notification that has these entries
}

// Limits of subscriptions.
const (
	MaxSubscriptions = 20  // of an endpoint
	MaxOrigins       = 100 // campaigns and flows of a subscription
	MaxMetadata      = 20  // entries of a subscription
)

func checkSubscriptions(all []Subscription) error {
	if len(all) > MaxSubscriptions {
		return lemma.Fault("/subscriptions", "too_many", "must have at most %d entries", MaxSubscriptions)
	}
	for i, s := range all {
		at := fmt.Sprintf("/subscriptions/%d", i)
		if len(s.Types) == 0 {
			return lemma.Fault(at+"/types", "required", "must name at least one type")
		}
		for j, name := range s.Types {
			if !eventsout.Known(name) {
				return lemma.Fault(fmt.Sprintf("%s/types/%d", at, j), "unknown", "must be a type of events")
			}
		}
		switch {
		case len(s.CampaignIDs)+len(s.FlowIDs) > MaxOrigins:
			return lemma.Fault(at, "too_many", "must have at most %d campaigns and flows", MaxOrigins)
		case len(s.Metadata) > MaxMetadata:
			return lemma.Fault(at+"/metadata", "too_many", "must have at most %d entries", MaxMetadata)
		}
		if err := lemma.CheckMetadata(at+"/metadata", s.Metadata); err != nil {
			return err
		}
	}
	return nil
}

// checkOrigins returns a fault for each campaign and flow that the workspace does not have.
func checkOrigins(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []Subscription) error {
	var pointers []string
	var campaigns, flows []uuid.NullUUID // one of them is null
	for i, s := range all {
		for j, id := range s.CampaignIDs {
			pointers = append(pointers, fmt.Sprintf("/subscriptions/%d/campaign_ids/%d", i, j))
			campaigns, flows = append(campaigns, uuid.NullUUID{UUID: id, Valid: true}), append(flows, uuid.NullUUID{})
		}
		for j, id := range s.FlowIDs {
			pointers = append(pointers, fmt.Sprintf("/subscriptions/%d/flow_ids/%d", i, j))
			campaigns, flows = append(campaigns, uuid.NullUUID{}), append(flows, uuid.NullUUID{UUID: id, Valid: true})
		}
	}
	rows, _ := tx.Query(ctx, `
		select o.pointer from unnest($2::text[], $3::uuid[], $4::uuid[]) with ordinality as o (pointer, campaign, flow, n)
		where not exists (select from campaigns c where c.workspace_id = $1 and c.id = o.campaign)
		  and not exists (select from flows f where f.workspace_id = $1 and f.id = o.flow)
		order by o.n`, ws, pointers, campaigns, flows)
	unknown, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read the campaigns and flows of subscriptions: %w", err)
	}
	if len(unknown) == 0 {
		return nil
	}
	faults := &lemma.Error{Kind: lemma.Invalid}
	for _, at := range unknown {
		faults.Fields = append(faults.Fields, lemma.Field{Pointer: at, Code: "unknown_id", Detail: "the workspace has no such campaign or flow"})
	}
	return faults
}

// MaxSubscriptionBytes bounds the subscriptions of a workspace as JSON: they are read with its events.
const MaxSubscriptionBytes = 1 << 20

// checkSize refuses subscriptions, which the caller's transaction has written, if a workspace has too many bytes of
// them. The lock of the workspace makes the changes of several endpoints count each other.
func checkSize(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	var size int
	err := tx.QueryRow(ctx, `select coalesce(sum(octet_length(subscriptions::text)), 0) from webhook_endpoints where workspace_id = $1`,
		ws).Scan(&size)
	if err != nil {
		return fmt.Errorf("add up the subscriptions: %w", err)
	}
	if size > MaxSubscriptionBytes {
		return &lemma.Error{Kind: lemma.Conflict, Code: "subscriptions_too_large", Message: fmt.Sprintf(
			"the subscriptions of the workspace would have %d bytes as JSON; at most %d", size, MaxSubscriptionBytes)}
	}
	return nil
}

// writeSubscriptions replaces the rows of webhook_subscriptions of an endpoint.
func writeSubscriptions(ctx context.Context, tx pgx.Tx, ws, endpoint uuid.UUID, all []Subscription) error {
	if err := checkOrigins(ctx, tx, ws, all); err != nil {
		return err
	}
	if err := checkSize(ctx, tx, ws); err != nil {
		return err
	}
	var types []string
	for _, s := range all {
		types = append(types, s.Types...)
	}
	slices.Sort(types)
	batch := &pgx.Batch{}
	batch.Queue(`delete from webhook_subscriptions where workspace_id = $1 and endpoint_id = $2`, ws, endpoint)
	batch.Queue(`insert into webhook_subscriptions (workspace_id, type, endpoint_id) select $1, type, $2 from unnest($3::text[]) as t (type)`,
		ws, endpoint, slices.Compact(types))
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "write subscriptions of webhook endpoint %s", endpoint)
}

// settlingTime is how long a request waits for older transactions.
const settlingTime = 5 * time.Second

// awaitOlder waits until the transactions that may have read the subscriptions before the
// caller's commit, and may write events, have ended. Then each change that commits later is
// reported to the new subscriptions.
func (w *Webhooks) awaitOlder(ctx context.Context, ws uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, w.settling)
	defer cancel()
	older, err := w.writers(ctx, ws, nil)
	for err == nil && len(older) > 0 {
		w.reached("older transaction")
		select {
		case <-ctx.Done():
		case <-time.After(settlingPoll):
		}
		older, err = w.writers(ctx, ws, older)
	}
	if err != nil && ctx.Err() != nil {
		return &lemma.Error{Kind: lemma.Unavailable, Code: "transactions_running", Cause: err,
			Message: "a transaction of the database is older than the subscriptions and may write no events for them: repeat the request"}
	}
	return lemma.Wrap(err, "wait for older transactions")
}

// writers are the transactions, of some or of all (nil), that have read the subscriptions
// and may write. Postgres locks the tables of a statement before it takes the snapshot that
// the statement reads, and keeps the locks until the transaction ends: one without both locks
// now reads the subscriptions of the last commit. What only reads, such as a backup, locks
// no table for writing. Those of another workspace, which may last long, are left out: they hold a lock
// of it, see eventsout.LockSpace.
func (w *Webhooks) writers(ctx context.Context, ws uuid.UUID, of []string) ([]string, error) {
	rows, _ := w.pool.Query(ctx, `
		select l.virtualtransaction from pg_locks l
		where l.locktype in ('relation', 'advisory') and l.granted and l.pid <> pg_backend_pid()
		  and l.database = (select oid from pg_database where datname = current_database())
		  and ($1::text[] is null or l.virtualtransaction = any($1))
		group by l.virtualtransaction
		having bool_or(l.relation = 'webhook_subscriptions'::regclass and l.mode = 'AccessShareLock')
		   and bool_or(l.mode = 'RowExclusiveLock')
		   and coalesce(bool_or(l.classid = $2) filter (where l.locktype = 'advisory' and l.objsubid = 2), true)`,
		of, uint32(eventsout.LockSpace(ws)))
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

const settlingPoll = 10 * time.Millisecond
