package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/campaigns"
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

// fanoutVariants measures fan-outs of campaigns without an experiment and with 4 variants,
// alternately, so that both have the same tables and the same other load. It compares their CPU
// time: the ratio is the median of the rounds.
func (b *benchmarks) fanoutVariants(ctx context.Context, e *env, print func(figure) error) error {
	const rounds = 12 // an even number: each kind is as often the first of its round
	n := b.n(1_200_000) / rounds
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
	m, err := process.materials(ctx, e, n, "null", []byte(`{}`), nil)
	if err != nil {
		return err
	}
	tests, sums, cpu := []*campaigns.Experiment{nil, fourVariants()}, make([]figure, 2), make([][]float64, 2)
	for run := -2; run < 2*rounds; run++ { // the first two fill caches
		kind := (run>>1 + run) & 1
		one, err := process.writeCampaign(ctx, e, m, n, tests[kind])
		if err != nil {
			return err
		}
		if run >= 0 {
			sums[kind].add(one, rounds)
			cpu[kind] = append(cpu[kind], one.CPUUsLemma+one.CPUUsPostgres)
		}
	}
	ratios := make([]float64, rounds)
	for i := range ratios {
		ratios[i] = cpu[1][i] / cpu[0][i]
	}
	slices.Sort(ratios)
	plain, variants := sums[0], sums[1]
	plain.Name, variants.Name = "fanout_plain", "fanout_variants"
	plain.PerSecond, variants.PerSecond = round(float64(plain.N)/plain.Seconds), round(float64(variants.N)/variants.Seconds)
	variants.Ratio = round((ratios[rounds/2-1] + ratios[rounds/2]) / 2)
	variants.Against = "fanout_plain, cpu"
	return errors.Join(print(plain), print(variants))
}

// writeCampaign measures the fan-out of a new campaign to n profiles.
func (b *instance) writeCampaign(ctx context.Context, e *env, m materials, n int, test *campaigns.Experiment) (f figure, err error) {
	c, err := b.started(ctx, m, test)
	if err != nil {
		return f, err
	}
	meter := startMeter(e.postmaster())
	_, err = b.Campaigns.Fanout(ctx, b.workspace, c.ID)
	f = meter.stop("fanout", n)
	f.Missing = n - e.count(ctx, b, c.ID)
	return f, err
}

// started is a new campaign whose audience is not read yet.
func (b *instance) started(ctx context.Context, m materials, test *campaigns.Experiment) (c campaigns.Campaign, err error) {
	c, err = b.Campaigns.Create(ctx, b.workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "test", AudienceID: m.audience,
		TemplateID: m.template, ProviderID: m.provider, FromName: "Shop", FromEmail: "news@shop.example", Experiment: test})
	if err != nil {
		return c, err
	}
	return b.Campaigns.Send(ctx, b.workspace, c.ID, uuid.Nil)
}

func fourVariants() *campaigns.Experiment {
	test := &campaigns.Experiment{SamplePercent: 100, Metric: &campaigns.Metric{Event: "bought"}, Duration: 24 * time.Hour}
	for i := range 4 {
		test.Variants = append(test.Variants, campaigns.Variant{Name: fmt.Sprint("V", i), Weight: 25})
	}
	return test
}

// evaluate measures the evaluation of an experiment with 5 million notifications by 2
// million events, while its sample is being sent: 1 % was sent before.
func (b *benchmarks) evaluate(ctx context.Context, e *env, print func(figure) error) error {
	n, events := b.n(5_000_000), b.n(2_000_000)
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
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
	for e.null.received() < n/100 && ctx.Err() == nil {
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
	c, err := b.started(ctx, m, fourVariants())
	if err != nil {
		return iteration, err
	}
	_, err = b.Campaigns.Fanout(ctx, b.workspace, c.ID)
	return *c.IterationID, err
}
