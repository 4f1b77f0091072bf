package campaigns

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/abtest"
	"lemma/message"
	"lemma/notifications"
)

// deal is how a run of a fan-out distributes the profiles of an experiment.
type deal struct {
	abtest.Plan
	sampling bool   // otherwise the winner is rolled out
	stopped  []bool // by variant: the guardrail has stopped it

	members *members // in the rollout: they have a notification, at this or another address
}

// dealOf reads the experiment of a campaign for a run, and adds what its chunks write.
// A sample has a content for each variant, a rollout the recorded winner alone.
func (c *Campaigns) dealOf(ctx context.Context, now Campaign, p *plan) error {
	if now.IterationID == nil {
		return nil
	}
	it, found, err := iterationOf(ctx, c.pool, now.WorkspaceID, now.ID)
	if err != nil || !found {
		return err
	}
	aud, err := c.audiences.Get(ctx, now.WorkspaceID, now.AudienceID)
	if err != nil {
		return err
	}
	contents, err := c.sentContents(ctx, now, it.Experiment, aud)
	if err != nil {
		return err
	}
	p.iteration = &it
	p.deal = &deal{Plan: assignmentPlan(it.ID, it.Experiment), sampling: it.Status == IterationSampling}
	switch {
	case p.deal.sampling:
		p.columns = columnsOf(contents...)
		p.Remember = it.Metric != nil
		for i, v := range it.Variants {
			p.Variants = append(p.Variants, notifications.Variant{ContentID: v.contentID, Ordinal: i, DueAfter: v.SendOffset})
			p.deal.stopped = append(p.deal.stopped, v.StoppedAt != nil)
		}
	case it.Winner != nil && it.rolloutID != nil:
		p.columns = columnsOf(contents[*it.Winner])
		p.Variants = []notifications.Variant{{ContentID: *it.rolloutID, Ordinal: *it.Winner}}
		if p.deal.members, err = c.readMembers(ctx, it); err != nil {
			return err
		}
	default:
		return errStopped // nothing is decided
	}
	return nil
}

// fingerprint is the hash of a profile key under which an iteration stores its profiles:
// that by which their variant is chosen.
func fingerprint(it Iteration) func(profileKey string) uint64 {
	return assignmentPlan(it.ID, it.Experiment).Variant.Hash
}

// assigned is what the assignment of a profile decides for the recipients of its row.
type assigned struct {
	group       abtest.Group
	variant     int // the index of its content among those of the run
	fingerprint uint64
}

func (d *deal) assign(key string) (a assigned) {
	a.group, a.variant, a.fingerprint = d.Deal(key)
	if !d.sampling {
		a.variant = 0 // the winner
	}
	return a
}

// deals gives the recipients of a row their variant, and removes those that this run
// does not write: in the sample the rest, and those of a variant that the guardrail has
// stopped; in the rollout the sample, whose profiles may have other addresses by now. A
// row that is opted out is always written, also one without a valid key: no other profile
// is sent to at its address.
func (p *plan) deals(chunk []notifications.Recipient, from int, key string) []notifications.Recipient {
	if p.deal == nil {
		return chunk
	}
	to, n := p.deal.assign(key), from
	for i := from; i < len(chunk); i++ {
		r := &chunk[i]
		r.Variant, r.Fingerprint = to.variant, to.fingerprint
		switch {
		case r.Holds || r.Skip == notifications.Unsubscribed:
		case to.group == abtest.Holdout && r.Skip == "":
			r.Skip = notifications.Holdout
		case p.deal.excludes(to):
			continue
		}
		if n < i {
			chunk[n] = *r
		}
		n++
	}
	return chunk[:n]
}

// inHoldout returns what reports whether a profile is in the holdout, as deals decides it; nil
// if none is.
func (it *Iteration) inHoldout() func(profileKey string) bool {
	if it == nil || it.HoldoutPercent == 0 {
		return nil
	}
	d := deal{Plan: it.Plan()}
	return func(key string) bool { return d.assign(key).group == abtest.Holdout }
}

// excludes reports that a run does not write a profile that is not in the holdout.
func (d *deal) excludes(a assigned) bool {
	switch {
	case a.group == abtest.Rest:
		return d.sampling
	case a.group == abtest.Sample && d.sampling:
		return d.stopped[a.variant] // gets the winner
	case a.group == abtest.Sample:
		return d.members.has(a.fingerprint)
	}
	return false
}

// beginDeal writes the contents of the variants, or moves the iteration to the rollout.
func beginDeal(ctx context.Context, tx pgx.Tx, now Campaign, p *plan) error {
	if p.deal == nil {
		return nil
	}
	if !p.deal.sampling {
		return changeIteration(ctx, tx, now.WorkspaceID, now.ID, "rollout_started", "", `
			update iterations set status = 'rolling_out' where workspace_id = $1 and campaign_id = $2 and status = 'decided' returning id`)
	}
	for _, v := range p.iteration.Variants {
		if err := writeContent(ctx, tx, now, v.contentID, &v); err != nil {
			return err
		}
	}
	return nil
}

// writeContent writes a content of a campaign, once: that of a variant, or its own.
func writeContent(ctx context.Context, tx pgx.Tx, now Campaign, id uuid.UUID, v *Variant) error {
	template, version, fromName := now.TemplateID, now.TemplateVersion, now.FromName
	var replaced message.Replacement
	if v != nil {
		if v.TemplateID != nil {
			template, version = *v.TemplateID, v.TemplateVersion
		}
		if v.FromName != "" {
			fromName = v.FromName
		}
		replaced = message.Replacement{Subject: v.Subject, Preheader: v.Preheader}
	}
	_, err := tx.Exec(ctx, `
		insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers,
			transactional, topic_id, subject, preheader, conversion_event, conversion_within)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, nullif($12, ''), nullif($13, ''), nullif($14, ''), nullif($15, '0'::interval))
		on conflict (workspace_id, id) do nothing`,
		now.WorkspaceID, id, now.Channel, template, version, fromName, now.FromEmail, now.ReplyTo,
		orEmpty(now.Headers), now.Transactional, now.TopicID, replaced.Subject, replaced.Preheader, now.ConversionEvent, now.ConversionWithin)
	return lemma.Wrap(err, "write content of %s", now.ID)
}
