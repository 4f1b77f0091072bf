package flows

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/pgerr"
)

// Publish makes a version the live one, into which triggers enroll. One transaction
// changes the pointer; it enrolls and moves nothing. Active enrollments of other versions
// stay, or are taken over in chunks afterwards, as in decides. by is the actor; nil is
// Lemma itself.
//
// With ifMatch, it fails if the flow has changed, and with that of a plan also if the newest
// version of a template or the audience has. It replaces a move that an earlier publish,
// rollback or archive left open.
func (f *Flows) Publish(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *Tag, in InFlight, by *Actor) (Flow, error) {
	now, err := f.goLive(ctx, publication{ws: ws, flow: flow, version: n, in: in, by: by, action: wasPublished}, ifMatch)
	if err != nil {
		return f.finish(ctx, ws, flow, by, err)
	}
	return now, nil
}

func (f *Flows) goLive(ctx context.Context, p publication, ifMatch *Tag) (Flow, error) {
	now, v, err := f.toPublish(ctx, p.ws, p.flow, p.version, ifMatch, p.in)
	if err != nil {
		return Flow{}, err
	}
	if err := f.approve(ctx, &p, v); err != nil {
		return Flow{}, err
	}
	if err := ifMatch.check(Tag{now.Version, p.planned}); err != nil {
		return Flow{}, err
	}
	if v.Status == versionLive && p.in.mode() == inFlightStay {
		return now, nil // repeated
	}
	f.hook.At("publish: checked")
	return f.flip(ctx, p, publish, ifMatch.version())
}

// toPublish reads a flow and its version, and refuses what no version could allow. The
// flow is read first: its ETag is never newer than the version that is checked.
func (f *Flows) toPublish(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *Tag, in InFlight) (Flow, Version, error) {
	now, v, err := f.seen(ctx, ws, flow, n, in)
	switch {
	case err != nil:
	case ifMatch != nil && ifMatch.Version != now.Version:
		err = lemma.Changed("flow")
	case v.Status == versionPublished:
		err = versionIs(v, fmt.Sprintf("version %d was published before: roll back to it", n))
	case table.Check(now.Status, publish) != nil:
		err = table.Refuse(now.Status, publish)
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

// publication is a version about to become live.
type publication struct {
	ws, flow uuid.UUID
	version  int
	in       InFlight
	by       *Actor
	action   string
	def      *graph.Definition

	// Of a draft.
	text     json.RawMessage // with every template's version in it
	planned  string          // digest of text, and of what else the plan depends on
	revision int             // of the checked draft
	listens  map[string][]string
}

// approve reads what is published, and checks a draft. A draft with a fault is not
// published.
func (f *Flows) approve(ctx context.Context, p *publication, v Version) (err error) {
	if v.Status != versionDraft {
		p.def, err = graph.Decode(p.ws, v.Definition)
		return err
	}
	c, err := f.check(ctx, p.ws, p.flow, v.Definition)
	if err != nil {
		return fmt.Errorf("check version %d of flow %s: %w", v.Version, p.flow, err)
	}
	if len(c.faults) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Code: "version_invalid",
			Message: fmt.Sprintf("version %d has faults and cannot be published", v.Version), Fields: c.faults}
	}
	p.def, p.revision, p.listens = c.def, v.Revision, c.graph.Listens()
	p.text, p.planned, err = c.pinned(v)
	return err
}

// Rollback makes an earlier version live again: to, or with nil the one that was live
// before. It works like Publish but does not check whether what the version names
// still exists, so that a rollback always works.
func (f *Flows) Rollback(ctx context.Context, ws, flow uuid.UUID, to *int, ifMatch *int, in InFlight, by *Actor) (Flow, error) {
	now, err := f.goBack(ctx, ws, flow, to, ifMatch, in, by)
	if err != nil {
		return f.finish(ctx, ws, flow, by, err)
	}
	return now, nil
}

func (f *Flows) goBack(ctx context.Context, ws, flow uuid.UUID, to *int, ifMatch *int, in InFlight, by *Actor) (Flow, error) {
	if err := in.check(); err != nil {
		return Flow{}, err
	}
	now, err := f.Get(ctx, ws, flow)
	if err != nil {
		return Flow{}, err
	}
	switch {
	case ifMatch != nil && *ifMatch != now.Version:
		return Flow{}, lemma.Changed("flow")
	case table.Check(now.Status, rollback) != nil:
		return Flow{}, table.Refuse(now.Status, rollback)
	}
	if to == nil {
		if to, err = f.before(ctx, ws, flow); err != nil {
			return Flow{}, err
		}
		if ifMatch == nil {
			ifMatch = &now.Version // the version before depends on the flow as it was read
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
	if p.def, err = graph.Decode(ws, v.Definition); err != nil {
		return Flow{}, err
	}
	return f.flip(ctx, p, rollback, ifMatch)
}

// stayLive is a rollback to the live version: only the request is recorded, so that its
// repetition does nothing either.
func (f *Flows) stayLive(ctx context.Context, now Flow, to int, ifMatch *int, by *Actor) (Flow, error) {
	if !by.repeatable() {
		return now, nil
	}
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		was, err := lockForVerb(ctx, tx, now.WorkspaceID, now.ID, rollback, ifMatch)
		if err != nil {
			return err
		}
		if was.LiveVersion == nil || *was.LiveVersion != to {
			return lemma.Changed("flow")
		}
		return recordRequest(ctx, tx, now.WorkspaceID, now.ID, wasRolledBack, by, map[string]any{"unchanged": true})
	})
	if err != nil {
		return Flow{}, answered(err, fmt.Sprintf("leave version %d of flow %s live", to, now.ID))
	}
	return now, nil
}

// before finds the previously live version: publishing pushes a version, rolling back pops
// one.
func (f *Flows) before(ctx context.Context, ws, flow uuid.UUID) (*int, error) {
	rows, _ := f.pool.Query(ctx, `
		select version from flow_log where workspace_id = $1 and flow_id = $2 and action in ('published', 'rolled_back') and version is not null
		order by at, id`, ws, flow)
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
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		was, err := lockForVerb(ctx, tx, p.ws, p.flow, v, ifMatch)
		if err != nil {
			return err
		}
		f.hook.At("publish: locked")
		if err := p.seal(ctx, tx); err != nil {
			return err
		}
		recurs, err := f.recursOtherwise(ctx, tx, p.ws, p.flow, was.LiveVersion, p.def)
		if err != nil {
			return err
		}
		err = change(ctx, tx, p.ws, p.flow, v, `live_version = $4, overlapped = overlapped or $5, recurred = recurred or $6,
			had_audience = had_audience or $7, status = case status when 'draft' then 'live' else status end`,
			p.version, p.def.Overlap == "allow", recurs, p.def.AudienceID != "")
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
		if err := p.limit(ctx, tx); err != nil {
			return err
		}
		f.hook.At("publish: counted")
		return endVerb(ctx, tx, p.ws, p.flow, p.action, p.by, map[string]any{"in_flight": p.in.mode(), "before": was.LiveVersion})
	})
	if err != nil {
		return Flow{}, answered(err, fmt.Sprintf("%s version %d of flow %s", v, p.version, p.flow))
	}
	f.waker.WakeAll()
	return f.Get(ctx, p.ws, p.flow)
}

// answered returns an error for the caller unchanged, and adds the operation to any other.
func answered(err error, doing string) error {
	return pgerr.Rules{}.Explain(err, doing)
}

// seal publishes a draft, which never changes from then on. It fails if the draft is not
// the checked revision.
func (p publication) seal(ctx context.Context, tx pgx.Tx) error {
	if p.text == nil {
		return nil
	}
	tag, err := tx.Exec(ctx, `
		update flow_versions set status = 'published', definition = $4, nodes = $6, published_at = now(), updated_at = now()
		where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'draft' and revision = $5`,
		p.ws, p.flow, p.version, string(p.text), p.revision, slices.Sorted(maps.Keys(p.def.Nodes)))
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return &lemma.Error{Kind: lemma.Stale,
			Message: "the version was changed, deleted or published while it was being checked: read it again"}
	}
	return nil
}

// listen registers the version's events, and schedules the poll of its audience.
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
	if slices.ContainsFunc(p.def.Triggers, func(t graph.Trigger) bool { return t.Type == enrollment.FromAudience }) {
		batch.Queue(`
			insert into flow_polls (workspace_id, flow_id) values ($1, $2)
			on conflict (workspace_id, flow_id) do update set next_at = now(), failures = 0, last_error = null`, p.ws, p.flow)
	} else {
		batch.Queue(`delete from flow_polls where workspace_id = $1 and flow_id = $2`, p.ws, p.flow)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// takeOver starts the move of enrollments of other versions, if in asks for one.
func (p publication) takeOver(ctx context.Context, tx pgx.Tx) error {
	if err := endMoves(ctx, tx, p.ws, p.flow); err != nil {
		return err
	}
	switch p.in.mode() {
	case inFlightStay:
		return nil
	case inFlightExit:
		return startMove(ctx, tx, p.ws, p.flow, &p.version, nil, enrollment.ExitReplaced)
	}
	t, err := newForecast(ctx, tx, p.ws, p.flow, p.version, p.def, p.in)
	if err != nil {
		return err
	}
	if err := t.refuseToStrand(); err != nil {
		return err
	}
	return startMove(ctx, tx, p.ws, p.flow, &p.version, p.in.Map, "")
}

// mostStranded is how many nodes an error names.
const mostStranded = 200

// refuseToStrand names the nodes with enrollments, or reachable by them, that the new
// version lacks.
func (t forecast) refuseToStrand() error {
	if t.stranded == 0 {
		return nil
	}
	counts := map[string]int64{}
	var nodes []string
	for _, s := range t.nodes {
		if s.Action == graph.Stranded {
			if _, ok := counts[s.Node]; !ok {
				nodes = append(nodes, s.Node)
			}
			counts[s.Node] += s.Waiting + s.Due
		}
	}
	slices.Sort(nodes)
	e := &lemma.Error{Kind: lemma.Conflict, Code: "would_strand",
		Message: fmt.Sprintf("%d enrollments are on nodes that the version does not have, or can reach them: map these nodes", t.stranded)}
	if len(nodes) > mostStranded {
		e.Message += fmt.Sprintf("; %d of %d nodes are named", mostStranded, len(nodes))
		nodes = nodes[:mostStranded]
	}
	for _, node := range nodes {
		e.Fields = append(e.Fields, lemma.Field{Pointer: "/in_flight/map" + lemma.Pointer(node), Code: "would_strand",
			Detail: fmt.Sprintf("%d are at %q", counts[node], node)})
	}
	return e
}

// Modes of InFlight.
const (
	inFlightStay = "stay"
	inFlightMove = "move"
	inFlightExit = "exit"
)

// check refuses what no flow could do. The empty mode is stay.
func (in InFlight) check() error {
	switch in.Mode {
	case "", inFlightStay, inFlightExit:
		if len(in.Map) > 0 {
			return lemma.Fault("/in_flight/map", "not_allowed", "is allowed only with the mode move")
		}
		return nil
	case inFlightMove:
	default:
		return lemma.Fault("/in_flight/mode", "invalid", "must be stay, move or exit")
	}
	if _, ok := in.Map[""]; ok {
		return lemma.Fault("/in_flight/map/", "unknown_node", "must map only nodes")
	}
	return nil
}

// mode is the mode; the empty one is stay.
func (in InFlight) mode() string {
	if in.Mode == "" {
		return inFlightStay
	}
	return in.Mode
}
