package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"lemma"
)

// experimentWith is a valid experiment with changes.
func experimentWith(change object) object {
	e := object{"variants": []object{{"name": "A", "weight": 50}, {"name": "B", "weight": 50, "subject": "Look, {{ name }}",
		"preheader": "New", "from_name": "Ada"}},
		"metric": object{"event": "bought"}, "duration": "P1D", "sample_percent": 50, "min_sample": 1}
	for name, value := range change {
		e[name] = value
		if value == nil {
			delete(e, name)
		}
	}
	return e
}

// checkIterations uses the experiments of campaigns, with the answers that the contract
// lists.
func (b *bundle) checkIterations(w world) {
	b.T.Helper()
	made := b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(nil)})).is(201)
	path := "/v1/iterations/" + made.text("iteration_id")
	b.checkVariantPreview("/v1/campaigns/" + made.id())
	got := b.do("GET", path, nil).is(200)
	if got.text("status") != "draft" || got.text("campaign_id") != made.id() {
		b.T.Errorf("%s", got.body)
	}
	b.do("GET", "/v1/iterations/itr_none", nil).is(404)
	b.do("POST", path+"/stop", nil).is(409)
	b.do("POST", "/v1/campaigns/"+made.id()+"/send", nil).is(202)
	b.do("POST", path+"/select_winner", object{"variant": "A"}).is(409)
	campaign, _ := lemma.ParseID(lemma.PrefixCampaign, made.id())
	_, err := b.deps.Campaigns.Fanout(context.Background(), b.Workspace, campaign)
	b.Must(err)
	_, err = b.deps.Campaigns.MeasureDue(context.Background())
	b.Must(err)
	if got := b.do("GET", path+"/results", nil).is(200); len(got.json["series"].([]any)) != 2 {
		b.T.Errorf("%s", got.body)
	}
	if got := b.do("GET", path+"/assignment?profile_key=c1", nil).is(200); got.text("detail") == "" {
		b.T.Errorf("%s", got.body)
	}
	b.do("GET", path+"/assignment", nil).is(400)
	b.do("GET", path+"/assignment?profile_key=c1&address=ada@shop.example", nil).is(200)
	b.do("POST", path+"/extend", object{"until": "2020-01-01T00:00:00Z"}).fault(422, "/until", "out_of_range")
	later := time.Now().Add(48 * time.Hour).UTC().Format(time.RFC3339)
	b.do("POST", path+"/extend", object{"until": later}).is(202)
	b.do("POST", path+"/select_winner", object{"variant": "C"}).fault(422, "/variant", "unknown_variant")
	again := header("Idempotency-Key", "winner-1")
	b.do("POST", path+"/select_winner", object{"variant": "B"}, again).is(202)
	if got := b.do("POST", path+"/select_winner", object{"variant": "B"}, again).is(202); got.text("winner") != "B" ||
		got.text("decided_by") != "person" {
		b.T.Errorf("%s", got.body)
	}
	b.do("POST", path+"/stop", nil).is(409)
	b.do("POST", path+"/extend", object{"until": "2126-01-01T00:00:00Z"}).is(409)
	b.checkStop(w)
	for query, want := range map[string]int{"?campaign_id=" + made.id(): 1, "?campaign_id=cmp_none": 0,
		"?status=draft&campaign_id=" + made.id(): 0,
		"?status=inconclusive":                   0} {
		if got := b.do("GET", "/v1/iterations"+query, nil).is(200); len(got.json["data"].([]any)) != want {
			b.T.Errorf("%s: %s", query, got.body)
		}
	}
}

// checkExplainedVariant reads which bucket led to which variant, from an explanation.
func (b *bundle) checkExplainedVariant(campaign string) {
	b.T.Helper()
	sent := b.do("GET", "/v1/notifications?campaign_id="+campaign+"&status=pending", nil).is(200).json["data"].([]any)
	for _, one := range sent {
		got := b.do("GET", "/v1/notifications/"+one.(object)["id"].(string)+"/explain", nil).is(200)
		a, ok := got.json["assignment"].(object)
		if !ok || a["group"] != "sample" || !strings.Contains(a["detail"].(string), "leads to variant "+a["variant"].(string)) {
			b.T.Errorf("%s", got.body)
		}
	}
	if len(sent) == 0 {
		b.T.Error("the sample is empty")
	}
}

// checkVariantPreview renders the variants of a campaign by a dry run and by a preview.
func (b *bundle) checkVariantPreview(campaign string) {
	b.T.Helper()
	got := b.do("POST", campaign+"/send?dry_run=true", nil).is(200)
	variants, warnings := got.json["variants"].([]any), got.json["warnings"].([]any)
	if len(variants) != 2 || len(warnings) != 2 || !strings.Contains(warnings[1].(string), "a chance of 80 % needs 8158") {
		b.T.Fatalf("%s", got.body)
	}
	subjectOf := func(rows any) string {
		return rows.(object)["sample"].([]any)[0].(object)["subject"].(string)
	}
	if a, c := subjectOf(variants[0]), subjectOf(variants[1]); a == c || !strings.HasPrefix(c, "Look, ") ||
		variants[1].(object)["rendered"] != 2.0 {
		b.T.Errorf("%s and %s: %s", a, c, got.body)
	}
	one := b.do("GET", campaign+"/preview?variant=B", nil).is(200)
	if !strings.HasPrefix(subjectOf(one.json), "Look, ") || len(one.json["variants"].([]any)) != 0 {
		b.T.Errorf("%s", one.body)
	}
	b.do("GET", campaign+"/preview?variant=C", nil).fault(400, "?variant", "unknown_variant")
}

// A dry run has the fault that a send has.
func TestADryRunOfAnExperiment(t *testing.T) {
	b := setup(t)
	w := b.world()
	made := b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(object{
		"metric": object{"type": "unique_clicks"}, "guardrail": object{"metric": "complaints", "limit": 0.001}})})).is(201)
	for _, query := range []string{"?dry_run=true", ""} {
		b.do("POST", "/v1/campaigns/"+made.id()+"/send"+query, nil).fault(422, "/experiment/metric/type", "not_tracked")
	}
	b.do("POST", "/v1/campaigns/"+made.id()+"/schedule", object{"at": "2126-01-01T00:00:00Z"}).
		fault(422, "/experiment/metric/type", "not_tracked")
	b.do("PATCH", "/v1/campaigns/"+made.id(), object{"name": "Spring"}).is(200) // a draft may have the fault
	got := b.do("GET", "/v1/iterations/"+made.text("iteration_id"), nil).is(200)
	e := got.json["experiment"].(object)
	if e["metric"].(object)["type"] != "unique_clicks" || e["guardrail"].(object)["limit"] != 0.001 ||
		e["base_rate"] != 0.05 || e["effect"] != 0.01 {
		t.Errorf("%s", got.body)
	}
	late := b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(object{
		"duration": nil, "evaluate_at": "2126-01-01T00:00:00Z"})})).is(201)
	b.do("POST", "/v1/campaigns/"+late.id()+"/send?dry_run=true", nil).fault(422, "/experiment/evaluate_at", "out_of_range")
	b.do("POST", "/v1/campaigns/"+late.id()+"/schedule", object{"at": "2126-02-01T00:00:00Z"}).
		fault(422, "/experiment/evaluate_at", "out_of_range")
	id, _ := lemma.ParseID(lemma.PrefixCampaign, late.id())
	b.Exec(`update iterations set evaluate_at = now() - interval '1 day' where campaign_id = $1`, id)
	b.do("POST", "/v1/campaigns/"+late.id()+"/send", nil).fault(422, "/experiment/evaluate_at", "in_the_past")
	b.do("PATCH", "/v1/campaigns/"+late.id(), object{"name": "Spring"}).is(200)
	long := object{"metric": object{"event": strings.Repeat("a", 101)}}
	b.do("PATCH", "/v1/campaigns/"+late.id(), object{"experiment": experimentWith(long)}).
		fault(422, "/experiment/metric/event", "too_long")
}

// checkStop ends an experiment without a winner.
func (b *bundle) checkStop(w world) {
	b.T.Helper()
	made := b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(object{"sample_percent": 100})})).is(201)
	b.do("POST", "/v1/campaigns/"+made.id()+"/send", nil).is(202)
	campaign, _ := lemma.ParseID(lemma.PrefixCampaign, made.id())
	_, err := b.deps.Campaigns.Fanout(context.Background(), b.Workspace, campaign)
	b.Must(err)
	b.checkExplainedVariant(made.id())
	got := b.do("POST", "/v1/iterations/"+made.text("iteration_id")+"/stop", nil).is(202)
	if got.text("status") != "cancelled" || got.text("status_reason") != "stopped" {
		b.T.Errorf("%s", got.body)
	}
}

// Experiments that are refused, and why.
func TestExperimentsThatAreRefused(t *testing.T) {
	b := setup(t)
	w := b.world()
	variants := func(weights ...int) (all []object) {
		for i, weight := range weights {
			all = append(all, object{"name": string(rune('A' + i)), "weight": weight})
		}
		return all
	}
	for name, c := range map[string]struct {
		change  object
		pointer string
		code    string
	}{
		"weights that do not add up": {object{"variants": variants(50, 40)}, "/experiment/variants", "invalid_weight"},
		"one variant":                {object{"variants": variants(99)}, "/experiment/variants", "*"},
		"equal names": {object{"variants": []object{{"name": "A", "weight": 50}, {"name": "A", "weight": 50}}},
			"/experiment/variants/1/name", "duplicate"},
		"a cut-off in the past": {object{"duration": nil, "evaluate_at": "2020-01-01T00:00:00Z"}, "/experiment/evaluate_at", "in_the_past"},
		"a guardrail of a split": {object{"metric": nil, "duration": nil, "sample_percent": 100,
			"guardrail": object{"metric": "complaints", "limit": 0.01}}, "/experiment/guardrail", "not_allowed"},
		"a guardrail of opens":      {object{"guardrail": object{"metric": "opens", "limit": 0.01}}, "/experiment/guardrail/metric", "*"},
		"a guardrail without limit": {object{"guardrail": object{"metric": "complaints", "limit": 0}}, "/experiment/guardrail/limit", "*"},
		"an impossible effect":      {object{"base_rate": 0.995}, "/experiment/effect", "invalid"},
		"no sample":                 {object{"sample_percent": 0}, "/experiment/sample_percent", "*"},
		"no time":                   {object{"duration": nil}, "/experiment/duration", "required"},
		"two times":                 {object{"evaluate_at": "2126-01-01T00:00:00Z"}, "/experiment/evaluate_at", "not_allowed"},
		"no duration":               {object{"duration": "a day"}, "/experiment/duration", "bad_format"},
		"a long duration":           {object{"duration": "P29D"}, "/experiment/duration", "out_of_range"},
		"no metric":                 {object{"metric": nil}, "/experiment/metric", "required"},
		"a sample without a metric": {object{"metric": nil, "duration": nil}, "/experiment/sample_percent", "invalid"},
		"an empty metric":           {object{"metric": object{}}, "/experiment/metric", "invalid"},
		"opens with an event":       {object{"metric": object{"type": "unique_opens", "event": "bought"}}, "/experiment/metric", "invalid"},
		"an event of no name":       {object{"metric": object{"type": "event"}}, "/experiment/metric", "invalid"},
		"an unknown source": {object{"metric": object{"data_source_id": "ds_none", "sql": "select 1"}},
			"/experiment/metric/data_source_id", "unknown_id"},
		"SQL that is none": {object{"metric": object{"data_source_id": w.source, "sql": "select id, email from customers"}},
			"/experiment/metric/sql", "*"},
		"Liquid that is none": {object{"variants": []object{{"name": "A", "weight": 50}, {"name": "B", "weight": 50, "subject": "{{ x"}}},
			"/experiment/variants/1/subject", "*"},
		"an unknown template": {object{"variants": []object{{"name": "A", "weight": 50, "template_id": "tpl_none"}, {"name": "B", "weight": 50}}},
			"/experiment/variants/0/template_id", "unknown_id"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(c.change)}))
			answer.t = t
			answer.fault(422, c.pointer, c.code)
		})
	}
	split := object{"variants": variants(50, 50), "sample_percent": 100}
	made := b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": split})).is(201)
	b.do("PATCH", "/v1/campaigns/"+made.id(), object{"experiment": experimentWith(nil)}, header("If-Match", `"1"`)).is(200)
	got := b.do("PATCH", "/v1/campaigns/"+made.id(), object{"experiment": nil}, header("If-Match", `"2"`)).is(200)
	if got.json["iteration_id"] != nil {
		t.Errorf("%s", got.body)
	}
}
