package api

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/api/idempotency"
	"lemma/audience"
	"lemma/campaigns"
	"lemma/flows"
	"lemma/message"
	"lemma/providers"
	"lemma/webhooks"
)

func under(key string) option { return header("Idempotency-Key", key) }

func TestReplay(t *testing.T) {
	b := setup(t)
	in := object{"name": "News", "subject": "s", "text": "t"}
	first := b.do("POST", "/v1/templates", in, under("k1")).is(201)
	again := b.do("POST", "/v1/templates", in, under("k1")).is(201)
	if diff := cmp.Diff(string(first.body), string(again.body)); diff != "" {
		t.Error(diff)
	}
	if first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replayed: %q then %q", first.header.Get("Idempotent-Replayed"), again.header.Get("Idempotent-Replayed"))
	}
	for _, name := range []string{"Location", "Etag", "Content-Type"} {
		if first.header.Get(name) == "" || first.header.Get(name) != again.header.Get(name) {
			t.Errorf("%s is %q then %q", name, first.header.Get(name), again.header.Get(name))
		}
	}
	b.WantCount(1, `select count(*) from templates`)
	b.do("POST", "/v1/templates", in).is(409) // without the key, it is another request, and its name is taken
	b.do("POST", "/v1/templates", in, under("k1"), as(b.other)).is(201)
}

func TestKeyOfAnotherRequest(t *testing.T) {
	b := setup(t)
	in := object{"name": "News", "subject": "s", "text": "t"}
	path := "/v1/campaigns/" + idLike("cmp_") + "/send"
	b.do("POST", "/v1/templates", in, under("k1")).is(201)
	b.do("POST", path, nil, under("k2")).is(404)
	for name, got := range map[string]answered{
		"another body":  b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "u"}, under("k1")),
		"another path":  b.do("POST", "/v1/campaigns/"+idLike("cmp_")+"/pause", nil, under("k2")),
		"another query": b.do("POST", path+"?dry_run=false", nil, under("k2")),
	} {
		if got.status != 422 || got.problem.Code != "idempotency_key_reused" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	b.do("GET", "/v1/templates", nil, under("k1")).is(200) // without effect on other methods
}

// An answer is kept for the API key of its request. Another API key may lack scopes that
// the handler checks, so it is refused, before and after there is an answer.
func TestKeyOfAnotherAPIKey(t *testing.T) {
	b := setup(t)
	w := b.world()
	full, writer := b.key(b.Workspace, "audiences:write", "audiences:query"), b.key(b.Workspace, "audiences:write")
	in := object{"name": "Casts", "data_source_id": w.source, "sql": "select id, email, name::int as n from customers", "key_column": "id",
		"email_column": "email"}
	b.do("POST", "/v1/audiences", in, under("k1"), as(full)).is(201)
	for _, state := range []string{"answered", "lost"} {
		if got := b.do("POST", "/v1/audiences", in, under("k1"), as(writer)); got.status != 422 || got.problem.Code != "idempotency_key_reused" {
			t.Errorf("%s: %d %s", state, got.status, got.body)
		}
		b.lost("k1")
	}
	b.WantCount(1, `select count(*) from audiences where name = 'Casts'`)
	b.do("POST", "/v1/audiences", in, under("k1"), as(full)).is(201)
}

// A refusal is kept and replayed like any other answer.
func TestRefusalsAreReplayed(t *testing.T) {
	b := setup(t)
	path := "/v1/campaigns/" + idLike("cmp_") + "/send"
	first := b.do("POST", path, nil, under("k1")).is(404)
	again := b.do("POST", path, nil, under("k1")).is(404)
	delete(first.json, "request_id")
	if again.problem.RequestID != again.header.Get("X-Request-Id") || again.problem.RequestID == first.problem.RequestID {
		t.Errorf("request %s is answered as %s", again.header.Get("X-Request-Id"), again.problem.RequestID)
	}
	delete(again.json, "request_id")
	if diff := cmp.Diff(first.json, again.json); diff != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replayed %q: %s", again.header.Get("Idempotent-Replayed"), diff)
	}
}

// Requests of some bytes to verbs of a large object keep its answer each time, until the
// workspace has no room for more.
func TestLargeAnswersToSmallRequests(t *testing.T) {
	b := setup(t)
	w := b.world()
	headers := object{}
	for i := range 24 {
		headers["X-K"+string(rune('a'+i))] = strings.Repeat("v", 900)
	}
	in := w.newCampaign(object{"headers": headers})
	campaign := b.do("POST", "/v1/campaigns", in, under("create")).is(201).id()
	schedule := func(key, at string) answered {
		return b.do("POST", "/v1/campaigns/"+campaign+"/schedule", object{"at": at}, under(key))
	}
	schedule("k1", "2126-01-01T00:00:00Z").is(202)
	if excess := b.excess(); len(excess) != 1 || excess[0] < idempotency.SmallAnswer {
		t.Errorf("the answers count %d", excess)
	}
	b.Exec(`update idempotency_keys set excess = $1 where key = 'k1'`, idempotency.MaxExcess)
	schedule("k2", "2126-01-02T00:00:00Z").is(202)
	again := schedule("k2", "2126-01-02T00:00:00Z").is(409)
	if again.problem.Code != "answer_not_kept" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("repeated: %s", again.body)
	}
	schedule("k1", "2126-01-01T00:00:00Z").is(202)
	if at := b.do("GET", "/v1/campaigns/"+campaign, nil).is(200).json["scheduled_at"]; at != "2126-01-02T00:00:00Z" {
		t.Errorf("it is scheduled at %v", at)
	}
	in["name"] = "Another"
	b.do("POST", "/v1/campaigns", in, under("large")).is(201) // as large as its answer
	b.do("POST", "/v1/campaigns", in, under("large")).is(201)
}

func (b *bundle) excess() []int64 {
	b.T.Helper()
	rows, _ := b.Pool.Query(b.T.Context(), `select excess from idempotency_keys where excess is not null`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	b.Must(err)
	return all
}

// Concurrent requests under one key create one row. Each is answered with it, or with an
// error that can be retried.
func TestSameRequestsAtOnce(t *testing.T) {
	b := setup(t)
	in := object{"name": "Key", "scopes": []string{"campaigns:read"}}
	const n = 12
	got := make([]answered, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			got[i] = b.do("POST", "/v1/api_keys", in, under("race"))
		})
	}
	close(start)
	wg.Wait()
	made, tokens := map[string]bool{}, 0
	for _, a := range got {
		switch a.status {
		case 201:
			made[a.id()] = true
			if a.json["token"] != nil {
				tokens++
			}
		case 409:
			if a.problem.Code != "idempotency_in_progress" || a.header.Get("Retry-After") == "" {
				t.Errorf("in progress: %s", a.body)
			}
		default:
			t.Errorf("%d: %s", a.status, a.body)
		}
	}
	if n := b.Count(`select count(*) from api_keys where name = 'Key'`); n != 1 || len(made) != 1 || tokens != 1 {
		t.Errorf("%d keys in the table, %d ids and %d tokens answered", n, len(made), tokens)
	}
}

// The token of an API key is shown once. The answer that is kept has no token.
func TestTokenIsNotKept(t *testing.T) {
	b := setup(t)
	in := object{"name": "CI", "scopes": []string{"campaigns:read"}}
	first := b.do("POST", "/v1/api_keys", in, under("k1")).is(201)
	again := b.do("POST", "/v1/api_keys", in, under("k1")).is(201)
	if again.json["token"] != nil || again.id() != first.id() {
		t.Errorf("replayed: %s", again.body)
	}
	kept := ""
	b.Must(b.Pool.QueryRow(t.Context(), `
		select convert_from(body, 'utf8') || headers::text from idempotency_keys where key = 'k1'`).Scan(&kept))
	if strings.Contains(kept, first.text("token")) {
		t.Error("the token is in the table")
	}
	b.do("GET", "/v1/campaigns", nil, as(first.text("token"))).is(200)
}

// A request hangs before it creates a row. A second one takes over its key and creates
// the row, and a third deletes it. The first does not create it again.
func TestADeletedRowIsNotCreatedAgain(t *testing.T) {
	l := newEndpointTest(t)
	l.server = New(l.deps, Options{Log: slog.New(slog.DiscardHandler)})
	w := l.world()
	parse := func(prefix, id string) uuid.UUID { u, _ := lemma.ParseID(prefix, id); return u }
	source, people := parse(lemma.PrefixDataSource, w.source), parse(lemma.PrefixAudience, w.audience)
	template, provider := parse(lemma.PrefixTemplate, w.template), parse(lemma.PrefixProvider, w.provider)
	for table, create := range map[string]func(ctx context.Context, id uuid.UUID) error{
		"data_sources": func(ctx context.Context, id uuid.UUID) error {
			_, err := l.deps.Audiences.CreateSource(ctx, l.Workspace, audience.NewSource{ID: id, Name: "late", Kind: "postgres", DSN: l.DSN})
			return err
		},
		"audiences": func(ctx context.Context, id uuid.UUID) error {
			_, err := l.deps.Audiences.Create(ctx, l.Workspace,
				audience.NewAudience{ID: id, DataSourceID: source, Name: "late", SQL: goodSQL, KeyColumn: "id", EmailColumn: "email"})
			return err
		},
		"templates": func(ctx context.Context, id uuid.UUID) error {
			_, err := l.deps.Templates.Create(ctx, l.Workspace,
				message.NewTemplate{ID: id, Name: "late", Content: message.Content{Subject: "Hi", Text: "Hi"}})
			return err
		},
		"providers": func(ctx context.Context, id uuid.UUID) error {
			_, err := l.deps.Providers.Create(ctx, l.Workspace, providers.NewProvider{ID: id, Name: "late", Kind: "null"})
			return err
		},
		"campaigns": func(ctx context.Context, id uuid.UUID) error {
			_, err := l.deps.Campaigns.Create(ctx, l.Workspace, campaigns.NewCampaign{ID: id, Name: "late", AudienceID: people, TemplateID: template,
				ProviderID: provider, FromEmail: "news@shop.example"})
			return err
		},
		"webhook_endpoints": func(ctx context.Context, id uuid.UUID) error {
			_, _, err := l.deps.Webhooks.Create(ctx, l.Workspace, webhooks.NewEndpoint{ID: id, Name: "late", URL: "https://crm.example.com/late"})
			return err
		},
		"flows": func(ctx context.Context, id uuid.UUID) error {
			_, err := l.deps.Flows.Create(ctx, l.Workspace, flows.NewFlow{ID: id, Name: "late"})
			return err
		},
	} {
		first := l.postContext(table, func(ctx context.Context, c *call) (any, error) {
			l.Exec(`update idempotency_keys set locked_until = now() - interval '1 second' where key = $1`, table)
			if second := l.postContext(table,
				func(ctx context.Context, c *call) (any, error) { return none{}, create(ctx, c.newID) }); second.status != 201 {
				t.Errorf("%s: the second request: %d %s", table, second.status, second.body)
			}
			l.Exec(`delete from flow_shards`)
			l.Exec(`delete from provider_meters where provider_id = $1`, c.newID)
			l.Exec(`delete from template_versions where template_id = $1`, c.newID)
			l.Exec(`delete from `+table+` where id = $1`, c.newID)
			return none{}, create(context.WithoutCancel(ctx), c.newID)
		})
		if n := l.Count(`select count(*) from ` + table + ` where name = 'late'`); first.status != 409 || n != 0 {
			t.Errorf("%s: the first request: %d %s; there are %d", table, first.status, first.body, n)
		}
	}
}

// An event with a source_id is recorded once in any case, so its repetition does not wait
// for the lock of a request whose process crashed.
func TestEventWithIDNeedsNoLock(t *testing.T) {
	b := setup(t)
	event := object{"profile_key": "c1", "event": "signed_up"}
	for key, in := range map[string]object{"with": with(event, "source_id", "e1"), "without": event,
		"bulk": {"events": []object{with(event, "source_id", "e2")}}, "half": {"events": []object{with(event, "source_id", "e3"), event}}} {
		path := "/v1/events"
		if in["events"] != nil {
			path += "/bulk"
		}
		b.do("POST", path, in, under(key)).is(202)
		b.Exec(`update idempotency_keys set status = null, headers = null, body = null,
			locked_until = now() + interval '1 minute' where key = $1`, key)
		want := map[string]int{"with": 202, "without": 409, "bulk": 202, "half": 409}[key]
		b.do("POST", path, in, under(key)).is(want)
	}
	b.do("POST", "/v1/events", with(event, "source_id", "e4"), under("with")).is(422) // another body under the key
	b.WantCount(5, `select count(*) from trigger_events`)
}

func with(o object, name string, value any) object {
	all := object{name: value}
	maps.Copy(all, o)
	return all
}

// A repeated request returns the version that was made before its process crashed.
func TestVersionDoneAgain(t *testing.T) {
	b := setup(t)
	path := "/v1/templates/" + b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201).id() + "/versions"
	in := object{"subject": "s2", "html": "<p>h</p>"}
	b.do("POST", path, in, under("k")).is(201)
	b.Exec(`update idempotency_keys set status = null, headers = null, body = null, locked_until = now() - interval '1 second'`)
	if got := b.do("POST", path, in, under("k")).is(201); got.json["version"] != 2.0 {
		t.Errorf("done again: %s", got.body)
	}
	b.WantCount(2, `select count(*) from template_versions`)
}
