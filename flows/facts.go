package flows

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/webhooks"
)

// walkAll takes travellers as far as they get. Whenever some cannot go on
// without a fact it is found out for all of them together, so that a lot costs
// the customer's database one question and not a thousand.
func (f *Flows) walkAll(ctx context.Context, all []*traveller) error {
	walking, silent := all, silence{begun: time.Now(), of: map[uuid.UUID]error{}}
	for len(walking) > 0 {
		wanting := map[need][]*traveller{}
		for _, t := range walking {
			if n := t.walk(); n != nothing {
				wanting[n] = append(wanting[n], t)
			}
		}
		walking = walking[:0:0]
		for n := needProfile; n <= needActed; n++ {
			if err := f.find(ctx, n, wanting[n], silent); err != nil {
				return err
			}
			walking = append(walking, wanting[n]...)
		}
	}
	return nil
}

// find finds out a fact for travellers. A source that fails postpones its own;
// an error is our own database's.
func (f *Flows) find(ctx context.Context, n need, who []*traveller, silent silence) error {
	if len(who) == 0 {
		return nil
	}
	switch n {
	case needProfile:
		f.readProfiles(ctx, who)
		return nil
	case needMatch:
		f.askSource(ctx, who, silent)
		return nil
	case needTrigger:
		return f.readTriggers(ctx, who)
	case needEvents:
		return f.readEvents(ctx, who)
	case needHeard:
		return f.readHeard(ctx, who)
	case needAnswer:
		return f.readAnswers(ctx, who)
	default:
		return f.readActed(ctx, who)
	}
}

// readProfiles reads the profiles of travellers of each version.
func (f *Flows) readProfiles(ctx context.Context, who []*traveller) {
	for r, some := range byRoute(who) {
		f.askAbout(ctx, r.source, waitingFor{ws: r.workspace, source: r.source}, some, func(some []*traveller) error { return f.readRows(ctx, r, some) })
	}
}

// readRows reads the profiles of travellers of one version.
func (f *Flows) readRows(ctx context.Context, r *route, who []*traveller) error {
	keys := make([]string, 0, len(who))
	for _, t := range who {
		keys = append(keys, t.key)
	}
	slices.Sort(keys)
	rows, err := f.audiences.Lookup(ctx, r.workspace, r.audience, r.columns, slices.Compact(keys))
	if err != nil {
		return err
	}
	for _, t := range who {
		row, there := rows[t.key]
		t.profile = &person{Row: row, missing: !there}
	}
	return nil
}

func byRoute(who []*traveller) map[*route][]*traveller {
	parts := map[*route][]*traveller{}
	for _, t := range who {
		parts[t.route] = append(parts[t.route], t)
	}
	return parts
}

// postponeAll puts those off whom a source failed: each a little differently,
// doubled each time.
func (f *Flows) postponeAll(who []*traveller, cause error) {
	trouble := troubleOf(cause)
	for _, t := range who {
		t.postpone(trouble, f.backOff(t.failures))
	}
	f.log.Warn("enrollments postponed", "flow_id", who[0].flow, "enrollments", len(who), "trouble", trouble, "error", cause)
}

func (f *Flows) backOff(failures int) time.Duration {
	after := min(f.cfg.BackOff<<min(failures, 16), f.cfg.MaxBackOff)
	return after + time.Duration(rand.Int64N(int64(after)/5+1))
}

// troubleOf is the code under which the API shows what keeps an enrollment.
func troubleOf(err error) string {
	var e *lemma.Error
	switch {
	case errors.As(err, &e) && e.Code != "":
		return e.Code
	case errors.As(err, &e):
		return string(e.Kind)
	}
	return string(lemma.Internal)
}

// readTriggers reads what enrolled somebody: the first line of the history.
func (f *Flows) readTriggers(ctx context.Context, who []*traveller) error {
	triggers, err := triggersOf(ctx, f.pool, who[0].workspace, idsOf(who))
	for _, t := range who {
		if t.trigger = triggers[t.id]; t.trigger == nil {
			t.trigger = map[string]any{}
		}
	}
	return err
}

// triggersOf reads what enrollments came in with.
func triggersOf(ctx context.Context, q querier, ws uuid.UUID, ids []pgtype.UUID) (map[uuid.UUID]map[string]any, error) {
	rows, err := q.Query(ctx, `
		select r.id, s.data from `+oneByOne+` (
			select coalesce(s.data, '{}') as data from enrollment_steps s where s.workspace_id = $1 and s.enrollment_id = r.id and s.step = 0 limit 1
		) s`, ws, ids)
	if err != nil {
		return nil, fmt.Errorf("read triggers: %w", err)
	}
	triggers := make(map[uuid.UUID]map[string]any, len(ids))
	var id pgtype.UUID
	var data string
	_, err = pgx.ForEachRow(rows, []any{&id, &data}, func() error {
		triggers[id.Bytes] = triggerOf(data)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read triggers: %w", err)
	}
	return triggers, nil
}

// triggerOf takes the trigger out of the first step's data.
func triggerOf(data string) map[string]any {
	if trigger, ok := readObject([]byte(data))["trigger"].(map[string]any); ok {
		return trigger
	}
	return map[string]any{"name": "", "id": "", "properties": map[string]any{}}
}

// readEvents sums up what the profiles have done since they enrolled, for the
// names that conditions ask about.
func (f *Flows) readEvents(ctx context.Context, who []*traveller) error {
	for r, some := range byRoute(who) {
		names := r.eventsRead()
		for _, t := range some {
			t.events = map[string]any{}
			for _, name := range names {
				t.events[name] = map[string]any{"times": 0, "first_at": nil, "last_at": nil, "last": map[string]any{}}
			}
		}
		if err := f.sumUp(ctx, some, names); err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
	return nil
}

// MaxTimes is how far events of one name are counted.
const MaxTimes = 10_000

func (f *Flows) sumUp(ctx context.Context, who []*traveller, names []string) error {
	profiles, since := make([]string, len(who)), make([]pgtype.Timestamptz, len(who))
	for i, t := range who {
		profiles[i], since[i] = t.key, pgtype.Timestamptz{Time: t.enrolledAt, Valid: true}
	}
	rows, err := f.pool.Query(ctx, `
		select r.i::int, n.name, e.times, e.first_at, e.last_at, l.properties
		from unnest($2::text[], $3::timestamptz[]) with ordinality as r (profile_key, since, i)
		cross join unnest($4::text[]) as n (name)
		cross join lateral (
			select count(*)::int as times, min(v.occurred_at) as first_at, max(v.occurred_at) as last_at from (
				select occurred_at from trigger_events v
				where v.workspace_id = $1 and v.profile_key = r.profile_key and v.name = n.name and v.received_at > r.since
				order by v.received_at limit $5
			) v
		) e
		cross join lateral (
			select v.properties from trigger_events v
			where v.workspace_id = $1 and v.profile_key = r.profile_key and v.name = n.name and v.received_at > r.since
			order by v.received_at desc limit 1
		) l`, who[0].workspace, profiles, since, names, MaxTimes)
	if err != nil {
		return err
	}
	var i, times int
	var name, last string
	var first, latest time.Time
	_, err = pgx.ForEachRow(rows, []any{&i, &name, &times, &first, &latest, &last}, func() error {
		who[i-1].events[name] = map[string]any{"times": times, "first_at": first.UTC().Format(time.RFC3339Nano), "last_at": latest.UTC().Format(time.RFC3339Nano), "last": readObject([]byte(last))}
		return nil
	})
	return err
}

// eventsRead are the names of events that the version's branches ask about.
func (r *route) eventsRead() []string {
	var names []string
	for id := range r.Definition().Nodes {
		node, _ := r.Node(id)
		for _, c := range node.Cases {
			if c.Cond != nil {
				names = append(names, c.Cond.Uses().Events...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readAnswers reads what endpoints answered. Who was woken too early goes on
// waiting; an answer that is not there and not on its way any more was given up.
func (f *Flows) readAnswers(ctx context.Context, who []*traveller) error {
	ids := make([]uuid.UUID, len(who))
	for i, t := range who {
		ids[i] = NodeKey(t.id, t.node)
	}
	pending, err := f.webhooks.Pending(ctx, who[0].workspace, ids) // before the answers: what ends between the two is among them
	if err != nil {
		return fmt.Errorf("read webhook answers: %w", err)
	}
	answers, err := f.webhooks.Outcomes(ctx, who[0].workspace, ids)
	if err != nil {
		return fmt.Errorf("read webhook answers: %w", err)
	}
	for i, t := range who {
		answer, ok := answers[ids[i]]
		until := t.waitingSince.Add(answerWithin)
		switch {
		case ok:
			t.answer = &answer
		case !pending[ids[i]]:
			t.answer = &webhooks.Outcome{Error: "gone"}
		case until.After(t.now):
			t.since, t.until = t.waitingSince, until
		default:
			t.postpone("webhook_unanswered", time.Hour)
		}
	}
	return nil
}

// readActed reads which nodes have acted for those whom an admin has moved. That
// one has written something weighs more than that it was skipped another time.
func (f *Flows) readActed(ctx context.Context, who []*traveller) error {
	of := index(who)
	for _, t := range who {
		t.acted = map[string]string{}
	}
	rows, err := f.pool.Query(ctx, `
		select enrollment_id, node, event, coalesce(data, '{}') from enrollment_steps
		where workspace_id = $1 and enrollment_id = any($2) and event = any($3)`, who[0].workspace, idsOf(who), []string{stepSent, stepSkipped, stepWebhook})
	if err != nil {
		return fmt.Errorf("read what nodes have done: %w", err)
	}
	var id pgtype.UUID
	var node, event, data string
	_, err = pgx.ForEachRow(rows, []any{&id, &node, &event, &data}, func() error {
		acted := of[id.Bytes].acted
		if event != stepSkipped || acted[node] == "" && readObject([]byte(data))["reason"] != tooLarge {
			acted[node] = event
		}
		return nil
	})
	return err
}

func index(who []*traveller) map[uuid.UUID]*traveller {
	of := make(map[uuid.UUID]*traveller, len(who))
	for _, t := range who {
		of[t.id] = t
	}
	return of
}

func idsOf(who []*traveller) []pgtype.UUID {
	ids := make([]pgtype.UUID, len(who))
	for i, t := range who {
		ids[i] = wire(t.id)
	}
	return ids
}
