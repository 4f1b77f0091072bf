package flows

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/audience"
	"lemma/flows/graph"
	"lemma/pgerr"
)

// use records what a version names, so that it cannot be deleted while enrollments may
// reach it. It fails if something was deleted after the check.
func (p publication) use(ctx context.Context, tx pgx.Tx) error {
	def := p.def
	if p.text != nil { // with every template's version
		var err error
		if def, err = graph.Decode(p.ws, p.text); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	// A change of the audience that this version would not allow happens before, or finds it.
	batch.Queue(`select from audiences where workspace_id = $1 and id = $2 for share`, p.ws, idOf(lemma.PrefixAudience, def.AudienceID))
	write := func(node string, audience, source, template pgtype.UUID, templateVersion int, provider, endpoint, topic pgtype.UUID) {
		version := pgtype.Int4{Int32: int32(templateVersion), Valid: template.Valid}
		batch.Queue(`
			insert into flow_uses (workspace_id, flow_id, version, node, audience_id, data_source_id, template_id, template_version, provider_id,
				endpoint_id, topic_id)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict (workspace_id, flow_id, version, node) do nothing`,
			p.ws, p.flow, p.version, node, audience, source, template, version, provider, endpoint, topic)
	}
	none := pgtype.UUID{}
	write("", idOf(lemma.PrefixAudience, def.AudienceID), none, none, 0, none, none, none)
	for id, n := range def.Nodes {
		switch n.Type {
		case graph.Send:
			write(id, none, none, idOf(lemma.PrefixTemplate, n.TemplateID), n.TemplateVersion, idOf(lemma.PrefixProvider, n.ProviderID),
				none, idOf(lemma.PrefixTopic, n.TopicID))
		case graph.Branch:
			write(id, none, idOf(lemma.PrefixDataSource, n.DataSourceID), none, 0, none, none, none)
		case graph.Webhook:
			write(id, none, none, none, 0, none, idOf(lemma.PrefixEndpoint, n.EndpointID), none)
		}
	}
	err := tx.SendBatch(ctx, batch).Close()
	if err != nil {
		return using.Explain(err, fmt.Sprintf("write what version %d uses", p.version))
	}
	return p.checkAddresses(ctx, tx)
}

// checkAddresses checks that the audience, which is locked, has addresses of the channels over which the version
// sends: it may have been changed since the version was validated.
func (p publication) checkAddresses(ctx context.Context, tx pgx.Tx) error {
	var lacks bool
	err := tx.QueryRow(ctx, `
		select exists (
			select from flow_uses u join audiences a on a.workspace_id = u.workspace_id and a.id = u.audience_id
			join flow_uses s on s.workspace_id = u.workspace_id and s.flow_id = u.flow_id and s.version = u.version
			join templates t on t.workspace_id = s.workspace_id and t.id = s.template_id
			where u.workspace_id = $1 and u.flow_id = $2 and u.version = $3
				and `+audience.AddressColumnSQL+` is null
		)`, p.ws, p.flow, p.version).Scan(&lacks)
	if err != nil {
		return fmt.Errorf("check the addresses of version %d: %w", p.version, err)
	}
	if lacks {
		return gone
	}
	return nil
}

var gone = &lemma.Error{Kind: lemma.Conflict, Code: "names_what_is_gone",
	Message: "something that the version names was deleted, or its audience has no addresses of a channel any more: " +
		"validate the version to see what"}

var using = pgerr.Rules{pgerr.ForeignKey: gone}

// idOf parses an id of the API; any other text is null.
func idOf(prefix, text string) pgtype.UUID {
	id, ok := lemma.ParseID(prefix, text)
	return pgtype.UUID{Bytes: id, Valid: ok}
}

// unuse deletes the uses of an archived flow's versions.
func unuse(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `delete from flow_uses where workspace_id = $1 and flow_id = $2`, ws, flow)
	return lemma.Wrap(err, "delete uses of flow %s", flow)
}

// unlisten deletes the events that an archived flow listened to, once it has no active
// enrollment: otherwise every archived flow would slow down every event.
func unlisten(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `delete from flow_listeners where workspace_id = $1 and flow_id = $2`, ws, flow)
	return lemma.Wrap(err, "unlisten flow %s", flow)
}
