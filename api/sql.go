package api

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"lemma"
	"lemma/campaigns"
)

// writesSQL is the scope of keys that write SQL: by the numbers of a campaign or a flow its
// author can read any row that the login of the data source can.
const writesSQL = "audiences:write"

// refuseSQL is the error of a key that lacks the scope; at are the pointers of the SQL.
func refuseSQL(at ...string) error {
	err := lacking(writesSQL, "the key does not have the scope "+writesSQL+", which writing SQL on a data source needs")
	for _, pointer := range at {
		err.fields = append(err.fields, lemma.Field{Pointer: pointer, Code: err.code, Detail: "needs the scope " + writesSQL})
	}
	return err
}

// mayMeasure returns an error if an experiment has SQL that the key may not write. It may
// repeat the SQL of the campaign that it changes; uuid.Nil is a new one.
func (s *server) mayMeasure(ctx context.Context, c *call, campaign uuid.UUID, e *campaigns.Experiment) error {
	if c.key.Has(writesSQL) || e == nil || e.Metric == nil || e.Metric.SQL == "" {
		return nil
	}
	if campaign == uuid.Nil {
		return refuseSQL("/experiment/metric/sql")
	}
	now, err := s.Campaigns.Get(ctx, c.workspace(), campaign)
	if err != nil {
		return err
	}
	if now.IterationID != nil {
		stored, err := s.Campaigns.GetIteration(ctx, c.workspace(), *now.IterationID)
		if err != nil {
			return err
		}
		if m := stored.Metric; m != nil && m.SQL == e.Metric.SQL && m.DataSourceID == e.Metric.DataSourceID {
			return nil
		}
	}
	return refuseSQL("/experiment/metric/sql")
}

// mayQuery returns an error if a definition has SQL that the key may not write. It may
// repeat that of the flow; uuid.Nil is a new one. version is the one that is replaced, or 0.
func (s *server) mayQuery(ctx context.Context, c *call, flow uuid.UUID, version int, definition json.RawMessage) error {
	if c.key.Has(writesSQL) || definition == nil {
		return nil
	}
	at, err := s.Flows.NewQueries(ctx, c.workspace(), flow, version, definition)
	if err != nil {
		return inDefinition(err)
	}
	if len(at) == 0 {
		return nil
	}
	for i, pointer := range at {
		at[i] = "/definition" + pointer
	}
	return refuseSQL(at...)
}
