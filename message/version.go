package message

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

// Version is a version of a template. It is immutable.
type Version struct {
	TemplateID uuid.UUID
	Version    int // from 1
	Content    Content
	Variables  []string // names that a row of data must have, sorted
	CreatedAt  time.Time
	Revision   int // of the template with this version, from AddVersion
}

// AddVersion checks a content and saves it as the newest version. ifMatch, if not
// nil, must be the revision of the template. Its channel is that of the template. A repeated request makes one version and
// returns it; uuid.Nil is no request.
func (t *Templates) AddVersion(ctx context.Context, ws, id uuid.UUID, ifMatch *int, c Content, request uuid.UUID) (Version, error) {
	of, err := t.Get(ctx, ws, id)
	if err != nil {
		return Version{}, err
	}
	if c.Channel = c.channel(); c.Channel != of.Channel {
		return Version{}, lemma.Fault("/channel", "wrong_channel", "must be %s, the channel of the template", of.Channel)
	}
	variables, err := Check(ws, c)
	if err != nil {
		return Version{}, err
	}
	c, _ = complete(c)
	var n, revision int
	err = fence.Transact(ctx, t.pool, func(tx pgx.Tx) error {
		if n, revision, err = madeBefore(ctx, tx, ws, id, request); err != nil {
			return err
		}
		if n > 0 {
			return fence.ErrUnchanged
		}
		err := tx.QueryRow(ctx, `
			update templates set version = version + 1, revision = revision + 1, updated_at = now()
			where workspace_id = $1 and id = $2 and ($3::int is null or revision = $3)
			returning version, revision`, ws, id, ifMatch).Scan(&n, &revision)
		if err != nil {
			return err
		}
		return insertVersion(ctx, tx, ws, id, n, c, variables, request)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Version{}, t.stale(ctx, ws, id)
	}
	if err != nil {
		return Version{}, fmt.Errorf("add template version: %w", err)
	}
	made, err := t.Version(ctx, ws, id, n)
	made.Revision = revision
	return made, err
}

// madeBefore returns the version that a request has made, 0 if there is none, and the
// template's revision. The template is locked first, so that two attempts of one request
// run one by one.
func madeBefore(ctx context.Context, tx pgx.Tx, ws, id, request uuid.UUID) (n, revision int, err error) {
	err = tx.QueryRow(ctx, `select revision from templates where workspace_id = $1 and id = $2 for update`, ws, id).Scan(&revision)
	if err != nil {
		return 0, 0, err
	}
	err = tx.QueryRow(ctx, `
		select coalesce(max(version), 0) from template_versions
		where workspace_id = $1 and template_id = $2 and request = $3`, ws, id, orNull(request)).Scan(&n)
	return n, revision, err
}

// orNull returns a request as its column has it: null for uuid.Nil.
func orNull(request uuid.UUID) uuid.NullUUID {
	return uuid.NullUUID{UUID: request, Valid: request != uuid.Nil}
}

func insertVersion(ctx context.Context, tx pgx.Tx, ws, id uuid.UUID, n int, c Content, variables []string, request uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		insert into template_versions (workspace_id, template_id, version, subject, html, text, link, data, variables, request, track_opens,
			track_clicks)
		values ($1, $2, $3, $4, $5, $6, $7, coalesce($8, '{}'::jsonb), $9, $10, $11, $12)`,
		ws, id, n, c.Subject, c.HTML, c.Text, c.Link, c.Data, variables, orNull(request), c.TrackOpens.Bool(), c.TrackClicks.Bool())
	return err
}

const versionColumns = `template_id, version, subject, html, text, link, nullif(data, '{}'), track_opens, track_clicks, variables,
	created_at,
	(select channel from templates t where t.workspace_id = template_versions.workspace_id and t.id = template_id)`

func scanVersion(row pgx.CollectableRow) (Version, error) {
	var v Version
	var opens, clicks *bool
	err := row.Scan(&v.TemplateID, &v.Version, &v.Content.Subject, &v.Content.HTML, &v.Content.Text, &v.Content.Link, &v.Content.Data,
		&opens, &clicks, &v.Variables, &v.CreatedAt, &v.Content.Channel)
	v.Content.TrackOpens, v.Content.TrackClicks = ChoiceOf(opens), ChoiceOf(clicks)
	return v, err
}

// Version reads one version.
func (t *Templates) Version(ctx context.Context, ws, id uuid.UUID, n int) (Version, error) {
	rows, _ := t.pool.Query(ctx, `
		select `+versionColumns+` from template_versions
		where workspace_id = $1 and template_id = $2 and version = $3`, ws, id, n)
	found, err := pgx.CollectExactlyOneRow(rows, scanVersion)
	return found, pgerr.Row(err, "template version", "get template version")
}

var versionList = page.List[Version]{Name: "template_versions", Created: "created_at", Orders: map[string]page.Order[Version]{
	"created_at": page.ByNumber("version", func(v Version) int { return v.Version }),
}}

// Versions reads a page of a template's versions. It reads their sizes first: 200
// versions can have 100 MB, of which a page shows page.MaxBytes at most.
func (t *Templates) Versions(ctx context.Context, ws, id uuid.UUID, q page.Query) ([]Version, string, error) {
	if _, err := t.Get(ctx, ws, id); err != nil {
		return nil, "", err
	}
	const of = ` from template_versions where workspace_id = $1 and template_id = $2`
	fits, bytes := 0, 0
	_, _, err := versionList.Read(ctx, t.pool, q, ws, `select version, octet_length(html) + octet_length(text) + octet_length(data::text)`+of,
		func(row pgx.CollectableRow) (v Version, err error) {
			var size int
			if err = row.Scan(&v.Version, &size); bytes+size <= page.MaxBytes {
				fits++
			}
			bytes += size
			return v, err
		}, id)
	if err != nil {
		return nil, "", err
	}
	q.Limit = max(1, min(q.Limit, fits))
	return versionList.Read(ctx, t.pool, q, ws, `select `+versionColumns+of, scanVersion, id)
}
