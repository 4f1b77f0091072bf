package exports

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/exports/format"
)

// Filters select rows. Nil and empty ones select all. Each type has filters of its own.
type Filters struct {
	CampaignID    *uuid.UUID `json:"campaign_id,omitempty"`
	FlowID        *uuid.UUID `json:"flow_id,omitempty"`
	Status        string     `json:"status,omitempty"`
	Outcome       string     `json:"outcome,omitempty"`
	Reason        string     `json:"reason,omitempty"`
	Name          string     `json:"name,omitempty"`
	ProfileKey    string     `json:"profile_key,omitempty"`
	Channel       string     `json:"channel,omitempty"`
	Cause         string     `json:"cause,omitempty"`
	CreatedAfter  *time.Time `json:"created_after,omitempty"`
	CreatedBefore *time.Time `json:"created_before,omitempty"`
}

// set returns the filters that are given, by their names.
func (f Filters) set() map[string]any {
	all := map[string]any{}
	for name, text := range map[string]string{"status": f.Status, "outcome": f.Outcome, "reason": f.Reason, "name": f.Name,
		"profile_key": f.ProfileKey, "channel": f.Channel, "cause": f.Cause} {
		if text != "" {
			all[name] = text
		}
	}
	if f.CampaignID != nil {
		all["campaign_id"] = *f.CampaignID
	}
	if f.FlowID != nil {
		all["flow_id"] = *f.FlowID
	}
	if f.CreatedAfter != nil {
		all["created_after"] = *f.CreatedAfter
	}
	if f.CreatedBefore != nil {
		all["created_before"] = *f.CreatedBefore
	}
	return all
}

// rowType is a type of rows that can be exported. The statements of its parts read a page
// of rows: whether a row is kept, the columns, and the keys of the order.
//
// Such a statement limits the rows that it reads, not those that are kept, so that none
// takes long. Its placeholders are {keep}, {after} and {limit}; $1 is the workspace.
type rowType struct {
	scope   string            // that a caller needs, besides that of exports
	filters map[string]string // the condition of each filter, with ? for its value
	values  map[string]string // of a filter with a closed list: its values, divided by blanks
	created string            // the time of a row
	columns []format.Column
	parts   []part
}

// Types are the names of the types.
func Types() []string { return slices.Sorted(maps.Keys(types)) }

// Scope is what a caller needs to read the rows of a type.
func Scope(name string) string { return types[name].scope }

// check returns the faults of a request.
func (e *Exports) check(ctx context.Context, ws uuid.UUID, n NewExport) error {
	kind, ok := types[n.Type]
	if !ok {
		return lemma.Fault("/type", "invalid_choice", "must be one of %s", strings.Join(Types(), ", "))
	}
	if !slices.Contains(format.Formats, n.Format) {
		return lemma.Fault("/format", "invalid_choice", "must be one of %s", strings.Join(format.Formats, ", "))
	}
	set := n.Filters.set()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if _, ok := kind.filters[name]; !ok {
			return lemma.Fault("/filters"+lemma.Pointer(name), "not_allowed", "must not be given for %s, whose filters are %s", n.Type,
				strings.Join(slices.Sorted(maps.Keys(kind.filters)), ", "))
		}
		if values := strings.Fields(kind.values[name]); len(values) > 0 && !slices.Contains(values, set[name].(string)) {
			return lemma.Fault("/filters"+lemma.Pointer(name), "invalid_choice", "must be one of %s", strings.Join(values, ", "))
		}
	}
	if f := n.Filters; f.CampaignID != nil {
		if err := e.exists(ctx, "campaign", "campaigns", ws, *f.CampaignID); err != nil {
			return err
		}
	}
	if f := n.Filters; f.FlowID != nil {
		return e.exists(ctx, "flow", "flows", ws, *f.FlowID)
	}
	return nil
}

// exists returns a fault if the workspace has no such row.
func (e *Exports) exists(ctx context.Context, what, table string, ws, id uuid.UUID) error {
	var one int
	err := e.Pool.QueryRow(ctx, "select 1 from "+table+" where workspace_id = $1 and id = $2", ws, id).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return lemma.Fault("/filters/"+what+"_id", "unknown_id", "no such %s", what)
	}
	return lemma.Wrap(err, "find the %s of an export", what)
}

func id(name, prefix string) format.Column {
	return format.Column{Name: name, Type: format.ID, Prefix: prefix}
}

func texts(names ...string) (all []format.Column) {
	for _, name := range names {
		all = append(all, format.Column{Name: name, Type: format.Text})
	}
	return all
}

func of(t format.Type, names ...string) (all []format.Column) {
	for _, name := range names {
		all = append(all, format.Column{Name: name, Type: t})
	}
	return all
}
