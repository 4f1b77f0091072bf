package api

import (
	"context"
	"time"

	"lemma"
	"lemma/abtest"
	"lemma/campaigns"
	"lemma/client"
)

type iterationBody struct {
	ID           string                    `json:"id"`
	CampaignID   string                    `json:"campaign_id"`
	Status       campaigns.IterationStatus `json:"status"`
	StatusReason *string                   `json:"status_reason"`
	StatusDetail *string                   `json:"status_detail"`
	Experiment   experimentBody            `json:"experiment"`
	Assignment   client.AssignmentPlan     `json:"assignment"`
	StartedAt    *time.Time                `json:"started_at"`
	CutOffAt     *time.Time                `json:"cut_off_at"`
	Winner       *string                   `json:"winner"`
	DecidedBy    *string                   `json:"decided_by"`
	DecidedAt    *time.Time                `json:"decided_at"`
	CreatedAt    time.Time                 `json:"created_at"`
	Verdict      *campaigns.Verdict        `json:"verdict"`
	Stopped      []client.StoppedVariant   `json:"stopped_variants"`
	Warnings     []string                  `json:"warnings"`
	Timeline     []client.IterationEvent   `json:"timeline"`
	Allowed      []string                  `json:"allowed_actions"`
}

func (b iterationBody) location() string { return "/v1/iterations/" + b.ID }

func stoppedOf(it campaigns.Iteration) []client.StoppedVariant {
	all := []client.StoppedVariant{}
	for _, v := range it.Variants {
		if v.StoppedAt != nil {
			all = append(all, client.StoppedVariant{Variant: v.Name, At: v.StoppedAt.UTC(), Reason: v.StoppedReason})
		}
	}
	return all
}

func (s *server) showIteration(ctx context.Context, it campaigns.Iteration, err error) (iterationBody, error) {
	if err != nil {
		return iterationBody{}, err
	}
	events, err := s.Campaigns.Timeline(ctx, it.WorkspaceID, it.ID)
	if err != nil {
		return iterationBody{}, err
	}
	results, err := s.Campaigns.Results(ctx, it.WorkspaceID, it.ID)
	if err != nil {
		return iterationBody{}, err
	}
	b := iterationBody{ID: lemma.FormatID(lemma.PrefixIteration, it.ID), CampaignID: lemma.FormatID(lemma.PrefixCampaign, it.CampaignID),
		Status: it.Status, StatusReason: orNull(it.StatusReason), StatusDetail: orNull(it.StatusDetail),
		Experiment: showExperiment(it.Experiment), Assignment: showAssignmentPlan(it.Plan()), StartedAt: utc(it.StartedAt),
		CutOffAt: utc(it.CutOffAt), DecidedBy: orNull(it.DecidedBy), DecidedAt: utc(it.DecidedAt), Verdict: it.Verdict,
		CreatedAt: it.CreatedAt.UTC(),
		Allowed:   each(it.Allowed, asIs),
		Stopped:   stoppedOf(it),
		Warnings:  each(it.Warnings(events, results), asIs),
		Timeline:  each(events, showTimeline)}
	b.Winner = winnerOf(it)
	return b, nil
}

// winnerOf is the name of the variant that is rolled out, nil without a decision.
func winnerOf(it campaigns.Iteration) *string {
	if it.Winner == nil {
		return nil
	}
	return &it.Variants[*it.Winner].Name
}

func showTimeline(e campaigns.IterationEvent) client.IterationEvent {
	return client.IterationEvent{At: e.At.UTC(), Event: e.Event, Detail: e.Detail}
}

func showAssignmentPlan(p abtest.Plan) client.AssignmentPlan {
	two := func(s abtest.Split) client.PercentSplit {
		ends := s.Thresholds()
		return client.PercentSplit{Salt: s.Salt(), Buckets: ends[1], Below: ends[0]}
	}
	ends := p.Variant.Thresholds()
	return client.AssignmentPlan{Function: abtest.Function, Holdout: two(p.Holdout), Sample: two(p.Sample),
		Variant: client.VariantSplit{Salt: p.Variant.Salt(), Buckets: ends[len(ends)-1], Thresholds: ends}}
}

func showIterationSummary(it campaigns.Iteration) client.IterationSummary {
	return client.IterationSummary{ID: lemma.FormatID(lemma.PrefixIteration, it.ID),
		CampaignID: lemma.FormatID(lemma.PrefixCampaign, it.CampaignID), Status: string(it.Status), StatusReason: orNull(it.StatusReason),
		StatusDetail: orNull(it.StatusDetail), CreatedAt: it.CreatedAt.UTC(), StartedAt: utc(it.StartedAt), CutOffAt: utc(it.CutOffAt),
		Winner: winnerOf(it), DecidedBy: orNull(it.DecidedBy), DecidedAt: utc(it.DecidedAt), Allowed: each(it.Allowed, asIs)}
}

func (s *server) listIterations(ctx context.Context, c *call, _ none) (list[client.IterationSummary], error) {
	campaign, ok := c.filterID("campaign_id", lemma.PrefixCampaign)
	if !ok {
		return nothing[client.IterationSummary](), nil
	}
	found, next, err := s.Campaigns.ListIterations(ctx, c.workspace(), campaign, c.page())
	return listOf(found, next, err, showIterationSummary)
}

func (s *server) getIteration(ctx context.Context, c *call, _ none) (iterationBody, error) {
	it, err := s.Campaigns.GetIteration(ctx, c.workspace(), c.id)
	return s.showIteration(ctx, it, err)
}

type winnerChoice struct {
	Variant string `json:"variant"`
}

func (s *server) selectWinner(ctx context.Context, c *call, in winnerChoice) (iterationBody, error) {
	it, err := s.Campaigns.SelectWinner(ctx, c.workspace(), c.id, in.Variant, c.newID)
	return s.showIteration(ctx, it, err)
}

func (s *server) stopIteration(ctx context.Context, c *call, _ none) (iterationBody, error) {
	it, err := s.Campaigns.StopIteration(ctx, c.workspace(), c.id, c.newID)
	return s.showIteration(ctx, it, err)
}

type extension struct {
	Until time.Time `json:"until"`
}

func (s *server) extendIteration(ctx context.Context, c *call, in extension) (iterationBody, error) {
	it, err := s.Campaigns.Extend(ctx, c.workspace(), c.id, in.Until, c.newID)
	return s.showIteration(ctx, it, err)
}

func showAssignment(profile string, a campaigns.Assigned) client.Assignment {
	return client.Assignment{ProfileKey: profile, Group: string(a.Group), Variant: orNull(a.VariantName), HoldoutBucket: a.HoldoutBucket,
		SampleBucket: a.SampleBucket, VariantBucket: a.VariantBucket, Detail: a.Sentence}
}

func (s *server) readAssignment(ctx context.Context, c *call, _ none) (client.Assignment, error) {
	profile := c.query("profile_key")
	a, err := s.Campaigns.Assignment(ctx, c.workspace(), c.id, profile, c.query("address"))
	return showAssignment(profile, a), err
}

func (s *server) readResults(ctx context.Context, c *call, _ none) (client.IterationResults, error) {
	it, err := s.Campaigns.GetIteration(ctx, c.workspace(), c.id)
	if err != nil {
		return client.IterationResults{}, err
	}
	all, err := s.Campaigns.Results(ctx, c.workspace(), c.id)
	if err != nil {
		return client.IterationResults{}, err
	}
	present, err := s.Campaigns.Present(ctx, it)
	if err != nil {
		return client.IterationResults{}, err
	}
	all = append(all, present...)
	b := client.IterationResults{Status: string(it.Status), CutOffAt: utc(it.CutOffAt), Winner: winnerOf(it),
		Series: []client.VariantSeries{}}
	if it.Verdict != nil {
		b.Sentence = &it.Verdict.Sentence
	}
	for i, v := range it.Variants {
		b.Series = append(b.Series, client.VariantSeries{Variant: &v.Name, StoppedReason: orNull(v.StoppedReason),
			Points: pointsOf(all, i, it.Confidence)})
	}
	if it.HoldoutPercent > 0 {
		b.Series = append(b.Series, client.VariantSeries{Points: pointsOf(all, -1, it.Confidence)})
	}
	return b, nil
}

func pointsOf(all []campaigns.Tally, ordinal int, confidence float64) []client.VariantPoint {
	points := []client.VariantPoint{}
	for _, t := range all {
		if t.Ordinal != ordinal {
			continue
		}
		p := client.VariantPoint{At: t.At.UTC(), Recipients: t.Recipients, Sent: t.Sent, Failed: t.Failed, Skipped: t.Skipped,
			Delivered: t.Delivered, Opens: t.Opens, Clicks: t.Clicks, Unsubscribes: t.Unsubscribes, Complaints: t.Complaints,
			Converted: t.Converted, Excluded: t.Excluded}
		if t.Converted != nil && t.Recipients > 0 {
			n := abtest.Count{Recipients: t.Recipients, Converted: *t.Converted}
			rate, interval := n.Rate(), n.Wilson(confidence)
			p.Rate, p.Interval = &rate, (*client.RateInterval)(&interval)
		}
		points = append(points, p)
	}
	return points
}
