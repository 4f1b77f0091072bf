package flows

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/graph"
)

// use writes down what a version names, so that nobody deletes it while people
// may come to it. What is gone already is found here, whatever was checked before.
func (p publication) use(ctx context.Context, tx pgx.Tx) error {
	def := p.def
	if p.text != nil { // with every template's version in it
		var err error
		if def, err = graph.Decode(p.text); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	write := func(node string, audience, source, template pgtype.UUID, templateVersion int, provider, endpoint pgtype.UUID) {
		version := pgtype.Int4{Int32: int32(templateVersion), Valid: template.Valid}
		batch.Queue(`
			insert into flow_uses (workspace_id, flow_id, version, node, audience_id, data_source_id, template_id, template_version, provider_id, endpoint_id)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict (workspace_id, flow_id, version, node) do nothing`,
			p.ws, p.flow, p.version, node, audience, source, template, version, provider, endpoint)
	}
	none := pgtype.UUID{}
	write("", idOf(lemma.PrefixAudience, def.AudienceID), none, none, 0, none, none)
	for id, n := range def.Nodes {
		switch n.Type {
		case graph.Send:
			write(id, none, none, idOf(lemma.PrefixTemplate, n.TemplateID), n.TemplateVersion, idOf(lemma.PrefixProvider, n.ProviderID), none)
		case graph.Branch:
			write(id, none, idOf(lemma.PrefixDataSource, n.DataSourceID), none, 0, none, none)
		case graph.Webhook:
			write(id, none, none, none, 0, none, idOf(lemma.PrefixEndpoint, n.EndpointID))
		}
	}
	err := tx.SendBatch(ctx, batch).Close()
	var said *pgconn.PgError
	if errors.As(err, &said) && said.Code == "23503" {
		return &lemma.Error{Kind: lemma.Conflict, Code: "names_what_is_gone", Message: "something that the version names was deleted: validate says what", Cause: err}
	}
	if err != nil {
		return fmt.Errorf("write what version %d uses: %w", p.version, err)
	}
	return nil
}

// idOf reads an id as the API writes it; what is none is null.
func idOf(prefix, text string) pgtype.UUID {
	id, ok := lemma.ParseID(prefix, text)
	return pgtype.UUID{Bytes: id, Valid: ok}
}

// UsersOf answers the names of flows whose published versions name something,
// by its id, at most so many.
func (f *Flows) UsersOf(ctx context.Context, ws, id uuid.UUID, most int) ([]string, error) {
	rows, _ := f.pool.Query(ctx, `
		select distinct f.name from flow_uses u join flows f on f.workspace_id = u.workspace_id and f.id = u.flow_id
		where u.workspace_id = $1 and $2 in (u.audience_id, u.data_source_id, u.template_id, u.provider_id, u.endpoint_id)
		order by f.name limit $3`, ws, id, most)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find flows that use %s: %w", id, err)
	}
	return names, nil
}

// unuse lets go of what an archived flow's versions name.
func unuse(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	if _, err := tx.Exec(ctx, `delete from flow_uses where workspace_id = $1 and flow_id = $2`, ws, flow); err != nil {
		return fmt.Errorf("let go of what flow %s uses: %w", flow, err)
	}
	return nil
}

// unlisten forgets which events an archived flow listened to, once nobody is on
// the way in it: or every flow that ever was would cost every event something.
func unlisten(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	if _, err := tx.Exec(ctx, `delete from flow_listeners where workspace_id = $1 and flow_id = $2`, ws, flow); err != nil {
		return fmt.Errorf("unlisten flow %s: %w", flow, err)
	}
	return nil
}
