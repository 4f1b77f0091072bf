package webhooks

import (
	"lemma"
	"lemma/secrets"
)

// Sealed describes the encrypted secrets of webhook endpoints, for checks and key rotation.
func (w *Webhooks) Sealed() secrets.Store {
	return secrets.Store{Table: "webhook_endpoints", Prefix: lemma.PrefixEndpoint, Place: place, Pool: w.pool,
		Select: `
			select workspace_id, id, secret from webhook_endpoints
			where (workspace_id, id) > ($1, $2) order by workspace_id, id limit $3`,
		Update: `
			update webhook_endpoints t set secret = r.fresh
			from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[]) r (workspace_id, id, old, fresh)
			where t.workspace_id = r.workspace_id and t.id = r.id and t.secret = r.old`}
}
