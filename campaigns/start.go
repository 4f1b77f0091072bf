package campaigns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/eventsout"
	"lemma/fence"
	"lemma/message"
	"lemma/pgerr"
)

// Send starts a campaign now. It returns when that is committed; the fan-out
// follows.
func (c *Campaigns) Send(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, error) {
	now, err := c.now(ctx)
	if err == nil {
		err = c.startChecked(ctx, workspaceID, id, send, now, func(tx pgx.Tx) error {
			if err := c.start(ctx, tx, workspaceID, id, send); err != nil {
				return err
			}
			return recordRequest(ctx, tx, workspaceID, id, send, request)
		})
	}
	return c.done(ctx, workspaceID, id, request, err)
}

// startChecked checks a campaign, and does work in a transaction, which applies the verb. If the campaign was changed in
// between it is checked again, a few times.
func (c *Campaigns) startChecked(ctx context.Context, workspaceID, id uuid.UUID, v verb, at time.Time, work func(pgx.Tx) error) error {
	const tries = 3
	for range tries {
		checked, err := c.checkSendable(ctx, workspaceID, id, v, at)
		if err != nil {
			return err
		}
		c.at(ctx, "checked", id)
		same := false
		err = fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, `select version = $3 from campaigns where workspace_id = $1 and id = $2 for update`,
				workspaceID, id, checked).Scan(&same)
			if err != nil || !same {
				return pgerr.Row(err, "campaign", "lock campaign")
			}
			return work(tx)
		})
		if err != nil || same {
			return err
		}
	}
	return &lemma.Error{Kind: lemma.Conflict, Message: "the campaign was changed while it was checked: try again"}
}

// start moves a campaign to preparing and enqueues its fan-out, in the transaction of the caller.
func (c *Campaigns) start(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb) error {
	err := move(ctx, tx, workspaceID, id, v, `status = 'preparing', status_reason = null, status_detail = null, started_at = now()`)
	if err != nil {
		return err
	}
	// One that is started by its schedule without addresses fails with its fan-out, which shows the reason.
	if err := lockAudience(ctx, tx, workspaceID, id); err != nil && (v != fire || lemma.KindOf(err) != lemma.Invalid) {
		return err
	}
	_, err = tx.Exec(ctx, `
		insert into fanouts (workspace_id, campaign_id) values ($1, $2)
		on conflict (workspace_id, campaign_id) do nothing`, workspaceID, id)
	if err != nil {
		return fmt.Errorf("make fan-out of %s: %w", id, err)
	}
	if err := startIteration(ctx, tx, workspaceID, id); err != nil {
		return err
	}
	if err := recordEvent(ctx, tx, workspaceID, id, eventsout.CampaignStarted, "", ""); err != nil {
		return err
	}
	return c.enqueue(ctx, tx, workspaceID, id)
}

// Schedule makes a campaign start at a time in the future.
func (c *Campaigns) Schedule(ctx context.Context, workspaceID, id uuid.UUID, at time.Time, request uuid.UUID) (Campaign, error) {
	now, err := c.now(ctx)
	if err != nil {
		return Campaign{}, err
	}
	if !at.After(now) {
		return c.done(ctx, workspaceID, id, request, lemma.Fault("/at", "in_the_past", "must be in the future; use send to send now"))
	}
	err = c.startChecked(ctx, workspaceID, id, schedule, at, func(tx pgx.Tx) error {
		if err := move(ctx, tx, workspaceID, id, schedule, `status = 'scheduled', scheduled_at = $4`, at); err != nil {
			return err
		}
		if err := lockAudience(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		return recordRequest(ctx, tx, workspaceID, id, schedule, request)
	})
	return c.done(ctx, workspaceID, id, request, err)
}

// lockAudience locks the audience of a campaign that begins, and checks that it still has addresses of the
// channel: a change of it that a campaign in progress does not allow happens before, or finds the campaign.
func lockAudience(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID) error {
	var channel lemma.Channel
	var has bool
	err := tx.QueryRow(ctx, `
		select t.channel, `+audience.AddressColumnSQL+` is not null
		from campaigns c join audiences a on a.workspace_id = c.workspace_id and a.id = c.audience_id
		join templates t on t.workspace_id = c.workspace_id and t.id = c.template_id
		where c.workspace_id = $1 and c.id = $2 for share of a`, workspaceID, id).Scan(&channel, &has)
	if err != nil {
		return fmt.Errorf("lock the audience of %s: %w", id, err)
	}
	if !has {
		return unaddressed(channel)
	}
	return nil
}

// Unschedule makes a scheduled campaign a draft again.
func (c *Campaigns) Unschedule(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, error) {
	return c.move(ctx, workspaceID, id, unschedule, request, `status = 'draft', scheduled_at = null`)
}

func (c *Campaigns) move(
	ctx context.Context, workspaceID, id uuid.UUID, v verb, request uuid.UUID, set string, args ...any,
) (Campaign, error) {
	err := fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		if err := move(ctx, tx, workspaceID, id, v, set, args...); err != nil {
			return err
		}
		return recordRequest(ctx, tx, workspaceID, id, v, request)
	})
	return c.done(ctx, workspaceID, id, request, err)
}

// CheckSend finds errors of a send before it begins.
func (c *Campaigns) CheckSend(ctx context.Context, workspaceID, id uuid.UUID) error {
	now, err := c.now(ctx)
	if err != nil {
		return err
	}
	_, err = c.checkSendable(ctx, workspaceID, id, send, now)
	return err
}

// now is the time of the database, which starts scheduled campaigns.
func (c *Campaigns) now(ctx context.Context) (at time.Time, err error) {
	err = c.pool.QueryRow(ctx, `select now()`).Scan(&at)
	return at, lemma.Wrap(err, "read the time")
}

// checkSendable finds errors of a send at a time before it begins: a status that does not
// allow it, a deadline that has passed by then, a provider or an audience of another
// channel, and variables that the audience does not have. It returns the version that it checked.
func (c *Campaigns) checkSendable(ctx context.Context, workspaceID, id uuid.UUID, v verb, at time.Time) (version int, err error) {
	now, err := c.Get(ctx, workspaceID, id)
	if err != nil {
		return 0, err
	}
	if err := table.Check(now.Status, v); err != nil {
		return 0, err
	}
	if now.SendDeadline != nil && !now.SendDeadline.After(at) {
		return 0, lemma.Fault("/send_deadline", "in_the_past", "must be after the start, %s", at.UTC().Format(time.RFC3339))
	}
	if err := c.checkCarried(ctx, workspaceID, now.Channel, now.ProviderID, now.AudienceID); err != nil {
		return 0, err
	}
	if _, err = c.content(ctx, now); err != nil {
		return 0, err
	}
	return now.Version, c.checkExperiment(ctx, now, &at)
}

// checkExperiment finds errors of a campaign's experiment that its other fields, or the
// time at which it starts, have caused since it was saved; nil: a draft changes, which may have a time or a
// metric that only a send refuses.
func (c *Campaigns) checkExperiment(ctx context.Context, now Campaign, start *time.Time) error {
	if now.IterationID == nil {
		return nil
	}
	it, found, err := iterationOf(ctx, c.pool, now.WorkspaceID, now.ID)
	if err != nil || !found {
		return err
	}
	if start != nil && it.EvaluateAt != nil {
		if err := c.checkEvaluateAt(ctx, *it.EvaluateAt, start); err != nil {
			return err
		}
	}
	aud, err := c.audiences.Get(ctx, now.WorkspaceID, now.AudienceID)
	if err != nil {
		return err
	}
	for i, v := range it.Variants {
		if v.TemplateID == nil {
			continue
		}
		channel, _, err := c.templateVersion(ctx, now.WorkspaceID, *v.TemplateID, v.TemplateVersion)
		if err == nil && channel != now.Channel {
			err = lemma.Fault("/template_id", "wrong_channel", "must be a template for %s, the channel of the campaign", now.Channel)
		}
		if err != nil {
			return under(variantPointer(i), err)
		}
	}
	contents := c.sentContents
	if start == nil {
		contents = c.variantContents
	}
	_, err = contents(ctx, now, it.Experiment, aud)
	return err
}

// checkEvaluateAt finds errors of the time at which an experiment is evaluated.
func (c *Campaigns) checkEvaluateAt(ctx context.Context, at time.Time, start *time.Time) error {
	now, err := c.now(ctx)
	switch {
	case err != nil:
		return err
	case !at.After(now):
		return lemma.Fault("/experiment/evaluate_at", "in_the_past", "must be in the future")
	case start == nil:
	case at.Before(start.Add(MinDuration)) || at.After(start.Add(MaxDuration)):
		return lemma.Fault("/experiment/evaluate_at", "out_of_range", "must be from 10 seconds to 28 days after the start, %s",
			start.UTC().Format(time.RFC3339))
	}
	return nil
}

// content returns the compiled content of a campaign. The audience must have
// addresses of its channel, and all columns that the template and the headers use.
// Recipients of marketing must be able to unsubscribe.
func (c *Campaigns) content(ctx context.Context, now Campaign) (*message.Compiled, error) {
	template, err := c.templates.Compiled(ctx, now.WorkspaceID, now.TemplateID, now.TemplateVersion)
	if err != nil {
		return nil, err
	}
	content, err := template.WithHeaders(message.SentHeaders(now.Channel, now.Transactional, now.Headers))
	if err != nil {
		return nil, err
	}
	if err := c.checkPublicURL(now, content); err != nil {
		return nil, err
	}
	aud, err := c.audiences.Get(ctx, now.WorkspaceID, now.AudienceID)
	if err != nil {
		return nil, err
	}
	if err := addressed(aud, now.Channel); err != nil {
		return nil, err
	}
	if err := known(aud, "/template_id", "the template uses", template.Variables()); err != nil {
		return nil, err
	}
	return content, known(aud, "/headers", "the headers use", content.Variables())
}

// checkPublicURL checks that the recipients of a content can unsubscribe.
func (c *Campaigns) checkPublicURL(now Campaign, content *message.Compiled) error {
	if c.cfg.PublicURL() != "" {
		return nil
	}
	return content.CheckPublicURL(now.Transactional, now.Headers)
}

// known checks that an audience has the columns that are used.
func known(aud audience.Audience, pointer, what string, used []string) error {
	var names, missing []string
	for _, col := range aud.Columns {
		names = append(names, col.Name)
	}
	for _, name := range used {
		if !slices.Contains(names, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return lemma.Fault(pointer, "unknown_variable", "%s %s, which the audience does not have; its columns are %s",
		what, strings.Join(missing, ", "), strings.Join(names, ", "))
}
