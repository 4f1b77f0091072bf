package api

import (
	"context"
	"time"

	"lemma"
	"lemma/abtest"
	"lemma/campaigns"
)

type iterationBody struct {
	ID           string                    `json:"id"`
	CampaignID   string                    `json:"campaign_id"`
	Status       campaigns.IterationStatus `json:"status"`
	StatusReason *string                   `json:"status_reason"`
	StatusDetail *string                   `json:"status_detail"`
	Experiment   experimentBody            `json:"experiment"`
	Assignment   assignmentPlan            `json:"assignment"`
	StartedAt    *time.Time                `json:"started_at"`
	CutOffAt     *time.Time                `json:"cut_off_at"`
	Winner       *string                   `json:"winner"`
	DecidedBy    *string                   `json:"decided_by"`
	DecidedAt    *time.Time                `json:"decided_at"`
	Verdict      *campaigns.Verdict        `json:"verdict"`
	Stopped      []stoppedBody             `json:"stopped_variants"`
	Warnings     []string                  `json:"warnings"`
	Timeline     []timelineBody            `json:"timeline"`
	Allowed      []string                  `json:"allowed_actions"`
}

func (b iterationBody) location() string { return "/v1/iterations/" + b.ID }

type assignmentPlan struct {
	Function string      `json:"function"`
	Holdout  splitBody   `json:"holdout"`
	Sample   splitBody   `json:"sample"`
	Variant  variantPlan `json:"variant"`
}

// splitBody is a split in two: profiles with a bucket below the threshold are in it.
type splitBody struct {
	Salt    string `json:"salt"`
	Buckets uint64 `json:"buckets"`
	Below   uint64 `json:"below"`
}

type variantPlan struct {
	Salt       string   `json:"salt"`
	Buckets    uint64   `json:"buckets"`
	Thresholds []uint64 `json:"thresholds"`
}

// stoppedBody is a variant that the guardrail stopped.
type stoppedBody struct {
	Variant string    `json:"variant"`
	At      time.Time `json:"at"`
	Reason  string    `json:"reason"`
}

func stoppedOf(it campaigns.Iteration) []stoppedBody {
	all := []stoppedBody{}
	for _, v := range it.Variants {
		if v.StoppedAt != nil {
			all = append(all, stoppedBody{v.Name, v.StoppedAt.UTC(), v.StoppedReason})
		}
	}
	return all
}

type timelineBody struct {
	At     time.Time `json:"at"`
	Event  string    `json:"event"`
	Detail string    `json:"detail"`
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
		Allowed:  each(it.Allowed, asIs),
		Stopped:  stoppedOf(it),
		Warnings: each(it.Warnings(events, results), asIs),
		Timeline: each(events, func(e campaigns.IterationEvent) timelineBody { return timelineBody{e.At.UTC(), e.Event, e.Detail} })}
	if it.Winner != nil {
		b.Winner = &it.Variants[*it.Winner].Name
	}
	return b, nil
}

func showAssignmentPlan(p abtest.Plan) assignmentPlan {
	two := func(s abtest.Split) splitBody {
		ends := s.Thresholds()
		return splitBody{Salt: s.Salt(), Buckets: ends[1], Below: ends[0]}
	}
	ends := p.Variant.Thresholds()
	return assignmentPlan{Function: abtest.Function, Holdout: two(p.Holdout), Sample: two(p.Sample),
		Variant: variantPlan{Salt: p.Variant.Salt(), Buckets: ends[len(ends)-1], Thresholds: ends}}
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

type assignmentBody struct {
	ProfileKey    string       `json:"profile_key"`
	Group         abtest.Group `json:"group"`
	Variant       *string      `json:"variant"`
	HoldoutBucket uint64       `json:"holdout_bucket"`
	SampleBucket  uint64       `json:"sample_bucket"`
	VariantBucket uint64       `json:"variant_bucket"`
	Detail        string       `json:"detail"`
}

func showAssignment(profile string, a campaigns.Assigned) assignmentBody {
	return assignmentBody{profile, a.Group, orNull(a.VariantName), a.HoldoutBucket, a.SampleBucket, a.VariantBucket, a.Sentence}
}

func (s *server) readAssignment(ctx context.Context, c *call, _ none) (assignmentBody, error) {
	profile := c.query("profile_key")
	a, err := s.Campaigns.Assignment(ctx, c.workspace(), c.id, profile, c.query("address"))
	return showAssignment(profile, a), err
}

type resultsBody struct {
	Status   campaigns.IterationStatus `json:"status"`
	Winner   *string                   `json:"winner"`
	CutOffAt *time.Time                `json:"cut_off_at"`
	Sentence *string                   `json:"sentence"`
	Series   []seriesBody              `json:"series"`
}

// seriesBody are the numbers of one variant over time, cumulative.
type seriesBody struct {
	Variant *string     `json:"variant"`        // null: the holdout
	Stopped *string     `json:"stopped_reason"` // null: it competes
	Points  []pointBody `json:"points"`
}

type pointBody struct {
	At         time.Time        `json:"at"`
	Recipients int64            `json:"recipients"`
	Sent       int64            `json:"sent"`
	Failed     int64            `json:"failed"`
	Skipped    int64            `json:"skipped"`
	Delivered  int64            `json:"delivered"`
	Opens      int64            `json:"unique_opens"`
	Clicks     int64            `json:"unique_clicks"`
	Unsubs     int64            `json:"unsubscribes"`
	Complaints int64            `json:"complaints"`
	Converted  *int64           `json:"converted"`
	Excluded   int64            `json:"excluded"`
	Rate       *float64         `json:"rate"`
	Interval   *abtest.Interval `json:"interval"`
}

func (s *server) readResults(ctx context.Context, c *call, _ none) (resultsBody, error) {
	it, err := s.Campaigns.GetIteration(ctx, c.workspace(), c.id)
	if err != nil {
		return resultsBody{}, err
	}
	all, err := s.Campaigns.Results(ctx, c.workspace(), c.id)
	if err != nil {
		return resultsBody{}, err
	}
	present, err := s.Campaigns.Present(ctx, it)
	if err != nil {
		return resultsBody{}, err
	}
	all = append(all, present...)
	b := resultsBody{Status: it.Status, CutOffAt: utc(it.CutOffAt), Series: []seriesBody{}}
	if it.Winner != nil {
		b.Winner = &it.Variants[*it.Winner].Name
	}
	if it.Verdict != nil {
		b.Sentence = &it.Verdict.Sentence
	}
	for i, v := range it.Variants {
		b.Series = append(b.Series, seriesBody{&v.Name, orNull(v.StoppedReason), pointsOf(all, i, it.Confidence)})
	}
	if it.HoldoutPercent > 0 {
		b.Series = append(b.Series, seriesBody{nil, nil, pointsOf(all, -1, it.Confidence)})
	}
	return b, nil
}

func pointsOf(all []campaigns.Tally, ordinal int, confidence float64) []pointBody {
	points := []pointBody{}
	for _, t := range all {
		if t.Ordinal != ordinal {
			continue
		}
		p := pointBody{At: t.At.UTC(), Recipients: t.Recipients, Sent: t.Sent, Failed: t.Failed, Skipped: t.Skipped,
			Delivered: t.Delivered, Opens: t.Opens, Clicks: t.Clicks, Unsubs: t.Unsubscribes, Complaints: t.Complaints,
			Converted: t.Converted, Excluded: t.Excluded}
		if t.Converted != nil && t.Recipients > 0 {
			n := abtest.Count{Recipients: t.Recipients, Converted: *t.Converted}
			rate, interval := n.Rate(), n.Wilson(confidence)
			p.Rate, p.Interval = &rate, &interval
		}
		points = append(points, p)
	}
	return points
}
