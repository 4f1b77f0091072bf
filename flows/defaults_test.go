package flows_test

import (
	"context"
	"strings"
	"testing"

	"lemma"
)

// Nodes send with inherited defaults, a fault in a default is reported once at its place,
// and a resource that a default names is in use.
func TestDefaultsOfSendNodes(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	provider := lemma.FormatID(lemma.PrefixProvider, b.Provider)
	text := `{"audience_id":"$audience","triggers":[{"type":"event","event":"hi"}],"recurrence":{"policy":"once"},
		"defaults":{"channel":"email","provider_id":"` + provider + `","from":{"email":"shop@shop.example"},"strategy":"at_most_once"},
		"start":"one","nodes":{"one":{"type":"send","template_id":"` + lemma.FormatID(lemma.PrefixTemplate, b.Template) + `","next":"two"},
			"two":{"type":"send","template_id":"` + lemma.FormatID(lemma.PrefixTemplate, b.Template) +
		`","strategy":"at_least_once","next":"end"},"end":{"type":"exit"}}}`
	v := b.validate(strings.Replace(text, provider, lemma.FormatID(lemma.PrefixProvider, lemma.NewID()), 1))
	if len(v.Faults) != 1 || v.Faults[0].Pointer != "/defaults/provider_id" || v.Faults[0].Code != "unknown_id" {
		t.Errorf("%+v", v.Faults)
	}
	b.Live(text)
	b.RecordEvent("c1", "hi")
	b.Settle()
	var from, providers, attempts string
	b.Must(b.Pool.QueryRow(ctx, `select string_agg(distinct c.from_email, ','), count(distinct b.provider_id)::text,
		string_agg(b.max_attempts::text, ',' order by b.max_attempts)
		from batches b join contents c on c.workspace_id = b.workspace_id and c.id = b.content_id where b.workspace_id = $1`,
		b.Workspace).Scan(&from, &providers, &attempts))
	if from != "shop@shop.example" || providers != "1" || attempts != "1,2" {
		t.Errorf("sent from %s by %s providers, attempts %s", from, providers, attempts)
	}
	b.WantCount(2, `select count(*) from flow_uses where workspace_id = $1 and provider_id = $2`, b.Workspace, b.Provider)
}
