package flows

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
)

// Recheck reads the rows that the audience of a send node's version has now of
// some profiles, by profile key, for the sender: they have waited for long.
// found is false when the content is no flow's, or its version reads no
// audience. An audience that was deleted has nobody any more. It keeps to the
// limits that a source has for enrollments.
func (f *Flows) Recheck(ctx context.Context, ws, content uuid.UUID, profiles []string) (now map[string][]audience.Row, found bool, err error) {
	id, found, err := f.audienceOf(ctx, ws, content)
	if err != nil || !found {
		return nil, false, err
	}
	now = make(map[string][]audience.Row, len(profiles))
	a, err := f.audiences.Get(ctx, ws, id)
	if lemma.KindOf(err) == lemma.NotFound {
		return now, true, nil
	}
	if err != nil {
		return nil, true, err
	}
	err = f.sources.ask(ctx, a.DataSourceID, func() error {
		for some := range slices.Chunk(profiles, audience.MaxLookup) {
			err := f.audiences.LookupEach(ctx, ws, id, nil, some, func(row audience.Row) { now[row.Key] = append(now[row.Key], row) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	return now, true, err
}

// audienceOf finds the audience of the version that a content belongs to: the
// content's id is made of the flow, the version and the node.
func (f *Flows) audienceOf(ctx context.Context, ws, content uuid.UUID) (id uuid.UUID, found bool, err error) {
	var flow uuid.UUID
	var node string
	var versions int
	err = f.pool.QueryRow(ctx, `
		select c.flow_id, c.node, f.versions from contents c
		join flows f on f.workspace_id = c.workspace_id and f.id = c.flow_id
		where c.workspace_id = $1 and c.id = $2`, ws, content).Scan(&flow, &node, &versions)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, false, nil
	}
	if err != nil {
		return id, false, fmt.Errorf("find flow of content %s: %w", content, err)
	}
	version := versions
	for version > 0 && contentOf(flow, version, node) != content {
		version--
	}
	if version == 0 {
		return id, false, nil
	}
	g, err := f.graphs.now(ctx, f.pool, ws, flow, version)
	if err != nil {
		return id, false, err
	}
	id, found = lemma.ParseID(lemma.PrefixAudience, g.Definition().AudienceID)
	return id, found, nil
}
