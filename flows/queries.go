package flows

import (
	"cmp"
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
)

// query is the SQL of a case, with the id that decides its data source: that of the data
// source or of the audience.
type query struct{ source, sql string }

// eachQuery calls do for each case with SQL.
func eachQuery(d *graph.Definition, do func(pointer string, q query)) {
	for _, id := range slices.Sorted(maps.Keys(d.Nodes)) {
		n := d.Nodes[id]
		for i, one := range n.Cases {
			if one.SQL != "" {
				do(fmt.Sprintf("%s/cases/%d/sql", lemma.Pointer("nodes", id), i), query{cmp.Or(n.DataSourceID, d.AudienceID), one.SQL})
			}
		}
	}
}

// NewQueries returns the pointers of the SQL in a definition that none of these versions
// of the flow has on the same data source: version n (0: none), the live one and the
// newest one. For a new flow it returns those of all SQL.
func (f *Flows) NewQueries(ctx context.Context, ws, flow uuid.UUID, n int, definition json.RawMessage) ([]string, error) {
	d, err := wellFormed(ws, definition)
	if err != nil {
		return nil, err
	}
	rows, _ := f.pool.Query(ctx, `
		select v.definition from flow_versions v
		where v.workspace_id = $1 and v.flow_id = $2 and v.version = any(array[$3,
			(select live_version from flows where workspace_id = $1 and id = $2),
			(select max(version) from flow_versions where workspace_id = $1 and flow_id = $2)])`, ws, flow, enrollment.VersionNumber(n))
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read queries of flow %s: %w", flow, err)
	}
	known := map[query]bool{}
	for _, text := range stored {
		version, err := graph.Decode(ws, json.RawMessage(text))
		if err != nil {
			return nil, fmt.Errorf("read queries of flow %s: %w", flow, err)
		}
		eachQuery(version, func(_ string, q query) { known[q] = true })
	}
	var at []string
	eachQuery(d, func(pointer string, q query) {
		if !known[q] {
			at = append(at, pointer)
		}
	})
	return at, nil
}
