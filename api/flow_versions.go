package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/graph"
	"lemma/page"
)

// versionSummary is a version without its definition.
type versionSummary struct {
	FlowID      string     `json:"flow_id"`
	Version     int        `json:"version"`
	Status      string     `json:"status"`
	Revision    int        `json:"revision"`
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	PublishedAt *time.Time `json:"published_at"`
}

func showSummary(v flows.Version) versionSummary {
	return versionSummary{FlowID: lemma.FormatID(lemma.PrefixFlow, v.FlowID), Version: v.Version, Status: v.Status, Revision: v.Revision,
		CreatedAt: v.CreatedAt.UTC(), UpdatedAt: v.UpdatedAt.UTC(), PublishedAt: utc(v.PublishedAt)}
}

type flowVersionBody struct {
	versionSummary
	Definition json.RawMessage `json:"definition"`
}

func (b flowVersionBody) etag() int { return b.Revision }
func (b flowVersionBody) location() string {
	return "/v1/flows/" + b.FlowID + "/versions/" + strconv.Itoa(b.Version)
}

func showFlowVersion(v flows.Version) flowVersionBody {
	return flowVersionBody{showSummary(v), v.Definition}
}

type newFlowVersion struct {
	Definition json.RawMessage `json:"definition"` // as it was written
}

// flowVersion reads the flow and the version in the path.
func (c *call) flowVersion() (flow uuid.UUID, n int, err error) {
	if flow, err = c.flowID(); err != nil {
		return flow, 0, err
	}
	number, err := strconv.ParseInt(chi.URLParam(c.request, "n"), 10, 32)
	if err != nil || number < 1 {
		return flow, 0, lemma.Missing("flow version")
	}
	return flow, int(number), nil
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

func (s *server) listFlowVersions(ctx context.Context, c *call, _ none) (list[versionSummary], error) {
	id, err := c.flowID()
	if err != nil {
		return list[versionSummary]{}, err
	}
	found, next, err := s.Flows.ListVersions(ctx, c.workspace(), id, c.page())
	return listOf(found, next, err, showSummary)
}

func (s *server) createFlowVersion(ctx context.Context, c *call, in newFlowVersion) (flowVersionBody, error) {
	id, err := c.flowID()
	if err != nil {
		return flowVersionBody{}, err
	}
	made, err := s.Flows.CreateVersion(ctx, c.workspace(), id, in.Definition, c.newID)
	return showFlowVersion(made), inDefinition(err)
}

func (s *server) getFlowVersion(ctx context.Context, c *call, _ none) (flowVersionBody, error) {
	id, n, err := c.flowVersion()
	if err != nil {
		return flowVersionBody{}, err
	}
	found, err := s.Flows.GetVersion(ctx, c.workspace(), id, n)
	return showFlowVersion(found), err
}

func (s *server) updateFlowVersion(ctx context.Context, c *call, in newFlowVersion) (flowVersionBody, error) {
	id, n, err := c.flowVersion()
	if err != nil {
		return flowVersionBody{}, err
	}
	revision, err := c.ifMatch()
	if err != nil {
		return flowVersionBody{}, err
	}
	changed, err := s.Flows.UpdateVersion(ctx, c.workspace(), id, n, revision, in.Definition)
	return showFlowVersion(changed), inDefinition(err)
}

func (s *server) deleteFlowVersion(ctx context.Context, c *call, _ none) (none, error) {
	id, n, err := c.flowVersion()
	if err != nil {
		return none{}, err
	}
	revision, err := c.ifMatch()
	if err != nil {
		return none{}, err
	}
	return none{}, s.Flows.DeleteVersion(ctx, c.workspace(), id, n, revision)
}

type validationBody struct {
	Valid    bool           `json:"valid"`
	Errors   []problemFault `json:"errors"`
	Warnings []string       `json:"warnings"`
	Columns  []string       `json:"columns"`
	version  int            // of the flow
}

func (b validationBody) etag() int { return b.version }

func (s *server) validateFlowVersion(ctx context.Context, c *call, _ none) (validationBody, error) {
	id, n, err := c.flowVersion()
	if err != nil {
		return validationBody{}, err
	}
	v, err := s.Flows.Validate(ctx, c.workspace(), id, n)
	return validationBody{Valid: v.Valid, Errors: each(v.Faults, showFault), Warnings: each(v.Warnings, asIs), Columns: each(v.Columns, asIs),
		version: v.ETag}, err
}

func showFault(f lemma.Field) problemFault { return problemFault(f) }

type changeBody struct {
	Pointer string          `json:"pointer"`
	Op      string          `json:"op"`
	From    json.RawMessage `json:"from"`
	To      json.RawMessage `json:"to"`
}

func showChange(c graph.Difference) changeBody { return changeBody(c) }

type diffBody struct {
	From    int          `json:"from_version"`
	To      int          `json:"to_version"`
	Changes []changeBody `json:"changes"`
}

func (s *server) diffFlowVersions(ctx context.Context, c *call, _ none) (diffBody, error) {
	id, err := c.flowID()
	if err != nil {
		return diffBody{}, err
	}
	from, to, err := s.compared(ctx, c, id)
	if err != nil {
		return diffBody{}, err
	}
	changes, err := s.Flows.Diff(ctx, c.workspace(), id, from, to)
	return diffBody{From: from, To: to, Changes: each(changes, showChange)}, err
}

// compared returns the versions of a diff: by default from the live to the newest one.
func (s *server) compared(ctx context.Context, c *call, flow uuid.UUID) (from, to int, err error) {
	from, to = c.number("from"), c.number("to")
	if to == 0 {
		if to, err = s.newest(ctx, c, flow); err != nil {
			return from, to, err
		}
	}
	if from == 0 {
		now, err := s.Flows.Get(ctx, c.workspace(), flow)
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
func (s *server) shown(ctx context.Context, c *call, flow uuid.UUID) (int, error) {
	if n := c.number("version"); n != 0 {
		return n, nil
	}
	now, err := s.Flows.Get(ctx, c.workspace(), flow)
	if err != nil {
		return 0, err
	}
	if now.LiveVersion != nil {
		return *now.LiveVersion, nil
	}
	return s.newest(ctx, c, flow)
}

func (s *server) newest(ctx context.Context, c *call, flow uuid.UUID) (int, error) {
	found, _, err := s.Flows.ListVersions(ctx, c.workspace(), flow, page.Query{Limit: 1})
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		return 0, lemma.Missing("flow version")
	}
	return found[0].Version, nil
}
