package campaigns

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/pgerr"
)

// Update changes a draft. ifMatch, if not nil, must be its current version.
func (c *Campaigns) Update(ctx context.Context, workspaceID, id uuid.UUID, ifMatch *int, p Patch) (Campaign, error) {
	now, err := c.Get(ctx, workspaceID, id)
	if err != nil {
		return Campaign{}, err
	}
	n := now.patched(p)
	if p.TemplateID != nil || p.TemplateVersion != nil {
		if n.Channel, n.TemplateVersion, err = c.templateVersion(ctx, workspaceID, n.TemplateID, n.TemplateVersion); err != nil {
			return Campaign{}, err
		}
	}
	if n.Channel != lemma.Email {
		n = n.withoutEnvelope(p)
	}
	if err := checkEnvelope(n.Channel, &n.FromEmail, n.FromName, &n.ReplyTo, n.Headers); err != nil {
		return Campaign{}, err
	}
	if err := lemma.CheckMetadata("/metadata", p.Metadata); err != nil {
		return Campaign{}, err
	}
	if err := c.checkCarried(ctx, workspaceID, n.Channel, n.ProviderID, n.AudienceID); err != nil {
		return Campaign{}, err
	}
	if ifMatch != nil && *ifMatch != now.Version {
		return Campaign{}, lemma.Changed("campaign")
	}
	if err := n.checkConversion(); err != nil {
		return Campaign{}, err
	}
	if err := c.prepareExperiment(ctx, n, p.Experiment); err != nil {
		return Campaign{}, err
	}
	if p.Experiment == nil && !p.NoExperiment {
		if err := c.checkExperiment(ctx, n, nil); err != nil {
			return Campaign{}, err
		}
	}
	err = fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		// A change after the read above must not be overwritten.
		var unchanged bool
		err := tx.QueryRow(ctx, `select version = $3 from campaigns where workspace_id = $1 and id = $2 for update`,
			workspaceID, id, now.Version).Scan(&unchanged)
		if err != nil {
			return pgerr.Row(err, "campaign", "lock campaign")
		}
		if !unchanged {
			return lemma.Changed("campaign")
		}
		err = move(ctx, tx, workspaceID, id, edit, `name = $4, audience_id = $5, template_id = $6, template_version = $7, provider_id = $8,
			strategy = $9, from_name = $10, from_email = $11, reply_to = $12, headers = $13, metadata = $14, send_deadline = $15,
			template_error_limit = $16, transactional = $17, topic_id = $18, conversion_event = nullif($19, ''),
			conversion_within = nullif($20, '0'::interval)`,
			n.Name, n.AudienceID, n.TemplateID, n.TemplateVersion, n.ProviderID, n.Strategy, n.FromName, n.FromEmail, n.ReplyTo,
			orEmpty(n.Headers), orEmpty(n.Metadata), n.SendDeadline, n.TemplateErrorLimit, n.Transactional, n.TopicID,
			n.ConversionEvent, n.ConversionWithin)
		if err != nil || p.Experiment == nil && !p.NoExperiment {
			return err
		}
		return saveExperiment(ctx, tx, workspaceID, id, p.Experiment)
	})
	if err != nil {
		return Campaign{}, saving.Explain(err, "update campaign")
	}
	return c.Get(ctx, workspaceID, id)
}

// Delete removes a draft. A campaign that was sent is never deleted.
func (c *Campaigns) Delete(ctx context.Context, workspaceID, id uuid.UUID) error {
	return fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from campaigns where workspace_id = $1 and id = $2 and status = any($3)`,
			workspaceID, id, table.From[remove])
		if err != nil {
			return fmt.Errorf("delete campaign: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return refuse(ctx, tx, workspaceID, id, remove)
		}
		return nil
	})
}

func (now Campaign) patched(p Patch) Campaign {
	lemma.Set(&now.Name, p.Name)
	lemma.Set(&now.AudienceID, p.AudienceID)
	if p.TemplateID != nil && p.TemplateVersion == nil {
		now.TemplateVersion = 0 // the newest version of the other template
	}
	lemma.Set(&now.TemplateID, p.TemplateID)
	lemma.Set(&now.TemplateVersion, p.TemplateVersion)
	lemma.Set(&now.ProviderID, p.ProviderID)
	lemma.Set(&now.Strategy, p.Strategy)
	lemma.Set(&now.FromName, p.FromName)
	lemma.Set(&now.FromEmail, p.FromEmail)
	lemma.Set(&now.ReplyTo, p.ReplyTo)
	if p.Headers != nil {
		now.Headers = p.Headers
	}
	if p.Metadata != nil {
		now.Metadata = p.Metadata
	}
	lemma.Set(&now.Transactional, p.Transactional)
	if p.TopicID != nil || p.NoTopic {
		now.TopicID = p.TopicID
	}
	lemma.Set(&now.Conversion, p.Conversion)
	if p.TemplateErrorLimit != nil || p.NoErrorLimit {
		now.TemplateErrorLimit = p.TemplateErrorLimit
	}
	if p.SendDeadline != nil || p.NoDeadline {
		now.SendDeadline = p.SendDeadline
	}
	return now
}

// withoutEnvelope removes the envelope of a campaign that was of an email before a patch.
func (now Campaign) withoutEnvelope(p Patch) Campaign {
	now.FromName, now.FromEmail, now.ReplyTo, now.Headers = "", "", "", p.Headers
	lemma.Set(&now.FromName, p.FromName)
	lemma.Set(&now.FromEmail, p.FromEmail)
	lemma.Set(&now.ReplyTo, p.ReplyTo)
	return now
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
