package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/graph"
)

// Publish makes a version the one that triggers enroll into: one transaction
// flips the pointer, enrolls nobody and moves nobody. Those who are on their
// way in other versions stay there, or are taken over in lots afterwards, as
// in says. by is the key that asks; nil is Lemma itself.
//
// The last word counts: a move that an earlier publish, rollback or archive
// left open ends where it is.
func (f *Flows) Publish(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *int, in InFlight, by *Asker) (Flow, error) {
	now, err := f.goLive(ctx, publication{ws: ws, flow: flow, version: n, in: in, by: by, action: wasPublished}, ifMatch)
	if err != nil {
		return f.unlessDone(ctx, ws, flow, by, err)
	}
	return now, nil
}

func (f *Flows) goLive(ctx context.Context, p publication, ifMatch *int) (Flow, error) {
	now, v, err := f.toPublish(ctx, p.ws, p.flow, p.version, ifMatch, p.in)
	if err != nil {
		return Flow{}, err
	}
	if v.Status == versionLive && p.in.mode() == inFlightStay {
		return now, nil // said twice
	}
	if v.Status == versionDraft {
		if err := f.approve(ctx, &p, v); err != nil {
			return Flow{}, err
		}
	} else if p.def, err = graph.Decode(v.Definition); err != nil {
		return Flow{}, err
	}
	f.at("publish: checked")
	return f.flip(ctx, p, publish, ifMatch)
}

// toPublish reads a flow and its version, and refuses what could not be
// published whatever the version says. The flow is read first: its tag is never
// younger than the version that is looked at.
func (f *Flows) toPublish(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *int, in InFlight) (Flow, Version, error) {
	now, v, err := f.seen(ctx, ws, flow, n, in)
	switch {
	case err != nil:
	case ifMatch != nil && *ifMatch != now.Version:
		err = stale()
	case v.Status == versionPublished:
		err = versionIs(v, fmt.Sprintf("version %d was published before: roll back to it", n))
	case !slices.Contains(from[publish], now.Status):
		err = wrongState(now.Status, publish)
	}
	return now, v, err
}

func (f *Flows) seen(ctx context.Context, ws, flow uuid.UUID, n int, in InFlight) (now Flow, v Version, err error) {
	if err = in.check(); err != nil {
		return now, v, err
	}
	if now, err = f.Get(ctx, ws, flow); err != nil {
		return now, v, err
	}
	v, err = f.GetVersion(ctx, ws, flow, n)
	return now, v, err
}

// publication is a version on its way to being live.
type publication struct {
	ws, flow uuid.UUID
	version  int
	in       InFlight
	by       *Asker
	action   string
	def      *graph.Definition

	// Of a draft.
	text     json.RawMessage // with every template's version in it
	revision int             // that was looked at
	listens  map[string][]string
}

// approve checks a draft. Nothing with a fault is published.
func (f *Flows) approve(ctx context.Context, p *publication, v Version) error {
	c, err := f.check(ctx, p.ws, p.flow, v.Definition)
	if err != nil {
		return fmt.Errorf("check version %d of flow %s: %w", v.Version, p.flow, err)
	}
	if len(c.faults) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Code: "version_invalid", Message: fmt.Sprintf("version %d has faults and cannot be published", v.Version), Fields: c.faults}
	}
	p.def, p.revision, p.listens = c.def, v.Revision, c.graph.Listens()
	p.text, err = pinned(v.Definition, c.pins)
	return err
}

// Rollback makes an earlier version live again: to, or with nil the one that
// was live before the one that is. It works like publishing, but asks nobody
// whether what the version names is still there: it is the way out when
// something is wrong.
func (f *Flows) Rollback(ctx context.Context, ws, flow uuid.UUID, to *int, ifMatch *int, in InFlight, by *Asker) (Flow, error) {
	now, err := f.goBack(ctx, ws, flow, to, ifMatch, in, by)
	if err != nil {
		return f.unlessDone(ctx, ws, flow, by, err)
	}
	return now, nil
}

func (f *Flows) goBack(ctx context.Context, ws, flow uuid.UUID, to *int, ifMatch *int, in InFlight, by *Asker) (Flow, error) {
	if err := in.check(); err != nil {
		return Flow{}, err
	}
	now, err := f.Get(ctx, ws, flow)
	if err != nil {
		return Flow{}, err
	}
	switch {
	case ifMatch != nil && *ifMatch != now.Version:
		return Flow{}, stale()
	case !slices.Contains(from[rollback], now.Status):
		return Flow{}, wrongState(now.Status, rollback)
	}
	if to == nil {
		if to, err = f.before(ctx, ws, flow); err != nil {
			return Flow{}, err
		}
		if ifMatch == nil {
			ifMatch = &now.Version // who was live before is what was live when we looked
		}
	}
	v, err := f.GetVersion(ctx, ws, flow, *to)
	if err != nil {
		return Flow{}, err
	}
	switch {
	case v.Status == versionDraft:
		return Flow{}, lemma.Fault("/to_version", "not_published", "version %d was never published", *to)
	case v.Status == versionLive && in.mode() == inFlightStay:
		return f.stayLive(ctx, now, *to, ifMatch, by)
	}
	p := publication{ws: ws, flow: flow, version: *to, in: in, by: by, action: wasRolledBack}
	if p.def, err = graph.Decode(v.Definition); err != nil {
		return Flow{}, err
	}
	return f.flip(ctx, p, rollback, ifMatch)
}

// stayLive is going back to the version that is live: only the request is noted,
// so that told again later it does nothing either.
func (f *Flows) stayLive(ctx context.Context, now Flow, to int, ifMatch *int, by *Asker) (Flow, error) {
	if !by.repeatable() {
		return now, nil
	}
	err := f.transact(ctx, func(tx pgx.Tx) error {
		was, err := hold(ctx, tx, now.WorkspaceID, now.ID, rollback, ifMatch)
		if err != nil {
			return err
		}
		if was.LiveVersion == nil || *was.LiveVersion != to {
			return stale()
		}
		return note(ctx, tx, now.WorkspaceID, now.ID, wasRolledBack, by, map[string]any{"unchanged": true})
	})
	if err != nil {
		return Flow{}, answered(err, fmt.Sprintf("leave version %d of flow %s live", to, now.ID))
	}
	return now, nil
}

// before finds the version that was live before the one that is: publishing
// puts one on top, rolling back takes off what lies above.
func (f *Flows) before(ctx context.Context, ws, flow uuid.UUID) (*int, error) {
	rows, err := f.pool.Query(ctx, `
		select version from flow_log where workspace_id = $1 and flow_id = $2 and action in ('published', 'rolled_back') and version is not null
		order by at, id`, ws, flow)
	if err != nil {
		return nil, fmt.Errorf("read history of flow %s: %w", flow, err)
	}
	lives, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("read history of flow %s: %w", flow, err)
	}
	var stack []int
	for _, v := range lives {
		if i := slices.Index(stack, v); i >= 0 {
			stack = stack[:i]
		}
		stack = append(stack, v)
	}
	if len(stack) < 2 {
		return nil, &lemma.Error{Kind: lemma.Conflict, Code: "nothing_before", Message: "no other version was live before this one"}
	}
	return &stack[len(stack)-2], nil
}

// flip is the transaction of a publish and of a rollback.
func (f *Flows) flip(ctx context.Context, p publication, v verb, ifMatch *int) (Flow, error) {
	err := f.transact(ctx, func(tx pgx.Tx) error {
		was, err := hold(ctx, tx, p.ws, p.flow, v, ifMatch)
		if err != nil {
			return err
		}
		f.at("publish: locked")
		if err := p.seal(ctx, tx); err != nil {
			return err
		}
		recurs, err := f.recursOtherwise(ctx, tx, p.ws, p.flow, was.LiveVersion, p.def)
		if err != nil {
			return err
		}
		err = change(ctx, tx, p.ws, p.flow, v, `live_version = $4, overlapped = overlapped or $5, recurred = recurred or $6,
			status = case status when 'draft' then 'live' else status end`, p.version, p.def.Overlap == "allow", recurs)
		if err != nil {
			return err
		}
		if err := p.listen(ctx, tx); err != nil {
			return err
		}
		if err := p.use(ctx, tx); err != nil {
			return err
		}
		if err := p.takeOver(ctx, tx); err != nil {
			return err
		}
		return note(ctx, tx, p.ws, p.flow, p.action, p.by, map[string]any{"in_flight": p.in.mode(), "before": was.LiveVersion})
	})
	if err != nil {
		return Flow{}, answered(err, fmt.Sprintf("%s version %d of flow %s", v, p.version, p.flow))
	}
	f.bell.ring()
	return f.Get(ctx, p.ws, p.flow)
}

// answered leaves an answer for the caller as it is and says of any other error
// what was being done.
func answered(err error, doing string) error {
	var e *lemma.Error
	if errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// seal ends a draft's life as a draft: from here on it never changes. What was
// checked is what is published, or nothing is.
func (p publication) seal(ctx context.Context, tx pgx.Tx) error {
	if p.text == nil {
		return nil
	}
	tag, err := tx.Exec(ctx, `
		update flow_versions set status = 'published', definition = $4, published_at = now(), updated_at = now()
		where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'draft' and revision = $5`,
		p.ws, p.flow, p.version, string(p.text), p.revision)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return &lemma.Error{Kind: lemma.Stale, Message: "the version was changed, deleted or published while it was being checked: read it again"}
	}
	return nil
}

// listen makes the version's events known, and has its audience looked at.
func (p publication) listen(ctx context.Context, tx pgx.Tx) error {
	var events, uses []string
	for event, all := range p.listens {
		for _, use := range all {
			events, uses = append(events, event), append(uses, use)
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		insert into flow_listeners (workspace_id, event, flow_id, version, use)
		select $1, r.event, $2, $3, r.use from unnest($4::text[], $5::text[]) as r (event, use)
		on conflict do nothing`, p.ws, p.flow, p.version, events, uses)
	if slices.ContainsFunc(p.def.Triggers, func(t graph.Trigger) bool { return t.Type == fromAudience }) {
		batch.Queue(`
			insert into flow_polls (workspace_id, flow_id) values ($1, $2)
			on conflict (workspace_id, flow_id) do update set next_at = now(), failures = 0, last_error = null`, p.ws, p.flow)
	} else {
		batch.Queue(`delete from flow_polls where workspace_id = $1 and flow_id = $2`, p.ws, p.flow)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// takeOver writes down what is to become of those in other versions.
func (p publication) takeOver(ctx context.Context, tx pgx.Tx) error {
	if err := endMoves(ctx, tx, p.ws, p.flow); err != nil {
		return err
	}
	switch p.in.mode() {
	case inFlightStay:
		return nil
	case inFlightExit:
		return startMove(ctx, tx, p.ws, p.flow, &p.version, nil, ExitReplaced)
	}
	t, err := foresee(ctx, tx, p.ws, p.flow, p.version, p.def, p.in)
	if err != nil {
		return err
	}
	if err := t.refuseToStrand(); err != nil {
		return err
	}
	return startMove(ctx, tx, p.ws, p.flow, &p.version, p.in.Map, "")
}

// refuseToStrand names every node that somebody stands on, or may come to, and
// that the new version lacks.
func (t foreseen) refuseToStrand() error {
	if t.stranded == 0 {
		return nil
	}
	counts := map[string]int64{}
	var nodes []string
	for _, s := range t.nodes {
		if s.Fate == fateStranded {
			if _, ok := counts[s.Node]; !ok {
				nodes = append(nodes, s.Node)
			}
			counts[s.Node] += s.Waiting + s.Due
		}
	}
	slices.Sort(nodes)
	e := &lemma.Error{Kind: lemma.Conflict, Code: "would_strand", Message: fmt.Sprintf("%d people stand on nodes that the version does not have, or may come to them: say in the map where they go", t.stranded)}
	for _, node := range nodes {
		e.Fields = append(e.Fields, lemma.Field{Pointer: "/in_flight/map" + pointer(node), Code: "would_strand", Detail: fmt.Sprintf("%d stand on %q", counts[node], node)})
	}
	return e
}
