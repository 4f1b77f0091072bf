package providers

import (
	"lemma"
	"lemma/secrets"
)

// Sealed returns the encrypted secrets, for checks and for the rotation of keys.
func (p *Providers) Sealed() secrets.Store {
	return secrets.Store{Table: "providers", Prefix: lemma.PrefixProvider, Place: place, Pool: p.pool,
		Select: `
			select workspace_id, id, secrets from providers
			where (workspace_id, id) > ($1, $2) and secrets is not null order by workspace_id, id limit $3`,
		Update: `
			update providers t set secrets = r.fresh
			from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[]) r (workspace_id, id, old, fresh)
			where t.workspace_id = r.workspace_id and t.id = r.id and t.secrets = r.old`}
}
