package campaigns

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/message"
)

// engage records when the notifications of profiles were first opened or clicked: column
// is that of the time, offset is from the cut-off.
func (b *bundle) engage(it Iteration, profiles []string, column, offset string) {
	b.T.Helper()
	b.Exec(`insert into engagements (workspace_id, origin_id, key, content_id, opens, clicks, `+column+`)
		select n.workspace_id, n.origin_id, n.key, b.content_id, 0, 0, i.cut_off_at + $3::text::interval
		from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
		join iterations i on i.id = $1
		where n.workspace_id = $4 and n.origin_id = i.campaign_id and n.profile_key = any($2)
		on conflict (workspace_id, origin_id, key) do update set `+column+` = excluded.`+column, it.ID, profiles, offset, b.Workspace)
}

// An experiment has the links of its variants alone: no message has the campaign's own content.
func TestLinksOfAnExperimentAreOfItsVariants(t *testing.T) {
	b := experiments(t, 10)
	b.Template = b.NewTemplate(message.Content{Subject: "Hi", HTML: `<p>Hi {{ name }} <a href="https://shop.example">Shop</a></p>`})
	c, _ := b.sampled(ab())
	links, err := b.Links(t.Context(), b.Workspace, c.ID)
	b.Must(err)
	want := []Link{{Variant: "A", URL: "https://shop.example"}, {Variant: "B", URL: "https://shop.example"}}
	if d := cmp.Diff(want, links); d != "" {
		t.Error(d)
	}
}

// The metrics of package tracking count what people did before the cut-off. What only
// machines did is excluded, and its number is stored with the verdict.
func TestUniqueOpensAndClicks(t *testing.T) {
	for metric, column := range map[MetricType]string{UniqueOpens: "opened_at", UniqueClicks: "clicked_at"} {
		t.Run(string(metric), func(t *testing.T) {
			b := experiments(t, 600)
			b.Template = b.NewTemplate(message.Content{Subject: "Hi", HTML: `<p>Hi {{ name }} <a href="https://shop.example">Shop</a></p>`})
			c, it := b.sampled(ab(func(e *Experiment) {
				e.Metric, e.HoldoutPercent = &Metric{Type: metric}, 10
			}))
			first, second, out := b.members(it, 600, 0), b.members(it, 600, 1), b.members(it, 600, holdout)
			b.endTest(it)
			b.engage(it, first[:20], column, "-1 second")
			b.engage(it, second[:80], column, "-1 second")
			b.engage(it, first[20:90], column, "0 seconds")              // after the cut-off
			b.engage(it, first[20:60], "machine_"+column, "-1 second")   // by machines before it
			b.engage(it, second[:10], "machine_"+column, "-1 minute")    // by machines and people
			b.engage(it, second[80:90], "machine_"+column, "10 seconds") // by machines after it
			b.evaluate()
			b.decidedOnce(c, 1)
			v := b.iteration(c).Verdict
			if v.Variants[0].Converted != 20 || v.Variants[1].Converted != 80 || v.Variants[0].Recipients != int64(len(first)) {
				t.Errorf("%+v", v.Variants)
			}
			name := map[MetricType]string{UniqueOpens: "machine_opens", UniqueClicks: "machine_clicks"}[metric]
			if d := cmp.Diff(map[string]int64{name: 40}, v.Excluded); d != "" || v.Variants[0].Excluded != 40 || v.Variants[1].Excluded != 0 {
				t.Errorf("%s %+v", d, v.Variants)
			}
			if v.HoldoutCount != int64(len(out)) || v.HoldoutConvert != 0 || !strings.Contains(v.Sentence, it.Metric.did()) {
				t.Errorf("%+v", v)
			}
			results, err := b.Results(context.Background(), b.Workspace, it.ID)
			if err != nil || len(results) != 3 || results[1].Excluded != 40 || *results[2].Converted != 80 {
				t.Errorf("%v %+v", err, results)
			}
		})
	}
}

// Requests that came before the cut-off and are not applied yet must count.
func TestAnEvaluationWaitsForQueuedOpens(t *testing.T) {
	b := experiments(t, 40)
	c, it := b.sampled(ab(func(e *Experiment) { e.Metric = &Metric{Type: UniqueOpens} }))
	b.endTest(it)
	queue := func(offset string) {
		b.Exec(`insert into tracking_queue (workspace_id, id, origin_id, key, type, occurred_at)
			select workspace_id, gen_random_uuid(), campaign_id, gen_random_uuid(), 'opened', cut_off_at + $2::text::interval
			from iterations where id = $1`, it.ID, offset)
	}
	queue("-1 second")
	queue("1 second")
	b.evaluate()
	if got := b.iteration(c).Status; got != IterationRunning {
		t.Errorf("with opens in the queue it is %s", got)
	}
	b.Exec(`delete from tracking_queue using iterations where origin_id = campaign_id and occurred_at < cut_off_at`)
	b.evaluate()
	if got := b.iteration(c); got.Status != IterationInconclusive || got.Verdict == nil {
		t.Errorf("afterwards it is %s", got.Status)
	}
}

// A send refuses a metric that a variant cannot have.
func TestAMetricThatIsNotTracked(t *testing.T) {
	b := experiments(t, 40)
	off := false
	b.Template = b.NewTemplate(message.Content{Subject: "Hi", HTML: `<p>Hi <a href="https://shop.example">Shop</a></p>`})
	plain := b.NewTemplate(message.Content{Subject: "Hi", HTML: `<p>Hi <a href="https://shop.example">Shop</a></p>`,
		TrackOpens: message.ChoiceOf(&off), TrackClicks: message.ChoiceOf(&off)})
	linkless := b.NewTemplate(message.Content{Subject: "Hi", HTML: `<p>Hi</p>`})
	text := b.NewTemplate(message.Content{Subject: "Hi", Text: `Hi`})
	for _, c := range []struct {
		name      string
		metric    MetricType
		template  uuid.UUID
		publicURL string
		mentioned string
	}{
		{"opens that a template does not track", UniqueOpens, plain, message.SampleHost, "variant B tracks no opens"},
		{"opens of plain text", UniqueOpens, text, message.SampleHost, "variant B tracks no opens"},
		{"clicks that a template does not track", UniqueClicks, plain, message.SampleHost, "variant B tracks no clicks"},
		{"clicks without a link", UniqueClicks, linkless, message.SampleHost, "variant B has no link"},
		{"no public URL", UniqueOpens, linkless, "", "no public URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			cfg := b.cfg
			cfg.PublicURL = func() string { return c.publicURL }
			sut := New(b.deps, cfg)
			e := ab(func(e *Experiment) { e.Metric, e.Variants[1].TemplateID = &Metric{Type: c.metric}, &c.template })
			made, err := sut.Create(ctx, b.Workspace, NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience, TemplateID: b.Template,
				ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example", Experiment: e,
				Headers: map[string]string{"List-Unsubscribe": "<mailto:out@shop.example>"}})
			b.Must(err)
			_, err = sut.Send(ctx, b.Workspace, made.ID, uuid.Nil)
			checkFault(t, err, "/experiment/metric/type", "not_tracked", c.mentioned)
		})
	}
}

// checkFault checks an error with one field.
func checkFault(t *testing.T, err error, pointer, code, detail string) {
	t.Helper()
	var e *lemma.Error
	if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Pointer != pointer || e.Fields[0].Code != code ||
		!strings.Contains(e.Fields[0].Detail, detail) {
		t.Errorf("%+v, want %s at %s: %s", err, code, pointer, detail)
	}
}
