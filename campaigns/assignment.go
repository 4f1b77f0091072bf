package campaigns

import (
	"context"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/address"
	"lemma/audience"
)

// Assigned is the assignment of a profile, and a sentence that explains it.
type Assigned struct {
	abtest.Assignment
	VariantName string // of the profile's message, or of the one that it gets; empty: none is known
	Sentence    string
}

// Assignment returns how an iteration assigns a profile, whether it is in the audience or
// not. Only a profile in the sample may have another variant than the buckets lead to: its
// notification has it, if an address is given, as long as it is kept. Without one, the hashes
// of the sample show whether it has a notification of the sample, until they are deleted.
func (c *Campaigns) Assignment(ctx context.Context, workspaceID, id uuid.UUID, profile, to string) (Assigned, error) {
	it, err := c.GetIteration(ctx, workspaceID, id)
	if err != nil {
		return Assigned{}, err
	}
	if !audience.IsKey(profile) {
		return Assigned{}, lemma.Fault("?profile_key", "invalid", "must be a profile key: 1 to %d bytes", audience.MaxKey)
	}
	a := it.assigned(profile)
	switch {
	case a.Group != abtest.Sample || it.Status == IterationDraft:
		return a, nil
	case to != "":
		return c.assignedAt(ctx, it, a, profile, to)
	case it.Metric == nil: // every profile has the variant of its buckets
		return a, nil
	case it.isOver():
		return c.ifKept(ctx, it, a, it.ended(a))
	}
	sampled, err := c.isMember(ctx, it, a.Variant, profile)
	if err != nil || sampled {
		return a, err
	}
	return it.waits(a), nil
}

// assignedAt is the assignment of a profile by its notification at an address.
func (c *Campaigns) assignedAt(ctx context.Context, it Iteration, a Assigned, profile, to string) (Assigned, error) {
	now, err := c.Get(ctx, it.WorkspaceID, it.CampaignID)
	if err != nil {
		return Assigned{}, err
	}
	at := address.Parse(now.Channel, to)
	if at.Canonical == "" {
		return Assigned{}, lemma.Fault("?address", at.Fault, "must be an address of the channel %s", now.Channel)
	}
	content, found, err := c.ledger.ContentOf(ctx, it.WorkspaceID, it.CampaignID, Key(it.CampaignID, now.Channel, at.Canonical), profile)
	switch {
	case err != nil:
		return Assigned{}, err
	case found:
		return it.received(a, content), nil
	case it.isOver():
		return c.ifKept(ctx, it, a, it.waits(a))
	}
	return it.waits(a), nil
}

// ifKept is an answer about a profile without a known notification, if those of the campaign are
// kept. After their month was dropped, nothing shows whether the profile had one.
func (c *Campaigns) ifKept(ctx context.Context, it Iteration, a, answer Assigned) (Assigned, error) {
	kept, err := c.ledger.HasKept(ctx, it.WorkspaceID, it.CampaignID)
	if err != nil {
		return Assigned{}, err
	}
	if !kept {
		return it.dropped(a), nil
	}
	return answer, nil
}

// isOver reports whether no more notifications are written.
func (it Iteration) isOver() bool {
	return it.Status == IterationCompleted || it.Status == IterationCancelled
}

// AssignmentOf is the assignment of the profile of a notification by the experiment of a
// campaign; nil if it has none.
func (c *Campaigns) AssignmentOf(ctx context.Context, workspaceID, campaign, key uuid.UUID, profile string) (*Assigned, error) {
	it, found, err := iterationOf(ctx, c.pool, workspaceID, campaign)
	if err != nil || !found {
		return nil, err
	}
	a := it.assigned(profile)
	content, found, err := c.ledger.ContentOf(ctx, workspaceID, campaign, key, profile)
	switch {
	case err != nil:
		return nil, err
	case found:
		a = it.received(a, content)
	default:
		a.VariantName = "" // it was skipped
	}
	return &a, nil
}

// assigned is what the buckets of a profile lead to.
func (it Iteration) assigned(profile string) Assigned {
	plan := it.Plan()
	a := plan.Assign(profile)
	shown := Assigned{Assignment: a, Sentence: plan.Explain(a, it.names())}
	switch a.Group {
	case abtest.Sample:
		shown.VariantName = it.Variants[a.Variant].Name
	case abtest.Rest:
		shown.VariantName = it.winner()
	}
	return shown
}

// received is the assignment of a profile whose notification has a content.
func (it Iteration) received(a Assigned, content uuid.UUID) Assigned {
	if it.rolloutID != nil && content == *it.rolloutID {
		a.VariantName = it.winner()
		if a.Group == abtest.Sample {
			a.Sentence += "; the notification was written after the sample and has the winner, " + a.VariantName
		}
		return a
	}
	for i, v := range it.Variants {
		if v.contentID != content {
			continue
		}
		a.VariantName = v.Name
		if a.Group != abtest.Sample || a.Variant != i {
			a.Sentence = "the notification has variant " + v.Name + "; the profile key that led to it was erased"
		}
	}
	return a
}

// waits is the assignment of a profile in the sample that has no notification to send.
func (it Iteration) waits(a Assigned) Assigned {
	switch {
	case it.isOver():
		a.VariantName = ""
		a.Sentence += "; it has no notification, and no more are written"
	case it.Status != IterationSampling || it.Variants[a.Variant].StoppedAt != nil:
		a.VariantName = it.winner()
		a.Sentence += "; it has no notification of the sample, so it gets the winner"
	}
	return a
}

// ended is the assignment of a profile in the sample when the hashes of the sample are deleted.
func (it Iteration) ended(a Assigned) Assigned {
	a.VariantName = ""
	a.Sentence += ", unless the profile joined later; the test has ended, so its hashes are deleted: " +
		"give the address to read the variant of its notification"
	return a
}

// dropped is the assignment of a profile in the sample when the notifications of the campaign are
// not kept any more. Each profile of a split has the variant of its buckets.
func (it Iteration) dropped(a Assigned) Assigned {
	a.Sentence += "; the notifications of the campaign are not kept any more"
	if it.Metric != nil {
		a.VariantName = ""
		a.Sentence += ", so the variant of its message is not known"
	}
	return a
}

// winner is the name of the winner; empty: none is recorded.
func (it Iteration) winner() string {
	if it.Winner == nil {
		return ""
	}
	return it.Variants[*it.Winner].Name
}

// Plan is the plan by which profiles are assigned, so that any client can recompute it.
func (it Iteration) Plan() abtest.Plan { return assignmentPlan(it.ID, it.Experiment) }
