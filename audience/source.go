package audience

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience/wire"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

// Source is a customer's database. Its DSN is write-only.
type Source struct {
	ID           uuid.UUID
	WorkspaceID  uuid.UUID
	Name         string
	Kind         string     // postgres or mysql
	Address      string     // host, port and database
	TLS          string     // the TLS mode of the DSN (see target.tls), or unix
	Status       string     // untested, ok or failed: the result of the last test
	TestedAt     *time.Time // nil while untested
	TestError    string     // why the last test failed
	RoleWarnings []string   // warnings of the last test about the role
	RoleRevokes  []string   // statements for an administrator of the source that revoke what the role does not need
	Version      int        // ETag
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// NewSource has the fields of a new source.
type NewSource struct {
	ID   uuid.UUID // made by the caller, so that a repeated request creates one
	Name string
	Kind string
	DSN  string
}

// SourcePatch changes a source; a nil field stays unchanged.
type SourcePatch struct {
	Name *string
	DSN  *string
}

const sourceColumns = `workspace_id, id, name, kind, address, tls, status, tested_at, coalesce(test_error, '') as test_error,
	role_warnings, role_revokes, version, created_at, updated_at`

// MaxSources is how many data sources a workspace has at most.
const MaxSources = 1_000

// CreateSource saves a source, untested. The DSN is parsed, not dialled. The error is
// too_many_data_sources if the workspace has MaxSources.
func (a *Audiences) CreateSource(ctx context.Context, ws uuid.UUID, n NewSource) (Source, error) {
	if err := lemma.CheckName(n.Name); err != nil {
		return Source{}, err
	}
	t, err := wire.Parse(n.Kind, n.DSN, a.rules())
	if err != nil {
		return Source{}, err
	}
	err = fence.Transact(ctx, a.pool, func(tx pgx.Tx) error { return a.insertSource(ctx, tx, ws, n, t) })
	if err != nil {
		return Source{}, saving.Explain(err, "create data source")
	}
	return a.GetSource(ctx, ws, n.ID)
}

// insertSource inserts a source, and returns fence.ErrUnchanged for one that exists. The lock
// of the workspace makes creations count each other.
func (a *Audiences) insertSource(ctx context.Context, tx pgx.Tx, ws uuid.UUID, n NewSource, t wire.Target) error {
	if _, err := tx.Exec(ctx, `select from workspaces where id = $1 for no key update`, ws); err != nil {
		return err
	}
	made, err := tx.Exec(ctx, `
insert into data_sources (workspace_id, id, name, kind, address, tls, dsn)
select $1, $2, $3, $4, $5, $6, $7
 where (select count(*) from data_sources where workspace_id = $1) < $8
on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Name, n.Kind, t.String(), t.Protection(), a.seal(ws, n.ID, n.DSN), MaxSources)
	if err != nil || made.RowsAffected() > 0 {
		return err
	}
	var exists bool
	switch err := tx.QueryRow(ctx, `select exists (select from data_sources where workspace_id = $1 and id = $2)`, ws, n.ID).Scan(&exists); {
	case err != nil:
		return err
	case exists:
		return fence.ErrUnchanged
	}
	return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_data_sources",
		Message: fmt.Sprintf("the workspace has %d data sources; delete one", MaxSources)}
}

func (a *Audiences) seal(ws, id uuid.UUID, dsn string) []byte {
	return a.box.Seal([]byte(dsn), sealPlace(ws, id)...)
}

// sealPlace is the additional data of a DSN: it opens only in this row.
func sealPlace(ws, id uuid.UUID) []string { return []string{"data_sources", ws.String(), id.String()} }

// GetSource reads one source.
func (a *Audiences) GetSource(ctx context.Context, ws, id uuid.UUID) (Source, error) {
	rows, _ := a.pool.Query(ctx, `select `+sourceColumns+` from data_sources where workspace_id = $1 and id = $2`, ws, id)
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Source])
	return s, pgerr.Row(err, "data source", "read data source")
}

var sourceList = page.Named("data_sources", "", func(s Source) uuid.UUID { return s.ID }, func(s Source) string { return s.Name }).
	WithStatus("status")

// ListSources reads a page of sources.
func (a *Audiences) ListSources(ctx context.Context, ws uuid.UUID, q page.Query) ([]Source, string, error) {
	return sourceList.Read(ctx, a.pool, q, ws, `select `+sourceColumns+` from data_sources where workspace_id = $1`,
		pgx.RowToStructByName[Source])
}

// UpdateSource changes a source. ifMatch, if not nil, must be its version. Another DSN
// makes it untested.
func (a *Audiences) UpdateSource(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p SourcePatch) (Source, error) {
	s, err := a.GetSource(ctx, ws, id)
	if err != nil {
		return Source{}, err
	}
	if p.Name != nil {
		if err := lemma.CheckName(*p.Name); err != nil {
			return Source{}, err
		}
	}
	var sealed []byte
	var address, tls *string
	if p.DSN != nil {
		t, err := wire.Parse(s.Kind, *p.DSN, a.rules())
		if err != nil {
			return Source{}, err
		}
		text, mode := t.String(), t.Protection()
		sealed, address, tls = a.seal(ws, id, *p.DSN), &text, &mode
	}
	s, err = fence.One(ctx, a.pool, pgx.RowToStructByName[Source], `
update data_sources
   set name = coalesce($4, name), dsn = coalesce($5, dsn), address = coalesce($6, address), tls = coalesce($7, tls),
       status = case when $5::bytea is null then status else 'untested' end,
       tested_at = case when $5::bytea is null then tested_at end,
       test_error = case when $5::bytea is null then test_error end,
       role_warnings = case when $5::bytea is null then role_warnings else '{}' end,
       role_revokes = case when $5::bytea is null then role_revokes else '{}' end,
       version = version + 1, updated_at = now()
 where workspace_id = $1 and id = $2 and ($3::int is null or version = $3)
returning `+sourceColumns, ws, id, ifMatch, p.Name, sealed, address, tls)
	return s, updated(err, "data source")
}

// DeleteSource removes a source that no audience uses.
func (a *Audiences) DeleteSource(ctx context.Context, ws, id uuid.UUID) error {
	done, err := fence.Exec(ctx, a.pool, `delete from data_sources where workspace_id = $1 and id = $2`, ws, id)
	if err == nil && done.RowsAffected() == 0 {
		return lemma.Missing("data source")
	}
	return deletingSource.Explain(err, "delete data source")
}

// openedSource is a source with its decrypted DSN. Equal ones are the same database
// and login.
type openedSource struct {
	sourceID
	target  wire.Target
	version int
}

func (a *Audiences) opened(ctx context.Context, ws, id uuid.UUID) (openedSource, error) {
	var kind string
	var sealed []byte
	s := openedSource{sourceID: sourceID{ws, id}}
	err := a.pool.QueryRow(ctx, `select kind, dsn, version from data_sources where workspace_id = $1 and id = $2`, ws, id).Scan(&kind,
		&sealed, &s.version)
	if err := pgerr.Row(err, "data source", "read data source"); err != nil {
		return s, err
	}
	dsn, err := a.box.Open(sealed, sealPlace(ws, id)...)
	if err != nil {
		return s, fmt.Errorf("open dsn of data source %s: %w", id, err)
	}
	s.target, err = wire.Parse(kind, string(dsn), a.rules())
	if err != nil {
		return s, refused(nil, "the data source's DSN is no longer allowed; enter it anew")
	}
	s.target.Workspace = ws
	return s, nil
}

// TestReport is the result of a test.
type TestReport struct {
	Source  Source // after the test
	Version string // of the database
}

// TestSource connects, probes the role and stores the result. If the test fails, it
// returns the reason, and a report whose source has the status failed.
func (a *Audiences) TestSource(ctx context.Context, ws, id uuid.UUID) (TestReport, error) {
	source, err := a.opened(ctx, ws, id)
	if err != nil {
		return TestReport{}, err
	}
	var report TestReport
	var found role
	failure := a.within(ctx, source, a.readSpan(), func(r *run) error {
		err := r.advise(r.ctx)
		report.Version, found = r.version, role{warnings: r.warnings, revoke: r.revoke}
		return err
	})
	if ctx.Err() != nil || isOverloaded(failure) { // the test has no result
		return report, failure
	}
	if excess, ok := errors.AsType[*excess](failure); ok {
		found.revoke = excess.revoke
	}
	if report.Source, err = a.storeTest(ctx, ws, id, source.version, found, failure); err != nil {
		return report, err
	}
	return report, failure
}

// storeTest stores the result unless the source was changed meanwhile. It does not
// change the version, so that an If-Match of a client stays valid.
func (a *Audiences) storeTest(ctx context.Context, ws, id uuid.UUID, version int, found role, failure error) (Source, error) {
	status, text := "ok", (*string)(nil)
	if failure != nil {
		shown := shownError(failure)
		status, text = "failed", &shown
	}
	_, err := fence.Exec(ctx, a.pool, `
update data_sources
set status = $4, tested_at = now(), test_error = $5, role_warnings = coalesce($6::text[], '{}'), role_revokes = coalesce($7::text[], '{}')
 where workspace_id = $1 and id = $2 and version = $3`, ws, id, version, status, text, found.warnings, found.revoke)
	if err != nil {
		return Source{}, fmt.Errorf("store test of data source %s: %w", id, err)
	}
	return a.GetSource(ctx, ws, id)
}

// shownError is the part of an error that can be shown.
func shownError(err error) string {
	var e *lemma.Error
	if !errors.As(err, &e) {
		return "internal error"
	}
	public := *e
	public.Cause = nil
	return public.Error()
}

// updated returns the error of a conditional update of a row that existed before.
func updated(err error, what string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return lemma.Changed(what)
	}
	return saving.Explain(err, "update "+what)
}

// Violated constraints, as errors for the caller.
var (
	saving = pgerr.Rules{
		"data_sources_name": pgerr.NameTaken("data source"),
		"audiences_name":    pgerr.NameTaken("audience"),
		"audiences_workspace_id_data_source_id_fkey": lemma.Missing("data source"),
	}
	deletingSource   = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("the data source is in use")}
	deletingAudience = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("the audience is in use")}
)
