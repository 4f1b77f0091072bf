package campaigns

import (
	"context"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/audience"
)

// Assigned is the assignment of a profile, and a sentence that explains it.
type Assigned struct {
	abtest.Assignment
	VariantName string // of a profile in the sample; for the rest that of the winner, if there is one
	Sentence    string
}

// Assignment returns how an iteration assigns a profile, whether it is in the audience or
// not.
func (c *Campaigns) Assignment(ctx context.Context, workspaceID, id uuid.UUID, profile string) (Assigned, error) {
	it, err := c.GetIteration(ctx, workspaceID, id)
	if err != nil {
		return Assigned{}, err
	}
	if !audience.IsKey(profile) {
		return Assigned{}, lemma.Fault("?profile_key", "invalid", "must be a profile key: 1 to %d bytes", audience.MaxKey)
	}
	return it.assigned(profile), nil
}

// AssignmentOf is the assignment of a profile by the experiment of a campaign; nil if it
// has none.
func (c *Campaigns) AssignmentOf(ctx context.Context, workspaceID, campaign uuid.UUID, profile string) (*Assigned, error) {
	it, found, err := iterationOf(ctx, c.pool, workspaceID, campaign)
	if err != nil || !found {
		return nil, err
	}
	a := it.assigned(profile)
	return &a, nil
}

func (it Iteration) assigned(profile string) Assigned {
	plan := assignmentPlan(it.ID, it.Experiment)
	a := plan.Assign(profile)
	shown := Assigned{Assignment: a, Sentence: plan.Explain(a, it.names())}
	switch {
	case a.Group == abtest.Sample:
		shown.VariantName = it.Variants[a.Variant].Name
	case a.Group == abtest.Rest && it.Winner != nil:
		shown.VariantName = it.Variants[*it.Winner].Name
	}
	return shown
}

// Plan is the plan by which profiles are assigned, so that any client can recompute it.
func (it Iteration) Plan() abtest.Plan { return assignmentPlan(it.ID, it.Experiment) }
