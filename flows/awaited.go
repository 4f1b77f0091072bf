package flows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The events that people wait for: which one ended a wait, and which came while
// nobody was looking.

// readHeard finds the event that a wait ended with. Who has heard none but is
// due gets a last look at what came since the wait began.
func (f *Flows) readHeard(ctx context.Context, who []*traveller) error {
	for _, t := range who {
		t.looked = true
	}
	return errors.Join(f.readHeardKeys(ctx, who), f.lookForEvents(ctx, who))
}

func (f *Flows) readHeardKeys(ctx context.Context, who []*traveller) error {
	var keys []pgtype.UUID
	waiting := map[uuid.UUID][]*traveller{}
	for _, t := range who {
		if t.heard != nil {
			keys = append(keys, wire(*t.heard))
			waiting[*t.heard] = append(waiting[*t.heard], t)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, err := f.pool.Query(ctx, `
		select key, name, coalesce(source_id, ''), occurred_at, properties from trigger_events where workspace_id = $1 and key = any($2)`, who[0].workspace, keys)
	if err != nil {
		return fmt.Errorf("read awaited events: %w", err)
	}
	var key pgtype.UUID
	var name, id, properties string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&key, &name, &id, &at, &properties}, func() error {
		for _, t := range waiting[key.Bytes] {
			t.heardData = triggerData(name, id, at, []byte(properties))
		}
		return nil
	})
	for _, some := range waiting { // an event that its retention has taken since was heard all the same
		for _, t := range some {
			if t.heardData == nil {
				t.heardData = triggerData(t.awaits, "", *t.waitingSince, nil)
			}
		}
	}
	return err
}

func (f *Flows) lookForEvents(ctx context.Context, who []*traveller) error {
	who = slices.DeleteFunc(slices.Clone(who), func(t *traveller) bool { return t.heard != nil || t.waitingSince == nil })
	if len(who) == 0 {
		return nil
	}
	asked := make([]question, len(who))
	for i, t := range who {
		asked[i] = question{t, t.awaits, *t.waitingSince, t.arrived}
	}
	return firstAccepted(ctx, f.pool, asked, func(t *traveller, _ uuid.UUID, event map[string]any, received time.Time) {
		t.heardData, t.arrived = event, received
	})
}

// lookOnce looks for the events that those who are just entering a wait for one
// have missed: they are locked, so that an event that is not seen now will see
// them waiting. Who has missed one is due now, and has arrived at what comes
// next when it came: the event after it may be what the next wait is for. So is
// who comes to a wait whose time is over, and has arrived when it was.
func lookOnce(ctx context.Context, tx pgx.Tx, moved []*traveller) error {
	who := slices.DeleteFunc(slices.Clone(moved), func(t *traveller) bool { return !t.entersWait() })
	if len(who) == 0 {
		return nil
	}
	asked := make([]question, len(who))
	for i, t := range who {
		asked[i] = question{t, t.waitsFor, *t.since, t.until}
	}
	err := firstAccepted(ctx, tx, asked, func(t *traveller, key uuid.UUID, _ map[string]any, received time.Time) {
		t.heard, t.until, t.arrived = &key, t.now, received
	})
	for _, t := range who {
		if t.heard == nil && t.until.Before(t.now) {
			t.until, t.arrived, t.overdue = t.now, t.until, true
		}
	}
	return err
}

// entersWait says whether a wait for an event begins with this move.
func (t *traveller) entersWait() bool { return t.waitsFor != "" && !t.waited() }

// accepts asks the condition of the wait at which the traveller stands.
func (t *traveller) accepts(event map[string]any) bool {
	node, ok := t.Node(t.node)
	if !ok {
		return false
	}
	is, _ := holds(node.Condition, event, t.trigger, t.now)
	return is
}

// question asks for the first event of a name that a traveller's wait accepts,
// of those that were recorded after one time and until another.
type question struct {
	*traveller
	name         string
	after, until time.Time
}

// hearing is told of the event that a question was about, and when that was
// received.
type hearing func(t *traveller, key uuid.UUID, event map[string]any, received time.Time)

// firstAccepted tells those of whom there is one. Whoever has many that are not
// accepted is asked about by the page, until there are no more.
func firstAccepted(ctx context.Context, q querier, asked []question, tell hearing) error {
	for len(asked) > 0 {
		n := len(asked)
		profiles, names, after, until := make([]string, n), make([]string, n), make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
		for i, a := range asked {
			profiles[i], names[i] = a.key, a.name
			after[i], until[i] = pgtype.Timestamptz{Time: a.after, Valid: true}, pgtype.Timestamptz{Time: a.until, Valid: true}
		}
		rows, err := q.Query(ctx, `
			select r.i::int, e.key, coalesce(e.source_id, ''), e.occurred_at, e.received_at, e.properties
			from unnest($2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[]) with ordinality as r (profile_key, name, after, until, i)
			cross join lateral (
				select v.key, v.source_id, v.occurred_at, v.received_at, v.properties from trigger_events v
				where v.workspace_id = $1 and v.profile_key = r.profile_key and v.name = r.name and v.received_at > r.after and v.received_at <= r.until
				order by v.received_at limit $6
			) e`, asked[0].workspace, profiles, names, after, until, eventsPage)
		if err != nil {
			return fmt.Errorf("look for awaited events: %w", err)
		}
		if asked, err = sift(rows, asked, tell); err != nil {
			return fmt.Errorf("look for awaited events: %w", err)
		}
	}
	return nil
}

// eventsPage is how many events of a profile are read at a time.
const eventsPage = 100

// sift answers who has to be asked about again: a whole page, and nothing in it.
func sift(rows pgx.Rows, asked []question, tell hearing) (again []question, err error) {
	var i int
	var key pgtype.UUID
	var id, properties string
	var at, received time.Time
	seen, found := make([]int, len(asked)), make([]bool, len(asked))
	_, err = pgx.ForEachRow(rows, []any{&i, &key, &id, &at, &received, &properties}, func() error {
		a := &asked[i-1]
		seen[i-1]++
		a.after = received
		event := triggerData(a.name, id, at, []byte(properties))
		if !found[i-1] && a.accepts(event) {
			found[i-1] = true
			tell(a.traveller, key.Bytes, event, received)
		}
		return nil
	})
	for i, a := range asked {
		if !found[i] && seen[i] == eventsPage {
			again = append(again, a)
		}
	}
	return again, err
}
