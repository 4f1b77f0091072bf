package direct

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/mail"
	"lemma/message"
	"lemma/notifications"
)

// content is what requests have in common that send the same content in the same way over
// the same provider.
type content struct {
	id        uuid.UUID // of its row; of a month, as package retention deletes it with the notifications of that month
	provider  uuid.UUID
	channel   lemma.Channel
	compiled  *message.Compiled
	variables []string // that the data must have
	row       contentRow

	checked time.Time // when provider and topic were there
}

// contentRow is a row of contents.
type contentRow struct {
	template      uuid.NullUUID
	version       *int
	inline        *string
	envelope      Envelope
	transactional bool
	topic         uuid.NullUUID
	audience      uuid.NullUUID
}

// find returns the content of a request. Those that are used again are remembered.
func (d *Direct) find(ctx context.Context, ws uuid.UUID, r *request) (*content, error) {
	if r.TemplateID != nil && r.TemplateVersion == 0 {
		newest, err := d.Templates.Get(ctx, ws, *r.TemplateID)
		if err != nil {
			return nil, noTemplate(err)
		}
		r.TemplateVersion = newest.Version
	}
	key, err := r.contentKey(ws)
	if err != nil {
		return nil, err
	}
	have, ok := d.contents.Get(key)
	if ok && time.Since(have.checked) < fresh {
		return have, nil
	}
	now := d.contents.Now()
	made, bytes, err := d.make(ctx, ws, r)
	if err != nil {
		return nil, err
	}
	made.id = notifications.DirectID(timeOf(r.ID), "direct-content/1", key.String())
	d.contents.Put(now, ws, key, made, bytes)
	return made, nil
}

func noTemplate(err error) error {
	if lemma.KindOf(err) == lemma.NotFound {
		return errNoTemplate
	}
	return err
}

var errNoTemplate = lemma.Fault("/template_id", "unknown_id", "must be a template of this workspace, in a version that it has")

// contentKey identifies what the row of a content has, and the provider.
func (r *request) contentKey(ws uuid.UUID) (uuid.UUID, error) {
	text, err := json.Marshal(struct {
		Month                               uuid.UUID
		Template, Provider, Topic, Audience *uuid.UUID
		Version                             int
		Inline                              *message.Content
		Channel                             lemma.Channel
		Email                               Envelope
		Transactional                       *bool
	}{r.row.OriginID, r.TemplateID, r.ProviderID, r.Topic, r.To.AudienceID, r.TemplateVersion, r.Inline, r.Channel, r.Email, r.Transactional})
	if err != nil {
		return uuid.Nil, fmt.Errorf("write content: %w", err)
	}
	return lemma.Key("direct-content/1", ws.String(), string(text)), nil
}

// make checks the content of a request, and returns how many bytes it keeps.
func (d *Direct) make(ctx context.Context, ws uuid.UUID, r *request) (*content, int, error) {
	c := &content{checked: time.Now(), row: contentRow{envelope: r.Email, transactional: r.Topic == nil}}
	lemma.Set(&c.row.transactional, r.Transactional)
	compiled, err := d.compile(ctx, ws, r, &c.row)
	if err != nil {
		return nil, 0, err
	}
	c.channel = compiled.Channel()
	if r.Channel != "" && r.Channel != c.channel {
		return nil, 0, lemma.Fault("/channel", "wrong_channel", "must be %s, the channel of the content", c.channel)
	}
	if err := checkEnvelope(c.channel, &c.row.envelope); err != nil {
		return nil, 0, err
	}
	headers := message.SentHeaders(c.channel, c.row.transactional, c.row.envelope.Headers)
	if compiled, err = compiled.WithHeaders(headers); err != nil {
		return nil, 0, err
	}
	if d.PublicURL() == "" {
		if err := compiled.CheckPublicURL(c.row.transactional, c.row.envelope.Headers); err != nil {
			return nil, 0, err
		}
	}
	c.compiled, c.variables = compiled, compiled.Variables()
	if c.provider, err = d.providerOf(ctx, ws, r, c.channel); err != nil {
		return nil, 0, err
	}
	bytes := 1_000 + compiled.Bytes()
	for name, value := range c.row.envelope.Headers {
		bytes += len(name) + len(value)
	}
	if c.row.inline != nil {
		bytes += len(*c.row.inline)
	}
	return c, bytes, d.checkReferences(ctx, ws, r, c)
}

// compile compiles the content of a request, and records its source.
func (d *Direct) compile(ctx context.Context, ws uuid.UUID, r *request, row *contentRow) (*message.Compiled, error) {
	if r.Inline != nil {
		stored, compiled, err := message.Store(ws, *r.Inline)
		row.inline = &stored
		return compiled, under("/content", err)
	}
	row.template, row.version = uuid.NullUUID{UUID: *r.TemplateID, Valid: true}, &r.TemplateVersion
	compiled, err := d.Templates.Compiled(ctx, ws, *r.TemplateID, r.TemplateVersion)
	return compiled, noTemplate(err)
}

// under moves the pointers of an error below one.
func under(pointer string, err error) error {
	var e *lemma.Error
	if !errors.As(err, &e) {
		return err
	}
	moved := *e
	moved.Fields = make([]lemma.Field, len(e.Fields))
	for i, f := range e.Fields {
		f.Pointer = pointer + f.Pointer
		moved.Fields[i] = f
	}
	return &moved
}

// checkEnvelope checks the envelope of an email and makes its addresses canonical. Other
// channels have none.
func checkEnvelope(channel lemma.Channel, e *Envelope) error {
	if channel != lemma.Email {
		if e.FromEmail+e.FromName+e.ReplyTo != "" || len(e.Headers) > 0 {
			return lemma.Fault("/from", "wrong_channel", "must not be given for %s, as reply_to and headers", channel)
		}
		return nil
	}
	if e.FromEmail == "" {
		return lemma.Fault("/from", "required", "this field is required for email, the channel of the content")
	}
	envelope := mail.Envelope{FromEmail: e.FromEmail, FromName: e.FromName, ReplyTo: e.ReplyTo, Headers: e.Headers}
	faults := envelope.Faults()
	_, err := message.CheckHeaders(e.Headers)
	if liquid, ok := errors.AsType[*lemma.Error](err); ok {
		faults = append(faults, liquid.Fields...)
	}
	if len(faults) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: faults}
	}
	envelope = envelope.Canonical()
	e.FromEmail, e.ReplyTo = envelope.FromEmail, envelope.ReplyTo
	return nil
}

// providerOf is the provider of a request: the given one, or the only one of the channel.
func (d *Direct) providerOf(ctx context.Context, ws uuid.UUID, r *request, channel lemma.Channel) (uuid.UUID, error) {
	if r.ProviderID != nil {
		account, err := d.Providers.Get(ctx, ws, *r.ProviderID)
		switch {
		case lemma.KindOf(err) == lemma.NotFound && err != nil:
			return uuid.Nil, lemma.Fault("/provider_id", "unknown_id", "must be a provider of this workspace")
		case err == nil && account.Channel != channel:
			return uuid.Nil, lemma.Fault("/provider_id", "wrong_channel", "must be a provider for %s, the channel of the content; it carries %s",
				channel, account.Channel)
		}
		return account.ID, err
	}
	rows, _ := d.Pool.Query(ctx, `select id from providers where workspace_id = $1 and channel = $2 order by id limit 2`, ws, channel)
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return uuid.Nil, fmt.Errorf("find provider: %w", err)
	}
	if len(found) != 1 {
		return uuid.Nil, lemma.Fault("/provider_id", "required", "must be given, unless the workspace has one provider for %s only", channel)
	}
	return found[0], nil
}

// checkReferences checks the topic, and that a template which is in memory still exists.
func (d *Direct) checkReferences(ctx context.Context, ws uuid.UUID, r *request, c *content) error {
	if t := c.row.template; t.Valid {
		var found bool
		err := d.Pool.QueryRow(ctx, `select exists (select from template_versions where workspace_id = $1 and template_id = $2 and version = $3)`,
			ws, t.UUID, *c.row.version).Scan(&found)
		if err != nil {
			return fmt.Errorf("find template: %w", err)
		}
		if !found {
			return errNoTemplate
		}
	}
	if r.Topic != nil {
		c.row.topic = uuid.NullUUID{UUID: *r.Topic, Valid: true}
		var found bool
		err := d.Pool.QueryRow(ctx, `select exists (select from topics where workspace_id = $1 and id = $2)`, ws, *r.Topic).Scan(&found)
		if err != nil {
			return fmt.Errorf("find topic: %w", err)
		}
		if !found {
			return lemma.Fault("/topic_id", "unknown_id", "must be a topic of this workspace")
		}
	}
	if r.To.AudienceID != nil {
		c.row.audience = uuid.NullUUID{UUID: *r.To.AudienceID, Valid: true}
	}
	return nil
}

// storeContents inserts the rows of contents that are not stored. It reads which are, each
// time: a row that this process has stored is missing after a failover to a standby that
// lacks the last commits, and after a restore.
func storeContents(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []*request) error {
	missing := map[uuid.UUID]*content{}
	for _, r := range all {
		missing[r.content.id] = r.content
	}
	// One probe for each: the planner would read all contents of the workspace when the table is small.
	rows, _ := tx.Query(ctx, `
		select c.id from unnest($2::uuid[]) k (id),
			lateral (select id from contents c where c.workspace_id = $1 and c.id = k.id limit 1) c`,
		ws, slices.Collect(maps.Keys(missing)))
	stored, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find contents: %w", err)
	}
	for _, id := range stored {
		delete(missing, id)
	}
	batch := &pgx.Batch{} // in one order, since others insert the same rows
	for _, id := range slices.SortedFunc(maps.Keys(missing), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		c := missing[id]
		headers := c.row.envelope.Headers
		if headers == nil {
			headers = map[string]string{}
		}
		batch.Queue(`
			insert into contents (workspace_id, id, channel, template_id, template_version, inline, from_name, from_email, reply_to, headers,
				transactional, topic_id, audience_id)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) on conflict (workspace_id, id) do nothing`,
			ws, c.id, c.channel, c.row.template, c.row.version, c.row.inline, c.row.envelope.FromName, c.row.envelope.FromEmail,
			c.row.envelope.ReplyTo, headers, c.row.transactional, c.row.topic, c.row.audience)
	}
	if batch.Len() == 0 {
		return nil
	}
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "store contents")
}
