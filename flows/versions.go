package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/page"
)

// Statuses of a version as they are shown. Live is not stored: the flow has the number of
// the live version.
const (
	versionDraft     = "draft"
	versionPublished = "published"
	versionLive      = "live"
)

// versionStatus is the stored status, or live.
const versionStatus = `case when v.version = f.live_version then 'live' else v.status end`

// selectVersion and listVersion read versions, the latter without their definitions.
const (
	selectVersion = `select v.definition, ` + ofVersion
	listVersion   = `select 'null', ` + ofVersion
	ofVersion     = `v.flow_id, v.version, ` + versionStatus + ` as status, v.revision, v.created_at, v.updated_at, v.published_at
		from flow_versions v join flows f on f.workspace_id = v.workspace_id and f.id = v.flow_id`
)

// wellFormed checks that a draft has the form of a definition. Its meaning is checked by
// validation and publishing.
func wellFormed(ws uuid.UUID, raw json.RawMessage) (*graph.Definition, error) {
	if len(raw) > graph.MaxDefinition {
		return nil, lemma.Fault("", "too_large", "the definition has %d bytes; %d are allowed", len(raw), graph.MaxDefinition)
	}
	if !utf8.Valid(raw) {
		return nil, lemma.Fault("", "encoding", "must be UTF-8")
	}
	return graph.Decode(ws, raw)
}

// MaxVersions is how many versions a flow may have.
const MaxVersions = 1_000

// CreateVersion saves a draft under the next number. A repeated request makes one version,
// and returns it as it is now; uuid.Nil is no request. The error is too_many_versions if
// the flow has MaxVersions.
func (f *Flows) CreateVersion(ctx context.Context, ws, flow uuid.UUID, d json.RawMessage, request uuid.UUID) (Version, error) {
	if _, err := wellFormed(ws, d); err != nil {
		return Version{}, err
	}
	if request == uuid.Nil {
		request = lemma.NewID()
	}
	var n int
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := lockForVerb(ctx, tx, ws, flow, edit, nil); err != nil {
			return err
		}
		var was bool
		err := tx.QueryRow(ctx, `
			with was as (select version from flow_versions where workspace_id = $1 and flow_id = $2 and request = $4),
			next as (update flows set versions = versions + 1 where workspace_id = $1 and id = $2 and not exists (select from was)
				and (select count(*) from flow_versions where workspace_id = $1 and flow_id = $2) < $5
				returning versions),
			made as (
				insert into flow_versions (workspace_id, flow_id, version, definition, request) select $1, $2, versions, $3, $4 from next
					returning version)
			select version, false from made union all select version, true from was`, ws, flow, string(d), request,
			MaxVersions).Scan(&n, &was)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_versions",
				Message: fmt.Sprintf("the flow has %d versions: delete drafts, or create another flow", MaxVersions)}
		case err == nil && was:
			return fence.ErrUnchanged
		}
		return err
	})
	if err != nil {
		return Version{}, answered(err, fmt.Sprintf("create version of flow %s", flow))
	}
	return f.GetVersion(ctx, ws, flow, n)
}

// GetVersion reads one version.
func (f *Flows) GetVersion(ctx context.Context, ws, flow uuid.UUID, n int) (Version, error) {
	rows, _ := f.pool.Query(ctx, selectVersion+` where v.workspace_id = $1 and v.flow_id = $2 and v.version = $3`, ws, flow,
		enrollment.VersionNumber(n))
	v, err := pgx.CollectExactlyOneRow(rows, scanFlowVersion)
	if errors.Is(err, pgx.ErrNoRows) {
		return Version{}, lemma.Missing("flow version")
	}
	return v, lemma.Wrap(err, "get version %d of flow %s", n, flow)
}

func scanFlowVersion(row pgx.CollectableRow) (Version, error) {
	var v Version
	var definition string
	err := row.Scan(&definition, &v.FlowID, &v.Version, &v.Status, &v.Revision, &v.CreatedAt, &v.UpdatedAt, &v.PublishedAt)
	v.Definition = json.RawMessage(definition)
	return v, err
}

var versionList = page.List[Version]{Name: "flow_versions", Status: versionStatus, Created: "v.created_at",
	Orders: map[string]page.Order[Version]{
		"created_at": page.ByNumber("v.version", func(v Version) int { return v.Version }),
	}}

// ListVersions returns one page of a flow's versions, without their definitions.
func (f *Flows) ListVersions(ctx context.Context, ws, flow uuid.UUID, q page.Query) ([]Version, string, error) {
	if _, err := f.Get(ctx, ws, flow); err != nil {
		return nil, "", err
	}
	return versionList.Read(ctx, f.pool, q, ws, listVersion+` where v.workspace_id = $1 and v.flow_id = $2`, scanFlowVersion, flow)
}

// UpdateVersion changes a draft, if its revision is still ifMatch; nil accepts any. A
// published version never changes. The flow's ETag changes too, so that a publish with the
// old one fails.
func (f *Flows) UpdateVersion(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *int, d json.RawMessage) (Version, error) {
	if _, err := wellFormed(ws, d); err != nil {
		return Version{}, err
	}
	var changed int64
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := lockForVerb(ctx, tx, ws, flow, edit, nil); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			with changed as (
				update flow_versions set definition = $4, revision = revision + 1, updated_at = now()
				where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'draft' and ($5::int is null or revision = $5)
				returning flow_id)
			update flows set version = version + 1, updated_at = now() where workspace_id = $1 and id = (select flow_id from changed)`,
			ws, flow, enrollment.VersionNumber(n), string(d), ifMatch)
		changed = tag.RowsAffected()
		return fence.Changed(tag, err)
	})
	if err != nil {
		return Version{}, answered(err, fmt.Sprintf("update version %d of flow %s", n, flow))
	}
	v, err := f.GetVersion(ctx, ws, flow, n)
	switch {
	case err != nil || changed == 1:
		return v, err
	case v.Status != versionDraft:
		return Version{}, versionIs(v, "a published version never changes: make another one")
	}
	return Version{}, lemma.Changed("version")
}

// DeleteVersion deletes a draft, if its revision is still ifMatch; nil accepts any. Its
// number is not used again, so that it never names another draft.
func (f *Flows) DeleteVersion(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *int) error {
	gone := false
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := lockForVerb(ctx, tx, ws, flow, edit, nil); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			delete from flow_versions
			where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'draft' and ($4::int is null or revision = $4)`,
			ws, flow, enrollment.VersionNumber(n), ifMatch)
		if err := fence.Changed(tag, err); err != nil {
			return err
		}
		gone = true
		return change(ctx, tx, ws, flow, edit, `live_version = live_version`)
	})
	if err != nil {
		return answered(err, fmt.Sprintf("delete version %d of flow %s", n, flow))
	}
	if gone {
		return nil
	}
	v, err := f.GetVersion(ctx, ws, flow, n)
	switch {
	case err != nil:
		return err
	case v.Status != versionDraft:
		return versionIs(v, "a version that was published stays")
	}
	return lemma.Changed("version")
}

// versionIs refuses what a version's status does not allow.
func versionIs(v Version, message string) error {
	can := []string{"rollback"}
	if v.Status == versionLive {
		can = []string{}
	}
	return &lemma.Error{Kind: lemma.WrongStatus, Message: message, Status: v.Status, Allowed: can}
}

// Diff lists the differences between two versions; drafts are compared as they would
// be published, with the current versions of templates.
func (f *Flows) Diff(ctx context.Context, ws, flow uuid.UUID, from, to int) ([]graph.Difference, error) {
	a, err := f.GetVersion(ctx, ws, flow, from)
	if err != nil {
		return nil, err
	}
	b, err := f.GetVersion(ctx, ws, flow, to)
	if err != nil {
		return nil, err
	}
	for _, v := range []*Version{&a, &b} {
		def, err := graph.Decode(ws, v.Definition)
		if err != nil {
			return nil, err
		}
		if v.Definition, err = f.pin(ctx, ws, v.Definition, def); err != nil {
			return nil, fmt.Errorf("pin templates of version %d of flow %s: %w", v.Version, flow, err)
		}
	}
	return graph.Compare(ws, a.Definition, b.Definition)
}
