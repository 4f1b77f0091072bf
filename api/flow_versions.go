package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"lemma"
	"lemma/client"
	"lemma/flows"
	"lemma/flows/graph"
	"lemma/page"
)

func showSummary(v flows.Version) client.FlowVersionSummary {
	return client.FlowVersionSummary{FlowID: lemma.FormatID(lemma.PrefixFlow, v.FlowID), Version: v.Version, Status: v.Status,
		Revision: v.Revision, CreatedAt: v.CreatedAt.UTC(), UpdatedAt: v.UpdatedAt.UTC(), PublishedAt: utc(v.PublishedAt)}
}

type flowVersionBody struct{ client.FlowVersion }

func (b flowVersionBody) etag() int { return b.Revision }
func (b flowVersionBody) location() string {
	return "/v1/flows/" + b.FlowID + "/versions/" + strconv.Itoa(b.Version)
}

func showFlowVersion(v flows.Version) flowVersionBody {
	return flowVersionBody{client.FlowVersion{FlowVersionSummary: showSummary(v), Definition: v.Definition}}
}

type newFlowVersion struct {
	Definition json.RawMessage `json:"definition"` // as it was written
}

// inDefinition puts the pointers of a definition's faults below /definition.
func inDefinition(err error) error {
	var e *lemma.Error
	if !errors.As(err, &e) || (e.Kind != lemma.Invalid && e.Kind != lemma.TooLarge) {
		return err
	}
	moved := *e
	moved.Fields = slices.Clone(e.Fields)
	for i, f := range e.Fields {
		if !outOfDefinition(f.Pointer) {
			moved.Fields[i].Pointer = "/definition" + f.Pointer
		}
	}
	return &moved
}

// ofRequests are fields of requests beside a definition. No definition has such a field.
var ofRequests = []string{"name", "metadata", "definition", "in_flight", "to_version", "profile_key", "trigger", "at", "events", "webhooks"}

// outOfDefinition reports whether a pointer leads to such a field, or out of the body.
func outOfDefinition(pointer string) bool {
	if pointer != "" && !strings.HasPrefix(pointer, "/") {
		return true
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	return slices.Contains(ofRequests, first)
}

func (s *server) listFlowVersions(ctx context.Context, c *call, _ none) (list[client.FlowVersionSummary], error) {
	found, next, err := s.Flows.ListVersions(ctx, c.workspace(), c.id, c.page())
	return listOf(found, next, err, showSummary)
}

func (s *server) createFlowVersion(ctx context.Context, c *call, in newFlowVersion) (flowVersionBody, error) {
	if err := s.mayQuery(ctx, c, c.id, 0, in.Definition); err != nil {
		return flowVersionBody{}, err
	}
	made, err := s.Flows.CreateVersion(ctx, c.workspace(), c.id, in.Definition, c.newID)
	return showFlowVersion(made), inDefinition(err)
}

func (s *server) getFlowVersion(ctx context.Context, c *call, _ none) (flowVersionBody, error) {
	found, err := s.Flows.GetVersion(ctx, c.workspace(), c.id, c.version)
	return showFlowVersion(found), err
}

func (s *server) updateFlowVersion(ctx context.Context, c *call, in newFlowVersion) (flowVersionBody, error) {
	if err := s.mayQuery(ctx, c, c.id, c.version, in.Definition); err != nil {
		return flowVersionBody{}, err
	}
	changed, err := s.Flows.UpdateVersion(ctx, c.workspace(), c.id, c.version, c.ifMatch, in.Definition)
	return showFlowVersion(changed), inDefinition(err)
}

func (s *server) deleteFlowVersion(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.Flows.DeleteVersion(ctx, c.workspace(), c.id, c.version, c.ifMatch)
}

type validationBody struct {
	client.FlowValidation
	tag flows.Tag
}

func (b validationBody) etag() int       { return b.tag.Version }
func (b validationBody) planned() string { return b.tag.Planned }

func (s *server) validateFlowVersion(ctx context.Context, c *call, _ none) (validationBody, error) {
	v, err := s.Flows.Validate(ctx, c.workspace(), c.id, c.version)
	return validationBody{client.FlowValidation{Valid: v.Valid, Errors: each(v.Faults, showFault), Warnings: each(v.Warnings, asIs),
		Columns: each(v.Columns, asIs)}, v.ETag}, err
}

func showFault(f lemma.Field) client.Fault { return client.Fault(f) }

func showChange(c graph.Difference) client.FlowChange { return client.FlowChange(c) }

func (s *server) diffFlowVersions(ctx context.Context, c *call, _ none) (client.FlowDiff, error) {
	from, to, err := s.compared(ctx, c)
	if err != nil {
		return client.FlowDiff{}, err
	}
	changes, err := s.Flows.Diff(ctx, c.workspace(), c.id, from, to)
	return client.FlowDiff{FromVersion: from, ToVersion: to, Changes: each(changes, showChange)}, err
}

// compared returns the versions of a diff: by default from the live to the newest one.
func (s *server) compared(ctx context.Context, c *call) (from, to int, err error) {
	from, to = c.number("from"), c.number("to")
	if to == 0 {
		if to, err = s.newest(ctx, c); err != nil {
			return from, to, err
		}
	}
	if from == 0 {
		now, err := s.Flows.Get(ctx, c.workspace(), c.id)
		if err != nil {
			return from, to, err
		}
		if from = max(1, to-1); now.LiveVersion != nil {
			from = *now.LiveVersion
		}
	}
	return from, to, nil
}

// shown returns the version of a request that names none: the live one, or else the
// newest.
func (s *server) shown(ctx context.Context, c *call) (int, error) {
	if n := c.number("version"); n != 0 {
		return n, nil
	}
	now, err := s.Flows.Get(ctx, c.workspace(), c.id)
	if err != nil {
		return 0, err
	}
	if now.LiveVersion != nil {
		return *now.LiveVersion, nil
	}
	return s.newest(ctx, c)
}

func (s *server) newest(ctx context.Context, c *call) (int, error) {
	found, _, err := s.Flows.ListVersions(ctx, c.workspace(), c.id, page.Query{Limit: 1})
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		return 0, lemma.Missing("flow version")
	}
	return found[0].Version, nil
}
