package flows

import (
	"context"
	"encoding/hex"
	"fmt"
	"regexp"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/notifications"
)

// Erased says how much there was of a person.
type Erased struct {
	Enrollments   int64 // that say no more whose they are
	Exited        int64 // of these: were on their way
	Events        int64
	Refusals      int64
	Notifications int64
	InFlight      int64 // notifications and webhooks' messages that are on their way: erased when asked again after they ended
}

// Erase takes a person out of all that flows have written, in one transaction.
// Who is on the way exits; the enrollments stay, under a key that names nobody
// but can be found again from the profile's, and so do their uniqueness keys:
// a flow that enrolls once does not enroll her anew.
//
// Whatever could not be erased because it is on its way is counted. Asking
// again finishes the work, and needs nothing to be remembered for it.
func (f *Flows) Erase(ctx context.Context, ws uuid.UUID, profileKey string) (Erased, error) {
	if !isText(profileKey, 1, MaxProfileKey) {
		return Erased{}, lemma.Fault("/profile_key", "invalid_key", "a profile key has 1 to %d bytes of text", MaxProfileKey)
	}
	var done Erased
	err := f.transact(ctx, func(tx pgx.Tx) error {
		e := erasure{Flows: f, tx: tx, ws: ws, key: profileKey, as: erasedAs(profileKey)}
		err := e.run(ctx)
		done = e.done
		return err
	})
	if err != nil {
		return Erased{}, fmt.Errorf("erase a person: %w", err)
	}
	return done, nil
}

// erasedKey is what erasedAs makes.
var erasedKey = regexp.MustCompile(`^erased:[0-9a-f]{16}$`)

// erasedAs is the key that stands for an erased profile's. It stands for itself,
// so that who is known by it alone can be asked for again.
func erasedAs(profileKey string) string {
	if erasedKey.MatchString(profileKey) {
		return profileKey
	}
	sum := lemma.Key("erased/1", profileKey)
	return "erased:" + hex.EncodeToString(sum[:8])
}

// erasure is the transaction that erases one person.
type erasure struct {
	*Flows
	tx      pgx.Tx
	ws      uuid.UUID
	key, as string
	done    Erased
}

// lasting is an enrollment that outlives the person's data.
type lasting struct {
	id, flow uuid.UUID
	version  int
	node     string
	step     int
	active   bool
	named    bool // it still says whose it is
}

func (e *erasure) run(ctx context.Context) error {
	hers, err := e.lock(ctx)
	if err != nil {
		return fmt.Errorf("lock her enrollments: %w", err)
	}
	e.at("erase: locked")
	if err := e.forgetTriggers(ctx); err != nil {
		return err
	}
	if len(hers) == 0 {
		return nil
	}
	if err := e.strip(ctx, hers); err != nil {
		return fmt.Errorf("strip enrollments: %w", err)
	}
	names, err := e.letters(ctx, hers)
	if err != nil {
		return fmt.Errorf("find her notifications: %w", err)
	}
	var letters, messages int64
	if e.done.Notifications, letters, err = e.ledger.Erase(ctx, e.tx, e.ws, names, e.as); err != nil {
		return err
	}
	ids := make([]uuid.UUID, len(hers))
	for i, h := range hers {
		ids[i] = h.id
	}
	_, messages, err = e.webhooks.Erase(ctx, e.tx, e.ws, ids)
	e.done.InFlight = letters + messages
	return err
}

// lock takes all of her enrollments, erased before or not, in the order of
// their ids like everywhere: nobody moves one while its traces go.
func (e *erasure) lock(ctx context.Context) ([]lasting, error) {
	rows, err := e.tx.Query(ctx, `
		select id, flow_id, version, node, step, status = 'active', profile_key = $2 and $2 <> $3 from enrollments
		where workspace_id = $1 and (profile_key = any(array[$2, $3]) and status = 'active' or profile_key = any(array[$2, $3]) and status <> 'active')
		order by id for update`, e.ws, e.key, e.as)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l lasting, err error) {
		err = row.Scan(&l.id, &l.flow, &l.version, &l.node, &l.step, &l.active, &l.named)
		return l, err
	})
}

func (e *erasure) forgetTriggers(ctx context.Context) error {
	events, err := e.tx.Exec(ctx, `delete from trigger_events where workspace_id = $1 and profile_key = $2`, e.ws, e.key)
	if err != nil {
		return fmt.Errorf("erase events: %w", err)
	}
	refused, err := e.tx.Exec(ctx, `
		delete from refusals where workspace_id = $1 and profile_key = $2
		  and flow_id in (select id from flows where workspace_id = $1)`, e.ws, e.key)
	if err != nil {
		return fmt.Errorf("erase refusals: %w", err)
	}
	e.done.Events, e.done.Refusals = events.RowsAffected(), refused.RowsAffected()
	return nil
}

// strip ends those that are on the way, and takes the person out of all. What
// happened at which node stays; what decided it does not.
func (e *erasure) strip(ctx context.Context, hers []lasting) error {
	var s steps
	ids := make([]pgtype.UUID, len(hers))
	for i, h := range hers {
		ids[i] = wire(h.id)
		if h.named {
			e.done.Enrollments++
		}
		if h.active {
			e.done.Exited++
			s.add(h.id, h.step+1, h.version, h.node, stepExited, "") // why says the enrollment
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(`update enrollment_steps set data = null where workspace_id = $1 and enrollment_id = any($2) and data is not null`, e.ws, ids)
	s.queue(batch, e.ws)
	batch.Queue(`
		update enrollments set status = 'exited', exit_reason = $3, step = step + 1, ended_at = now(), resume_at = null,
			waiting_since = null, due_since = null, awaits = null, heard = null, answer_step = null, trouble = null
		where workspace_id = $1 and id = any($2) and ended_at is null`, e.ws, ids, ExitErased)
	batch.Queue(`update enrollments set profile_key = $3 where workspace_id = $1 and id = any($2) and profile_key <> $3`, e.ws, ids, e.as)
	return e.tx.SendBatch(ctx, batch).Close()
}

// letters are the names of what send nodes wrote for her: the nodes are in her
// history, and the names follow from them.
func (e *erasure) letters(ctx context.Context, hers []lasting) ([]notifications.Name, error) {
	flow, ids := map[uuid.UUID]uuid.UUID{}, make([]pgtype.UUID, len(hers))
	for i, h := range hers {
		ids[i], flow[h.id] = wire(h.id), h.flow
	}
	rows, err := e.tx.Query(ctx, `
		select enrollment_id, node from enrollment_steps
		where workspace_id = $1 and enrollment_id = any($2) and event = any($3)`, e.ws, ids, []string{stepSent, stepSkipped})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (n notifications.Name, err error) {
		var id uuid.UUID
		var node string
		err = row.Scan(&id, &node)
		return notifications.Name{OriginID: OriginOf(flow[id], id), Key: NodeKey(id, node)}, err
	})
}
