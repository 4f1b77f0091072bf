package providers

import (
	"context"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/page"
	"lemma/pgerr"
)

const selectProviders = `
	select p.workspace_id, p.id, p.name, p.channel, p.kind, p.config, p.secrets is not null as has_secrets, p.receives, p.rate_per_second,
	       p.version, p.created_at, p.updated_at,
	       coalesce(m.failures, 0) as failures, coalesce(m.first_error, '') as first_error, m.failing_since,
	       coalesce(m.last_error, '') as last_error, m.failed_at, m.opened_at is not null as circuit_open, m.open_until as next_probe_at,
	       m.throttled_at, coalesce(m.throttled_by, '') as throttled_by
	from providers p
	left join provider_meters m on m.workspace_id = p.workspace_id and m.provider_id = p.id
	where p.workspace_id = $1`

// Get reads one provider.
func (p *Providers) Get(ctx context.Context, ws, id uuid.UUID) (Provider, error) {
	rows, _ := p.pool.Query(ctx, selectProviders+` and p.id = $2`, ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Provider])
	return found, pgerr.Row(err, "provider", "get provider")
}

var list = page.Named("providers", "p.", func(p Provider) uuid.UUID { return p.ID }, func(p Provider) string { return p.Name })

// List reads a page of providers.
func (p *Providers) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Provider, string, error) {
	return list.Read(ctx, p.pool, q, ws, selectProviders, pgx.RowToStructByName[Provider])
}

// Account reads a provider with its secrets decrypted. It is for the sender: the
// API must not return it.
func (p *Providers) Account(ctx context.Context, ws, id uuid.UUID) (Account, error) {
	found, err := p.account(ctx, p.pool, ws, id, "")
	return found.Account, err
}

// Find reads the account of a webhook URL, which names no workspace.
func (p *Providers) Find(ctx context.Context, id uuid.UUID) (workspace uuid.UUID, a Account, err error) {
	err = p.pool.QueryRow(ctx, `select workspace_id from providers where id = $1 order by workspace_id limit 1`, id).Scan(&workspace)
	if err := pgerr.Row(err, "provider", "find provider"); err != nil {
		return uuid.Nil, Account{}, err
	}
	a, err = p.Account(ctx, workspace, id)
	return workspace, a, err
}

// stored is an account and its name.
type stored struct {
	Account
	name string
}

func (p *Providers) account(ctx context.Context, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, ws, id uuid.UUID, lock string) (stored, error) {
	var found stored
	var sealed []byte
	err := db.QueryRow(ctx, `
		select name, kind, channel, config, secrets, version, rate_per_second from providers
		where workspace_id = $1 and id = $2`+lock, ws, id).
		Scan(&found.name, &found.Kind, &found.Channel, &found.Config, &sealed, &found.Version, &found.RatePerSecond)
	if err := pgerr.Row(err, "provider", "read provider account"); err != nil {
		return stored{}, err
	}
	if sealed == nil {
		return found, nil
	}
	found.Secrets, err = p.box.Open(sealed, place(ws, id)...)
	return found, lemma.Wrap(err, "open secrets of provider %s", id)
}
