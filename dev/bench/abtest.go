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

// fanoutVariants measures fan-outs with 4 variants against fan-outs without. They take
// turns, so that both meet the same tables and the same other load.
func (e *env) fanoutVariants(ctx context.Context, b *instance, n, writers int) (sum figure, err error) {
	const rounds = 10
	without := 0.0
	for range rounds {
		one, err := e.writeAll(ctx, b, lemma.NewID(), plain, 1, n/rounds, writers)
		if err != nil {
			return sum, err
		}
		without += one.Seconds
		other, err := e.writeAll(ctx, b, lemma.NewID(), variantsOf, 1, n/rounds, writers)
		if err != nil {
			return sum, err
		}
		sum.add(other, rounds)
	}
	sum.Name, sum.PerSecond = "fanout_variants", round(float64(sum.N)/sum.Seconds)
	sum.Ratio, sum.Against = round(sum.Seconds/without), "without variants, seconds"
	return sum, nil
}

var benchVariants = []uuid.UUID{lemma.NewID(), lemma.NewID(), lemma.NewID(), lemma.NewID()}

// evaluate measures the evaluation of an experiment with 5 million notifications by 2
// million events, while its sample is being sent.
func (b *benchmarks) evaluate(ctx context.Context, e *env, print func(figure) error) error {
	n, events := b.n(5_000_000), b.n(2_000_000)
	process, err := e.fresh(ctx, []sender.Kind{e.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = e.drop(context.WithoutCancel(ctx), process) }()
	it, err := process.sampled(ctx, e, n)
	if err != nil {
		return err
	}
	if err := process.Flows.Intake.SeedEvents(ctx, process.workspace, "bought", events, time.Hour); err != nil {
		return err
	}
	if _, err = process.Pool.Exec(ctx, `vacuum analyze`); err != nil {
		return err
	}
	e.null.reset(n)
	if err := process.StartWorkers(ctx); err != nil { // they send the sample; the iteration is not due
		return err
	}
	for e.null.received() == 0 && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if err := process.Campaigns.SeedCutOff(ctx, process.workspace, it, 75*time.Minute, time.Minute); err != nil {
		return err
	}
	m, before := startMeter(e.postmaster()), e.null.received()
	var result campaigns.Iteration
	err = process.Campaigns.Evaluate(ctx, process.workspace, it)
	for err == nil && ctx.Err() == nil { // a loop of the process may have claimed it
		if result, err = process.Campaigns.GetIteration(ctx, process.workspace, it); err != nil || result.Verdict != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	f := m.stop("evaluate", events)
	f.Meanwhile = e.null.received() - before
	for _, v := range result.Verdict.Variants {
		n -= int(v.Recipients)
		events -= int(v.Converted)
	}
	f.Missing, f.Duplicates = n, events
	return print(f)
}

// sampled writes the notifications of an experiment with 4 variants.
func (b *instance) sampled(ctx context.Context, e *env, n int) (iteration uuid.UUID, err error) {
	m, err := b.materials(ctx, e, n, "null", []byte(`{}`), nil)
	if err != nil {
		return iteration, err
	}
	test := &campaigns.Experiment{SamplePercent: 100, Metric: &campaigns.Metric{Event: "bought"}, Duration: 24 * time.Hour}
	for i := range 4 {
		test.Variants = append(test.Variants, campaigns.Variant{Name: fmt.Sprint("V", i), Weight: 25})
	}
	c, err := b.Campaigns.Create(ctx, b.workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "test", AudienceID: m.audience,
		TemplateID: m.template, ProviderID: m.provider, FromName: "Shop", FromEmail: "news@shop.example", Experiment: test})
	if err != nil {
		return iteration, err
	}
	if _, err := b.Campaigns.Send(ctx, b.workspace, c.ID, uuid.Nil); err != nil {
		return iteration, err
	}
	_, err = b.Campaigns.Fanout(ctx, b.workspace, c.ID)
	return *c.IterationID, err
}
