package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/campaigns"
	"lemma/notifications"
	"lemma/sender"
)

// assign measures assignments of a profile to a variant on one core.
func (b *benchmarks) assign(_ context.Context, e *env, print func(figure) error) error {
	n, wrong := b.n(20_000_000), 0
	split := abtest.NewSplit("itr_068v3k3p6nrkx8h2j4m6p8r0t2/variant", 40, 30, 20, 10)
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = "customer-" + strconv.Itoa(1_000_000_000+i)
	}
	m := startMeter(e.postmaster())
	for i := range n {
		if split.Arm(keys[i%len(keys)]) > 3 {
			wrong++
		}
	}
	f := m.stop("assign", n)
	f.Missing = wrong
	return print(f)
}

// variantsOf is a chunk of an experiment with 4 variants: the assignment of its
// recipients, and what a fan-out adds.
func variantsOf(c notifications.Chunk) notifications.Chunk {
	plan := abtest.NewPlan(c.OriginID.String(), []int{25, 25, 25, 25}, 100, 0)
	for i := range 4 {
		c.Variants = append(c.Variants, notifications.Variant{ContentID: benchVariants[i], Ordinal: i})
	}
	for i := range c.Recipients {
		_, c.Recipients[i].Variant = plan.Deal(c.Recipients[i].ProfileKey)
	}
	c.Fingerprint = abtest.NewSplit(c.OriginID.String()).Hash
	return c
}

var benchVariants = []uuid.UUID{lemma.NewID(), lemma.NewID(), lemma.NewID(), lemma.NewID()}

// evaluate measures the evaluation of an experiment with 5 million notifications by 2
// million events, while a campaign is being sent.
func (b *benchmarks) evaluate(ctx context.Context, e *env, print func(figure) error) error {
	n, events := b.n(5_000_000), b.n(2_000_000)
	process, err := e.fresh(ctx, []sender.Kind{e.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = e.drop(context.WithoutCancel(ctx), process) }()
	it, beside, err := process.sampled(ctx, e, n, events)
	if err != nil {
		return err
	}
	e.null.reset(n)
	if _, err := process.Campaigns.Send(ctx, process.workspace, beside, uuid.Nil); err != nil {
		return err
	}
	if err := process.StartWorkers(ctx); err != nil { // they evaluate nothing: the iteration is not due
		return err
	}
	for e.null.received() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	_, err = process.Pool.Exec(ctx, `update iterations set started_at = now() - interval '2 hours', cut_off_at = now() - interval '1 minute'
		where id = $1`, it)
	if err != nil {
		return err
	}
	m := startMeter(e.postmaster())
	var result campaigns.Iteration
	for result.Verdict == nil && err == nil && ctx.Err() == nil { // a loop of the process may have claimed it
		if err = process.Campaigns.Evaluate(ctx, process.workspace, it); err == nil {
			result, err = process.Campaigns.GetIteration(ctx, process.workspace, it)
		}
	}
	if err != nil {
		return err
	}
	f := m.stop("evaluate", events)
	for _, v := range result.Verdict.Variants {
		n -= int(v.Recipients)
		events -= int(v.Converted)
	}
	f.Missing, f.Duplicates = n, events
	return print(f)
}

// sampled writes the notifications of an experiment with 4 variants, and the events of
// its recipients, and makes a campaign to send beside.
func (b *instance) sampled(ctx context.Context, e *env, n, events int) (iteration, beside uuid.UUID, err error) {
	m, err := b.materials(ctx, e, n, "null", []byte(`{}`), nil)
	if err != nil {
		return iteration, beside, err
	}
	test := &campaigns.Experiment{SamplePercent: 100, Metric: &campaigns.Metric{Event: "bought"}, Duration: 24 * time.Hour}
	for i := range 4 {
		test.Variants = append(test.Variants, campaigns.Variant{Name: fmt.Sprint("V", i), Weight: 25})
	}
	c, err := b.Campaigns.Create(ctx, b.workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "test", AudienceID: m.audience,
		TemplateID: m.template, ProviderID: m.provider, FromName: "Shop", FromEmail: "news@shop.example", Experiment: test})
	if err != nil {
		return iteration, beside, err
	}
	if _, err := b.Campaigns.Send(ctx, b.workspace, c.ID, uuid.Nil); err != nil {
		return iteration, beside, err
	}
	if _, err := b.Campaigns.Fanout(ctx, b.workspace, c.ID); err != nil {
		return iteration, beside, err
	}
	_, err = b.Pool.Exec(ctx, `
		insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), n.profile_key, 'bought', now() - interval '1 hour', now() - interval '1 hour'
		from notifications n where n.workspace_id = $1 and n.origin_id = $2 limit $3`, b.workspace, c.ID, events)
	if err != nil {
		return iteration, beside, err
	}
	_, err = b.Pool.Exec(ctx, `update batches set status = 'done', sent = size, finished_at = now() where origin_id = $1`, c.ID)
	if err != nil {
		return iteration, beside, err
	}
	_, err = b.Pool.Exec(ctx, `vacuum analyze`)
	if err != nil {
		return iteration, beside, err
	}
	other, err := b.Campaigns.Create(ctx, b.workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "beside", AudienceID: m.audience,
		TemplateID: m.template, ProviderID: m.provider, FromName: "Shop", FromEmail: "news@shop.example"})
	return *c.IterationID, other.ID, err
}
