package audience

import (
	"lemma"
	"lemma/secrets"
)

// Sealed returns the encrypted DSNs, for checks and for the rotation of keys.
func (a *Audiences) Sealed() secrets.Store {
	return secrets.Store{Table: "data_sources", Prefix: lemma.PrefixDataSource, Place: sealPlace, Pool: a.pool,
		Select: `
			select workspace_id, id, dsn from data_sources
			where (workspace_id, id) > ($1, $2) order by workspace_id, id limit $3`,
		Update: `
			update data_sources t set dsn = r.fresh
			from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[]) r (workspace_id, id, old, fresh)
			where t.workspace_id = r.workspace_id and t.id = r.id and t.dsn = r.old`}
}
