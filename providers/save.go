package providers

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/pgerr"
)

// Create saves a provider and its meter. Done twice with the same id it makes
// one; the second answers what is there.
func (p *Providers) Create(ctx context.Context, ws uuid.UUID, n NewProvider) (Provider, error) {
	s := settings{name: n.Name, config: n.Config, secrets: given(n.Secrets), rate: n.RatePerSecond}
	if given(n.Config) == nil {
		s.config = json.RawMessage(`{}`)
	}
	if err := p.verify(n.Kind, s); err != nil {
		return Provider{}, err
	}
	err := fence.Transact(ctx, p.pool, func(tx pgx.Tx) error {
		made, err := tx.Exec(ctx, `
			insert into providers (workspace_id, id, name, channel, kind, config, secrets, rate_per_second)
			values ($1, $2, $3, $4, $5, $6, $7, $8)
			on conflict (workspace_id, id) do nothing`,
			ws, n.ID, s.name, lemma.Email, n.Kind, s.config, p.seal(ws, n.ID, s.secrets), s.rate)
		if err != nil || made.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `insert into provider_meters (workspace_id, provider_id) values ($1, $2)`, ws, n.ID)
		return err
	})
	if err != nil {
		return Provider{}, saving.Explain(err, "create provider")
	}
	return p.Get(ctx, ws, n.ID)
}

// Update changes a provider, if its version is still ifMatch; with nil,
// whatever it is. Secrets that the patch does not name are kept, unless the
// patch changes where they are sent: then it must name them.
func (p *Providers) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, patch Patch) (Provider, error) {
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		old, err := p.account(ctx, tx, ws, id, " for update")
		if err != nil {
			return err
		}
		if ifMatch != nil && *ifMatch != old.Version {
			return &lemma.Error{Kind: lemma.Stale, Message: "somebody has changed the provider since it was read: read it again"}
		}
		s := patch.apply(old)
		if err := p.verify(old.Kind, s); err != nil {
			return err
		}
		if err := p.mayKeep(old, patch); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			update providers set name = $3, config = $4, secrets = $5, rate_per_second = $6, version = version + 1, updated_at = now()
			where workspace_id = $1 and id = $2`, ws, id, s.name, s.config, p.seal(ws, id, s.secrets), s.rate)
		return err
	})
	if err != nil {
		return Provider{}, saving.Explain(err, "update provider")
	}
	return p.Get(ctx, ws, id)
}

// mayKeep refuses a patch that would have secrets, which its author need not
// know, sent to another place.
func (p *Providers) mayKeep(old stored, patch Patch) error {
	if old.Secrets == nil || patch.Secrets != nil || patch.Config == nil {
		return nil
	}
	moved := p.moves(old.Kind, old.Config, patch.Config, old.Secrets)
	if len(moved) == 0 {
		return nil
	}
	e := &lemma.Error{Kind: lemma.Invalid, Code: "secrets_required", Message: "the change decides where the secrets are sent: give the secrets again",
		Fields: []lemma.Field{{Pointer: "/secrets", Code: "secrets_required", Detail: "must be given again, since the change decides where they are sent"}}}
	for _, name := range moved {
		e.Fields = append(e.Fields, lemma.Field{Pointer: "/config/" + name, Code: "secrets_required", Detail: "is where or how the secrets are sent: give /secrets with the change"})
	}
	return e
}

func (patch Patch) apply(old stored) settings {
	s := settings{name: old.name, config: old.Config, secrets: old.Secrets, rate: old.RatePerSecond}
	if patch.Name != nil {
		s.name = *patch.Name
	}
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

// Delete takes a provider away, unless a campaign or a flow uses it, or a batch
// is still to be sent over it: an archived flow has let go of its provider, and
// what it wrote is on its way. Batches are looked for after the delete: that no
// flow uses the provider any more was found by a later look than the delete's
// own, and the last batch may have been written between the two.
func (p *Providers) Delete(ctx context.Context, ws, id uuid.UUID) error {
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
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
			err = &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: "notifications are still to be sent over this provider"}
		}
		return err
	})
	return deleting.Explain(err, "delete provider")
}

// place names the one row in which a secret opens.
func place(ws, id uuid.UUID) []string { return []string{"provider", ws.String(), id.String()} }

func (p *Providers) seal(ws, id uuid.UUID, plain json.RawMessage) []byte {
	if plain == nil {
		return nil
	}
	return p.box.Seal(plain, place(ws, id)...)
}

// What the schema refuses, as the caller reads it.
var (
	saving   = pgerr.Rules{"providers_name": pgerr.NameTaken("provider")}
	deleting = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("a campaign or a flow uses this provider")}
)
