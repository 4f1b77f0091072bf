package providers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/pgerr"
	"lemma/secrets"
)

// MaxProviders is how many providers a workspace has at most: each may have connections of
// its own.
const MaxProviders = 1_000

// Create saves a provider and its meter. Creating one id twice makes one provider;
// the second call returns it. The error is too_many_providers if the workspace has
// MaxProviders.
func (p *Providers) Create(ctx context.Context, ws uuid.UUID, n NewProvider) (Provider, error) {
	s := settings{name: n.Name, config: n.Config, secrets: given(n.Secrets), rate: n.RatePerSecond}
	if given(n.Config) == nil {
		s.config = json.RawMessage(`{}`)
	}
	if err := p.verify(n.Kind, s); err != nil {
		return Provider{}, err
	}
	channel, err := p.channelOf(n)
	if err != nil {
		return Provider{}, err
	}
	err = fence.Transact(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select from workspaces where id = $1 for no key update`, ws); err != nil { // creations count each other
			return err
		}
		made, err := tx.Exec(ctx, `
			insert into providers (workspace_id, id, name, channel, kind, config, secrets, rate_per_second, receives)
			select $1, $2, $3, $4, $5, $6, $7, $8, $9
			where (select count(*) from providers where workspace_id = $1) < $10
			on conflict (workspace_id, id) do nothing`,
			ws, n.ID, s.name, channel, n.Kind, s.config, p.seal(ws, n.ID, s.secrets), s.rate,
			p.receives(n.Kind, channel, s.config, s.secrets), MaxProviders)
		if err != nil {
			return err
		}
		if made.RowsAffected() == 0 {
			return notMade(ctx, tx, ws, n.ID)
		}
		_, err = tx.Exec(ctx, `insert into provider_meters (workspace_id, provider_id) values ($1, $2)`, ws, n.ID)
		return err
	})
	if err != nil {
		return Provider{}, saving.Explain(err, "create provider")
	}
	return p.Get(ctx, ws, n.ID)
}

// notMade is why a provider was not inserted: it exists, or there are too many others.
func notMade(ctx context.Context, tx pgx.Tx, ws, id uuid.UUID) error {
	var exists bool
	switch err := tx.QueryRow(ctx, `select exists (select from providers where workspace_id = $1 and id = $2)`, ws, id).Scan(&exists); {
	case err != nil:
		return err
	case exists:
		return fence.ErrUnchanged
	}
	return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_providers",
		Message: fmt.Sprintf("the workspace has %d providers; delete one", MaxProviders)}
}

// Update changes a provider. ifMatch, if not nil, must be its version. Secrets that
// are not in the patch are kept. A patch that changes where they are sent must
// contain them.
func (p *Providers) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, patch Patch) (Provider, error) {
	err := fence.Transact(ctx, p.pool, func(tx pgx.Tx) error {
		old, err := p.account(ctx, tx, ws, id, " for update")
		lost := errors.Is(err, secrets.ErrSealed) && patch.Secrets != nil // they are replaced, and need not be read
		if err != nil && !lost {
			return err
		}
		if ifMatch != nil && *ifMatch != old.Version {
			return lemma.Changed("provider")
		}
		s := patch.apply(old)
		if err := p.verify(old.Kind, s); err != nil {
			return err
		}
		if err := p.mayKeep(old, patch); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			update providers set name = $3, config = $4, secrets = $5, rate_per_second = $6, receives = $7, version = version + 1, updated_at = now()
			where workspace_id = $1 and id = $2`, ws, id, s.name, s.config, p.seal(ws, id, s.secrets), s.rate,
			p.receives(old.Kind, old.Channel, s.config, s.secrets))
		if err != nil || old.RatePerSecond == nil || s.rate != nil && *s.rate == *old.RatePerSecond {
			return err
		}
		_, err = tx.Exec(ctx, shorten, ws, id, s.rate)
		return err
	})
	if err != nil {
		return Provider{}, saving.Explain(err, "update provider")
	}
	return p.Get(ctx, ws, id)
}

// mayKeep refuses a patch that would send stored secrets to another destination.
// Its author need not know them.
func (p *Providers) mayKeep(old stored, patch Patch) error {
	if old.Secrets == nil || patch.Secrets != nil || patch.Config == nil {
		return nil
	}
	moved := p.moves(old.Kind, old.Config, patch.Config, old.Secrets)
	if len(moved) == 0 {
		return nil
	}
	e := &lemma.Error{Kind: lemma.Invalid, Code: "secrets_required",
		Message: "the change decides where the secrets are sent; give the secrets again",
		Fields: []lemma.Field{{Pointer: "/secrets", Code: "secrets_required",
			Detail: "must be given again, since the change decides where they are sent"}}}
	for _, name := range moved {
		e.Fields = append(e.Fields, lemma.Field{Pointer: "/config/" + name, Code: "secrets_required",
			Detail: "decides where or how the secrets are sent; give /secrets too"})
	}
	return e
}

func (patch Patch) apply(old stored) settings {
	s := settings{name: old.name, config: old.Config, secrets: old.Secrets, rate: old.RatePerSecond}
	lemma.Set(&s.name, patch.Name)
	if patch.Config != nil {
		s.config = patch.Config
	}
	if patch.Secrets != nil {
		s.secrets = given(patch.Secrets)
	}
	if patch.RatePerSecond != nil {
		s.rate = patch.RatePerSecond
	}
	if patch.NoRate {
		s.rate = nil
	}
	return s
}

// Delete removes a provider, unless a campaign, a flow or an unfinished batch uses
// it. An archived flow does not use its provider any more, but its batches do. They
// are read after the delete, since the check of the foreign keys is later than the
// snapshot of the delete: a flow may write its last batch in between.
func (p *Providers) Delete(ctx context.Context, ws, id uuid.UUID) error {
	err := fence.Transact(ctx, p.pool, func(tx pgx.Tx) error {
		gone, err := tx.Exec(ctx, `delete from providers where workspace_id = $1 and id = $2`, ws, id)
		if err != nil {
			return err
		}
		if gone.RowsAffected() == 0 {
			return lemma.Missing("provider")
		}
		var used bool
		err = tx.QueryRow(ctx, `
			select exists (select from batches where workspace_id = $1 and provider_id = $2 and status = 'ready')
				or exists (select from batches where workspace_id = $1 and provider_id = $2 and status = 'leased')`, ws, id).Scan(&used)
		if err == nil && used {
			err = &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: "notifications of this provider are pending"}
		}
		return err
	})
	return deleting.Explain(err, "delete provider")
}

// place is the additional data of a secret: it opens only in this row.
func place(ws, id uuid.UUID) []string { return []string{"provider", ws.String(), id.String()} }

func (p *Providers) seal(ws, id uuid.UUID, plain json.RawMessage) []byte {
	if plain == nil {
		return nil
	}
	return p.box.Seal(plain, place(ws, id)...)
}

// Violated constraints, as errors for the caller.
var (
	saving   = pgerr.Rules{"providers_name": pgerr.NameTaken("provider")}
	deleting = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("a campaign or a flow uses this provider")}
)
